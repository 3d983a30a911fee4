"""The platform on this machine: an object store with a shaped link."""

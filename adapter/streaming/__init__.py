"""From ranges in a store to mapped files: shard files that fill, the journal that says what is there, the cache."""

"""The local disk or a device does not do what is asked."""

from __future__ import annotations

from adapter.errors.base import AdapterError


class CacheError(AdapterError):
    """The cache directory cannot be used. Fields: path."""

    code = "cache"
    exit_code = 40


class NoSpace(CacheError):
    """The disk is full or would be. Fields: path, needed_bytes, free_bytes."""

    code = "cache.no_space"
    exit_code = 41


class CacheNotWritable(CacheError):
    """The cache directory cannot be written by this user."""

    code = "cache.not_writable"
    exit_code = 42


class LeaseTimeout(CacheError):
    """Another process held the lease on a shard longer than this start may wait."""

    code = "cache.lease_timeout"
    exit_code = 43
    retryable = True


class DeviceError(AdapterError):
    """A device could not be used."""

    code = "device"
    exit_code = 50


class DeviceUnavailable(DeviceError):
    """The device that was asked for is not on this machine."""

    code = "device.unavailable"
    exit_code = 51


class ForkedContext(DeviceError):
    """A device context made before a fork was used in the child."""

    code = "device.forked_context"
    exit_code = 52

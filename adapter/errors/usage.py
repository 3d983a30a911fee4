"""What the user wrote or set is not usable."""

from __future__ import annotations

from adapter.errors.base import AdapterError


class ConfigurationError(AdapterError):
    """A setting, flag or argument has no usable value; the message names it."""

    code = "configuration"
    exit_code = 10


class HandlerImportError(AdapterError):
    """The handler's module could not be imported."""

    code = "handler.import"
    exit_code = 11


class HandlerNotFound(AdapterError):
    """The module has no such handler, or what is there is not one."""

    code = "handler.not_found"
    exit_code = 12


class HandlerDefinitionError(AdapterError):
    """`coldstart_handler` was used in a way that cannot work."""

    code = "handler.definition"
    exit_code = 13


class LoadError(AdapterError):
    """The user's `load` raised."""

    code = "load"
    exit_code = 14


class WarmUpError(AdapterError):
    """A recorded warm-up call raised."""

    code = "warm_up"
    exit_code = 15


class InitTimeout(AdapterError):
    """The start did not reach readiness in time; the message names the stage and its progress."""

    code = "init_timeout"
    exit_code = 16
    retryable = True


class MissingExtra(AdapterError):
    """An optional part is not installed; the message names the extra to install."""

    code = "missing_extra"
    exit_code = 17


class PlatformUnsupported(AdapterError):
    """This operating system cannot run what was asked."""

    code = "platform_unsupported"
    exit_code = 18

"""Finds the handler that `module:name` names, and says what is wrong where it cannot."""

from __future__ import annotations

import difflib
import importlib
import sys
from types import ModuleType
from typing import Any, cast

from adapter.errors import AdapterError, HandlerImportError, HandlerNotFound
from adapter.handler.decorated import ColdstartHandler
from adapter.invocation import Cancelled, error_text, user_frame, user_trace


def split_target(target: str) -> tuple[str, str]:
    """Module and name of `module:name`.

    Raises:
        HandlerNotFound: It is not of that form; the message shows what would be.
    """
    module, colon, name = target.partition(":")
    if colon and not module.endswith(".py") and all(part.isidentifier() for part in f"{module}.{name}".split(".")):
        return module, name
    path, _, name = target.rpartition(":") if colon else (target, "", "")
    guess = path.removesuffix(".py").strip("./").replace("/", ".")
    if not colon and not target.endswith(".py") and "/" not in target:
        guess, _, name = guess.rpartition(".")
    proper = all(part.isidentifier() for part in guess.split("."))
    hint = f": is {guess}:{name or 'NAME'} meant?" if proper else ", such as handlers.echo:echo"
    raise HandlerNotFound(f"{target!r} does not name a handler as module:name{hint}", target=target)


def find_handler(target: str) -> ColdstartHandler[Any, ..., Any]:
    """The handler that `module:name` names; imports the module by the search path as it is.

    Raises:
        HandlerImportError: The module is not there, or its import raised or called `sys.exit`.
            Fields: module, file, line, error_type, trace.
        HandlerNotFound: The module has no such handler; the message lists those that are there.
        HandlerDefinitionError: A handler in it was decorated in a way that cannot work.
    """
    module_name, name = split_target(target)
    module = _import(module_name)
    found: Any = module
    for step in name.split("."):
        if not hasattr(found, step):
            raise _not_found(target, module, name, "has no such name")
        found = getattr(found, step)
    if isinstance(found, ColdstartHandler):
        return cast("ColdstartHandler[Any, ..., Any]", found)
    is_what = f"a {type(found).__name__}" + (
        " that is not decorated with @coldstart_handler" if callable(found) else ""
    )
    raise _not_found(target, module, name, f"is {is_what}")


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (AdapterError, KeyboardInterrupt, Cancelled):
        raise
    except BaseException as error:
        raise _import_failed(name, error) from error


def _import_failed(name: str, error: BaseException) -> HandlerImportError:
    file, line = user_frame(error) or ("", 0)
    place = f" ({file}:{line})" if file else ""
    if (
        isinstance(error, ModuleNotFoundError)
        and error.name
        and (name == error.name or name.startswith(error.name + "."))
    ):
        searched = ", ".join(entry or "." for entry in sys.path[:3])
        message = f"the handler's module {name} is not there: no {error.name} on the search path ({searched}, …)"
    elif isinstance(error, ModuleNotFoundError):
        message = f"{name} imports {error.name}, which is not there{place}"
    elif isinstance(error, SystemExit):
        message = f"{name} ended the process with sys.exit({error.code!r}) while it was imported{place}"
    else:
        message = f"importing {name} raised {error_text(error)}{place}"
    return HandlerImportError(
        message, module=name, file=file, line=line, error_type=type(error).__name__, trace=user_trace(error)
    )


def _not_found(target: str, module: ModuleType, name: str, problem: str) -> HandlerNotFound:
    there = sorted(key for key, value in vars(module).items() if isinstance(value, ColdstartHandler))
    near = difflib.get_close_matches(name, there, 1)
    listed = f"handlers there: {', '.join(there)}" if there else "the module has no handler (@coldstart_handler)"
    meant = f"; is {near[0]} meant?" if near else ""
    file: str | None = getattr(module, "__file__", None)  # a namespace package has none
    return HandlerNotFound(
        f"{target}: {name} in {file or module.__name__} {problem}; {listed}{meant}",
        target=target,
        file=file,
        handlers=", ".join(there),
    )

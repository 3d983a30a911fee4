from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from adapter.errors import HandlerDefinitionError, HandlerImportError, HandlerNotFound
from adapter.handler import find_handler

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a module of the user's (`user_...`), importable for this test."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(path: str, text: str) -> Path:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
        return file

    yield write
    for name in [name for name in sys.modules if name.startswith("user_")]:
        del sys.modules[name]


HANDLERS = """
    from adapter import coldstart_handler

    @coldstart_handler
    def echo(event):
        return event

    @coldstart_handler
    def count(event):
        yield event

    def plain(event):
        return event

    class Space:
        inner = echo
"""


def test_a_handler_is_found_by_module_and_name(write: Write) -> None:
    write("user_found/deep/mod.py", HANDLERS)
    assert find_handler("user_found.deep.mod:echo")({"a": 1}) == {"a": 1}
    assert find_handler("user_found.deep.mod:Space.inner").spec.name == "user_found.deep.mod:echo"


def test_a_missing_name_lists_the_handlers_that_are_there(write: Write) -> None:
    """S-29: handler name missing."""
    file = write("user_names.py", HANDLERS)
    with pytest.raises(HandlerNotFound) as caught:
        find_handler("user_names:ecko")
    assert f"ecko in {file} has no such name; handlers there: count, echo; is echo meant?" in caught.value.message
    assert caught.value.fields["handlers"] == "count, echo"


def test_a_name_that_is_no_handler_is_told_what_it_is(write: Write) -> None:
    write("user_plain.py", HANDLERS)
    with pytest.raises(HandlerNotFound, match=r"is a function that is not decorated with @coldstart_handler"):
        find_handler("user_plain:plain")
    write("user_empty.py", "answer = 42")
    with pytest.raises(HandlerNotFound, match=r"is a int; the module has no handler"):
        find_handler("user_empty:answer")


def test_a_namespace_package_has_no_handler(write: Write) -> None:
    write("user_space/mod.py", HANDLERS)
    with pytest.raises(HandlerNotFound, match="echo in user_space has no such name"):
        find_handler("user_space:echo")


@pytest.mark.parametrize(
    ("target", "meant"),
    [
        ("handlers.echo", "is handlers:echo meant"),
        ("handlers/echo.py:echo", "is handlers.echo:echo meant"),
        ("./handlers/echo.py", "is handlers.echo:NAME meant"),
        ("handlers/echo", "is handlers.echo:NAME meant"),
        ("echo", "such as handlers.echo:echo"),
        ("", "such as handlers.echo:echo"),
        (":", "such as handlers.echo:echo"),
        ("a:b:c", "does not name a handler as module:name"),
        ("handlers.echo:", "is handlers.echo:NAME meant"),
        ("a b:c", "such as handlers.echo:echo"),
        (".echo:echo", "does not name a handler"),
    ],
)
def test_another_form_of_target_is_answered_with_the_right_one(target: str, meant: str) -> None:
    with pytest.raises(HandlerNotFound) as caught:
        find_handler(target)
    assert meant in caught.value.message


def test_a_missing_module_is_told_from_a_missing_dependency(write: Write) -> None:
    """S-29: handler module that isn't there."""
    with pytest.raises(HandlerImportError, match=r"no user_absent on the search path \(") as caught:
        find_handler("user_absent.mod:echo")
    assert caught.value.fields["module"] == "user_absent.mod"
    file = write("user_needs.py", "x = 1\nimport a_library_not_installed\n")
    with pytest.raises(HandlerImportError) as caught:
        find_handler("user_needs:echo")
    assert caught.value.message == f"user_needs imports a_library_not_installed, which is not there ({file}:2)"


def test_a_syntax_error_is_told_with_its_place(write: Write) -> None:
    """S-29: module with a syntax error."""
    file = write("user_syntax.py", "x = 1\ndef broken(:\n")
    with pytest.raises(HandlerImportError) as caught:
        find_handler("user_syntax:echo")
    assert (caught.value.fields["file"], caught.value.fields["line"]) == (str(file), 2)
    assert "raised SyntaxError: " in caught.value.message
    assert "def broken(:" in str(caught.value.fields["trace"])


def test_an_error_at_import_is_told_with_the_users_frames_alone(write: Write) -> None:
    """S-29: module raising at import."""
    helper = write("user_helper.py", "def check():\n    raise RuntimeError('no GPU licence')\n")
    file = write("user_raises.py", "import user_helper\n\nuser_helper.check()\n")
    with pytest.raises(HandlerImportError) as caught:
        find_handler("user_raises:echo")
    error = caught.value
    assert error.message == f"importing user_raises raised RuntimeError: no GPU licence ({helper}:2)"
    assert (error.fields["error_type"], error.exit_code) == ("RuntimeError", 11)
    trace = str(error.fields["trace"])
    assert f'File "{file}", line 3' in trace
    assert f'File "{helper}", line 2' in trace
    assert "importlib" not in trace
    assert "adapter/handler" not in trace


def test_an_exit_at_import_is_an_import_error(write: Write) -> None:
    """S-29: init calling `sys.exit(3)`."""
    file = write("user_exits.py", "import sys\nsys.exit(3)\n")
    with pytest.raises(HandlerImportError) as caught:
        find_handler("user_exits:echo")
    assert caught.value.message == (f"user_exits ended the process with sys.exit(3) while it was imported ({file}:2)")


def test_a_handler_that_cannot_work_keeps_its_own_error(write: Write) -> None:
    write("user_wrong.py", "from adapter import coldstart_handler\n\n@coldstart_handler\ndef echo():\n    pass\n")
    with pytest.raises(HandlerDefinitionError, match="must take"):
        find_handler("user_wrong:echo")

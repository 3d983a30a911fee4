from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.handler_source import literal_address, source_file

ADDRESS = "s3://models/minilm/"


def address(tmp_path: Path, text: str, target: str = "user.mod:embed") -> str | None:
    """What is read from a module; one that would explode if it were run."""
    file = tmp_path / (target.partition(":")[0].replace(".", "/") + ".py")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(textwrap.dedent(text) + "\nraise SystemExit('it was run')\n")
    return literal_address(target, [str(tmp_path)])


@pytest.mark.parametrize(
    "text",
    [
        """
        from adapter import coldstart_handler
        @coldstart_handler(weights="s3://models/minilm/", load=load)
        def embed(model, event): ...
        """,
        """
        from adapter import coldstart_handler
        MODEL: Final = "s3://models/minilm/"
        @logged
        @coldstart_handler(load=load, weights=MODEL)
        async def embed(model, event): ...
        """,
        """
        import adapter
        @adapter.coldstart_handler(weights="s3://models/" "minilm/")
        class embed:
            MODEL = 3
        """,
        """
        import adapter.handler as cold
        @cold.coldstart_handler(weights="s3://models/minilm/")
        def embed(weights, event): ...
        """,
        """
        try:
            from adapter import coldstart_handler as handler
        except ImportError:
            handler = None
        def _embed(weights, event): ...
        embed = handler(weights="s3://models/minilm/")(_embed)
        """,
        """
        from adapter import coldstart_handler
        def embed(event): ...
        @coldstart_handler(weights="s3://models/minilm/")
        def embed(weights, event): ...
        """,
    ],
)
def test_the_address_is_read_without_running_the_module(tmp_path: Path, text: str) -> None:
    """D1."""
    assert address(tmp_path, text) == ADDRESS
    assert "user.mod" not in sys.modules


@pytest.mark.parametrize(
    "text",
    [
        "",
        "def embed(event): ...",
        "from adapter import coldstart_handler\n@coldstart_handler\ndef embed(event): ...",
        "from adapter import coldstart_handler\n@coldstart_handler(load=load)\ndef embed(model, event): ...",
        "from adapter import coldstart_handler\n@coldstart_handler(weights=None)\ndef embed(event): ...",
        "from adapter import coldstart_handler\n@coldstart_handler(weights=os.environ['W'])\ndef embed(w, e): ...",
        "from adapter import coldstart_handler\n@coldstart_handler(weights=f'{BASE}/x')\ndef embed(w, e): ...",
        "from adapter import coldstart_handler\n@coldstart_handler(**options)\ndef embed(w, e): ...",
        # decided at run time: read only where it is bound once, and to text
        (
            "from adapter import coldstart_handler\nM = 's3://a/'\nif GPU:\n    M = 's3://b/'\n"
            "@coldstart_handler(weights=M)\ndef embed(w, e): ..."
        ),
        (
            "from adapter import coldstart_handler\nM = 's3://a/'\nM += 'b/'\n"
            "@coldstart_handler(weights=M)\ndef embed(w, e): ..."
        ),
        (
            "from adapter import coldstart_handler\nfrom settings import M\n"
            "@coldstart_handler(weights=M)\ndef embed(w, e): ..."
        ),
        # not ours
        "from other import coldstart_handler\n@coldstart_handler(weights='s3://a/')\ndef embed(w, e): ...",
        "from .adapter import coldstart_handler\n@coldstart_handler(weights='s3://a/')\ndef embed(w, e): ...",
        "@coldstart_handler(weights='s3://a/')\ndef embed(w, e): ...",
        # another handler's, or one that is replaced later
        "from adapter import coldstart_handler\n@coldstart_handler(weights='s3://a/')\ndef other(w, e): ...",
        (
            "from adapter import coldstart_handler\n@coldstart_handler(weights='s3://a/')\ndef embed(w, e): ...\n"
            "embed = wrap(embed)"
        ),
        "def embed(:",
        "\0",
        "x = " + "(" * 5000,
        "@" + ".".join("a" * 5000) + "()\ndef embed(): ...",
    ],
)
def test_what_is_not_certain_is_left_to_the_import(tmp_path: Path, text: str) -> None:
    assert address(tmp_path, text) is None


HANDLER = f"from adapter import coldstart_handler\n@coldstart_handler(weights='{ADDRESS}')\ndef embed(w, e): ...\n"


@pytest.mark.parametrize(
    "text",
    [
        "from user.model import embed",
        "from .model import embed",
        "from . import other\nfrom .model import *\nfrom .model import encode as embed",
    ],
)
def test_a_handler_imported_by_name_is_followed(tmp_path: Path, text: str) -> None:
    package = tmp_path / "user"
    package.mkdir()
    (package / "__init__.py").write_text(text)
    (package / "model.py").write_text(HANDLER + "encode = 3\n" + HANDLER.replace("embed", "encode"))
    assert literal_address("user:embed", [str(tmp_path)]) == ADDRESS


def test_a_circle_of_imports_ends(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("from b import embed")
    (tmp_path / "b.py").write_text("from a import embed")
    assert literal_address("a:embed", [str(tmp_path)]) is None


def test_relative_imports_beyond_the_top_lead_nowhere(tmp_path: Path) -> None:
    assert address(tmp_path, "from ...model import embed") is None


def test_packages_are_walked_without_being_imported(tmp_path: Path) -> None:
    (tmp_path / "outer" / "inner").mkdir(parents=True)
    (tmp_path / "outer" / "__init__.py").write_text("raise SystemExit('it was run')")
    file = tmp_path / "outer" / "inner" / "mod.py"
    file.write_text(HANDLER)
    (tmp_path / "space" / "deep").mkdir(parents=True)
    (tmp_path / "space" / "deep" / "mod.py").write_text(HANDLER)
    path = [str(tmp_path / "absent"), str(tmp_path)]
    assert source_file("outer.inner.mod", path) == file
    assert literal_address("outer.inner.mod:embed", path) == ADDRESS
    assert literal_address("space.deep.mod:embed", path) == ADDRESS
    assert source_file("outer.inner", path) is None
    assert source_file("outer.inner.mod.more", path) is None
    assert not {"outer", "space"} & set(sys.modules)


def test_an_empty_entry_of_the_search_path_is_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here.py").write_text(HANDLER)
    monkeypatch.chdir(tmp_path)
    assert literal_address("here:embed", [""]) == ADDRESS


def test_the_first_of_the_search_path_wins(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "both.py").write_text(HANDLER.replace(ADDRESS, f"s3://{name}/"))
    assert literal_address("both:embed", [str(tmp_path / "first"), str(tmp_path / "second")]) == "s3://first/"


@pytest.mark.parametrize(
    "target", ["", ":", "mod", "mod:", ":embed", "..:embed", "no.such:embed", "sys:embed", "a:b.c"]
)
def test_a_target_that_leads_nowhere_gives_nothing(tmp_path: Path, target: str) -> None:
    assert literal_address(target, [str(tmp_path)]) is None


@given(
    st.text(
        alphabet=st.sampled_from("@coldstart_handler(weights='s')\n:.=,* defembdimportfaclasy0123\t#"), max_size=300
    )
)
def test_no_source_makes_it_raise(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    base = tmp_path_factory.mktemp("source")
    (base / "mod.py").write_text(HANDLER + text)
    assert literal_address("mod:embed", [str(base)]) in (ADDRESS, None)

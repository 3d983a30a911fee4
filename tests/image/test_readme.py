"""infra/README.md says what the Dockerfile and the compose file take."""

from __future__ import annotations

import re

from tests.support.dockerfile import read_dockerfile
from tests.support.source_tree import ROOT

README = ROOT / "infra" / "README.md"
TEXT = README.read_text()


def names(heading: str) -> set[str]:
    """The names in the first column of the table under a heading."""
    table = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def test_its_build_arguments_are_those_of_the_dockerfile() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert names("Build") == set(re.findall(r"^ARG (\w+)", text, re.MULTILINE))
    assert set(re.findall(r"--build-arg (\w+)", TEXT + text)) <= names("Build")


def test_its_variables_are_those_of_the_compose_file() -> None:
    text = (ROOT / "infra" / "compose.yaml").read_text()
    assert names("Compose: macOS and Windows") == set(re.findall(r"\$\{(\w+):-", text))


def test_every_file_that_it_names_is_there() -> None:
    linked = re.findall(r"\]\(([^)#:]+)\)", TEXT)
    assert [link for link in linked if not (README.parent / link).exists()] == []


def test_the_paths_in_it_are_those_of_the_image() -> None:
    final = read_dockerfile(ROOT / "Dockerfile")["final"]
    assert f":{final.pairs('ENV')['COLDSTART_CACHE_DIR']} " in TEXT
    assert f"{final.last('WORKDIR').text}/my_handlers" in TEXT
    assert f":{final.last('EXPOSE').text} " in TEXT

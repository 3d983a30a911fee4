"""The Dockerfile, as far as it can be judged without an engine."""

from __future__ import annotations

import argparse
import importlib
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from adapter.cli.main import COMMANDS
from adapter.handler_source import source_file
from adapter.settings import Settings
from tests.support.dockerfile import Ignored, Instruction, Stage, context_files, installed_tool, read_dockerfile
from tests.support.source_tree import ROOT

STAGES = read_dockerfile(ROOT / "Dockerfile")
FINAL = STAGES["final"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def lineage(stage: Stage) -> Iterator[Stage]:
    """A stage and those that it is made from."""
    yield stage
    if stage.parent in STAGES:
        yield from lineage(STAGES[stage.parent])


def from_context(stage: Stage) -> list[Instruction]:
    """What is copied from the context, not from another stage."""
    return [copy for copy in stage.all("COPY") if "from" not in copy.flags]


def test_the_linter_of_dockerfiles_has_nothing_to_say() -> None:
    done = subprocess.run(
        [installed_tool("hadolint"), "Dockerfile"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_what_is_copied_is_there_and_reaches_the_builder() -> None:
    context = context_files(ROOT)
    for stage in STAGES.values():
        for copy in from_context(stage):
            for source in copy.words[:-1]:
                assert any(f"{path}/".startswith(f"{source}/") for path in context), source


def test_what_is_copied_from_a_stage_was_made_by_it() -> None:
    for stage in STAGES.values():
        for copy in stage.all("COPY"):
            if "from" in copy.flags:
                origin = STAGES[copy.flags["from"]]
                made = " ".join(part.text for stage in lineage(origin) for part in stage.instructions)
                for source in copy.words[:-1]:
                    assert source.rstrip("/") in made or Path(source).name in made


def test_the_builder_is_given_nothing_but_what_is_copied() -> None:
    """No weights, credentials, history or environment can slip into an image."""
    copied = {source for stage in STAGES.values() for copy in from_context(stage) for source in copy.words[:-1]}
    assert [path for path in context_files(ROOT) if not any(f"{path}/".startswith(f"{one}/") for one in copied)] == []
    ignored = Ignored((ROOT / ".dockerignore").read_text())
    for path in (
        ".git/config",
        ".env",
        ".venv/bin/python",
        "models/minilm/model.safetensors",
        "infra/compose.yaml",
        "adapter/__pycache__/errors.cpython-311.pyc",
        "handlers/old.pyc",
    ):
        assert ignored(path), path
    assert not ignored("adapter/cli/serve.py")
    assert not ignored("infra/healthcheck.py")


def test_layers_lie_in_the_order_of_change() -> None:
    """An edit of code must not move torch."""
    assert [copy.flags.get("from", "context") for copy in FINAL.all("COPY")] == [
        "context",  # the health check
        "torch",
        "dependencies",
        "package",
        "handlers",
    ]
    for name in ("torch", "dependencies"):
        assert [copy.text for stage in lineage(STAGES[name]) for copy in from_context(stage)] == []
        read = {Path(path).name for copy in STAGES[name].all("COPY") for path in copy.words[:-1]}
        assert read <= {"torch.txt", "requirements.txt", "constraints.txt"}


def test_the_image_has_neither_compiler_nor_pip_nor_their_leftovers() -> None:
    runs = [run.text for stage in lineage(FINAL) for run in stage.all("RUN")]
    installed = re.findall(r"apt-get install -y --no-install-recommends ([^&]+)", " ".join(runs))
    assert [set(packages.split()) for packages in installed] == [{"ca-certificates", "python3"}]
    assert all("rm -rf /var/lib/apt/lists/*" in run for run in runs if "apt-get" in run)
    assert "--without-pip" in " ".join(run.text for run in STAGES["tools"].all("RUN"))
    for stage in STAGES.values():
        for run in stage.all("RUN"):
            assert "pip --python" not in run.text or "target=/root/.cache/pip" in run.flags["mount"]


def test_byte_code_is_made_for_everything_that_is_installed() -> None:
    made = {"torch": "/opt/coldstart/lib", "dependencies": "/layer", "package": "/layer", "handlers": "/layer"}
    for name, source in made.items():
        compiled = [run.text for run in STAGES[name].all("RUN") if "compileall" in run.text]
        assert compiled, name
        assert source in compiled[-1]
    # handlers may be replaced by an image made from this one: their byte code must be checked against the source
    assert "--invalidation-mode checked-hash" in STAGES["handlers"].last("RUN").text


def test_it_runs_as_a_number_that_is_not_root() -> None:
    """runAsNonRoot cannot judge a name."""
    user, _, group = FINAL.last("USER").text.partition(":")
    assert int(user) >= 1000
    assert int(group) >= 1000
    assert f"--uid {user}" in " ".join(run.text for run in FINAL.all("RUN"))


def test_it_starts_the_entry_point_of_this_project_without_a_shell() -> None:
    """A shell as PID 1 would keep SIGTERM from the supervisor."""
    entry = FINAL.last("ENTRYPOINT").exec_form
    command = FINAL.last("CMD").exec_form
    assert entry is not None
    assert command is not None
    (script,) = entry
    assert script in PROJECT["scripts"]
    assert FINAL.pairs("ENV")["PATH"].split(":")[0] == "/opt/coldstart/bin"
    assert FINAL.last("STOPSIGNAL").text == "SIGTERM"
    parser = argparse.ArgumentParser()
    importlib.import_module(COMMANDS[command[0]].module).add_parser(parser.add_subparsers())
    target = parser.parse_args(command).target
    module, _, name = target.partition(":")
    found = source_file(module, [str(ROOT)])
    assert found is not None
    assert f"def {name}(" in found.read_text()


def test_the_environment_is_what_the_adapter_reads() -> None:
    environment = FINAL.pairs("ENV")
    ours = {name for name in environment if name.startswith("COLDSTART_")}
    assert ours <= {f"COLDSTART_{field.name.upper()}" for field in fields(Settings)}
    assert environment["LD_LIBRARY_PATH"] == ""
    assert environment["PYTHONUNBUFFERED"] == "1"
    settings = Settings.from_env(environment)
    assert settings.port == int(FINAL.last("EXPOSE").text)
    # anyone's to fill, root's to own: the adapter refuses a cache that belongs to another user, and takes one of root's
    assert f"install -d -m 1777 {settings.cache_dir}" in " ".join(run.text for run in FINAL.all("RUN"))


def test_versions_are_those_of_the_project() -> None:
    assert FINAL.pairs("ARG")["VERSION"] == PROJECT["version"]
    labels = FINAL.pairs("LABEL")
    assert labels["org.opencontainers.image.licenses"] == PROJECT["license"]
    assert labels["org.opencontainers.image.title"] == PROJECT["name"]


def test_torch_is_the_release_that_is_tested_and_the_rest_is_what_the_project_asks_for(tmp_path: Path) -> None:
    """The stage that reads pyproject.toml, run as it stands."""
    constraints = (ROOT / "constraints.txt").read_text()
    for path in from_context(STAGES["requirements"])[0].words[:-1]:
        shutil.copy(ROOT / path, tmp_path)
    (run,) = STAGES["requirements"].all("RUN")
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    subprocess.run(["/bin/sh", "-c", run.text], cwd=tmp_path, env=environment, check=True)
    asked = (tmp_path / "requirements.txt").read_text().split("\n")[:-1]
    assert asked == PROJECT["dependencies"] + PROJECT["optional-dependencies"]["examples"]
    assert (tmp_path / "torch.txt").read_text().splitlines() == re.findall(r"^torch==.*$", constraints, re.MULTILINE)

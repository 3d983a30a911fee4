"""The compose file: its schema, and that its commands, names and ports are those of the programs."""

from __future__ import annotations

import argparse
import importlib
import re
import subprocess
from dataclasses import fields
from typing import Any

import pytest
import yaml

from adapter.cli.main import COMMANDS
from adapter.settings import Settings
from tests.support.dockerfile import installed_tool, read_dockerfile
from tests.support.source_tree import ROOT

STAGES = read_dockerfile(ROOT / "Dockerfile")
FINAL = STAGES["final"]
FILE = ROOT / "infra" / "compose.yaml"
SERVICES: dict[str, Any] = yaml.safe_load(FILE.read_text())["services"]


def filled(value: str) -> str:
    """A value as compose reads it where no variable is set."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value)


def arguments(service: str) -> argparse.Namespace:
    """What the service's command is parsed to."""
    command = [filled(word) for word in SERVICES[service]["command"]]
    parser = argparse.ArgumentParser()
    importlib.import_module(COMMANDS[command[0]].module).add_parser(parser.add_subparsers())
    return parser.parse_args(command)


def test_it_is_a_compose_file() -> None:
    command = [installed_tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(FILE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_store_is_where_the_emulator_looks() -> None:
    store = arguments("store")
    assert SERVICES["emulator"]["environment"]["AWS_ENDPOINT_URL_S3"] == f"http://store:{store.port}"
    assert store.host == "0.0.0.0"
    (models,) = SERVICES["store"]["volumes"]
    assert models["read_only"] is True
    # the handler's own address is s3://models/…: the bucket is the directory of this name
    assert models["target"] == f"{store.directory}/models"
    assert "ports" not in SERVICES["store"], "it takes any credentials"


def test_the_emulator_is_reached_from_this_machine_only() -> None:
    emulator = arguments("emulator")
    assert SERVICES["emulator"]["ports"] == [f"127.0.0.1:{emulator.port}:{emulator.port}"]
    assert emulator.host == "0.0.0.0"
    assert emulator.target == (FINAL.last("CMD").exec_form or [""])[-1]


def test_the_cache_is_a_volume_where_the_image_has_its_cache() -> None:
    cache = FINAL.pairs("ENV")["COLDSTART_CACHE_DIR"]
    assert str(arguments("emulator").cache_dir) == cache
    assert f"cache:{cache}" in SERVICES["emulator"]["volumes"]
    handlers = next(volume for volume in SERVICES["emulator"]["volumes"] if isinstance(volume, dict))
    assert handlers["target"] == f"{FINAL.last('WORKDIR').text}/handlers"
    assert (FILE.parent / filled(handlers["source"])).resolve() == ROOT / "handlers"


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_service_may_do_no_more_than_it_must(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert "privileged" not in service
    # Docker's own 10 s would cut a drain short
    settings = Settings.from_env(FINAL.pairs("ENV"))
    assert float(service["stop_grace_period"].removesuffix("s")) > settings.grace_s
    ours = {variable for variable in service.get("environment", {}) if variable.startswith("COLDSTART_")}
    assert ours <= {f"COLDSTART_{field.name.upper()}" for field in fields(Settings)}


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_its_image_is_built_as_the_dockerfile_says(name: str) -> None:
    build = SERVICES[name]["build"]
    assert (FILE.parent / build["context"]).resolve() == ROOT
    assert filled(build["args"]["TORCH_INDEX"]) == STAGES["torch"].pairs("ARG")["TORCH_INDEX"]


@pytest.mark.parametrize(("name", "path"), [("store", "/-/requests"), ("emulator", "/health")])
def test_health_is_asked_where_it_is_told(name: str, path: str) -> None:
    probe = SERVICES[name]["healthcheck"]["test"]
    own = FINAL.last("HEALTHCHECK").text.partition("CMD")[2]
    assert probe[0] == "CMD"
    assert all(word in own for word in probe[1:-2])
    assert probe[-2:] == [str(arguments(name).port), path]

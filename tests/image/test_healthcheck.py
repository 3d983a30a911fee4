"""The image's health check, as the engine would run it, against real servers."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from adapter.settings import Settings
from tests.support.dockerfile import read_dockerfile
from tests.support.replicas import running_replica, write_module
from tests.support.source_tree import ROOT

FINAL = read_dockerfile(ROOT / "Dockerfile")["final"]
PROBE = ROOT / "infra" / "healthcheck.py"


def probe(environment: Mapping[str, str], *arguments: str) -> tuple[int, str]:
    """Exit code and output of the check, without site-packages as in the image."""
    command = [sys.executable, "-I", "-S", str(PROBE), *arguments]
    done = subprocess.run(command, env=dict(environment), capture_output=True, text=True, check=False, timeout=20)
    assert done.stderr == ""
    return done.returncode, done.stdout.strip()


def test_the_image_runs_this_file() -> None:
    (copied,) = [copy.words for copy in FINAL.all("COPY") if copy.words[0] == "infra/healthcheck.py"]
    check = FINAL.last("HEALTHCHECK")
    assert check.text == f'CMD ["/usr/bin/python3", "-I", "-S", "{copied[1]}"]'
    # or it would be killed before it has said why
    assert float(check.flags["timeout"].removesuffix("s")) > float(
        re.findall(r"TIMEOUT_S = (.+)", PROBE.read_text())[0]
    )


@pytest.mark.parametrize(
    "environment",
    [{}, {"PORT": "18081"}, {"COLDSTART_PORT": "18082"}, {"PORT": "18081", "COLDSTART_PORT": "18082"}, {"PORT": ""}],
)
def test_it_asks_the_port_that_the_replica_takes(environment: dict[str, str]) -> None:
    _, said = probe(environment | {"COLDSTART_HOST": "127.0.0.77"})  # nobody listens there
    assert said.startswith(f"/health/live on port {Settings.from_env(environment).port}: ")


def test_it_is_content_with_a_replica_that_lives_and_not_with_one_that_is_gone(tmp_path: Path) -> None:
    with running_replica("handlers.echo:echo", tmp_path) as replica:
        environment = {"COLDSTART_PORT": str(replica.port)}
        assert probe(environment) == (0, f"/health/live on port {replica.port}: 200")
        assert probe({}, str(replica.port), "/nowhere") == (1, f"/nowhere on port {replica.port}: 404")
    assert probe(environment)[0] == 1


def test_it_is_content_with_a_start_that_takes_long(tmp_path: Path) -> None:
    """Who replaces unhealthy containers must not cut a start short."""
    write_module(
        tmp_path,
        "waiting",
        """
        import threading
        from adapter import coldstart_handler

        def load():
            threading.Event().wait()

        @coldstart_handler(load=load)
        def handle(model, event):
            return event
        """,
    )
    with running_replica("waiting:handle", tmp_path) as replica:
        assert replica.get("/health/ready").status == 503
        assert probe({"COLDSTART_PORT": str(replica.port)})[0] == 0


@pytest.mark.parametrize("port", ["0", "70000", "http"])
def test_a_port_that_is_none_is_a_failure_and_no_traceback(port: str) -> None:
    assert probe({"COLDSTART_PORT": port})[0] == 1

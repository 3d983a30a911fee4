"""The Dockerfile's steps done in a root of their own, and its entry point run there as in a container."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.dockerfile import read_dockerfile
from tests.support.replicas import TOKEN, Replica, until, write_module
from tests.support.source_tree import ROOT

UNSHARE = ("unshare", "--mount", "--propagation", "private")
USER = read_dockerfile(ROOT / "Dockerfile")["final"].last("USER").text.partition(":")[0]
LOOK = """
import importlib.util, os, pathlib
import adapter.errors, handlers.echo
from adapter import coldstart_handler

def orphans(count):
    for _ in range(count):
        if (child := os.fork()) == 0:
            if os.fork() == 0:
                os._exit(0)
            os._exit(0)
        os.waitpid(child, 0)

@coldstart_handler
def look(event):
    orphans(event["orphans"])
    packages = pathlib.Path(adapter.__file__).parent
    return {
        "adapter": str(packages),
        "handlers": handlers.echo.__file__,
        "told": adapter.errors.AdapterError.__init__.__code__.co_filename,
        "without": [
            str(path)
            for top in (packages, pathlib.Path(handlers.echo.__file__).parent)
            for path in top.rglob("*.py")
            if not pathlib.Path(importlib.util.cache_from_source(path)).exists()
        ],
        "writable": [str(path) for path in packages.rglob("*") if os.access(path, os.W_OK)],
        "environment": {name: os.environ.get(name) for name in ("LD_LIBRARY_PATH", "PYTHONUNBUFFERED")},
        "directory": os.getcwd(),
        "script": pathlib.Path("/opt/coldstart/bin/coldstart").read_text().splitlines()[0],
    }
"""


def require_namespaces() -> None:
    """Skip where this user cannot have a mount namespace or a chroot of its own."""
    if os.geteuid() != 0 or not all(shutil.which(name) for name in ("unshare", "chroot", "setpriv", "mount")):
        pytest.skip("a root of its own needs root, unshare and setpriv (util-linux)")
    tried = subprocess.run([*UNSHARE, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"mounting is not allowed here: {tried.stderr.decode().strip()}")


@contextlib.contextmanager
def container(root: Path, code: Path, *arguments: str) -> Iterator[Replica]:
    """The image's entry point in a root that the Dockerfile's steps made, with more user code beside the handlers."""
    root.mkdir()
    command = [*UNSHARE, sys.executable, "-m", "tests.support.image_steps", str(root), str(code), *arguments]
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment | {"COLDSTART_PORT": "0", TOKEN: str(root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    replica = Replica(process, str(root))
    readers = [threading.Thread(target=replica.read_log, daemon=True)]
    assert process.stdout is not None
    readers.append(threading.Thread(target=process.stdout.read, daemon=True))
    for reader in readers:
        reader.start()
    try:
        yield replica
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # unshare's --kill-child takes the namespace along
        process.wait()
        for reader in readers:
            reader.join(5)


def init_of(replica: Replica) -> int:
    """PID 1 of the container, as this namespace calls it."""
    for pid, _ in replica.survivors():
        with contextlib.suppress(OSError):
            if re.search(r"^NSpid:\t\d+\t1$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE):
                return pid
    raise AssertionError("no process is PID 1 of a namespace")


def children_of(pid: int) -> list[str]:
    """States of its children."""
    states = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(OSError):
            states.append(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0])
    return states


def test_the_steps_make_what_starts_as_a_container(tmp_path: Path) -> None:
    """The package is the image's own, compiled, and nobody's to change; PID 1 reaps (S-36) and ends by SIGTERM."""
    require_namespaces()
    (tmp_path / "code").mkdir()
    write_module(tmp_path / "code", "look", LOOK)
    with container(tmp_path / "root", tmp_path / "code", "serve", "look:look") as replica:
        replica.wait_ready()
        init = init_of(replica)
        status = dict(
            line.split(":\t", 1) for line in Path(f"/proc/{init}/status").read_text().splitlines() if ":\t" in line
        )
        assert status["Uid"].split() == [USER] * 4
        assert int(status["CapEff"], 16) == 0
        assert int(status["CapBnd"], 16) == 0
        assert status["NoNewPrivs"] == "1"

        seen = replica.post({"orphans": 100}).json()
        assert seen["adapter"].startswith("/opt/coldstart/lib/")
        assert seen["handlers"] == "/app/handlers/echo.py"
        assert seen["told"] == f"{seen['adapter']}/errors/base.py"
        assert seen["without"] == []
        assert seen["writable"] == []
        assert seen["environment"] == {"LD_LIBRARY_PATH": "", "PYTHONUNBUFFERED": "1"}
        assert seen["directory"] == "/app"
        assert seen["script"] == "#!/opt/coldstart/bin/python"
        until(lambda: "Z" not in children_of(init), what="the reaping of orphans")

        os.kill(init, signal.SIGTERM)
        assert replica.process.wait(10) == 0, "\n".join(replica.raw)
        assert replica.logged("supervisor.stop.complete") is not None

"""Carries out a Dockerfile's steps in a directory, as far as that goes without an engine, and starts what they made.

    unshare --mount --propagation private python -m tests.support.image_steps ROOT CODE [ARGUMENTS]

ROOT, an empty directory, becomes a root of its own: this machine's system and Python, read-only, stand in for Debian's,
and the installed dependencies for the stages `torch` and `dependencies`. All else the Dockerfile's own lines do.
CODE is put beside the handlers, as by an image made from this one. Then the entry point runs there as in a
container: PID 1 of a namespace, the image's user, environment and working directory, no capability, a read-only root.
Must be root, in a mount namespace that goes with it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from tests.support.dockerfile import Instruction, Stage, read_dockerfile
from tests.support.source_tree import ROOT as REPOSITORY

SYSTEM = ("bin", "dev", "etc", "lib", "lib64", "sbin", "usr")
PYTHON_PATH = f"{sys.base_prefix}/bin:/usr/bin:/bin:/usr/sbin:/sbin"
# some gigabytes; what is installed on this machine serves as well
DEPENDENCIES = "/dependencies"
STANDING_IN = ("torch", "dependencies")


class Steps:
    """A directory in which steps are done.

    Args:
        root: The directory.
        stages: The Dockerfile's.
    """

    def __init__(self, root: Path, stages: Mapping[str, Stage]) -> None:
        self.root = root
        self._stages = stages

    def prepare(self) -> None:
        """Give it a system and a Python."""
        _run("mount", "-t", "tmpfs", "-o", "mode=755", "none", str(self.root))
        for name in SYSTEM:
            there = Path("/", name)
            if there.is_symlink():
                os.symlink(os.readlink(there), self.root / name)
            elif there.exists():
                self._bind(there)
        if Path(sys.base_prefix).parts[1] not in SYSTEM:
            self._bind(Path(sys.base_prefix))
        # at a path of its own: the tests' environment may lie in what the image sees as its empty /tmp
        self._bind(Path(sysconfig.get_path("purelib")), DEPENDENCIES)
        for name, mode in (("tmp", 0o1777), ("proc", 0o555), ("opt", 0o755)):
            (self.root / name).mkdir(exist_ok=True)
            (self.root / name).chmod(mode)

    def stage(self, name: str) -> None:
        """Do what a stage says, after what it stands on."""
        stage = self._stages[name]
        environment = {"PATH": PYTHON_PATH, "HOME": "/tmp", "PIP_NO_BUILD_ISOLATION": "0"}
        environment |= self._stages["tools"].pairs("ENV")
        directory = "/"
        for instruction in stage.instructions:
            if instruction.name == "WORKDIR":
                directory = instruction.text
                self._at(directory).mkdir(parents=True, exist_ok=True)
            elif instruction.name == "COPY":
                self._copy(instruction, directory)
            elif instruction.name == "RUN":
                self._do(instruction.text, directory, environment)

    def stand_in(self) -> None:
        """Let the image's Python find the dependencies that are installed on this machine."""
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        packages = self._at(f"/opt/coldstart/lib/{version}/site-packages")
        (packages / "dependencies.pth").write_text(DEPENDENCIES)

    def start(self, arguments: list[str]) -> int:
        """Run the entry point, with the image's command where no other is given; its exit code."""
        final = self._stages["final"]
        uid, _, gid = final.last("USER").text.partition(":")
        command = [*(final.last("ENTRYPOINT").exec_form or ()), *(arguments or final.last("CMD").exec_form or ())]
        given = {name: value for name, value in os.environ.items() if name.startswith(("COLDSTART_", "AWS_"))}
        environment = {**final.pairs("ENV"), "HOME": "/home/coldstart", **given}
        # no capability, no new privilege; env looks the entry point up in the image's PATH, as an engine does
        limits = ["--reuid", uid, "--regid", gid, "--clear-groups", "--no-new-privs", "--bounding-set=-all"]
        inside = ["setpriv", *limits, "--inh-caps=-all", "env", f"--chdir={final.last('WORKDIR').text}", *command]
        _run("mount", "-o", "remount,ro", str(self.root))
        for writable in ("tmp", final.pairs("ENV")["COLDSTART_CACHE_DIR"].lstrip("/")):
            _run("mount", "-t", "tmpfs", "-o", "mode=1777", "none", str(self.root / writable))
        namespace = ["unshare", "--pid", "--fork", "--kill-child", f"--mount-proc={self.root}/proc"]
        return subprocess.run(
            [*namespace, "chroot", str(self.root), *inside], env=environment, check=False, stdin=subprocess.DEVNULL
        ).returncode

    def _copy(self, copy: Instruction, directory: str) -> None:
        *sources, target = copy.words
        if (stage := copy.flags.get("from")) is not None:
            if stage not in STANDING_IN:
                shutil.copytree(self._at(f"/layers/{stage}"), self._at(target), dirs_exist_ok=True)
            return
        for source in sources:
            origin = REPOSITORY / source
            to = self._at(os.path.join(directory, target))
            to = to / origin.name if target.endswith("/") else to
            to.parent.mkdir(parents=True, exist_ok=True)
            if origin.is_dir():
                shutil.copytree(origin, to, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(origin, to)

    def _do(self, text: str, directory: str, environment: Mapping[str, str]) -> None:
        # what changes the system is this machine's business
        parts = [part for part in re.split(r"\s*&&\s*", text) if not re.search(r"apt-get|/var/lib/apt|useradd", part)]
        if parts:
            shell = ["env", f"--chdir={directory}", "/bin/sh", "-c", " && ".join(parts)]
            _run("chroot", str(self.root), *shell, env=environment)

    def keep_layer(self, stage: str) -> None:
        """Put what a stage made at /layer aside: every stage has a /layer of its own."""
        self._at("/layers").mkdir(exist_ok=True)
        self._at("/layer").rename(self._at(f"/layers/{stage}"))

    def _bind(self, there: Path, inside: str | None = None) -> None:
        here = self._at(inside or str(there))
        here.mkdir(parents=True, exist_ok=True)
        if there == Path("/dev"):
            _run("mount", "--rbind", "/dev", str(here))
        else:
            _run("mount", "--bind", str(there), str(here))
            _run("mount", "-o", "remount,bind,ro", str(here))

    def _at(self, path: str) -> Path:
        return self.root / path.lstrip("/")


def _run(*command: str, env: Mapping[str, str] | None = None) -> None:
    # what a step says is a matter of the log, not of the replica's own output
    subprocess.run(command, check=True, env=None if env is None else dict(env), stdout=sys.stderr)


def main() -> int:
    """The exit code of the replica."""
    root, code, *arguments = sys.argv[1:]
    steps = Steps(Path(root), read_dockerfile(REPOSITORY / "Dockerfile"))
    steps.prepare()
    steps.stage("tools")
    steps.stand_in()
    for name in ("package", "handlers"):
        steps.stage(name)
        steps.keep_layer(name)
    steps.stage("final")
    shutil.copytree(code, Path(root, "app"), dirs_exist_ok=True)
    return steps.start(arguments)


if __name__ == "__main__":
    sys.exit(main())

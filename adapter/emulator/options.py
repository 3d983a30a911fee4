"""What an emulator is told, and what follows from it for the store and for each replica."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from adapter.emulator.fleet import FleetLimits
from adapter.emulator.shaping import parse_rate
from adapter.errors import ConfigurationError

BUCKET = "models"
"""Where a plain model directory is served."""
DRAIN_RESERVE_S = 2.5
"""How much earlier than its platform's SIGKILL a replica ends its drain: its own roles are given 2 s to end."""

_KEPT = ("PATH", "HOME", "LANG", "TZ", "TMPDIR", "CUDA_VISIBLE_DEVICES")
_KEPT_BEGINNINGS = ("PYTHON", "LC_", "COLDSTART_", "AWS_")


@dataclass(frozen=True, slots=True)
class WeightsPlan:
    """Where the weights are, and whether we serve them."""

    address: str | None
    """What replicas are told; None leaves it to the handler."""
    directory: Path | None = None
    """What the embedded store serves; None: there is none."""
    name: str | None = None
    """The key prefix under which the directory is served in `BUCKET`; None: it holds the buckets itself."""


def plan_weights(given: str | None) -> WeightsPlan:
    """What `--weights` means.

    An address is passed on. A directory with files in it is a model, served as `s3://models/<its name>/`; one that
    holds directories only is taken for a directory of buckets, in which the handler finds what it names itself.

    Raises:
        ConfigurationError: It is neither an address nor a directory with something in it.
    """
    if given is None:
        return WeightsPlan(None)
    if not given.strip():  # as a path it would be the current directory, whatever is in it
        raise ConfigurationError(
            "--weights is empty: give a directory with a model, an address such as s3://bucket/prefix/, or leave it out"
        )
    if "://" in given:
        return WeightsPlan(given)
    directory = Path(given).expanduser().resolve()
    if not directory.is_dir():
        raise ConfigurationError(
            f"--weights {given}: no such directory; give a directory with a model, or an address such as "
            "s3://bucket/prefix/",
            path=given,
        )
    entries = [entry for entry in os.scandir(directory) if not entry.name.startswith(".")]
    if not entries:
        raise ConfigurationError(f"--weights {given}: the directory is empty", path=given)
    if not any(entry.is_file() for entry in entries):
        return WeightsPlan(None, directory)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", directory.name).strip(".-") or "model"
    return WeightsPlan(f"s3://{BUCKET}/{name}/", directory, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatorOptions:
    """What to emulate."""

    target: str
    """The handler, as `module:attribute`; its module is found from the current directory."""
    weights: WeightsPlan = field(default_factory=lambda: WeightsPlan(None))
    limits: FleetLimits = field(default_factory=FleetLimits)
    link: str | None = None
    """Speed of the embedded store's link, such as `1Gbps`."""
    first_byte_ms: float = 0.0
    """How long the embedded store waits before each answer."""
    cache_dir: Path | None = None
    """The host's cache, shared by its replicas and kept; None: one that goes with the emulator."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """The surroundings, of which replicas see little (`replica_environment`)."""
    extra: Mapping[str, str] = field(default_factory=dict)
    """Variables of the user's own for the replicas."""

    def check(self) -> None:
        """Refuse what cannot work before anything is started.

        Raises:
            ConfigurationError: The message names it.
        """
        if self.target.count(":") != 1 or not all(self.target.split(":")):
            raise ConfigurationError(
                f"{self.target!r} names no handler: MODULE:HANDLER is wanted, such as handlers.echo:echo"
            )
        if self.link is not None:
            parse_rate(self.link)
        if self.weights.directory is None and (self.link is not None or self.first_byte_ms):
            raise ConfigurationError("--link and --first-byte-ms shape the embedded store: give --weights a directory")
        limits = self.limits
        for flag, value, low in (
            ("--max-replicas", limits.max_replicas, 1),
            ("--idle-s", limits.idle_s, 0),
            ("--init-limit-s", limits.init_limit_s, 0.001),
            ("--request-limit-s", limits.request_limit_s, 0.001),
            ("--grace-s", limits.grace_s, 0),
            ("--first-byte-ms", self.first_byte_ms, 0),
        ):
            if not low <= value < float("inf"):
                raise ConfigurationError(f"{flag} {value:g} cannot be used: a number of at least {low:g} is wanted")


def replica_environment(
    options: EmulatorOptions, host: Path, endpoint: str | None, run_root: Path | None = None
) -> dict[str, str]:
    """All that a replica sees of the environment, as in a container: little of this shell's, and what we set.

    Args:
        options: What to emulate.
        host: The emulated host's directory; holds its cache, and the replicas' run directories.
        endpoint: The embedded store's address.
        run_root: For the run directories, where it is not `host`.
    """
    found = {
        name: value for name, value in options.environment.items() if name in _KEPT or name.startswith(_KEPT_BEGINNINGS)
    }
    if endpoint is not None:
        found = {name: value for name, value in found.items() if not name.startswith("AWS_")}
        found |= _store_environment(endpoint)
        found["COLDSTART_STORE_NAME"] = _store_name(options)
    if options.weights.address is not None:
        found["COLDSTART_WEIGHTS"] = options.weights.address
    if found.get("COLDSTART_LOG_LEVEL") != "debug":
        found["COLDSTART_LOG_LEVEL"] = "info"  # the port is read from the log
    found["COLDSTART_CACHE_DIR"] = str(options.cache_dir.resolve() if options.cache_dir else host / "cache")
    found.setdefault("COLDSTART_RUN_ROOT", str(run_root or host))
    found["COLDSTART_GRACE_S"] = f"{max(0.0, options.limits.grace_s - DRAIN_RESERVE_S):g}"
    return found | dict(options.extra)


def _store_name(options: EmulatorOptions) -> str:
    """The embedded store for the cache: its port is another each time, what it serves is not.

    Its ETags tell a file from others and from its other versions: the directory is all that there is to say.
    """
    assert options.weights.directory is not None, "it serves something"
    digest = hashlib.sha256(os.fsencode(options.weights.directory.resolve())).hexdigest()
    return f"embedded-{digest[:16]}"


def _store_environment(endpoint: str) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL_S3": endpoint,
        "AWS_ACCESS_KEY_ID": "emulator",
        "AWS_SECRET_ACCESS_KEY": "emulator",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }

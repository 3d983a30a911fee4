"""Settings of one replica, read once from a mapping: nothing else in the package reads the environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, Self, get_args

from adapter.errors import ConfigurationError

MEBIBYTE = 1 << 20
Verify = Literal["size", "crc", "sha256"]
HUB_ENDPOINT = "https://huggingface.co"
"""Where `hf://` addresses lead unless a mirror is named."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A text that no message, log or record may hold; shown as `Secret()`."""

    text: str = field(repr=False)


def _temporary(environment: Mapping[str, str]) -> str:
    return environment.get("TMPDIR") or "/tmp"  # not the tempfile module: it costs 8 ms of the start  # noqa: S108


def _default_cache(environment: Mapping[str, str]) -> Path:
    base = environment.get("XDG_CACHE_HOME") or (
        os.path.join(environment["HOME"], ".cache") if environment.get("HOME") else _temporary(environment)
    )
    return Path(base) / "coldstart"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a replica is told from outside; every field has a `COLDSTART_` variable of its name in capitals."""

    weights: str | None = field(default=None, repr=False)
    """Address of the weights; wins over the decorator's. Not shown as it is: a signed one is a secret."""
    anonymous: bool = False
    """Read public weights without credentials, and look for none."""
    requester_pays: bool = False
    """Whoever reads pays, which some buckets demand to be told with every request."""
    customer_key: Secret | None = None
    """Base64 of the key that objects in S3 were encrypted with by their owner (SSE-C)."""
    store_name: str | None = None
    """What the cache calls the S3 endpoint instead of its address, where one store is met at changing addresses."""
    credentials_timeout_s: float = 10.0
    """Longest search for credentials; role services of containers and instances answer within a second or two."""
    hub_token: Secret | None = None
    """Token for `hf://` addresses, sent to the hub alone."""
    hub_endpoint: str = HUB_ENDPOINT
    """The model hub, or a mirror of it."""
    cache_dir: Path
    """Where shards and other files are kept between starts."""
    cache_fallback: Path | None = None
    """Where they go when this user cannot write to `cache_dir`; `none` refuses to start instead."""
    cache_limit_bytes: int | None = None
    """The most that all cached files may have together; None: what the disk has, or 80 % of the memory on tmpfs."""
    cache_floor_bytes: int = 1024 * MEBIBYTE
    """Room on the disk that is left for others as long as anything can be evicted for it."""
    only_tensors: tuple[str, ...] = ()
    """Patterns of the tensors that are fetched, rows of one as `name[0:1000]`; empty: all. Said of tensors, since
    other files always come whole, and not as `weights_only`, which elsewhere means something else (torch.load)."""
    skip_tensors: tuple[str, ...] = ()
    """Patterns of tensors that are left out of these."""
    verify: Verify = "size"
    """What cached weights are checked for before they are taken, beside their record: nothing more, the checksum of
    each part (crc), or digests in a file SHA256SUMS beside them (sha256). The last two read all of them."""
    run_root: Path
    """Where a replica's run directory (sockets, timeline) is made; short: a socket's path holds 107 bytes at most."""
    host: str = "0.0.0.0"
    port: int = 8080
    init_timeout_s: float | None = None
    """Longest time from the process's start to readiness; None leaves it to the handler (default 600 s)."""
    grace_s: float = 25.0
    """How long a draining replica may finish what it runs; under the 30 s that most platforms give."""
    queue_limit: int = 256
    """Invocations that may wait for the worker; more are answered as busy."""
    connections: int = 16
    """Range reads in flight at the beginning: 16 to 32 fill 10–25 Gb/s."""
    most_connections: int = 64
    """Range reads in flight where more bring more: a store gives one connection 50–100 MB/s, so a link of 50 Gb/s
    needs so many. Each costs 1 MiB of memory."""
    hedge_percent: float = 3.0
    """How much may be read twice so as not to wait for the slowest connections, in percent of the weights; 0: none."""
    part_bytes: int = 8 * MEBIBYTE
    """Length of one range read."""
    header_limit_bytes: int = 100_000_000
    """Largest safetensors header that is read; the reference reader's own cap."""
    worker_restarts: int = 3
    """How often a worker that died may be replaced before it served again; then the replica ends."""
    report: Path | None = None
    """Append every init report to this file, one JSON line each."""
    log_level: str = "info"

    @classmethod
    def from_env(cls, environment: Mapping[str, str]) -> Self:
        """The settings that the environment asks for.

        `PORT`, which many platforms set, is the port where `COLDSTART_PORT` is not set, and so are `HF_TOKEN` and
        `HF_ENDPOINT` the hub's.

        Raises:
            ConfigurationError: A variable has a value that cannot be used; the message names it.
        """
        read: dict[str, Any] = {
            "cache_dir": _default_cache(environment),
            "cache_fallback": Path(_temporary(environment)) / f"coldstart-{os.geteuid()}",
            "run_root": Path(_temporary(environment)),
        }
        for name, parse in _PARSERS.items():
            for variable in (f"COLDSTART_{name.upper()}", _SET_BY_OTHERS.get(name, "")):
                if environment.get(variable):
                    read[name] = _parse(variable, environment[variable], parse)
                    break
        return cls(**read)

    def with_(self, **changes: Any) -> Self:
        """A copy with these fields changed, checked as the variables are; None leaves a field as it is.

        Raises:
            ConfigurationError: A value cannot be used; the message names the field.
        """
        given = {name: value for name, value in changes.items() if value is not None}
        return replace(self, **{name: _parse(name, str(value), _PARSERS[name]) for name, value in given.items()})


def _parse(variable: str, text: str, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise ConfigurationError(f"{variable}={text!r} cannot be used: {error}", variable=variable) from None


def _at_least(low: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = float(text)
        if not value >= low or value == float("inf"):
            raise ValueError(f"a number of at least {low:g} is wanted")
        return value

    return parse


def _whole(low: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if value < low:
            raise ValueError(f"a whole number of at least {low} is wanted")
        return value

    return parse


def _path_or_none(text: str) -> Path | None:
    return None if text.lower() == "none" else Path(text)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())


def _verify(text: str) -> str:
    if text.lower() not in get_args(Verify):
        raise ValueError(f"one of {', '.join(get_args(Verify))} is wanted")
    return text.lower()


def _truth(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise ValueError("true or false is wanted")


def _web(text: str) -> str:
    if not text.lower().startswith(("https://", "http://")):
        raise ValueError("an address that begins with https:// is wanted")
    return text.rstrip("/")


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 65535:
        raise ValueError("a port is a whole number from 0 to 65535 (0: any free one)")
    return value


def _level(text: str) -> str:
    if text.lower() not in ("debug", "info", "warning", "error"):
        raise ValueError("one of debug, info, warning, error is wanted")
    return text.lower()


_SET_BY_OTHERS = {"port": "PORT", "hub_token": "HF_TOKEN", "hub_endpoint": "HF_ENDPOINT"}
"""Variables that platforms and other programs set for the same thing; ours win."""
_PARSERS: dict[str, Callable[[str], Any]] = {
    "weights": str,
    "anonymous": _truth,
    "requester_pays": _truth,
    "customer_key": Secret,
    "store_name": str,
    "credentials_timeout_s": _at_least(0.1),
    "hub_token": Secret,
    "hub_endpoint": _web,
    "cache_dir": Path,
    "cache_fallback": _path_or_none,
    "cache_limit_bytes": _whole(1),
    "cache_floor_bytes": _whole(0),
    "only_tensors": _words,
    "skip_tensors": _words,
    "verify": _verify,
    "run_root": Path,
    "report": Path,
    "host": str,
    "port": _port,
    "init_timeout_s": _at_least(0.001),
    "grace_s": _at_least(0),
    "queue_limit": _whole(0),
    "connections": _whole(1),
    "most_connections": _whole(1),
    "hedge_percent": _at_least(0),
    "part_bytes": _whole(4096),
    "header_limit_bytes": _whole(8),
    "worker_restarts": _whole(0),
    "log_level": _level,
}
assert set(_PARSERS) == {field.name for field in fields(Settings)}

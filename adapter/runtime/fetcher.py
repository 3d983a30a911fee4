"""The fetcher: streams the weights, holds credentials and leases, runs no user code, ends when all is sealed."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

from adapter.coldstart import StartOrder, StreamWatch, describe_failure, find_address, stream_weights
from adapter.logs import Log
from adapter.runtime.roles import ReplicaSpec, Role, read_json, write_json
from adapter.storage.addresses import shown_address
from adapter.timeline import Timeline

_READY_POLL_S = 0.05


def main(spec: ReplicaSpec, asked: str | None) -> int:
    """The role's life.

    Args:
        spec: The replica.
        asked: The address that the imported handler asked for; None to find it.

    Returns:
        The exit code: 0, or that of the error left in the role's error file.
    """
    log = Log("fetcher", spec.settings.log_level)
    order = StartOrder(spec.target, spec.settings, spec.manifest, tuple(sys.path), Timeline("fetcher", spec.timeline))
    try:
        address, origin = (asked, "handler") if asked is not None else find_address(order)
        shown = shown_address(address) if address is not None else None
        write_json(spec.address, {"address": shown, "origin": origin})
        if address is None:
            spec.sealed.touch()
            return 0
        log.info("stream.started", address=shown, origin=origin)
        begun = time.monotonic()

        def sealed() -> bool:
            spec.sealed.touch()
            log.info("stream.complete", seconds=round(time.monotonic() - begun, 3), **_done(spec))
            while not spec.ready.exists():  # fsync beside the start would slow it down (D8)
                time.sleep(_READY_POLL_S)
            return True

        def warn(notice: str) -> None:
            log.warning("cache.fallback", message=notice)

        stream_weights(order, address, StreamWatch(lambda now: _tell(spec, now), sealed, warn))
    except Exception as caught:
        error = describe_failure(caught)
        write_json(spec.error_of(Role.FETCHER), error.to_dict())
        log.error("stream.failed", code=error.code, message=error.message)
        return error.exit_code
    return 0


def _tell(spec: ReplicaSpec, now: Mapping[str, float]) -> None:
    write_json(spec.progress, dict(now))


def _done(spec: ReplicaSpec) -> dict[str, object]:
    progress = read_json(spec.progress)
    return {"bytes": progress.get("total_bytes")} if isinstance(progress, dict) else {}

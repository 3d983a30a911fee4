"""`coldstart serve MODULE:HANDLER`: a replica of the handler, served over HTTP.

Composes the roles. What a role needs is imported in its own process: this module and the supervisor stay light.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapter.errors import AdapterError, ConfigurationError
from adapter.init_report import init_report
from adapter.logs import Log, write_line
from adapter.runtime.roles import ReplicaSpec, ensure_standard_streams, write_whole
from adapter.runtime.run_dir import make_run_dir, remove_run_dir, run_dir_name, sweep_run_dirs
from adapter.runtime.supervisor import RoleMains, Supervisor
from adapter.settings import Settings
from adapter.timeline import process_start_ns, read_spans

if TYPE_CHECKING:
    from collections.abc import Mapping

SOCKET_PATH_LIMIT_BYTES = 107
"""Source: unix(7), sun_path."""
_BACKLOG = 2048


def add_parser(subparsers: Any) -> None:
    """Add the command's arguments."""
    parser = subparsers.add_parser("serve", help="start a replica of a handler and serve it over HTTP")
    parser.add_argument("target", metavar="MODULE:HANDLER", help="where the decorated handler is")
    parser.add_argument("--host", help="address to listen on (COLDSTART_HOST, default 0.0.0.0)")
    parser.add_argument("--port", type=int, help="port to listen on, 0 for any (COLDSTART_PORT or PORT, default 8080)")
    parser.add_argument("--weights", help="address of the weights; wins over the decorator's (COLDSTART_WEIGHTS)")
    parser.add_argument("--cache-dir", type=Path, help="where weights stay between starts (COLDSTART_CACHE_DIR)")
    parser.add_argument("--init-timeout-s", type=float, help="longest start (COLDSTART_INIT_TIMEOUT_S)")
    parser.add_argument("--grace-s", type=float, help="longest drain after SIGTERM (COLDSTART_GRACE_S)")
    parser.add_argument("--report", type=Path, help="append each init report to this file (COLDSTART_REPORT)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serve until told to end; the replica's exit code."""
    ensure_standard_streams()
    settings = Settings.from_env(os.environ).with_(
        host=arguments.host,
        port=arguments.port,
        weights=arguments.weights,
        cache_dir=arguments.cache_dir,
        init_timeout_s=arguments.init_timeout_s,
        grace_s=arguments.grace_s,
        report=arguments.report,
    )
    if ":" not in arguments.target:
        raise ConfigurationError(
            f"{arguments.target!r} names no handler: MODULE:HANDLER is wanted, such as handlers.echo:echo"
        )
    return serve(arguments.target, settings, os.environ)


def serve(target: str, settings: Settings, environment: Mapping[str, str]) -> int:
    """Bind the port, start the roles, and stay until the replica has ended.

    Raises:
        ConfigurationError: The port cannot be bound, or no run directory can be made.
    """
    if os.getcwd() not in sys.path:  # as with `python -m`: user code is found where the command is run
        sys.path.insert(0, os.getcwd())
    started_ns = process_start_ns()
    listener = _listen(settings)
    sweep_run_dirs(settings.run_root)
    run_dir, lock = _make_run_dir(settings)
    spec = ReplicaSpec(target, settings, run_dir, started_ns)
    host, port = listener.getsockname()[:2]
    Log("supervisor", settings.log_level).info(
        "supervisor.listen.complete", host=host, port=port, pid=os.getpid(), run_dir=str(run_dir)
    )
    try:
        return Supervisor(spec, RoleMains(_fetcher, _front, _worker, _report), listener).run()
    finally:
        remove_run_dir(run_dir)
        os.close(lock)


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}. Choose another with --port "
            "or COLDSTART_PORT (0: any free one).",
            host=settings.host,
            port=settings.port,
        ) from None
    return listener


def _make_run_dir(settings: Settings) -> tuple[Path, int]:
    run_dir = settings.run_root / run_dir_name()
    if len(os.fsencode(run_dir / "front.sock")) > SOCKET_PATH_LIMIT_BYTES:
        raise ConfigurationError(
            f"the run directory {run_dir} is too long for a socket: set COLDSTART_RUN_ROOT to a shorter path"
        )
    try:
        return run_dir, make_run_dir(run_dir)
    except OSError as error:
        raise ConfigurationError(
            f"cannot make the run directory {run_dir}: {error.strerror}. Set COLDSTART_RUN_ROOT to a writable one."
        ) from None


def _fetcher(spec: ReplicaSpec, address: str | None) -> int:
    from adapter.runtime.fetcher import main

    return main(spec, address)


def _front(spec: ReplicaSpec, listener: socket.socket, status_fd: int) -> int:
    from adapter.platforms import plain_http
    from adapter.runtime.front import FrontSetup, run

    def report() -> bytes:
        try:
            return spec.report.read_bytes()
        except FileNotFoundError:  # the first start is under way: what is known by now
            return (
                init_report(read_spans(spec.timeline), start_ns=spec.started_ns, handler=spec.target).to_json().encode()
            )

    return run(FrontSetup(spec, listener, status_fd, plain_http, report))


def _worker(spec: ReplicaSpec) -> int:
    from adapter.runtime.worker import main

    return main(spec)


def _report(spec: ReplicaSpec, begun_ns: int, error: AdapterError | None) -> None:
    report = init_report(read_spans(spec.timeline), start_ns=begun_ns, handler=spec.target, error=error).to_json()
    write_whole(spec.report, report.encode())
    write_line(1, report + "\n")
    if spec.settings.report is not None:
        try:
            with spec.settings.report.open("a", encoding="utf-8") as file:
                file.write(report + "\n")
        except OSError as failed:
            Log("supervisor", spec.settings.log_level).warning("report.write.failed", cause=str(failed))

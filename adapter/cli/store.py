"""`coldstart store DIR`: serve a directory as an object store, its link as slow as asked."""

from __future__ import annotations

import argparse
import json
import socket
import sys
from pathlib import Path
from typing import Any

from adapter.errors import AdapterError, ConfigurationError

SHAPED_SEND_BUFFER_BYTES = 256 << 10
"""Kernel buffer per connection on a limited link: what is sent counts as sent only shortly before it arrives."""


def add_parser(subparsers: Any) -> None:
    """Add the command to the subparsers of the command line."""
    parser = subparsers.add_parser(
        "store",
        help="serve a directory as an object store, for laptops and tests",
        description="Serve DIR/bucket/key as the objects of an S3 store. Prints one JSON line with the endpoint when "
        "it listens. Any credentials are accepted, so keep it on this machine.",
    )
    _add_arguments(parser)
    parser.set_defaults(run=run)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", type=Path, help="directory of buckets")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=9000, help="port; 0 takes any free one (default: %(default)s)")
    parser.add_argument("--link", metavar="RATE", help="speed of all connections together: 1Gbps, 125MB/s")
    parser.add_argument("--connection", metavar="RATE", help="speed of one connection: 100Mbps")
    parser.add_argument("--first-byte-ms", type=float, default=0.0, help="wait before each answer, in milliseconds")
    parser.add_argument("--slow-one-in", type=int, metavar="N", help="send every N-th body slowly (with --connection)")
    parser.add_argument("--slow-factor", type=float, default=20.0, help="so many times slower (default: %(default)g)")
    parser.add_argument("--requests-per-s", type=float, metavar="N", help="answer more requests with 503 SlowDown")
    parser.add_argument("--for-s", type=float, default=float("inf"), help="for so long, from the first request on")
    parser.add_argument("--retry-after", type=int, metavar="S", help="the Retry-After of these answers, in seconds")
    parser.add_argument("--log", type=Path, metavar="FILE", help="append each request as a JSON line")


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM; the exit code.

    Raises:
        ConfigurationError: DIR is no directory, a rate is none, or the port cannot be had.
    """
    import uvicorn

    from adapter.emulator.object_store import object_store
    from adapter.emulator.request_log import RequestLog
    from adapter.emulator.shaping import Shaping, parse_rate

    root: Path = arguments.directory
    if not root.is_dir():
        raise ConfigurationError(f"{root} is not a directory", path=str(root))
    shaping = Shaping(
        bytes_per_s_total=parse_rate(arguments.link) if arguments.link else None,
        bytes_per_s_connection=parse_rate(arguments.connection) if arguments.connection else None,
        first_byte_s=arguments.first_byte_ms / 1000,
        slow_one_in=arguments.slow_one_in,
        slow_factor=arguments.slow_factor,
        requests_per_s=arguments.requests_per_s,
        throttle_s=arguments.for_s,
        retry_after_s=arguments.retry_after,
    )
    _check(arguments)
    listener = _listen(arguments.host, arguments.port, shaped=shaping.shaped)
    app = object_store(root.resolve(), shaping, RequestLog(arguments.log))
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        http="httptools",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    print(json.dumps({"endpoint": f"http://{shown}:{port}"}), flush=True)
    uvicorn.Server(config).run(sockets=[listener])
    return 0


def _check(arguments: argparse.Namespace) -> None:
    if not 0 <= arguments.port <= 65535:  # getaddrinfo takes it modulo 65536
        raise ConfigurationError(
            f"port {arguments.port} cannot be: 0 (any free one) to 65535 are wanted", port=arguments.port
        )
    if arguments.slow_one_in is not None and (arguments.slow_one_in < 1 or not arguments.connection):
        raise ConfigurationError("--slow-one-in takes a number from 1 on, and --connection to say what is not slow")
    if arguments.slow_factor < 1:
        raise ConfigurationError("--slow-factor takes a number from 1 on")
    if arguments.requests_per_s is not None and not arguments.requests_per_s >= 1:
        raise ConfigurationError("--requests-per-s takes a number from 1 on")


def _listen(host: str, port: int, *, shaped: bool) -> socket.socket:
    listener = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shaped:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SHAPED_SEND_BUFFER_BYTES)
        listener.bind(address)
        listener.listen(1024)
    except (OSError, OverflowError) as error:
        if listener is not None:
            listener.close()
        raise ConfigurationError(f"cannot listen on {host} port {port}: {error}", host=host, port=port) from error
    return listener


def main() -> int:
    """The command by itself: `python -m adapter.cli.store DIR`."""
    parser = argparse.ArgumentParser(prog="python -m adapter.cli.store", description="Serve a directory over S3.")
    _add_arguments(parser)
    try:
        return run(parser.parse_args())
    except AdapterError as error:
        print(f"coldstart: {error.code}: {error.message}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())

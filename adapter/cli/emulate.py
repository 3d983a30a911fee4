"""`coldstart emulate MODULE:HANDLER`: a serverless platform for the handler on this machine."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from adapter.cli import Subparsers
from adapter.errors import ConfigurationError

if TYPE_CHECKING:
    from adapter.emulator.options import EmulatorOptions

DEFAULT_PORT = 8787


def add_parser(subparsers: Subparsers) -> None:
    """Describe the command."""
    parser = subparsers.add_parser(
        "emulate",
        description="A serverless platform for one handler on this machine: starts a replica at the first request, "
        "queues callers meanwhile, adds replicas by queue depth, and ends them when they are idle. Prints one JSON "
        "line with its address when it listens.",
    )
    add_platform_arguments(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="port, 0 for any (default: %(default)s)")
    parser.add_argument(
        "--allow-host",
        metavar="NAME",
        action="append",
        default=[],
        help="a name that callers may use for it, beside localhost, the --host, and addresses in digits; may be "
        "repeated. Else a web page could reach it under a name of its own",
    )
    parser.add_argument("--idle-s", type=float, default=60.0, help="end a replica idle for this long (%(default)g)")
    parser.add_argument("--max-replicas", type=int, default=3, help="replicas at a time (default: %(default)s)")
    parser.set_defaults(run=run)


def add_platform_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what every command that starts replicas takes."""
    parser.add_argument("target", metavar="MODULE:HANDLER", help="where the decorated handler is")
    parser.add_argument(
        "--weights",
        metavar="DIR|URI",
        help="a directory with a model, served by an embedded store, or an address; wins over the decorator's",
    )
    parser.add_argument("--link", metavar="RATE", help="speed of the embedded store's link: 1Gbps, 125MB/s")
    parser.add_argument("--first-byte-ms", type=float, default=0.0, help="the store's wait before each answer")
    parser.add_argument("--init-limit-s", type=float, default=600.0, help="longest start (default: %(default)g)")
    parser.add_argument("--request-limit-s", type=float, default=300.0, help="longest request (default: %(default)g)")
    parser.add_argument("--grace-s", type=float, default=10.0, help="from SIGTERM to SIGKILL (default: %(default)g)")
    parser.add_argument("--cache-dir", type=Path, help="keep the host's cache here; without it, it goes in the end")
    parser.add_argument(
        "--env", metavar="NAME=VALUE", action="append", default=[], help="a variable for the replicas; may be repeated"
    )


def options_from(arguments: argparse.Namespace) -> EmulatorOptions:
    """The emulator's options that the arguments ask for.

    Raises:
        ConfigurationError: One of them cannot be used.
    """
    from adapter.emulator.fleet import FleetLimits
    from adapter.emulator.options import EmulatorOptions, plan_weights

    options = EmulatorOptions(
        target=arguments.target,
        weights=plan_weights(arguments.weights),
        limits=FleetLimits(
            max_replicas=getattr(arguments, "max_replicas", 1),
            idle_s=getattr(arguments, "idle_s", 60.0),
            init_limit_s=arguments.init_limit_s,
            request_limit_s=arguments.request_limit_s,
            grace_s=arguments.grace_s,
        ),
        link=arguments.link,
        first_byte_ms=arguments.first_byte_ms,
        cache_dir=arguments.cache_dir,
        environment=dict(os.environ),
        extra=dict(_variable(given) for given in arguments.env),
    )
    options.check()
    return options


def run(arguments: argparse.Namespace) -> int:
    """Emulate until SIGINT or SIGTERM; the exit code."""
    options = options_from(arguments)
    from adapter.emulator.guard import host_names
    from adapter.emulator.server import listen, serve

    names = (*host_names(arguments.allow_host), *([arguments.host] if arguments.host else []))
    listener = listen(arguments.host, arguments.port)
    host, port = listener.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def on_listening() -> None:
        if sys.stdout.isatty():
            print(f"{options.target} is emulated at {url} (ask it: POST {url}/invoke). Ctrl-C ends it.", flush=True)
        else:
            print(json.dumps({"emulator": url}), flush=True)

    serve(options, listener, on_listening, names)
    return 0


def _variable(given: str) -> tuple[str, str]:
    name, found, value = given.partition("=")
    if not found or not name:
        raise ConfigurationError(f"--env {given!r} cannot be used: NAME=VALUE is wanted")
    return name, value

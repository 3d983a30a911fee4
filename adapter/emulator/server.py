"""The emulator's life: listen, serve, and on SIGINT or SIGTERM end everything it has started."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Collection

from adapter.emulator.app import emulator_app
from adapter.emulator.dashboard import routes
from adapter.emulator.emulator import Emulator
from adapter.emulator.guard import host_names
from adapter.emulator.options import EmulatorOptions
from adapter.errors import ConfigurationError
from adapter.logs import Log
from adapter.platforms.http_server import CLOSING_S, Server


def serve(
    options: EmulatorOptions, listener: socket.socket, on_listening: Callable[[], None], names: Collection[str] = ()
) -> None:
    """Serve until SIGINT or SIGTERM; a second one ends replicas at once.

    Args:
        options: What to emulate.
        listener: A socket that listens.
        on_listening: Called when callers can get in.
        names: What it may be called, beside `localhost` and addresses in digits.

    Raises:
        ConfigurationError: The options make no sense, or the embedded store does not come up.
    """
    asyncio.run(_serve(options, listener, on_listening, host_names(names)))


async def _serve(
    options: EmulatorOptions, listener: socket.socket, on_listening: Callable[[], None], names: Collection[str]
) -> None:
    signals = _Signals()
    async with Emulator(options, Log("emulator")) as emulator:
        signals.hurry = emulator.hurry
        app = emulator_app(emulator, names=names, more=routes(emulator))
        server = Server(app, on_listening)
        serving = asyncio.create_task(server.serve_on(listener))
        ending = asyncio.create_task(signals.told.wait())
        await asyncio.wait((serving, ending), return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        await emulator.end()  # while it is still served: who waits gets an answer, who looks sees the end
        with contextlib.suppress(TimeoutError):  # who does not read holds nobody up
            await asyncio.wait_for(server.flushed(), CLOSING_S)
        emulator.hub.close()
        server.should_exit = True
        await asyncio.wait((serving,), timeout=CLOSING_S / 2)
        server.drop_connections()  # of those who do not read; their requests would be cancelled otherwise, with a trace
        await serving


class _Signals:
    """The first signal that asks for the end is noted, a second one hurries."""

    def __init__(self) -> None:
        self.told = asyncio.Event()
        self.hurry: Callable[[], None] = lambda: None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        if self.told.is_set():
            self.hurry()
        self.told.set()


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there.

    Raises:
        ConfigurationError: It cannot be had.
    """
    if not 0 <= port <= 65535:  # getaddrinfo takes it modulo 65536
        raise ConfigurationError(f"port {port} cannot be: 0 (any free one) to 65535 are wanted", port=port)
    listener = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
    except (OSError, OverflowError) as error:
        if listener is not None:
            listener.close()
        raise ConfigurationError(
            f"cannot listen on {host} port {port}: {error}. Choose another with --port (0: any free one).",
            host=host,
            port=port,
        ) from error
    return listener

"""The image's health check: exit code 0 if what listens answers 200.

    healthcheck.py [PORT [PATH]]

It runs every few seconds, also beside a start that wants the processor, so it imports next to nothing: http.client
would double what it takes (22 to 40 ms of a core).
"""

from __future__ import annotations

import os
import socket
import sys

TIMEOUT_S = 2.0
"""Below the HEALTHCHECK's own 3 s, so that the reason is said before it is killed."""
_EVERY_INTERFACE = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


def main() -> int:
    """The exit code: 0 for an answer of 200, 1 for anything else."""
    # the same variables, in the same order, as adapter.settings reads them
    port = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("COLDSTART_PORT") or os.environ.get("PORT") or "8080"
    path = sys.argv[2] if len(sys.argv) > 2 else "/health/live"
    host = os.environ.get("COLDSTART_HOST", "")
    try:
        status = ask(_EVERY_INTERFACE.get(host, host), int(port), path)
    except (OSError, ValueError, IndexError) as error:
        sys.stdout.write(f"{path} on port {port}: {type(error).__name__}: {error}\n")
        return 1
    sys.stdout.write(f"{path} on port {port}: {status}\n")
    return 0 if status == 200 else 1


def ask(host: str, port: int, path: str) -> int:
    """The status of the answer to a GET."""
    with socket.create_connection((host, port), TIMEOUT_S) as connection:
        connection.sendall(
            f"GET {path} HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n".encode("ascii")
        )
        answer = b""
        while b"\r\n" not in answer and (received := connection.recv(1024)):
            answer += received
    return int(answer.split(b" ", 2)[1])


if __name__ == "__main__":
    sys.exit(main())

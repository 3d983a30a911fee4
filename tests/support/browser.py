"""A real headless Chromium, spoken to by its debugging protocol.

Nothing that it asks for can leave the machine: every host but 127.0.0.1 is unknown to it, and each request is kept.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from websockets.sync.client import ClientConnection, connect

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
ANSWER_LIMIT_S = 30.0


def chromium() -> str:
    """The browser's path; where there is none the test is skipped, in CI it fails."""
    found = next((path for name in PROGRAMS if (path := shutil.which(name))), None)
    if found is None:
        reason = "no Chromium on this machine; scripts/install_chromium.sh installs Debian's"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@dataclass
class Page:
    """One tab."""

    connection: ClientConnection
    requests: list[str] = field(default_factory=list)
    """Address of everything that was asked for."""
    complaints: list[str] = field(default_factory=list)
    """Errors that the page raised, and what the browser refused to it."""
    _number: int = 0

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """What the browser answers to one command of its protocol."""
        self._number += 1
        self.connection.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        stop = time.monotonic() + ANSWER_LIMIT_S
        while True:
            message = json.loads(self.connection.recv(timeout=max(0.0, stop - time.monotonic())))
            if message.get("id") == self._number:
                assert "error" not in message, f"{method}: {message['error']}"
                answer: dict[str, Any] = message["result"]
                return answer
            self._heard(message)

    def open(self, address: str) -> None:
        """Go there; returns when the document is read."""
        self.call("Page.navigate", url=address)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, f"{script}: {answer['exceptionDetails']}"
        return answer["result"].get("value")

    def until(self, script: str, within_s: float = 20.0) -> None:
        """Return as soon as the expression is true."""
        stop = time.monotonic() + within_s
        while not self.evaluate(f"Boolean({script})"):
            if time.monotonic() > stop:
                text = self.evaluate("document.body.innerText")
                raise AssertionError(f"not within {within_s:g} s: {script}\n{self.complaints}\n{text[:4000]}")
            time.sleep(0.02)

    def text(self, selector: str) -> str:
        """What is read at the first element of that selector."""
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText"))

    def click(self, selector: str) -> None:
        """Press the mouse where the element is seen, as a person does."""
        x, y = self._middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def point_at(self, selector: str) -> None:
        """Move the mouse there."""
        x, y = self._middle(selector)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def look(self, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Use a screen of that size, and a person's choice of colours."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def overflow(self) -> int:
        """By how many pixels the page is wider than the screen."""
        return int(self.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """A picture of the page as PNG."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def strangers(self) -> list[str]:
        """Addresses that were asked for and are not of this machine."""
        self.evaluate("0")  # hear what is still under way
        local = ("127.0.0.1", "localhost", None)
        return [address for address in self.requests if urlsplit(address).hostname not in local]

    def _middle(self, selector: str) -> tuple[float, float]:
        script = (
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({block: 'center'}); const r = e.getBoundingClientRect();"
            " return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        x, y = self.evaluate(script)
        return x, y

    def _heard(self, message: dict[str, Any]) -> None:
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(parameters["exceptionDetails"])[:500])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.complaints.append(parameters["entry"]["text"])


@contextlib.contextmanager
def browser_page() -> Iterator[Page]:
    """A tab of a browser of its own, which ends with the block."""
    with tempfile.TemporaryDirectory(prefix="coldstart-browser-", ignore_cleanup_errors=True) as profile:
        command = [
            chromium(),
            "--headless",
            "--no-sandbox",  # tests run as root in containers, where there is none
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--no-first-run",
            "--no-proxy-server",
            "--hide-scrollbars",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
            "--remote-debugging-port=0",
            f"--user-data-dir={profile}",
            "about:blank",
        ]
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            with connect(_tab(process, Path(profile)), max_size=None, proxy=None, close_timeout=0.2) as connection:
                page = Page(connection)
                for domain in ("Page", "Runtime", "Network", "Log"):
                    page.call(f"{domain}.enable")
                yield page
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # its helpers too
            process.wait()


def _tab(process: subprocess.Popen[bytes], profile: Path) -> str:
    """The debugging address of a new tab."""
    told = profile / "DevToolsActivePort"
    stop = time.monotonic() + ANSWER_LIMIT_S
    while not (told.exists() and "\n" in told.read_text()):
        assert process.poll() is None, f"the browser ended with {process.returncode}"
        assert time.monotonic() < stop, "the browser does not listen"
        time.sleep(0.02)
    port = int(told.read_text().split("\n", maxsplit=1)[0])
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(f"http://127.0.0.1:{port}/json/new?about:blank", method="PUT")
    with opener.open(request, timeout=ANSWER_LIMIT_S) as answer:
        return str(json.load(answer)["webSocketDebuggerUrl"])

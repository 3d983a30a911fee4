"""An emulated platform with the real model on it, as a script uses it: a child process, driven by its HTTP API."""

from __future__ import annotations

import contextlib
import http.client
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from scripts.children import Answer, Child, Client, Failed, child, model_directory

T = TypeVar("T")

LISTEN_LIMIT_S = 60.0
START_LIMIT_S = 180.0
"""Far above any start on any machine; only a hang takes longer."""
_LOOK_S = 0.05
"""How often a replica is looked at: seen as it moves, and hardly a burden on its start."""


@dataclass(frozen=True)
class Counted:
    """What the store has served."""

    requests: int
    sent_bytes: int
    """Of all: listings, tokenizer, weights."""
    weight_bytes: int
    """Of .safetensors files alone."""

    def since(self, earlier: Counted) -> Counted:
        """What came after another count."""
        return Counted(
            self.requests - earlier.requests,
            self.sent_bytes - earlier.sent_bytes,
            self.weight_bytes - earlier.weight_bytes,
        )


class Platform:
    """A running `coldstart emulate`."""

    def __init__(self, process: Child, port: int) -> None:
        self._process = process
        self._api = Client(port)
        self._calls = Client(port)  # of its own: the platform is looked at while a call waits

    def end(self) -> None:
        """Ask it to end, as Ctrl-C does.

        Raises:
            Failed: It does not, or not well.
        """
        self._process.end()

    def get(self, path: str) -> Any:
        """The JSON value at a path.

        Raises:
            Failed: There is none.
        """
        return self._value("GET", path)

    def replicas(self) -> list[dict[str, Any]]:
        """Those that have not ended, the newest first."""
        return [replica for replica in self.get("/replicas") if replica["state"] != "gone"]

    def replica(self, name: str) -> dict[str, Any]:
        """A replica that lives or has lived.

        Raises:
            Failed: There was none of that name.
        """
        found: dict[str, Any] | None = next((of for of in self.get("/replicas") if of["id"] == name), None)
        if found is None:
            raise Failed(f"the platform knows no replica {name}")
        return found

    def kill_worker(self, name: str) -> int:
        """SIGKILL to a replica's worker; its process id.

        Raises:
            Failed: It has none.
        """
        return int(self._value("POST", f"/replicas/{name}/kill?role=worker")["pid"])

    def counted(self) -> Counted:
        """What the store has served so far."""
        value = self.get("/store")
        weights = (of["bytes_sent"] for key, of in value["by_key"].items() if key.endswith(".safetensors"))
        return Counted(value["requests"], value["bytes_sent"], sum(weights))

    def report(self, replica: str, kind: str) -> dict[str, Any]:
        """The account of a replica's start (`cold`, or `recovery` of its worker), as soon as it is there.

        Raises:
            Failed: It does not come, or tells of a failure.
        """

        def look() -> dict[str, Any] | None:
            found = (of for of in self.get("/reports") if (of["replica"], of["kind"]) == (replica, kind))
            number = next((of["number"] for of in found), None)
            return None if number is None else dict(self.get(f"/reports/{number}"))

        report = self.wait_for(look, f"the report of the {kind} start of {replica}", START_LIMIT_S)
        if report["outcome"] != "ready":
            raise Failed(f"the init report of {replica} says {report['outcome']!r}, not 'ready'")
        return report

    def wait_for(self, look: Callable[[], T | None], what: str, limit_s: float) -> T:
        """What `look` finds, looked for again and again.

        Raises:
            Failed: The platform ended, or the time is over.
        """

        def look_slowly() -> T | None:
            if (found := look()) is None:
                time.sleep(_LOOK_S)
            return found

        return self._process.wait_for(look_slowly, what, limit_s)

    def invoke(self, event: object, meanwhile: Callable[[], None] | None = None) -> Answer:
        """The answer to an event, whatever it is.

        Args:
            event: What to ask.
            meanwhile: Called again and again until the answer comes.

        Raises:
            Failed: There was no answer.
        """

        def look() -> Answer | None:
            if self._calls.answered(_LOOK_S):
                return self._calls.finish()
            if meanwhile is not None:
                meanwhile()
            return None

        try:
            self._calls.begin("POST", "/invoke", event)
            return self._process.wait_for(look, "an answer came", START_LIMIT_S)
        except (OSError, http.client.HTTPException) as error:
            raise self._silent(error) from None

    def _value(self, method: str, path: str) -> Any:
        try:
            answer = self._api.ask(method, path)
        except (OSError, http.client.HTTPException) as error:
            raise self._silent(error) from None
        if answer.status != 200:
            raise Failed(f"{method} {path} was answered with {answer.status}: {said(answer)}")
        return answer.json()

    def _silent(self, error: Exception) -> Failed:
        return Failed(f"the platform did not answer: {type(error).__name__}: {error}{self._process.said()}")


def said(answer: Answer) -> str:
    """What an answer that is an error says, for a message."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        error = answer.json()["error"]
        return f"{error['code']}: {error['message']}"
    return answer.body[:500].decode(errors="replace")


def unit_vector(answer: Answer) -> list[float]:
    """The embedding in an answer.

    Raises:
        Failed: It holds none.
    """
    if answer.status != 200:
        raise Failed(f"the answer is {answer.status}: {said(answer)}")
    vector = answer.json().get("embedding")
    if not isinstance(vector, list) or not math.isclose(math.hypot(*vector), 1, abs_tol=1e-4):
        raise Failed(f"the answer is no unit vector: {answer.body[:200].decode(errors='replace')}")
    return vector


@contextlib.contextmanager
def platform(target: str, arguments: tuple[str, ...], directory: Path) -> Iterator[Platform]:
    """`coldstart emulate TARGET` with the real model behind it, gone when the block is left.

    Args:
        target: The handler.
        arguments: Further arguments.
        directory: Holds its log and, as long as it lives, all that it writes.
    """
    command = ("emulate", target, "--weights", str(model_directory()), "--port", "0", *arguments)
    with child(command, _environment(directory), directory / "emulate.log") as started:
        listening = started.wait_for(
            lambda: started.line(lambda value: "emulator" in value), "its port was open", LISTEN_LIMIT_S
        )
        yield Platform(started, int(listening["emulator"].rpartition(":")[2]))


def _environment(directory: Path) -> Mapping[str, str]:
    """This shell's, without its settings of replicas and stores, which are not the script's."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("AWS_", "COLDSTART_"))}
    kept.pop("PORT", None)
    return {**kept, "TMPDIR": str(directory)}

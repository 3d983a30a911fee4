"""What `make demo` shows: a real model, from an object store to right answers, with the time of every stage.

    python scripts/demo.py

Puts all-MiniLM-L6-v2 into an embedded object store behind a link of 1 Gb/s, starts a replica of
`handlers.text_embedding:embed` with an empty cache, asks it, kills its worker, starts it again with the cache filled,
and says what each start was made of. Ends by itself; leaves nothing behind, also after Ctrl-C.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, its neighbours are not found otherwise

from scripts.children import (
    ENDING,
    PREFIX,
    ROOT,
    Answer,
    Child,
    Client,
    Failed,
    Store,
    child,
    embedded_store,
    undisturbed,
)

HANDLER = "handlers.text_embedding:embed"
LINK = "1Gbps"
START_LIMIT_S = 180.0
"""Far above any start on any machine; only a hang takes longer."""
WARM_CALLS = 50
WARM_CALLS_LIMIT_S = 3.0
"""A busy machine makes fewer of them."""
SENTENCE = "A man is eating food."
NEAR = "A man is eating a piece of bread."
FAR = "A cheetah is running behind its prey."


class Ended(BaseException):
    """A signal asks for the end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


# -- showing -----------------------------------------------------------------------------------------------------------


class Screen:
    """Where the demo writes: with rich where it is installed, else plainly."""

    def __init__(self) -> None:
        try:
            from rich.console import Console

            self._console: Console | None = Console(highlight=False, soft_wrap=True)
        except ImportError:
            self._console = None

    def heading(self, text: str) -> None:
        """The beginning of a part."""
        if self._console is not None:
            self._console.print(f"\n[bold]── {text} [/bold]")
        else:
            print(f"\n── {text}", flush=True)

    def say(self, text: str) -> None:
        """A line."""
        if self._console is not None:
            self._console.print(text, markup=False)
        else:
            print(text, flush=True)

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Columns, the first of names, the others of figures."""
        if self._console is not None:
            from rich.table import Table

            table = Table(*head)
            for column in table.columns[1:]:
                column.justify = "right"
            for row in rows:
                table.add_row(*row)
            self._console.print(table, soft_wrap=False)
            return
        widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
        for name, *cells in [head, ["─" * width for width in widths], *rows]:
            figures = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
            self.say("  ".join((name.ljust(widths[0]), *figures)))


@dataclass(frozen=True)
class Start:
    """One start of the replica (or of its worker alone), as it is shown."""

    name: str
    report: Mapping[str, Any]
    vector: list[float]
    answer_s: float
    """From the process's start (the kill) to the first answer, as its caller saw it."""
    requests: int
    sent_bytes: int

    def seconds(self, *names: str) -> float | None:
        """How long the stages whose names begin so took, together."""
        found = [stage["stop_s"] - stage["start_s"] for stage in self._stages(names)]
        return sum(found) if found else None

    def at(self, name: str, edge: str) -> float | None:
        """When a stage began (`start_s`) or ended (`stop_s`)."""
        return next((stage[edge] for stage in self._stages((name,))), None)

    def percent(self, layer: str) -> float:
        """A layer's share of the start."""
        return float(self.report["layers"][layer]["percent"])

    def _stages(self, names: Sequence[str]) -> list[Mapping[str, Any]]:
        return [stage for stage in self.report["stages"] if stage["name"].startswith(tuple(names))]


def final_table(screen: Screen, starts: Sequence[Start]) -> None:
    """Seconds a stage, bytes and speed of every start."""

    def row(name: str, value: Callable[[Start], float | None], unit: str = "s") -> list[str]:
        return [name, *("–" if (found := value(start)) is None else f"{found:.2f} {unit}" for start in starts)]

    rows = [
        row("to readiness", lambda start: start.report["total_s"]),
        row("to the first answer", lambda start: start.answer_s),
        row("first range request sent at", lambda start: start.at("storage.first_range", "start_s")),
        row("framework imported at", lambda start: start.at("import.framework", "stop_s")),
        row("import of the framework", lambda start: start.seconds("import.framework")),
        row("import of the handler", lambda start: start.seconds("import.handler")),
        row("stream of the weights", lambda start: start.seconds("weights.stream")),
        row("load of the model", lambda start: start.seconds("model.load")),
        row("warm-up calls", lambda start: start.seconds("warm_up[")),
        row("share of infrastructure", lambda start: start.percent("infrastructure"), "%"),
        row("share of the framework", lambda start: start.percent("framework"), "%"),
        row("share of the model", lambda start: start.percent("model"), "%"),
        row("bytes from the store", lambda start: start.sent_bytes / 1e6, "MB"),
        row("bytes from the cache", lambda start: start.report["transfer"]["cache_bytes"] / 1e6, "MB"),
        row("speed of the stream", lambda start: start.report["transfer"]["bytes_per_s"] / 1e6 or None, "MB/s"),
        ["requests to the store", *(str(start.requests) for start in starts)],
    ]
    screen.table(["", *(start.name for start in starts)], rows)


# -- the parts ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scene:
    """What every part needs: where to write, the store, the directory that is removed at the end."""

    screen: Screen
    directory: Path
    store: Store

    def environment(self) -> dict[str, str]:
        """The replica's: the embedded store, any credentials, and nothing of this shell's own settings of either."""
        kept = {name: text for name, text in os.environ.items() if not name.startswith(("AWS_", "COLDSTART_"))}
        kept.pop("PORT", None)
        return {
            **kept,
            "AWS_ENDPOINT_URL_S3": self.store.endpoint,
            "AWS_ACCESS_KEY_ID": "demo",
            "AWS_SECRET_ACCESS_KEY": "demo",
            "AWS_REGION": "us-east-1",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
            "COLDSTART_CACHE_DIR": str(self.directory / "cache"),
            "TMPDIR": str(self.directory),
        }

    @contextlib.contextmanager
    def replica(self, log: str) -> Iterator[tuple[Child, Client]]:
        """A replica that listens, ready or not."""
        arguments = ("serve", HANDLER, "--host", "127.0.0.1", "--port", "0")
        with child(arguments, self.environment(), self.directory / log) as started:
            listening = started.wait_for(
                lambda: started.line(lambda value: value.get("event") == "supervisor.listen.complete"),
                "its port was open",
                START_LIMIT_S,
            )
            yield started, Client(listening["port"])

    def wait_until_ready(self, replica: Child, client: Client) -> None:
        """Follow the phases until it is ready."""
        shown: list[str] = []

        def look() -> bool | None:
            try:
                answer = client.ask("GET", "/health/ready")
            except (OSError, http.client.HTTPException):
                return None
            phase = "ready" if answer.status == 200 else str(answer.json().get("phase"))
            if phase not in shown:
                shown.append(phase)
                self.moment(replica.started, phase)
            return True if answer.status == 200 else None

        replica.wait_for(look, "readiness", START_LIMIT_S)

    def moment(self, begun: float, text: str) -> None:
        """Show what happens now, so long after the beginning."""
        self.screen.say(f"  {time.monotonic() - begun:6.2f} s  {text}")

    def start(self, name: str, client: Client, begun: float) -> Start:
        """Ask for the first answer and read the account of the start."""
        vector, answer = embedding(client, SENTENCE, lost=lambda said: self.moment(begun, f"asked again: {said}"))
        answer_s = time.monotonic() - begun
        requests, sent_bytes = self.store.counted()
        report = client.ask("GET", "/coldstart").json()
        if report.get("outcome") != "ready":
            raise Failed(f"the init report says {report.get('outcome')!r}, not 'ready'")
        said = f"{answer.headers.get('X-Coldstart')}; {answer.headers.get('Server-Timing')}"
        self.moment(begun, f"first answer: {len(vector)} numbers ({said})")
        self.waterfall(report)
        return Start(name, report, vector, answer_s, requests, sent_bytes)

    def waterfall(self, report: Mapping[str, Any]) -> None:
        """Show a report through the command that shows any."""
        path = self.directory / "report.json"
        path.write_text(json.dumps(report))
        sys.stdout.flush()
        command = [sys.executable, "-m", "adapter.cli", "report", str(path), "--text"]
        done = subprocess.run(command, cwd=ROOT, check=False, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            raise Failed(f"coldstart report ended with exit code {done.returncode}")


def embedding(client: Client, text: str, lost: Callable[[str], None] | None = None) -> tuple[list[float], Answer]:
    """The vector of a text, and the answer that brought it.

    Args:
        client: Of the replica.
        text: What to ask.
        lost: Is told what the replica says when its worker died with the question, which is then asked once more.
    """
    try:
        answer = client.ask("POST", "/", {"text": text})
        if answer.status == 502 and lost is not None:
            lost(answer.json()["error"]["message"])
            answer = client.ask("POST", "/", {"text": text})
    except (OSError, http.client.HTTPException) as error:
        raise Failed(f"the replica did not answer: {type(error).__name__}: {error}") from None
    if answer.status != 200:
        raise Failed(f"the replica answered {answer.status}: {answer.body[:500].decode(errors='replace')}")
    vector = answer.json().get("embedding")
    if not isinstance(vector, list) or not math.isclose(math.hypot(*vector), 1, abs_tol=1e-4):
        raise Failed(f"the answer is no unit vector: {answer.body[:200].decode(errors='replace')}")
    return vector, answer


def warm_calls(screen: Screen, client: Client) -> None:
    """The same question many times."""
    deadline = time.monotonic() + WARM_CALLS_LIMIT_S
    answers: list[Answer] = []
    while len(answers) < WARM_CALLS and time.monotonic() < deadline:
        answers.append(embedding(client, SENTENCE)[1])
    seconds = sorted(answer.seconds for answer in answers)
    screen.say(
        f"  {len(answers)} calls one after the other: median {statistics.median(seconds) * 1e3:.1f} ms, "
        f"slowest {seconds[-1] * 1e3:.1f} ms ({answers[-1].headers.get('X-Coldstart')}; "
        f"{answers[-1].headers.get('Server-Timing')})"
    )


def cosines(screen: Screen, client: Client) -> None:
    """How near two pairs of sentences are."""
    asked, near, far = (embedding(client, text)[0] for text in (SENTENCE, NEAR, FAR))
    near_cosine, far_cosine = (sum(a * b for a, b in zip(asked, other, strict=True)) for other in (near, far))
    screen.say(f"  cosine {near_cosine:+.3f}  {SENTENCE!r} and {NEAR!r}")
    screen.say(f"  cosine {far_cosine:+.3f}  {SENTENCE!r} and {FAR!r}")
    if near_cosine < 0.5 or far_cosine > 0.2:
        raise Failed("the near pair is not near, or the far pair not far: these are not the model's embeddings")


def kill_worker(scene: Scene, client: Client) -> Start:
    """Kill the worker (-9), and at once ask the next question."""
    spawned = [
        fields.get("child")
        for found in client.ask("GET", "/coldstart").json()["stages"]
        if found["name"] == "role.spawn" and (fields := found["fields"]).get("spawned") == "worker"
    ]
    if not spawned or not Path(f"/proc/{spawned[-1]}/comm").exists():
        raise Failed("the init report does not name the worker's process")
    scene.store.reset()
    begun = time.monotonic()
    os.kill(spawned[-1], signal.SIGKILL)
    scene.moment(begun, f"kill -9 {spawned[-1]}, and the next question at once")
    return scene.start("after kill -9", client, begun)


def same_answers(starts: Sequence[Start]) -> None:
    """Refuse starts that do not agree, or that read what they had."""
    first = starts[0]
    for other in starts[1:]:
        if max(abs(a - b) for a, b in zip(first.vector, other.vector, strict=True)) > 1e-6:
            raise Failed(f"the answers of {first.name!r} and {other.name!r} differ")
        if other.sent_bytes > first.sent_bytes / 100:
            raise Failed(f"{other.name!r} read {other.sent_bytes} bytes from the store that were in the cache")


def show(screen: Screen, directory: Path) -> None:
    """Everything, in order."""
    with embedded_store(directory, LINK) as store:
        scene = Scene(screen, directory, store)
        size = sum(path.stat().st_size for path in (directory / "store").rglob("*") if path.is_file())
        screen.say(f"all-MiniLM-L6-v2, {size / 1e6:.1f} MB, at s3://{PREFIX}/ of {store.endpoint}, a link of {LINK}")
        screen.heading(f"1. Cold start: coldstart serve {HANDLER}, the cache is empty")
        with scene.replica("cold.log") as (replica, client):
            scene.wait_until_ready(replica, client)
            cold = scene.start("cold start", client, replica.started)
            screen.heading("2. Warm calls")
            warm_calls(screen, client)
            cosines(screen, client)
            screen.heading("3. The worker dies")
            recovered = kill_worker(scene, client)
            replica.end()
        screen.heading("4. Second start: the weights are in the cache")
        store.reset()
        with scene.replica("second.log") as (replica, client):
            scene.wait_until_ready(replica, client)
            second = scene.start("second start", client, replica.started)
            replica.end()
        starts = (cold, recovered, second)
        same_answers(starts)
        screen.heading("What each start was made of")
        final_table(screen, starts)
        screen.say("Every start gave the same answer.")


def main() -> int:
    """The exit code: 0 when all was as it must be."""
    if not sys.platform.startswith("linux"):
        print(f"demo: Linux is needed, this is {sys.platform}: run it in a Linux container", file=sys.stderr)
        return 1

    directory: Path | None = None
    try:
        with undisturbed():
            for number in ENDING:
                signal.signal(number, _end)
            directory = Path(tempfile.mkdtemp(prefix="coldstart-demo-"))
        show(Screen(), directory)
    except Failed as failure:
        print(f"demo: failed: {failure}", file=sys.stderr)
        return 1
    except (OSError, http.client.HTTPException, ValueError, LookupError) as error:
        print(f"demo: failed: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except Ended as ended:
        print("demo: ended by a signal; what it started and wrote is being removed", file=sys.stderr)
        return 128 + ended.number
    finally:
        if directory is not None:
            with undisturbed():
                shutil.rmtree(directory)
    return 0


def _end(number: int, frame: FrameType | None) -> None:
    for other in ENDING:
        signal.signal(other, signal.SIG_IGN)  # the end has begun: a second Ctrl-C must not cut it short
    raise Ended(number)


if __name__ == "__main__":
    sys.exit(main())

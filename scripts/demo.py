"""What `make demo` shows: a real model on a serverless platform, from zero to right answers, every second told.

    python scripts/demo.py [--out DIRECTORY]

Emulates a platform for `handlers.text_embedding:embed` on this machine, all-MiniLM-L6-v2 in an object store behind a
link of 1 Gb/s: a first call finds no replica, warm calls follow, the worker is killed, the replica is ended for being
idle, and a second start finds its weights in the cache. Says what each start was made of, and writes a page that shows
them side by side. Ends by itself; leaves nothing behind but that page and the reports, also after Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, its neighbours are not found otherwise

from scripts.children import ENDING, Answer, Failed, model_directory, undisturbed
from scripts.platform_client import Counted, Platform, platform, unit_vector
from scripts.screen import Screen

HANDLER = "handlers.text_embedding:embed"
LINK = "1Gbps"
IDLE_S = 5
"""Long enough that a pause of a busy machine between two calls does not end the replica, short enough to wait for."""
ARGUMENTS = ("--link", LINK, "--idle-s", str(IDLE_S), "--max-replicas", "1")
GONE_LIMIT_S = 60.0
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


@dataclass(frozen=True)
class Start:
    """One start of a replica (or of its worker alone), as it is shown."""

    name: str
    replica: str
    report: Mapping[str, Any]
    vector: list[float]
    answer_s: float
    """From the call that found no replica (from the kill) to its answer, as its caller saw it."""
    served: Counted

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
        row("weights from the store", lambda start: start.served.weight_bytes / 1e6, "MB"),
        row("files from the cache", lambda start: start.report["transfer"]["cache_bytes"] / 1e6 or None, "MB"),
        row("speed of the stream", lambda start: start.report["transfer"]["bytes_per_s"] / 1e6 or None, "MB/s"),
        ["requests to the store", *(str(start.served.requests) for start in starts)],
    ]
    screen.table(["", *(start.name for start in starts)], rows)


# -- the parts ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scene:
    """What every part needs: where to write, the platform, a directory that is removed at the end."""

    screen: Screen
    platform: Platform
    directory: Path

    def start_from_zero(self, name: str) -> Start:
        """A call that finds no replica."""
        if (alive := self.platform.replicas()) != []:
            raise Failed(f"there is a replica already: {alive[0]['id']}, {alive[0]['state']}")
        before = self.platform.counted()
        begun = time.monotonic()
        self.screen.moment(begun, f"0 replicas; POST /invoke {json.dumps({'text': SENTENCE})}")
        answer = self.platform.invoke({"text": SENTENCE}, _Watch(self, begun).look)
        unit_vector(answer)  # or it says why there is none
        if (met := answer.headers["X-Coldstart"]) != "cold":
            raise Failed(f"the first call met a {met} replica")
        return self.started(name, "cold", answer, begun, before)

    def kill_worker(self, replica: str) -> Start:
        """Kill the worker (-9), and at once ask the next question."""
        before = self.platform.counted()
        begun = time.monotonic()
        watch = _Watch(self, begun)
        pid = self.platform.kill_worker(replica)
        self.screen.moment(begun, f"kill -9 {pid}, the worker of {replica}, and the next question at once")
        answer = self.platform.invoke({"text": SENTENCE}, watch.look)
        if answer.status == 502:  # it was handed the question before its death was noticed
            self.screen.moment(begun, f"asked again: {answer.json()['error']['message']}")
            answer = self.platform.invoke({"text": SENTENCE}, watch.look)
        return self.started("after kill -9", "recovery", answer, begun, before)

    def started(self, name: str, kind: str, answer: Answer, begun: float, before: Counted) -> Start:
        """Show the first answer of a start, and read the start's account."""
        answer_s = time.monotonic() - begun
        vector = unit_vector(answer)
        replica = answer.headers["X-Coldstart-Replica"]
        self.screen.moment(begun, f"answer of {replica}: {len(vector)} numbers ({timing(answer)})")
        report = self.platform.report(replica, kind)
        served = self.platform.counted().since(before)
        self.waterfall(report)
        return Start(name, replica, report, vector, answer_s, served)

    def waterfall(self, report: Mapping[str, Any]) -> None:
        """Show a report through the command that shows any."""
        from adapter.cli.main import main as coldstart

        path = self.directory / "report.json"
        path.write_text(json.dumps(report))
        if (code := coldstart(["report", str(path)])) != 0:
            raise Failed(f"coldstart report ended with exit code {code}")

    def embedding(self, text: str) -> list[float]:
        """The vector of a text."""
        return unit_vector(self.platform.invoke({"text": text}))

    def warm_calls(self) -> None:
        """The same question many times."""
        deadline = time.monotonic() + WARM_CALLS_LIMIT_S
        answers: list[Answer] = []
        while len(answers) < WARM_CALLS and time.monotonic() < deadline:
            answers.append(self.platform.invoke({"text": SENTENCE}))
            unit_vector(answers[-1])
        if (met := {answer.headers["X-Coldstart"] for answer in answers}) != {"warm"}:
            raise Failed(f"calls after the first one met {met}, not a warm replica alone")
        seconds = sorted(answer.seconds for answer in answers)
        self.screen.say(
            f"  {len(answers)} calls one after the other: median {statistics.median(seconds) * 1e3:.1f} ms, "
            f"slowest {seconds[-1] * 1e3:.1f} ms ({timing(answers[-1])})"
        )

    def cosines(self) -> None:
        """How near two pairs of sentences are."""
        asked, near, far = (self.embedding(text) for text in (SENTENCE, NEAR, FAR))
        near_cosine, far_cosine = (sum(a * b for a, b in zip(asked, other, strict=True)) for other in (near, far))
        self.screen.say(f"  cosine {near_cosine:+.3f}  {SENTENCE!r} and {NEAR!r}")
        self.screen.say(f"  cosine {far_cosine:+.3f}  {SENTENCE!r} and {FAR!r}")
        if near_cosine < 0.5 or far_cosine > 0.2:
            raise Failed("the near pair is not near, or the far pair not far: these are not the model's embeddings")

    def scale_to_zero(self, replica: str) -> None:
        """Ask nothing, and watch the platform end the replica for that."""
        begun = time.monotonic()
        self.screen.moment(begun, f"no calls; a replica that is idle for {IDLE_S} s is ended")
        watch = _Watch(self, begun)

        def gone() -> Mapping[str, Any] | None:
            watch.look()
            found = self.platform.replica(replica)
            return found if found["state"] == "gone" else None

        ended = self.platform.wait_for(gone, f"the end of {replica}", GONE_LIMIT_S)
        if (ended["stop_reason"], ended["exit_code"]) != ("idle", 0):
            raise Failed(f"{replica} did not end well for being idle: {json.dumps(ended)}")
        self.screen.moment(begun, f"{replica} was ended for being idle, exit code 0; 0 replicas")


class _Watch:
    """Shows what a replica is about, whenever that is something new."""

    def __init__(self, scene: Scene, begun: float) -> None:
        self._scene = scene
        self._begun = begun
        self._known: dict[str, str] = {replica["id"]: replica["phase"] for replica in scene.platform.replicas()}

    def look(self) -> None:
        for replica in self._scene.platform.replicas():
            name, phase, progress = replica["id"], replica["phase"], replica["progress"]
            if self._known.get(name) == phase:
                continue
            self._known[name] = phase
            some = progress and progress["bytes"] < progress["of"]
            here = f", {progress['bytes'] / 1e6:.1f} of {progress['of'] / 1e6:.1f} MB are here" if some else ""
            self._scene.screen.moment(self._begun, f"{name} {phase}{here}")


def timing(answer: Answer) -> str:
    """What an answer's headers say of its time."""
    return f"{answer.headers['X-Coldstart']}; {answer.headers['Server-Timing']}"


def same_answers(starts: Sequence[Start]) -> None:
    """Refuse starts that do not agree, or that read what they had."""
    first = starts[0]
    if first.served.weight_bytes < (model_directory() / "model.safetensors").stat().st_size:
        raise Failed(f"{first.name!r} read {first.served.weight_bytes} bytes of weights: the cache was not empty")
    for other in starts[1:]:
        if max(abs(a - b) for a, b in zip(first.vector, other.vector, strict=True)) > 1e-6:
            raise Failed(f"the answers of {first.name!r} and {other.name!r} differ")
        if other.served.weight_bytes:
            raise Failed(f"{other.name!r} read {other.served.weight_bytes} bytes of weights that were in the cache")


def show(scene: Scene) -> tuple[Start, ...]:
    """Everything, in order."""
    screen = scene.screen
    screen.heading("1. Cold start: the first call finds no replica, and the cache is empty")
    cold = scene.start_from_zero("cold start")
    screen.heading("2. Warm calls")
    scene.warm_calls()
    scene.cosines()
    screen.heading("3. The worker dies")
    recovered = scene.kill_worker(cold.replica)
    screen.heading("4. Nobody calls: the platform scales to zero")
    scene.scale_to_zero(cold.replica)
    screen.heading("5. Second start: the weights are in the cache")
    second = scene.start_from_zero("second start")
    starts = (cold, recovered, second)
    same_answers(starts)
    screen.heading("What each start was made of")
    final_table(screen, starts)
    screen.say("Every start gave the same answer; only the first read weights from the store.")
    return starts


def write(screen: Screen, out: Path, starts: Sequence[Start]) -> None:
    """A page with the starts of replicas side by side, and the reports of all starts."""
    from adapter.init_report import InitReport
    from adapter.report.html import html_page

    lines = [json.dumps(start.report) for start in starts]
    reports = [InitReport.from_json(line) for line in lines]
    replicas = [number for number, report in enumerate(reports) if report.kind == "cold"]
    names = [starts[number].name.capitalize() for number in replicas]
    page, file = out / "starts.html", out / "starts.jsonl"
    page.write_text(html_page([reports[number] for number in replicas], names=names), encoding="utf-8")
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    screen.say(f"Side by side, in a browser: {page}")
    screen.say(f"The reports of all three: {file}; coldstart report {file.name} --all --trace trace.json")


def run(out: Path, directory: Path) -> None:
    """The demo.

    Raises:
        Failed: Something is not as it must be.
    """
    screen = Screen()
    model = model_directory()
    size = sum(path.stat().st_size for path in model.rglob("*") if path.is_file())
    screen.say(f"all-MiniLM-L6-v2, {size / 1e6:.1f} MB, in an object store behind a link of {LINK}")
    screen.say(f"coldstart emulate {HANDLER} --weights {model} {' '.join(ARGUMENTS)}")
    with platform(HANDLER, ARGUMENTS, directory) as emulated:
        starts = show(Scene(screen, emulated, directory))
        emulated.end()
    write(screen, out, starts)


def main() -> int:
    """The exit code: 0 when all was as it must be."""
    parser = argparse.ArgumentParser(prog="demo", description="A real model on an emulated platform, in a minute.")
    parser.add_argument("--out", type=Path, default=Path(".demo"), help="where the page goes (default: ./%(default)s)")
    out: Path = parser.parse_args().out.absolute()
    if not sys.platform.startswith("linux"):
        print(f"demo: Linux is needed, this is {sys.platform}: run it in a Linux container", file=sys.stderr)
        return 1

    directory: Path | None = None
    made = False
    try:
        with undisturbed():
            for number in ENDING:
                signal.signal(number, _end)
            made = not out.exists()
            out.mkdir(parents=True, exist_ok=True)
            directory = Path(tempfile.mkdtemp(prefix="demo-"))  # short: sockets are made far below it
        if not os.access(out, os.W_OK):
            raise Failed(f"{out} cannot be written: name another directory with --out")
        run(out, directory)
    except Failed as failure:
        print(f"demo: failed: {failure}", file=sys.stderr)
        return 1
    except (OSError, ValueError, LookupError) as error:
        print(f"demo: failed: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except Ended as ended:
        print("demo: ended by a signal; what it started and wrote is being removed", file=sys.stderr)
        return 128 + ended.number
    finally:
        with undisturbed():
            if directory is not None:
                _remove(directory)
            if made:
                with contextlib.suppress(OSError):
                    out.rmdir()  # nothing, where the page is in it
    return 0


def _remove(directory: Path) -> None:
    """Remove a directory in which killed processes may still be ending."""
    deadline = time.monotonic() + 5.0
    while directory.exists():
        shutil.rmtree(directory, ignore_errors=time.monotonic() < deadline)


def _end(number: int, frame: FrameType | None) -> None:
    for other in ENDING:
        signal.signal(other, signal.SIG_IGN)  # the end has begun: a second Ctrl-C must not cut it short
    raise Ended(number)


if __name__ == "__main__":
    sys.exit(main())

from __future__ import annotations

import json
import os
import pty
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from adapter.init_report import InitReport, init_report
from adapter.timeline import Timeline, read_spans


@pytest.fixture
def timeline(tmp_path: Path) -> Path:
    path = tmp_path / "timeline.jsonl"
    Timeline("worker", path).record("model.load", "cpu", 0, 1_500_000_000)
    Timeline("front", path).record("replica.ready", "process", 2_000_000_000, 2_000_000_000)
    return path


def coldstart(*arguments: str, stdin: bytes = b"", **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "adapter.cli", *arguments],
        input=stdin,
        env=dict(os.environ, **environment),
        capture_output=True,
        timeout=60,
        check=False,
    )


def test_a_timeline_becomes_a_report(timeline: Path) -> None:
    result = coldstart("report", str(timeline), "--json")
    assert result.returncode == 0, result.stderr
    assert InitReport.from_json(result.stdout).total_s == 2.0


def test_text_is_what_comes_without_a_flag(timeline: Path) -> None:
    result = coldstart("report", str(timeline), PYTHONIOENCODING="utf-8")
    assert result.stdout.decode().startswith("cold start: ready after 2.000 s\n")
    assert "█" in result.stdout.decode()
    assert coldstart("report", str(timeline), "--text", PYTHONIOENCODING="utf-8").stdout == result.stdout


def test_an_output_that_holds_ascii_only_gets_ascii(timeline: Path) -> None:
    result = coldstart("report", str(timeline), PYTHONIOENCODING="ascii")
    assert result.returncode == 0, result.stderr
    assert b"###" in result.stdout


def test_a_file_of_several_reports_shows_the_last_or_all(timeline: Path, tmp_path: Path) -> None:
    report = init_report(read_spans(timeline), handler="a:first").to_json()
    path = tmp_path / "reports.jsonl"
    path.write_text(f"{report}\n{report.replace('a:first', 'a:last')}\n")
    assert b"a:first" not in coldstart("report", str(path)).stdout
    every = coldstart("report", str(path), "--all").stdout
    assert every.index(b"a:first") < every.index(b"a:last")


def test_standard_input_is_a_source(timeline: Path) -> None:
    line = init_report(read_spans(timeline)).to_json().encode()
    assert coldstart("report", "-", "--json", stdin=line).stdout.strip() == line


@pytest.fixture
def replica(timeline: Path) -> Iterator[str]:
    body = init_report(read_spans(timeline)).to_json().encode()

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path == "/coldstart"
            self.send_response(200 if found else 404)
            self.end_headers()
            self.wfile.write(body if found else b"")

        def log_message(self, *_: object) -> None:
            return

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("path", ["", "/", "/coldstart"])
def test_a_running_replica_is_asked(replica: str, path: str) -> None:
    result = coldstart("report", replica + path, "--json")
    assert InitReport.from_json(result.stdout).outcome == "ready"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "empty"), (b"\x00\xff", "Expecting"), (b"text\n", "Expecting"), (b"{}\n", "schema_version")],
)
def test_what_is_no_report_ends_with_one_line_and_the_code_of_the_class(
    tmp_path: Path, content: bytes, said: str
) -> None:
    path = tmp_path / "something"
    path.write_bytes(content)
    result = coldstart("report", str(path))
    assert result.returncode == 10
    lines = result.stderr.decode().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"coldstart: configuration: no init report at {path}: ")
    assert said in lines[0]


def test_reports_over_several_lines_are_read(timeline: Path) -> None:
    report = json.loads(init_report(read_spans(timeline), handler="a:first").to_json())
    text = json.dumps(report, indent=2) + "\n" + json.dumps(report | {"handler": "a:last"}, indent=2) + "\n\n"
    result = coldstart("report", "-", "--all", "--json", stdin=text.encode())
    assert [json.loads(line)["handler"] for line in result.stdout.splitlines()] == ["a:first", "a:last"]


@pytest.mark.parametrize(
    "change", [{"outcome": "unknown"}, {"error": "none"}, {"stages": [None]}, {"total_s": "2"}, {"total_s": None}]
)
def test_a_report_with_values_of_other_types_is_none(timeline: Path, change: dict[str, object]) -> None:
    report = json.loads(init_report(read_spans(timeline)).to_json())
    result = coldstart("report", "-", stdin=json.dumps(report | change).encode())
    assert result.returncode == 10
    assert result.stderr.startswith(b"coldstart: configuration: no init report at -: not an init report: ")
    assert result.stderr.count(b"\n") == 1


def test_json_nested_without_end_is_no_report() -> None:
    result = coldstart("report", "-", stdin=b"[" * 200_000)
    assert result.returncode == 10
    assert result.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    "flags",
    [
        ["--html", "{same}"],
        ["--trace", "{link}"],
        ["--html", "new", "--trace", "./new"],
        ["--html", "a", "--trace", "a"],
    ],
)
def test_no_picture_is_written_over_a_source_or_another(timeline: Path, tmp_path: Path, flags: list[str]) -> None:
    link = tmp_path / "link"
    link.hardlink_to(timeline)
    before = timeline.read_bytes()
    given = [flag.format(same=timeline, link=link) for flag in flags]
    result = coldstart("report", str(timeline), *given)
    assert result.returncode == 10
    assert b"would be written over" in result.stderr
    assert timeline.read_bytes() == before
    assert not Path("new").exists()
    assert not Path("a").exists()


def test_a_name_that_is_no_text_does_not_stop_a_page(timeline: Path, tmp_path: Path) -> None:
    report = json.loads(init_report(read_spans(timeline)).to_json()) | {"handler": "a:\udc80"}
    source = tmp_path / "report.json"
    source.write_text(json.dumps(report))
    assert coldstart("report", str(source), "--html", str(tmp_path / "page")).returncode == 0
    assert "udc80" in (tmp_path / "page").read_text()


@pytest.mark.parametrize("source", ["/nowhere/report.json", "/tmp", "http://127.0.0.1:{port}", "http://[x"])
def test_a_source_that_cannot_be_read_says_so(source: str) -> None:
    result = coldstart("report", source.format(port=free_port()))
    assert result.returncode == 10
    assert result.stderr.startswith(b"coldstart: configuration: no init report at ")
    assert result.stderr.count(b"\n") == 1


def test_a_wrong_path_of_a_replica_says_so(replica: str) -> None:
    result = coldstart("report", f"{replica}/other")
    assert result.returncode == 10
    assert b"/other answered 404 Not Found" in result.stderr


def test_an_error_is_not_obeyed_by_a_terminal() -> None:
    result = coldstart("report", "/nowhere/\x1b[2J\x9b31m")
    assert result.returncode == 10
    assert r"\x1b[2J\x9b31m" in result.stderr.decode()
    assert result.stderr.decode().removesuffix("\n").isprintable()


def test_a_terminal_gets_colours(timeline: Path) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "adapter.cli", "report", str(timeline)],
        stdout=theirs,
        env=dict(os.environ, TERM="xterm-256color", PYTHONIOENCODING="utf-8"),
    ) as child:
        os.close(theirs)
        shown = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # EIO: the other end of a terminal is closed
                break
            if not piece:
                break
            shown += piece
        os.close(ours)
        assert child.wait(30) == 0
    assert b"\x1b[1mcold start: ready after 2.000 s\x1b[0m" in shown


def test_pictures_are_written_where_asked(timeline: Path, tmp_path: Path) -> None:
    page, trace = tmp_path / "start.html", tmp_path / "start.json"
    result = coldstart("report", str(timeline), "--html", str(page), "--trace", str(trace))
    assert result.returncode == 0, result.stderr
    assert result.stdout == b""
    assert result.stderr.decode().splitlines() == [f"coldstart: written: {page}", f"coldstart: written: {trace}"]
    assert page.read_text().startswith("<!doctype html>")
    assert json.loads(trace.read_text())["traceEvents"]


def test_a_picture_can_go_to_standard_output_and_text_beside_one_to_a_file(timeline: Path, tmp_path: Path) -> None:
    assert json.loads(coldstart("report", str(timeline), "--trace", "-").stdout)["displayTimeUnit"] == "ms"
    result = coldstart("report", str(timeline), "--text", "--html", str(tmp_path / "start.html"))
    assert result.stdout.startswith(b"cold start: ready after 2.000 s\n")


def test_several_sources_are_several_starts(timeline: Path, tmp_path: Path) -> None:
    first, page = tmp_path / "first.json", tmp_path / "both.html"
    first.write_text(init_report(read_spans(timeline), handler="a:first").to_json())
    assert coldstart("report", str(first), str(timeline), "--html", str(page)).returncode == 0
    text = page.read_text()
    assert "2 starts on one scale" in text
    assert text.index(f"<h2>{first}</h2>") < text.index(f"<h2>{timeline}</h2>")
    assert coldstart("report", str(first), str(timeline)).stdout.count(b"ready after") == 2


def test_a_place_that_cannot_be_written_is_named(timeline: Path, tmp_path: Path) -> None:
    result = coldstart("report", str(timeline), "--html", str(tmp_path / "nowhere" / "start.html"))
    assert result.returncode == 10
    assert result.stderr.decode().startswith(f"coldstart: configuration: cannot write {tmp_path}/nowhere/start.html: ")

"""docs/report.md and the schema beside it say what reports are."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from adapter.errors import ObjectNotFound
from adapter.init_report import LAYERS, SCHEMA_VERSION, InitReport, Share, Stage, Step, Transfer, init_report
from adapter.timeline import Span
from tests.support.source_tree import ROOT

DOCUMENT = ROOT / "docs" / "report.md"
SCHEMA = ROOT / "docs" / f"init-report.v{SCHEMA_VERSION}.schema.json"
MS = 1_000_000


def documented_example() -> str:
    return DOCUMENT.read_text().partition("```json\n")[2].partition("```")[0]


def valid(*files: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "check_jsonschema", "--schemafile", str(SCHEMA), *(str(file) for file in files)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_reports_and_the_documented_example_keep_to_the_schema(tmp_path: Path) -> None:
    spans = [
        Span("weights.stream", "fetcher", "network", 0, 9 * MS, 1, {"bytes": 5, "requests": 1, "error": None}),
        Span("model.load", "worker", "cpu", 2 * MS, 7 * MS, 2),
        Span("replica.ready", "front", "process", 10 * MS, 10 * MS, 3),
    ]
    reports = {
        "ready": init_report(spans, handler="a:b"),
        "failed": init_report(spans, error=ObjectNotFound("no bucket", key="k")),
        "starting": init_report(spans[:2]),
        "recovery": init_report([*spans, Span("replica.ready", "front", "process", 0, 0, 3)], start_ns=MS),
        "empty": init_report([]),
    }
    assert reports["recovery"].kind == "recovery"
    files = []
    for name, report in reports.items():
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(report.to_json())
    files.append(tmp_path / "documented.json")
    files[-1].write_text(documented_example())
    result = valid(*files)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_schema_refuses_what_is_none(tmp_path: Path) -> None:
    value = json.loads(documented_example())
    wrong: dict[str, Any] = {"schema_version": 2, "total_s": "1", "stages": [{}], "kind": "warm", "error": {}}
    for name, given in wrong.items():
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(value | {name: given}))
        assert valid(path).returncode == 1, name


def test_the_schema_names_every_field_of_the_code() -> None:
    schema = json.loads(SCHEMA.read_text())
    definitions = schema["$defs"]
    assert set(schema["properties"]) == {field.name for field in fields(InitReport)}
    assert set(schema["properties"]["layers"]["properties"]) == set(LAYERS)
    assert set(schema["properties"]["transfer"]["properties"]) == {f.name for f in fields(Transfer)} | {"bytes_per_s"}
    for name, kind in (("share", Share), ("stage", Stage), ("step", Step)):
        assert set(definitions[name]["properties"]) == {field.name for field in fields(kind)}


def test_the_document_names_every_field() -> None:
    text = DOCUMENT.read_text().partition("## The schema")[2]
    named = set(re.findall(r"`(\w+)`", text))
    for kind in (InitReport, Transfer, Share, Stage, Step):
        assert {field.name for field in fields(kind)} <= named, kind.__name__


def test_the_documented_example_is_a_report() -> None:
    report = InitReport.from_json(documented_example())
    assert report.schema_version == SCHEMA_VERSION
    assert sum(share.seconds for share in report.layers.values()) == report.total_s
    assert [step.start_s for step in report.critical_path[1:]] == [step.stop_s for step in report.critical_path[:-1]]

"""Every example runs as a program, as a reader would run it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.minilm import minilm_directory
from tests.support.replicas import running_replica

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def _run(name: str, *arguments: str) -> str:
    """What the example prints; its cwd is the repository's, as in its instructions."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_smallest_handler() -> None:
    assert _run("ex01_hello.py") == "{'greeting': 'Hello, Ada!', 'first': False}\n"


def test_weights_in_one_process_makes_and_reads_a_checkpoint() -> None:
    said = _run("ex02_weights_in_one_process.py")
    assert said.startswith("4 tensors at ")
    assert "0.weight  (64, 16)  torch.float32" in said
    assert "probabilities: [" in said


def test_weights_in_one_process_shows_a_given_checkpoint() -> None:
    said = _run("ex02_weights_in_one_process.py", str(minilm_directory()))
    assert said.startswith("104 tensors at ")
    assert "embeddings.LayerNorm.weight  (384,)" in said


def test_a_class_streams_words() -> None:
    words = _run("ex03_streaming_class.py").split()
    assert len(words) == 12
    assert words[0] == "the"


def test_a_handler_of_the_examples_is_served_as_its_first_lines_say(tmp_path: Path) -> None:
    """A10, from the outside: lines of JSON, the last one ends the stream."""
    shutil.copy(EXAMPLES / "ex03_streaming_class.py", tmp_path)
    with running_replica("ex03_streaming_class:write", tmp_path) as replica:
        replica.wait_ready()
        answer = replica.post({"start": "the", "words": 3})
    items = [json.loads(line) for line in answer.body.splitlines()]
    assert [item["position"] for item in items] == [0, 1, 2]
    assert items[0]["word"] == "the"


def test_the_list_of_examples_names_each_of_them() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    for path in EXAMPLES.glob("*.py"):
        assert f"`{path.name}`" in listed

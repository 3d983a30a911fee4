from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from adapter.cli.main import main
from adapter.cli.plain_text import parse_bytes
from adapter.errors import NotConvertible


def test_it_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shared = torch.ones(300)
    torch.save({"a": shared, "b": torch.zeros(300), "c": shared, "step": 1}, tmp_path / "x.pt")
    arguments = [str(tmp_path / "x.pt"), str(tmp_path / "out"), "--shard-size", "1.2kB", "--skip", "step"]
    assert main(["convert", *arguments]) == 0
    first, *_, last = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert first["event"] == "convert.started"
    assert (last["event"], last["tensors"], last["total_bytes"]) == ("convert.complete", 2, 2400)
    assert (last["tied"], last["skipped"]) == ({"c": "a"}, ["step"])
    assert last["shards"] == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


def test_a_refusal_is_one_line_and_an_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"a": 1}, tmp_path / "x.pt")
    assert main(["convert", str(tmp_path / "x.pt"), str(tmp_path / "out")]) == NotConvertible.exit_code
    err = capsys.readouterr().err
    assert "'a' is an int, not a tensor" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(("text", "size"), [("5GB", 5 * 10**9), ("1.5 MiB", 3 << 19), ("4096", 4096), ("2k", 2000)])
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "0", "5 apples", "1iB", "0.1B"])
def test_what_is_no_size(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["convert", "in", str(tmp_path / "out"), f"--shard-size={text}"])
    assert ended.value.code == 2
    assert "--shard-size" in capsys.readouterr().err

"""Addresses: which source reads them, and what is said of those that none reads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from adapter.errors import ConfigurationError
from adapter.storage.files import FileSource
from adapter.storage.memory import MemorySource, register_memory
from adapter.storage.sources import open_source


def test_a_directory_is_read_by_its_path_and_by_its_address(tmp_path: Path) -> None:
    strange = tmp_path / "a b?#%"
    strange.mkdir()
    (strange / "x").write_bytes(b"content")
    escaped = str(strange).replace("%", "%25").replace(" ", "%20").replace("?", "%3F")
    for address in (str(strange), f"file://{escaped}", f"file://localhost{escaped}"):
        with open_source(address, connections=2) as source:
            assert isinstance(source, FileSource)
            assert [info.key for info in source.list()] == ["x"]


def test_a_registered_fake_is_found_by_its_name() -> None:
    fake = MemorySource({"x": b"content"})
    assert open_source(register_memory("sources-test", fake), connections=2) is fake


@pytest.mark.parametrize(
    "address",
    ["gs://bucket/m", "https://", "hf://", "file://host/m", "memory://absent", "s3://", "s3:///key", "", "a\0b"],
)
def test_an_address_that_none_reads_is_a_configuration_error(address: str) -> None:
    with pytest.raises(ConfigurationError):
        open_source(address, connections=2)


def test_the_supported_addresses_are_named_and_no_password_is_repeated() -> None:
    with pytest.raises(ConfigurationError, match=r"s3://bucket/prefix/") as refused:
        open_source("ftp://user:password@host/m", connections=2)
    assert "password" not in refused.value.message + str(refused.value.fields)


def test_the_sdk_is_imported_for_s3_only(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"content")
    script = (
        "import sys; from adapter.storage.sources import open_source; "
        f"list(open_source({str(tmp_path)!r}, connections=1).list()); "
        "sys.exit(any(name.startswith('boto') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0

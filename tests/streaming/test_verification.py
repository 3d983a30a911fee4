"""What is checked before cached weights are taken, and what of a damaged file is kept."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import pytest

from adapter.errors import AccessDenied, ChecksumMismatch
from adapter.storage.checksums import StoredChecksum
from adapter.storage.memory import FailRead, MemorySource
from adapter.streaming.cache import Cache
from adapter.streaming.integrity import ALGORITHMS, DIGESTS_NAME, PART_BYTES
from adapter.streaming.manifest import StreamManifest
from adapter.streaming.options import Progress
from adapter.streaming.streamer import Streamer
from tests.support.shard_bytes import shard
from tests.support.streams import contents, left_names, options

MEBIBYTE = 1 << 20
NAME = "model.safetensors"
MODEL = shard(1, 20 * MEBIBYTE)
ZEROED = slice(PART_BYTES + MEBIBYTE, PART_BYTES + MEBIBYTE + 4096)


@dataclass(frozen=True)
class Streamed:
    """What came of a stream."""

    manifest: StreamManifest
    progress: Progress
    received_bytes: int
    dropped: list[str]


def stream(root: Path, objects: dict[str, bytes], boot_id: str = "boot", **changes: object) -> Streamed:
    source = MemorySource(objects)
    with Streamer(source, Cache(root, boot_id=boot_id), options(**changes)) as streamer:
        manifest = streamer.prepare()
        progress = streamer.run()
        dropped = [str(span.fields["reason"]) for span in streamer.timeline.spans() if span.name == "cache.dropped"]
    return Streamed(manifest, progress, source.received_bytes, dropped)


def zero(manifest: StreamManifest) -> None:
    published = manifest.objects[0].published
    published.chmod(0o600)
    with published.open("r+b") as file:
        file.seek(ZEROED.start)
        file.write(bytes(ZEROED.stop - ZEROED.start))
    published.chmod(0o444)


def test_a_file_of_an_earlier_boot_whose_checksums_fit_is_taken_and_read_only_once(tmp_path: Path) -> None:
    """D8"""
    stream(tmp_path, {NAME: MODEL}, "before")
    again = stream(tmp_path, {NAME: MODEL}, "after")
    assert again.received_bytes == 0
    assert contents(again.manifest) == {NAME: MODEL}
    zero(again.manifest)
    unread = stream(tmp_path, {NAME: MODEL}, "after")
    assert (unread.received_bytes, unread.dropped) == (0, []), "within the boot its record is proof"


def test_of_a_file_that_a_power_cut_damaged_only_the_damaged_part_is_fetched(tmp_path: Path) -> None:
    """D8, S-20"""
    zero(stream(tmp_path, {NAME: MODEL}, "before").manifest)
    again = stream(tmp_path, {NAME: MODEL}, "after")
    assert again.received_bytes == PART_BYTES
    assert again.progress.from_cache_bytes == len(MODEL) - PART_BYTES
    assert contents(again.manifest) == {NAME: MODEL}
    assert len(again.dropped) == 1
    assert left_names(tmp_path) == [NAME, "record.json"]


def test_a_filling_file_of_an_earlier_boot_gives_what_its_checksums_fit(tmp_path: Path) -> None:
    """D8, S-20: killed together with its machine, which kept the journal and lost some of the data."""
    denied = FailRead(NAME, AccessDenied("no longer", key=NAME), first=7, times=99)
    source = MemorySource({NAME: MODEL}, faults=[denied])
    with Streamer(source, Cache(tmp_path, boot_id="before"), options(connections=1)) as streamer:
        entry = streamer.prepare().objects[0]
        with pytest.raises(AccessDenied):
            streamer.run()
    had_bytes = source.received_bytes
    with entry.partial.open("r+b") as file:
        file.seek(2 * MEBIBYTE)
        file.write(bytes(4096))
    again = stream(tmp_path, {NAME: MODEL}, "after")
    assert again.received_bytes == len(MODEL) - (had_bytes - MEBIBYTE), "all but the chunk that was lost"
    assert contents(again.manifest) == {NAME: MODEL}


def test_with_verify_size_a_zeroed_range_goes_unseen_and_with_verify_crc_it_is_found(tmp_path: Path) -> None:
    """S-20: the record is there, one range is not."""
    zero(stream(tmp_path, {NAME: MODEL}).manifest)
    assert stream(tmp_path, {NAME: MODEL}, verify="size").received_bytes == 0
    found = stream(tmp_path, {NAME: MODEL}, verify="crc")
    assert found.received_bytes == PART_BYTES
    assert str(PART_BYTES) in found.dropped[0]
    assert contents(found.manifest) == {NAME: MODEL}
    assert stream(tmp_path, {NAME: MODEL}, verify="crc").received_bytes == 0


def test_a_complete_file_whose_record_was_lost_is_fetched_again(tmp_path: Path) -> None:
    """S-20: its size is no proof."""
    first = stream(tmp_path, {NAME: MODEL})
    zero(first.manifest)
    (first.manifest.objects[0].published.parent / "record.json").unlink()
    again = stream(tmp_path, {NAME: MODEL})
    assert again.received_bytes == len(MODEL)
    assert contents(again.manifest) == {NAME: MODEL}


def digests(**objects: bytes) -> dict[str, bytes]:
    named = {NAME: MODEL, **objects}
    lines = [f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in named.items()]
    return {NAME: MODEL, DIGESTS_NAME: "".join(lines).encode()}


def test_a_model_that_fits_its_digests_is_streamed_and_a_damaged_cache_repaired(tmp_path: Path) -> None:
    objects = digests()
    first = stream(tmp_path, objects, verify="sha256")
    assert contents(first.manifest) == objects
    zero(first.manifest)
    again = stream(tmp_path, objects, verify="sha256")
    assert again.received_bytes == PART_BYTES
    assert contents(again.manifest) == objects


def test_a_model_that_does_not_fit_its_digests_is_never_published(tmp_path: Path) -> None:
    """Somebody replaced the weights in the store, not the digests."""
    objects = digests() | {NAME: shard(2, 20 * MEBIBYTE)}
    with pytest.raises(ChecksumMismatch, match=NAME) as caught:
        stream(tmp_path, objects, verify="sha256")
    assert caught.value.fields["algorithm"] == "sha256"
    assert NAME not in left_names(tmp_path)


@pytest.mark.parametrize("objects", [{NAME: MODEL}, {NAME: MODEL, DIGESTS_NAME: b""}])
def test_digests_that_were_asked_for_and_are_not_there_end_the_start(tmp_path: Path, objects: dict[str, bytes]) -> None:
    with pytest.raises(ChecksumMismatch, match=DIGESTS_NAME):
        stream(tmp_path, objects, verify="sha256")
    assert NAME not in left_names(tmp_path)


@pytest.mark.parametrize("algorithm", ["crc64nvme", "crc32", "crc32c", "sha256"])
@pytest.mark.parametrize("right", [True, False])
def test_a_shard_is_compared_with_the_checksum_that_the_store_keeps(
    tmp_path: Path, algorithm: str, right: bool
) -> None:
    """D4: also one of another kind than that of the arriving chunks."""
    if algorithm in ALGORITHMS and not ALGORITHMS[algorithm].available:
        pytest.skip(f"{algorithm} needs the extra crc")
    other = shard(2, 20 * MEBIBYTE)
    said = MODEL if right else other
    crc = ALGORITHMS.get(algorithm)
    value = crc.text(crc.of(said)) if crc is not None else hashlib.sha256(said).hexdigest()
    source = MemorySource({NAME: MODEL}, checksums={NAME: StoredChecksum(algorithm, value)})
    with Streamer(source, Cache(tmp_path), options(verify="crc")) as streamer:
        manifest = streamer.prepare()
        if right:
            streamer.run()
            assert contents(manifest) == {NAME: MODEL}
        else:
            with pytest.raises(ChecksumMismatch, match=algorithm):
                streamer.run()
            assert left_names(tmp_path) == []

"""`coldstart inspect URI`: what a checkpoint holds, read from its headers alone."""

from __future__ import annotations

import json
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from math import prod
from typing import TYPE_CHECKING

from adapter.cli import Subparsers
from adapter.cli.plain_text import printable, readable_bytes, table
from adapter.settings import Settings

if TYPE_CHECKING:
    from adapter.checkpoint.header import TensorInfo
    from adapter.streaming.inspection import InspectedShard, Inspection


def add_parser(subparsers: Subparsers) -> None:
    """Describe the command."""
    parser: ArgumentParser = subparsers.add_parser(
        "inspect",
        description="Show tensors, dtypes, shapes and bytes of a checkpoint. Only headers and the weight index are "
        "read, and each is checked as a start would check it.",
    )
    parser.add_argument(
        "address", metavar="URI", help="s3://bucket/prefix/, a directory, or one .safetensors file in either"
    )
    parser.add_argument("--only", metavar="PATTERN", action="append", help="show tensors of these names (layer.0.*)")
    parser.add_argument("--summary", action="store_true", help="leave out the list of tensors")
    parser.add_argument("--json", action="store_true", help="one JSON object with everything")
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """Show it; 0.

    Raises:
        StorageError: The store could not be read.
        CheckpointError: There is no complete checkpoint, or a shard is no safetensors file.
    """
    from adapter.storage.access import Access
    from adapter.storage.addresses import shown_address
    from adapter.storage.retry import RetryingSource
    from adapter.storage.sources import open_source
    from adapter.streaming.inspection import inspect_checkpoint, inspect_file, split_file_address

    settings = Settings.from_env(os.environ)
    limit_bytes = settings.header_limit_bytes
    single = split_file_address(arguments.address)
    address = shown_address(arguments.address)
    opened = open_source(
        single[0] if single else arguments.address, connections=settings.connections, access=Access.of(settings)
    )
    with RetryingSource(opened) as source:
        if single:
            found = inspect_file(source, single[1], header_limit_bytes=limit_bytes)
        else:
            found = inspect_checkpoint(
                source, address, connections=settings.connections, header_limit_bytes=limit_bytes
            )
    patterns = arguments.only or ["*"]
    chosen = [each for each in found.tensors if any(fnmatchcase(each[0].name, pattern) for pattern in patterns)]
    if arguments.json:
        print(json.dumps(_values(address, found, chosen), ensure_ascii=False))
    else:
        print("\n".join(_lines(address, found, [] if arguments.summary else chosen)))
    return 0


def _values(address: str, found: Inspection, chosen: Iterable[tuple[TensorInfo, InspectedShard]]) -> dict[str, object]:
    return {
        "address": address,
        "store": found.store,
        "index": found.index_name,
        "shards": [
            {
                "name": shard.info.key,
                "size_bytes": shard.info.size_bytes,
                "version": shard.info.version,
                "data_start": shard.header.data_start,
                "tensors": len(shard.header.tensors),
                "metadata": dict(shard.header.metadata),
            }
            for shard in found.shards
        ],
        "tensors": [
            {
                "name": info.name,
                "dtype": info.dtype.name,
                "shape": list(info.shape),
                "bytes": info.length_bytes,
                "shard": shard.info.key,
                "start": info.start,
            }
            for info, shard in chosen
        ],
        "tied": found.tied,
        "files": [{"name": info.key, "size_bytes": info.size_bytes} for info in found.files],
        "skipped": list(found.skipped),
        "notes": list(found.notes()),
    }


def _lines(address: str, found: Inspection, chosen: Iterable[tuple[TensorInfo, InspectedShard]]) -> Iterator[str]:
    total = sum(info.length_bytes for info, _ in found.tensors)
    elements = sum(prod(info.shape) for info, _ in found.tensors)
    yield (
        f"{printable(address)}: tensors {len(found.tensors)}, elements {elements:,}, {readable_bytes(total)}; "
        f"shards {len(found.shards)}, files beside them {len(found.files)}"
    )
    yield ""
    yield from _by_dtype(found)
    yield ""
    rows = [("shard", "tensors", "size", "header")]
    for shard in found.shards:
        name, count = printable(shard.info.key), len(shard.header.tensors)
        rows.append((name, f"{count}", readable_bytes(shard.info.size_bytes), readable_bytes(shard.header.data_start)))
    yield from table(rows, frozenset({1, 2, 3}))
    tensors = [
        (printable(info.name), info.dtype.name, f"{list(info.shape)}", readable_bytes(info.length_bytes))
        + ((printable(shard.info.key),) if len(found.shards) > 1 else ())
        for info, shard in chosen
    ]
    if tensors:
        heading = ("tensor", "dtype", "shape", "bytes") + (("shard",) if len(found.shards) > 1 else ())
        yield ""
        yield from table([heading, *tensors], frozenset({3}))
    closing = [f"tied: {printable(name)} is {printable(kept)}" for name, kept in found.tied.items()]
    closing += [f"not streamed: {', '.join(map(printable, found.skipped))}"] if found.skipped else []
    closing += [f"note: {note}" for note in found.notes()]
    if closing:
        yield ""
        yield from closing


def _by_dtype(found: Inspection) -> list[str]:
    sums: dict[str, list[int]] = {}
    for info, _ in found.tensors:
        each = sums.setdefault(info.dtype.name, [0, 0, 0])
        each[0] += 1
        each[1] += prod(info.shape)
        each[2] += info.length_bytes
    rows = [("dtype", "tensors", "elements", "bytes")]
    for name, (count, elements, size_bytes) in sorted(sums.items(), key=lambda each: -each[1][2]):
        rows.append((name, f"{count}", f"{elements:,}", readable_bytes(size_bytes)))
    return table(rows, frozenset({1, 2, 3}))

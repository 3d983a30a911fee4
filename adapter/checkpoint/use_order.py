"""Which parts of a file are wanted first, told from the order in which an earlier start asked for its tensors."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from adapter.checkpoint.header import Header
from adapter.checkpoint.ranges import ByteRange


def parts_in_use_order(header: Header, parts: Sequence[ByteRange], used: Mapping[str, int]) -> dict[ByteRange, int]:
    """The parts that hold a tensor which was asked for, each with the number of the first such tensor.

    A part stays one request, whatever it holds: the order costs no request more.

    Args:
        header: Of the file.
        parts: Of the file, sorted, none overlapping another.
        used: Tensor → its number in the order of use; names that are in another file are passed over.
    """
    starts = [part.start for part in parts]
    found: dict[ByteRange, int] = {}
    for name in used.keys() & header.tensors.keys():
        info = header.tensors[name]
        if not info.range:
            continue
        at = max(bisect_right(starts, info.start) - 1, 0)
        for part in parts[at : bisect_right(starts, info.stop - 1)]:
            if part.overlaps(info.range):
                found[part] = min(found.get(part, used[name]), used[name])
    return found

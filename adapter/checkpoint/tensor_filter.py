"""Some tensors of a checkpoint, and of some of them some rows: which they are, and which bytes of a file they take.

A filter makes a smaller header of a header: tensors that are not wanted are left out, and of a tensor of which rows are
wanted the entry says the shape and the bytes of these rows. Whatever works on a header works on a smaller one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from math import prod
from typing import NamedTuple, TypedDict

from adapter.checkpoint.header import Header, TensorInfo
from adapter.checkpoint.ranges import ByteRange, coalesce, coalesce_within, round_to_pages
from adapter.checkpoint.ties import aliases
from adapter.errors import ConfigurationError, TensorMismatch

_ROWS = re.compile(r"(?P<glob>.*)\[(?P<start>\d*):(?P<stop>\d*)\]", re.DOTALL)
_GAP_SHARE = 1 / 25
"""Of the bytes that are wanted, so many more are read at the most where that saves requests."""
_GAP_BYTES = 1 << 20
"""The longest gap that is read: a request costs about as much as this on one connection (10 ms at 100 MB/s)."""


class TensorChoice(TypedDict, total=False):
    """What a `TensorFilter` is made of, as keyword arguments."""

    only: Sequence[str]
    skip: Sequence[str]


class _Pattern(NamedTuple):
    glob: str
    rows: tuple[int, int | None] | None = None
    """First row and the one after the last; None: up to the end."""

    @classmethod
    def parse(cls, text: str) -> _Pattern:
        found = _ROWS.fullmatch(text)
        if found is None:
            return cls(text)
        return cls(found["glob"], (int(found["start"] or 0), int(found["stop"]) if found["stop"] else None))


@dataclass(frozen=True, slots=True)
class TensorFilter:
    """Which tensors of a checkpoint are wanted; an empty one wants all.

    A tensor that has several names (ties) is wanted when one of its names is.

    Raises:
        ConfigurationError: A pattern is empty, or `skip` names rows.
    """

    only: Sequence[str] = ()
    """Shell patterns (`*`, `?`, `[a-z]`, upper and lower case told apart) of names; empty: every name.
    `embed.weight[0:1000]` wants these rows, counted from 0, and not the row 1000. The first that fits counts."""
    skip: Sequence[str] = ()
    """Patterns of names that are not wanted though `only` does."""

    def __post_init__(self) -> None:
        for field in ("only", "skip"):
            given = getattr(self, field)
            patterns = (given,) if isinstance(given, str) else tuple(given)
            if not all(isinstance(each, str) and each for each in patterns):
                raise ConfigurationError(f"{field}={given!r}: patterns of tensors' names are wanted")
            object.__setattr__(self, field, patterns)
        rows = next((each for each in self.skip if _Pattern.parse(each).rows is not None), None)
        if rows is not None:
            raise ConfigurationError(f"skip={rows!r}: whole tensors are skipped; rows are named in `only`")

    def __bool__(self) -> bool:
        """Whether anything is left out."""
        return bool(self.only or self.skip)

    def wants(self, name: str) -> bool:
        """Whether the tensor of that name is wanted, or some of it."""
        return self._found([name], self._patterns()) is not None

    def unused(self, names: Iterable[str]) -> tuple[str, ...]:
        """The patterns of `only` that fit none of these names."""
        left = {text: _Pattern.parse(text).glob for text in self.only}
        for name in names:
            if not left:
                break
            left = {text: glob for text, glob in left.items() if not fnmatchcase(name, glob)}
        return tuple(left)

    def narrow(self, header: Header, *, file: str) -> Header:
        """The header as if the file held what is wanted alone; places, data and size of the file stay.

        Raises:
            TensorMismatch: A tensor does not have the rows that are wanted.
        """
        if not self:
            return header
        names: dict[str, list[str]] = defaultdict(list)
        for alias, kept in aliases(header.metadata, header.tensors).items():
            names[kept].append(alias)
        tensors: dict[str, TensorInfo] = {}
        patterns = self._patterns()
        for name, info in header.tensors.items():
            found = self._found([name, *names.get(name, ())], patterns)
            if found is not None and found.rows is None:
                tensors[name] = info
            elif found is not None and found.rows is not None:
                tensors[name] = rows_of(info, *found.rows, file=file)
        return replace(header, tensors=tensors)

    def ranges(self, header: Header, page_bytes: int, *, file: str) -> list[ByteRange]:
        """What of a file must be there: its header and the whole pages of what is wanted, small gaps included.

        Raises:
            TensorMismatch: As `narrow`.
        """
        data = [each.range for each in self.narrow(header, file=file).tensors.values() if each.range]
        pages = [round_to_pages(each, page_bytes, header.total_bytes) for each in coalesce(data)]
        spare_bytes = int(sum(each.length for each in data) * _GAP_SHARE)
        return coalesce([ByteRange(0, header.data_start), *coalesce_within(pages, spare_bytes, _GAP_BYTES)])

    def _found(self, names: Sequence[str], patterns: Sequence[_Pattern]) -> _Pattern | None:
        """The pattern by which a tensor of these names is wanted."""
        wanted = [name for name in names if not any(fnmatchcase(name, each) for each in self.skip)]
        return next((each for each in patterns if any(fnmatchcase(name, each.glob) for name in wanted)), None)

    def _patterns(self) -> list[_Pattern]:
        return [_Pattern.parse(each) for each in self.only or ("*",)]


def rows_of(info: TensorInfo, start: int, stop: int | None = None, *, file: str) -> TensorInfo:
    """Rows of a tensor as a tensor of its own: the part from `start` to before `stop` along the first dimension.

    Args:
        info: The tensor, (N, ...).
        start: The first row.
        stop: The row after the last; None is N.
        file: For messages.

    Raises:
        TensorMismatch: It does not have these rows, or they do not lie on whole bytes.
    """
    if not info.shape:
        raise TensorMismatch(f"{file}: tensor {info.name!r} is a single number and has no rows", tensor=info.name)
    count = info.shape[0]
    stop = count if stop is None else stop
    if not 0 <= start <= stop <= count:
        raise TensorMismatch(
            f"{file}: rows {start} to {stop} of tensor {info.name!r} are wanted, it has {count}",
            file=file,
            tensor=info.name,
        )
    row_bits = prod(info.shape[1:]) * info.dtype.bits
    if start * row_bits % 8 or stop * row_bits % 8:
        raise TensorMismatch(
            f"{file}: rows {start} to {stop} of tensor {info.name!r} ({info.dtype.name} {list(info.shape)}) do not lie "
            "on whole bytes",
            file=file,
            tensor=info.name,
        )
    first = info.start + start * row_bits // 8
    return replace(
        info,
        shape=(stop - start, *info.shape[1:]),
        start=first,
        stop=first + (stop - start) * row_bits // 8,
    )

"""Numbers, names and tables as a terminal shows them."""

from __future__ import annotations

import re
from collections.abc import Sequence

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def readable_bytes(count: float) -> str:
    """`4.1 GB`: decimal units, three digits at the most."""
    step = 0
    while count >= 999.5 and step < len(_UNITS) - 1:
        count /= 1000
        step += 1
    return f"{count:.0f} {_UNITS[step]}" if step == 0 or count >= 99.95 else f"{count:.1f} {_UNITS[step]}"


def readable_seconds(seconds: float) -> str:
    """`1:02:03`, `2:03`, or `3 s`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def printable(text: str) -> str:
    """A text from outside, with nothing in it that a terminal would obey."""
    return text if text.isprintable() else ascii(text)


def printable_lines(text: str) -> str:
    """A text of several lines from outside; what a terminal would obey is written out, line ends and tabs are kept."""
    return "".join(
        found if found.isprintable() or found in "\n\t" else found.encode("unicode_escape").decode() for found in text
    )


def table(rows: Sequence[Sequence[str]], right: frozenset[int] = frozenset()) -> list[str]:
    """Rows of equally many cells as lines, columns aligned.

    Args:
        rows: The first may be a heading.
        right: Columns that are aligned at their right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if at in right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def parse_bytes(text: str) -> int:
    """The number that `5GB`, `1.5 MiB` or `4096` says.

    Raises:
        ValueError: It says none above zero.
    """
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kMGTP]?)(i?)B?\s*", text)
    if found is None or (found[3] and not found[2]):
        raise ValueError(f"{text!r} is no size: 5GB, 500MB or 512MiB are")
    step = " kMGTP".index(found[2] or " ")
    size_bytes = int(float(found[1]) * (1024 if found[3] else 1000) ** step)
    if size_bytes < 1:
        raise ValueError(f"{text!r} is less than a byte")
    return size_bytes

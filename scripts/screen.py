"""Where scripts write what a person reads: with rich where it is installed, else plainly."""

from __future__ import annotations

import time
from collections.abc import Sequence


class Screen:
    """Standard output."""

    def __init__(self) -> None:
        try:
            from rich.console import Console

            self._console: Console | None = Console(highlight=False, soft_wrap=True)
        except ImportError:
            self._console = None

    def heading(self, text: str) -> None:
        """The beginning of a part."""
        if self._console is not None:
            self._console.print(f"\n[bold]── {text} [/bold]")
        else:
            print(f"\n── {text}", flush=True)

    def say(self, text: str) -> None:
        """A line."""
        if self._console is not None:
            self._console.print(text, markup=False)
        else:
            print(text, flush=True)

    def moment(self, begun: float, text: str) -> None:
        """What happens now, so long after the beginning (monotonic seconds)."""
        self.say(f"  {time.monotonic() - begun:6.2f} s  {text}")

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Columns, the first of names, the others of figures."""
        if self._console is not None:
            from rich.table import Table

            table = Table(*head)
            for column in table.columns[1:]:
                column.justify = "right"
            for row in rows:
                table.add_row(*row)
            self._console.print(table, soft_wrap=False)
            return
        widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
        for name, *cells in [head, ["─" * width for width in widths], *rows]:
            figures = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
            self.say("  ".join((name.ljust(widths[0]), *figures)))

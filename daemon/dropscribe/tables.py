"""Tables for people: drawn by rich on a terminal, plain aligned columns (nothing cut off) in a pipe."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

NONE = "-"


def show(columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str = "") -> None:
    """Print rows under their column names. Numbers go to the right; ``None`` shows as a dash."""
    if sys.stdout.isatty():
        _draw(columns, rows, title)
    else:
        _align(columns, rows, title)


def seconds(value: float | None) -> str | None:
    """``12.3 s``; ``None`` stays."""
    return None if value is None else f"{value:.1f} s" if value >= 10 else f"{value:.2f} s"


def clock(value: float) -> str:
    """A place in a recording: ``1:02:03`` or ``2:03``."""
    minutes, rest = divmod(int(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def span(value: float | None) -> str | None:
    """A length of time with two units at most: ``12.3 s``, ``4 min 5 s``, ``3 h 20 min``, ``2 d 4 h``."""
    if value is None or value < 60:
        return seconds(value)
    total = round(value)
    for unit, size, below, smaller in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if total >= size:
            return f"{total // size} {unit} {total % size // smaller} {below}"
    return seconds(value)


def ratio(value: float | None) -> str | None:
    """A real-time factor."""
    return None if value is None else f"{value:.3f}"


def local_time(utc: str | None) -> str | None:
    """An ISO 8601 UTC time as the local one, to the second."""
    return None if utc is None else datetime.fromisoformat(utc).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _cell(value: object) -> str:
    return NONE if value is None else str(value).replace("\n", "\\n").replace("\t", " ")


def _numeric(rows: Sequence[Sequence[object]], index: int) -> bool:
    cells = [_cell(row[index]) for row in rows]
    return any(cell != NONE for cell in cells) and all(
        cell == NONE or cell.removesuffix(" s").replace(".", "", 1).isdigit() for cell in cells
    )


def _draw(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
    for index, column in enumerate(columns):
        numeric = _numeric(rows, index)
        table.add_column(column, justify="right" if numeric else "left", no_wrap=numeric, overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))  # Text: a file name is no markup
    Console().print(table)


def _align(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str) -> None:
    lines = [[str(column) for column in columns], *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    right = [_numeric(rows, index) for index in range(len(columns))]
    if title:
        sys.stdout.write(f"{title}\n")
    for line in lines:
        cells = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        )
        sys.stdout.write("  ".join(cells).rstrip() + "\n")

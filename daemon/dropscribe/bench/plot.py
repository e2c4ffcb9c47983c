"""A curve as a picture, by matplotlib (the extra ``bench``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dropscribe.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SUFFIXES = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class Curve:
    """One panel: a line per name in ``lines``, each as long as ``x``."""

    title: str
    x_label: str
    y_label: str
    x: Sequence[float]
    lines: dict[str, Sequence[float]]


def check(path: Path | None) -> None:
    """Raises ``ConfigError`` when a plot is asked for that cannot be drawn; before anything is measured."""
    if path is None:
        return
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"{path}: a plot is one of {', '.join(SUFFIXES)}")
    try:
        import matplotlib  # noqa: F401, ICN001 - only asked whether it is there
    except ImportError:
        raise ConfigError('a plot needs matplotlib: pip install "dropscribe[bench]"') from None


def draw(curves: Sequence[Curve], path: Path) -> None:
    """Write the panels side by side; the suffix of ``path`` says which format. Needs no display."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(curves), 4), layout="constrained")
    for axes, curve in zip(figure.subplots(1, len(curves), squeeze=False)[0], curves, strict=True):
        for name, values in curve.lines.items():
            axes.plot(curve.x, values, marker="o", markersize=4, label=name)
        axes.set(title=curve.title, xlabel=curve.x_label, ylabel=curve.y_label)
        axes.set_ylim(bottom=0)
        axes.grid(visible=True, alpha=0.3)
        if len(curve.lines) > 1:
            axes.legend()
    figure.savefig(path)

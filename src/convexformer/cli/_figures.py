"""Figures from commands: never on a screen, always whole files."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ._console import InputError, check_output, write

FIGURES = (".png", ".pdf", ".svg")
DPI = 200


def check_figure(path: Path, force: bool, inputs: Sequence[Path]) -> None:
    """Raise where the figure `path` cannot be drawn, or is one of the files that are read."""
    if path.suffix.lower() not in FIGURES:
        raise InputError(f"{path} is no figure we can draw; use one of {', '.join(FIGURES)}.")
    check_output(path, force, inputs)


def headless() -> None:
    """Draw without a display, whatever the machine has."""
    import matplotlib

    matplotlib.use("Agg")


def save(figure: Any, path: Path) -> None:
    """Write a figure in the format its name says, and close it."""
    from matplotlib import pyplot as plt

    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix.lower()[1:], dpi=DPI)
    plt.close(figure)
    write(path, buffer.getvalue())

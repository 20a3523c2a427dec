"""Plots by matplotlib, which is imported when one is drawn."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

from bpe.errors import ArgumentError, TokenmillError
from bpe.files.atomic_write import write_atomically

_FORMATS = (".svg", ".png", ".pdf")


class PlotError(TokenmillError):
    """A plot cannot be drawn."""


def new_figure(**options: Any) -> Any:
    """Return a `matplotlib.figure.Figure`; raise PlotError if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise PlotError(
            "plots are drawn with matplotlib, which is not installed; install it: pip install"
            " 'tokenmill[plot]'"
        ) from error
    return Figure(**options)


def check_plot(path: str) -> None:
    """Raise an error if no plot can be saved as `path`, before the work."""
    if Path(path).suffix not in _FORMATS:
        raise ArgumentError(
            f"--plot {path} is none of {', '.join(_FORMATS)}; give it one of these suffixes"
        )
    if not Path(path).parent.is_dir():
        raise ArgumentError(f"--plot {path} is in a directory that does not exist; make it first")
    if Path(path).is_dir() or not os.access(Path(path).parent, os.W_OK):
        raise ArgumentError(
            f"--plot {path} is a directory, or in one that cannot be written to; give another file"
        )
    new_figure()


def save_figure(figure: Any, path: str) -> None:
    """Write a figure to a file, in the format of its suffix; the same figure gives the same bytes.

    Raises:
        OSError: The file cannot be written.
    """
    from matplotlib import rc_context

    kind, content = Path(path).suffix[1:], io.BytesIO()
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    with rc_context({"svg.hashsalt": "tokenmill"}):
        figure.savefig(content, format=kind, metadata=dates)
    write_atomically(Path(path), content.getvalue())

"""Finding: the result of one check of a file."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Finding(NamedTuple):
    """Result of one check of a file; `blocks` are the damaged ones, `sources` their sources."""

    path: Path
    sound: bool
    text: str
    blocks: tuple[int, ...] = ()
    sources: tuple[str, ...] = ()

"""Results of checks of files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bpe.errors import TokenmillError


class Finding(NamedTuple):
    """Result of one check of a file; `blocks` are the damaged ones, `sources` their sources."""

    path: Path | str  # a URL is text
    sound: bool
    text: str
    blocks: tuple[int, ...] = ()
    sources: tuple[str, ...] = ()


@contextmanager
def noted(bad_files: list[dict[str, str]], path: Path | str) -> Iterator[None]:
    """Add an error inside the `with` to a list, as path and text, instead of raising it."""
    try:
        yield
    except (TokenmillError, OSError) as error:
        bad_files.append({"path": str(path), "text": str(error).removeprefix(f"{path}: ")})

"""One small trained vocabulary for many tests: text that Python ships, and some of every script."""

from __future__ import annotations

import functools
from pydoc_data.topics import topics

from nasty import APOSTROPHES, SAMPLES, WHITE_SPACES

from bpe import reference
from bpe.reference import Pair


@functools.cache
def documents() -> list[str]:
    """Return a few pages of English and code, and text in which the nasty pieces occur often."""
    pages = [topics[name] for name in ("assert", "comparisons", "strings", "with")]
    spaces = "".join(f"x{2 * space}y{3 * space}" for space in WHITE_SPACES)
    strange = " ".join([*SAMPLES, *APOSTROPHES, spaces, "a" * 70, " " * 70, "=" * 70, "\n" * 9])
    return [*pages, strange, strange[::-1], strange]


@functools.cache
def merges(tie_break: str = "greatest-bytes") -> tuple[Pair, ...]:
    """Return 600 merges of these documents."""
    return tuple(reference.train(documents(), 256 + 600, tie_break=tie_break))

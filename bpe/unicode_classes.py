"""Classes of code points, from a table of one Unicode version that is part of the package.

They do not depend on the installed Python, `regex` or system, as another class of a character would
change tokens. tiktoken 0.14 and Hugging Face tokenizers 0.23 agree for every code point.

    >>> table = class_table()
    >>> [int(table[ord(c)]) for c in "Aa1 !"]
    [17, 33, 2, 4, 0]
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

UNICODE_VERSION: Final = "16.0.0"

# Bit flags of the table.
LETTER: Final = 1  # \p{L}
NUMBER: Final = 2  # \p{N}
WHITE_SPACE: Final = 4  # \s: White_Space, not str.isspace(): U+001C..U+001F are not in it
MARK: Final = 8  # \p{M}
UPPER: Final = 16  # \p{Lu} and \p{Lt}
LOWER: Final = 32  # \p{Ll}

_N_RUNS: Final = 3368  # lines of the shipped table

# Flag -> prefixes of the General_Category of its code points.
_CATEGORIES: Final = {
    LETTER: ("L",), NUMBER: ("N",), WHITE_SPACE: ("Z",), MARK: ("M",), UPPER: ("Lu", "Lt"),
    LOWER: ("Ll",),
}  # fmt: skip

# The characters of class WHITE_SPACE, for use in a set of a regex.
WHITE_SPACES: Final = "\t\n\v\f\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"


def category_runs() -> list[tuple[int, int, str]]:
    """Return inclusive runs `(first, last, General_Category)`, ascending, without Cn."""
    path = Path(__file__).with_name("unicode_categories.txt")
    text = path.read_text(encoding="ascii")
    # One call: one for each line takes four times as long.
    runs = re.findall(r"^([0-9A-F]+)(?:\.\.([0-9A-F]+))? (\w\w)$", text, re.MULTILINE)
    if len(runs) != _N_RUNS:
        raise RuntimeError(
            f"{path}: {len(runs):,} lines say the category of code points: expected {_N_RUNS:,};"
            " the installation is damaged: install tokenmill again"
        )
    return [(int(first, 16), int(last or first, 16), category) for first, last, category in runs]


@functools.cache
def runs_of(*categories: str) -> list[tuple[int, int]]:
    """Return `(first, last)` of runs whose General_Category begins with one of `categories`."""
    return [(first, last) for first, last, name in category_runs() if name.startswith(categories)]


def in_regex(runs: Iterable[tuple[int, int]]) -> str:
    """Return runs `(first, last)` for use in a set of a regex."""
    return "".join(rf"\U{first:08x}-\U{last:08x}" for first, last in runs)


def members_of(*runs: tuple[int, int]) -> NDArray[np.bool_]:
    """Return `bool[0x110000]`, True for the code points in runs."""
    import numpy as np

    members = np.zeros(0x110000, np.bool_)
    for first, last in runs:
        members[first : last + 1] = True
    return members


@functools.cache
def class_table() -> NDArray[np.uint8]:
    """Return the class flags of every code point: `uint8[0x110000]`, read-only.

    They are 0 for surrogates and unassigned code points.
    """
    import numpy as np

    table = np.zeros(0x110000, dtype=np.uint8)
    runs = category_runs()
    flags = {
        name: sum(flag for flag, starts in _CATEGORIES.items() if name.startswith(starts))
        for name in {run[2] for run in runs}
    }
    for first, last, category in runs:
        table[first : last + 1] = flags[category]
    # White_Space beyond the separators (Zs, Zl, Zp): the control characters of PropList.txt.
    table[[0x09, 0x0A, 0x0B, 0x0C, 0x0D, 0x85]] |= WHITE_SPACE
    table.flags.writeable = False
    return table


@functools.cache
def class_pages() -> NDArray[np.uint64]:
    """Return `class_table` by pages of 64 code points, whose UTF-8 differs only in the last byte.

    Returns: `uint64[0x5000 * 8]`, read-only: bit `code_point % 64` of word
        `code_point // 64 * 8 + i` is flag `1 << i`. Words 6 and 7 of a page are zero, and so are
        pages past U+10FFFF, which invalid UTF-8 can reach.
    """
    import numpy as np

    table = class_table()
    pages = np.zeros((0x5000, 8), dtype=np.uint64)
    # By planes: pages of memory of empty ones are never touched.
    for first in range(0, len(table), 0x10000):
        plane = table[first : first + 0x10000]
        if plane.any():
            for i in range(6):
                members = np.packbits(plane & np.uint8(1 << i), bitorder="little")
                pages[first // 64 : (first + 0x10000) // 64, i] = members.view("<u8")
    flat = pages.reshape(-1)
    flat.flags.writeable = False
    return flat

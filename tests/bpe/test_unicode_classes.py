"""The shipped class table against tiktoken's engine, code point by code point."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiktoken

from bpe import unicode_classes
from bpe.unicode_classes import (
    LETTER,
    LOWER,
    MARK,
    NUMBER,
    UPPER,
    WHITE_SPACE,
    category_runs,
    class_table,
)

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]


@pytest.fixture(scope="module")
def every_character() -> str:
    return "".join(map(chr, CODE_POINTS))


def matched_by_tiktoken(pattern: str, text: str) -> np.ndarray:
    """Return the code points that a pattern matches: tiktoken drops all others."""
    encoding = tiktoken.Encoding(
        "class",
        pat_str=pattern,
        mergeable_ranks={bytes([b]): b for b in range(256)},
        special_tokens={},
    )
    matched = encoding.decode_bytes(encoding.encode_ordinary(text)).decode()
    return np.array([ord(character) for character in matched], dtype=np.int64)


@pytest.mark.parametrize(
    ("pattern", "flag"),
    [
        (r"\p{L}", LETTER),
        (r"\p{N}", NUMBER),
        (r"\s", WHITE_SPACE),
        (r"\p{M}", MARK),
        (r"[\p{Lu}\p{Lt}]", UPPER),
        (r"\p{Ll}", LOWER),
        (r"[\p{Lu}\p{Lt}\p{Ll}\p{Lm}\p{Lo}]", LETTER),
    ],
)
def test_every_code_point_has_the_class_that_tiktoken_gives_it(
    pattern: str, flag: int, every_character: str
) -> None:
    ours = np.flatnonzero(class_table() & flag)
    np.testing.assert_array_equal(ours, matched_by_tiktoken(pattern, every_character))


@pytest.mark.parametrize(
    "category", sorted({category for _, _, category in category_runs()} - {"Cs"})
)
def test_every_category_is_the_one_of_tiktoken(category: str, every_character: str) -> None:
    ours = [
        c
        for first, last, of_run in category_runs()
        if of_run == category
        for c in range(first, last + 1)
    ]
    assert ours == matched_by_tiktoken(rf"\p{{{category}}}", every_character).tolist()


@pytest.mark.parametrize("damage", ["cut off", "spaces", "a line less"])
def test_a_damaged_table_is_refused(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = Path(unicode_classes.__file__).with_name("unicode_categories.txt").read_text("ascii")
    path = tmp_path / "unicode_categories.txt"
    path.write_text(
        {
            "cut off": text[: len(text) // 2],
            "spaces": text.replace("Lu\n", "Lu \n"),
            "a line less": "\n".join(text.splitlines()[:-1]) + "\n",
        }[damage]
    )
    monkeypatch.setattr(unicode_classes, "__file__", str(tmp_path / "unicode_classes.py"))
    with pytest.raises(RuntimeError, match=r"expected 3,368; the installation is damaged: install"):
        category_runs()

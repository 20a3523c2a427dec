"""The shipped class table against tiktoken's engine, code point by code point."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiktoken

from bpe import unicode_classes
from bpe.unicode_classes import category_runs, class_table

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]


@pytest.fixture(scope="module")
def every_character() -> str:
    return "".join(map(chr, CODE_POINTS))


def matched_by_tiktoken(pattern: str, text: str) -> np.ndarray:
    """Return the code points that a pattern matches: tiktoken drops all others."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    encoding = tiktoken.Encoding("c", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    matched = encoding.decode_bytes(encoding.encode_ordinary(text)).decode()
    return np.array([ord(character) for character in matched], dtype=np.int64)


@pytest.mark.parametrize(
    ("pattern", "flag"),
    [
        (r"\p{L}", unicode_classes.LETTER),
        (r"\p{N}", unicode_classes.NUMBER),
        (r"\s", unicode_classes.WHITE_SPACE),
        (r"\p{M}", unicode_classes.MARK),
        (r"[\p{Lu}\p{Lt}]", unicode_classes.UPPER),
        (r"\p{Ll}", unicode_classes.LOWER),
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
    runs = [range(first, last + 1) for first, last, name in category_runs() if name == category]
    ours = [c for run in runs for c in run]
    assert ours == matched_by_tiktoken(rf"\p{{{category}}}", every_character).tolist()


@pytest.mark.parametrize("damage", ["cut off", "spaces", "a line less"])
def test_a_damaged_table_is_refused(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = Path(unicode_classes.__file__).with_name("unicode_categories.txt").read_text("ascii")
    damaged = {
        "cut off": text[: len(text) // 2],
        "spaces": text.replace("Lu\n", "Lu \n"),
        "a line less": "\n".join(text.splitlines()[:-1]) + "\n",
    }
    (tmp_path / "unicode_categories.txt").write_text(damaged[damage])
    monkeypatch.setattr(unicode_classes, "__file__", str(tmp_path / "unicode_classes.py"))
    with pytest.raises(RuntimeError, match=r"expected 3,368; the installation is damaged: install"):
        category_runs()

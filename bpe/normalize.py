"""Normalizers: the Unicode normal forms, as Hugging Face's tokenizers apply them.

The law here: text is normalized as `tokenizers` 0.23 does it, whatever Unicode the installed Python
knows.  Its tables are those of Unicode 9.0; Python's are newer, and differ from version to version.
By the stability policy of Unicode a character that both know is normalized alike.  What is newer
(the list below), or not assigned at all in our own table, is inert to the older tables: it is
neither decomposed, nor reordered, nor composed, nor does anything move across it.  So it stays as
it is, and the stretches between are normalized each on its own.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from typing import Final, Literal

NORMAL_FORMS: Final = ("NFC", "NFD", "NFKC", "NFKD")

# Code points of Unicode 10.0 to 16.0 that have a decomposition or a combining class, or compose.
_NEWER: Final = (
    "7FD 897-89F 8CA-8D3 9FE C3C D3B-D3C EBA 1715 1ABF-1ACE 1DF6-1DFA 32FF A7F2-A7F4 A82C AB69 "
    "105C9 105D2 105DA 105E4 10781-10785 10787-107B0 107B2-107BA 10D24-10D27 10D69-10D6D "
    "10EAB-10EAC 10EFD-10EFF 10F46-10F50 10F82-10F85 11070 1133B 11382-11385 1138B 1138E "
    "11390-11391 113B8 113BB 113C2 113C5 113C7-113C9 113CE-113D0 1145E 11839-1183A 11930 11935 "
    "11938 1193D-1193E 11943 119E0 11A34 11A47 11A99 11D42 11D44-11D45 11D97 11F41-11F42 "
    "1611E-16129 1612F 16D63 16D67-16D6A 16FF0-16FF1 1CCD6-1CCF9 1E030-1E06D 1E08F 1E130-1E136 "
    "1E2AE 1E2EC-1E2EF 1E4EC-1E4EF 1E5EE-1E5EF 1F16C 1FBF0-1FBF9"
)

Form = Literal["NFC", "NFD", "NFKC", "NFKD"]


def normalized(data: bytes, forms: tuple[str, ...]) -> bytes:
    """Return UTF-8 text in normal forms, applied one after the other.

    Args:
        data: UTF-8.
        forms: Some of `NORMAL_FORMS`.
    """
    if data.isascii():
        return data
    text = data.decode()
    for form in forms:
        text = _in_form(text, form)  # type: ignore[arg-type]  # checked where files are read
    return text.encode()


def _in_form(text: str, form: Form) -> str:
    stretches = _inert().split(text)
    if len(stretches) == 1:
        return unicodedata.normalize(form, text)
    # Every second one is what was split at.
    return "".join(
        stretch if index % 2 else unicodedata.normalize(form, stretch)
        for index, stretch in enumerate(stretches)
    )


@functools.cache
def _inert() -> re.Pattern[str]:
    from bpe.unicode_classes import category_runs

    edges = [-1, *(edge for first, last, _ in category_runs() for edge in (first, last)), 0x110000]
    unassigned = [(a + 1, b - 1) for a, b in zip(edges[::2], edges[1::2], strict=True) if a + 1 < b]
    newer = [[int(end, 16) for end in run.split("-")] for run in _NEWER.split()]
    runs = [*unassigned, *((run[0], run[-1]) for run in newer)]
    return re.compile("([" + "".join(rf"\U{a:08x}-\U{b:08x}" for a, b in runs) + "]+)")

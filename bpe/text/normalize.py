"""Unicode normal forms, as in Hugging Face's tokenizers.

`tokenizers` 0.23 has the tables of Unicode 9.0, and Python newer ones. By the stability policy of
Unicode, both normalize a character of 9.0 alike. Newer characters (the list below) and unassigned
ones are inert in 9.0: they are not decomposed, reordered or composed, and nothing moves across
them. So text is normalized piece by piece between inert characters, which are kept.
"""

from __future__ import annotations

import functools
import re
from typing import Final

from bpe.unicode_classes import category_runs, in_regex

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


def normalized(data: bytes, forms: tuple[str, ...]) -> bytes:
    """Normalize UTF-8 to each of `forms` (of `NORMAL_FORMS`) in turn."""
    if data.isascii():
        return data
    import unicodedata

    text = data.decode()
    for form in forms:
        stretches = _inert().split(text)  # every second one is inert
        stretches[::2] = [unicodedata.normalize(form, x) for x in stretches[::2]]  # type: ignore[arg-type]
        text = "".join(stretches)
    return text.encode()


@functools.cache
def _inert() -> re.Pattern[str]:
    edges = [-1, *(edge for first, last, _ in category_runs() for edge in (first, last)), 0x110000]
    unassigned = [(a + 1, b - 1) for a, b in zip(edges[::2], edges[1::2], strict=True) if a + 1 < b]
    newer = [[int(end, 16) for end in run.split("-")] for run in _NEWER.split()]
    runs = [*unassigned, *((run[0], run[-1]) for run in newer)]
    return re.compile(f"([{in_regex(runs)}]+)")

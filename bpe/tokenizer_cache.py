"""Tokenizers that were read before: what a tokenizer.json says, as arrays.

Law: what is found here is what reading the files again would give, and its fingerprint. A file of
the cache is for the texts of tokenizer.json and of its configuration, and for this state of the
package (`bpe.cache`). What is refused is never here.

To read a vocabulary of 32,000 tokens and to check that it is consistent takes a tenth of a second,
and its fingerprint, for which it is written again, half of that: as much as to encode 100 MB.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bpe.cache import Cache, digest_of
from bpe.patterns import PATTERNS
from bpe.tokenizer_file import TokenizerFiles, TokenizerParts
from bpe.vocabulary import AddedToken, FlatTokens, PairTable, Vocabulary

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Shorter files are read as fast as this would be.
_AT_LEAST = 1 << 16
_KEPT = 16
_OTHERWISE = ("vocabulary", "normal_forms", "outside")
_PLAIN = tuple(field.name for field in fields(TokenizerParts) if field.name not in _OTHERWISE)


@functools.cache
def _cache() -> Cache:
    package = Path(__file__).parent
    sources = [*sorted(package.glob("*.py")), *sorted(package.glob("unicode_*.txt"))]
    return Cache(f"tokenizers-{digest_of(sys.byteorder, sources)}", "tokenizers are read anew")


def is_kept(files: TokenizerFiles, parts: TokenizerParts) -> bool:
    """Whether `keep` is for what was read from these files.

    They are so long that it saves time; and not of a pattern that the package `regex` runs: whether
    it can is asked when the files are read.
    """
    return len(files.text) >= _AT_LEAST and parts.pattern in PATTERNS


def _name(files: TokenizerFiles) -> str:
    digest = hashlib.sha256()
    for text in (files.text, files.config):
        # A file that is not there differs from an empty one.
        content = b"-" if text is None else text.encode()
        digest.update(f"{text is None} {len(content)} ".encode())
        digest.update(content)
    return digest.hexdigest()


def find(files: TokenizerFiles) -> tuple[TokenizerParts, str] | None:
    """What `keep` was given for these files, or None."""
    import numpy as np

    content = _cache().read(_name(files)) if len(files.text) >= _AT_LEAST else None
    if content is None:
        return None
    n_head = int.from_bytes(content[:8], "little")
    head = json.loads(bytes(content[8 : 8 + n_head]))
    at = 8 + n_head

    def taken(n: int, dtype: Any) -> NDArray[Any]:
        nonlocal at
        array = np.frombuffer(content, dtype, n, at)
        at += array.nbytes
        return array.copy()

    n_tokens, n_pairs = head["tokens"], head["pairs"]
    ids, offsets = taken(n_tokens, np.int32), taken(n_tokens + 1, np.int64)
    columns = [taken(n_pairs, np.int32) for _ in PairTable._fields]
    tokens = FlatTokens(ids, offsets, taken(int(offsets[-1]), np.uint8))
    vocabulary = Vocabulary.restored(
        tokens,
        PairTable(*columns) if head["merges"] else None,
        [AddedToken(**token) for token in head["added"]],
        whole_first=head["whole_first"],
        ranked_by_bytes=head["ranked_by_bytes"],
    )
    parts = TokenizerParts(
        vocabulary=vocabulary,
        normal_forms=tuple(head["normal_forms"]),
        outside=frozenset(head["outside"]),
        **{name: head[name] for name in _PLAIN},
    )
    return parts, head["fingerprint"]


def keep(files: TokenizerFiles, parts: TokenizerParts, fingerprint: str) -> None:
    """Keep what was read from files, and the fingerprint of that."""
    vocabulary = parts.vocabulary
    tokens, pairs = vocabulary.flat, vocabulary.pairs
    head = {
        **{name: getattr(parts, name) for name in _PLAIN},
        "normal_forms": parts.normal_forms,
        "outside": sorted(parts.outside),
        "added": [asdict(token) for token in vocabulary.added_tokens],
        "whole_first": vocabulary.whole_first,
        "ranked_by_bytes": vocabulary.ranked_by_bytes,
        "merges": pairs is not None,
        "tokens": len(tokens.ids),
        "pairs": 0 if pairs is None else len(pairs.ranks),
        "fingerprint": fingerprint,
    }
    said = json.dumps(head).encode()
    # What follows stands where numbers of eight bytes may.
    said += b" " * (-len(said) % 8)
    arrays = [tokens.ids, tokens.offsets, *(pairs or ()), tokens.data]
    written = [len(said).to_bytes(8, "little"), said, *(array.tobytes() for array in arrays)]
    _cache().write(_name(files), b"".join(written))
    _cache().keep_newest(_KEPT)

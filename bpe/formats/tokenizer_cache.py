"""Cache of parsed tokenizer.json files: their vocabulary as arrays, and their fingerprint.

The key of an entry is the digest of both texts, in a directory for this state of the package
(`bpe.runtime.user_cache`). Refused files have no entry. Parsing and checking a vocabulary of 32,000
tokens takes 0.1 s, its fingerprint half of that: as long as encoding 100 MB.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bpe.formats.hf_read import TokenizerFiles
from bpe.formats.hf_write import TokenizerParts
from bpe.runtime.user_cache import Cache, digest_of
from bpe.split.patterns import PATTERNS
from bpe.vocabulary import AddedToken, FlatTokens, PairTable, Vocabulary

if TYPE_CHECKING:
    from numpy.typing import NDArray

_AT_LEAST = 1 << 16  # characters; shorter files are parsed as fast as an entry is read
_KEPT = 16  # entries
_PLAIN = {x.name for x in fields(TokenizerParts)} - {"vocabulary", "outside"}


@functools.cache
def _cache() -> Cache:
    package = Path(__file__).parents[1]
    sources = [*sorted(package.rglob("*.py")), *sorted(package.glob("unicode_*.txt"))]
    return Cache(f"tokenizers-{digest_of(sys.byteorder, sources)}", "tokenizers are parsed again")


def is_kept(files: TokenizerFiles, parts: TokenizerParts) -> bool:
    """Return True if files are cached: if they are large and the pattern has a scanner.

    Another pattern is checked at each reading, as the installed `regex` may refuse it.
    """
    return len(files.text) >= _AT_LEAST and parts.pattern in PATTERNS


def _name(files: TokenizerFiles) -> str:
    digest = hashlib.sha256()
    for text in (files.text, files.config):
        content = b"-" if text is None else text.encode()  # no file differs from an empty one
        digest.update(f"{text is None} {len(content)} ".encode() + content)
    return digest.hexdigest()


def find(files: TokenizerFiles) -> tuple[TokenizerParts, str] | None:
    """Return the entry of files, None if there is none."""
    import numpy as np

    content = _cache().read(_name(files)) if len(files.text) >= _AT_LEAST else None
    if content is None:
        return None
    n_head = int.from_bytes(content[:8], "little")
    head = json.loads(bytes(content[8 : 8 + n_head]))
    at = 8 + n_head

    def next_array(n: int, dtype: Any) -> NDArray[Any]:
        nonlocal at
        array = np.frombuffer(content, dtype, n, at)
        at += array.nbytes
        return array.copy()

    ids = next_array(head["tokens"], np.int32)
    offsets = next_array(head["tokens"] + 1, np.int64)
    columns = [next_array(head["pairs"], np.int32) for _ in PairTable._fields]
    vocabulary = Vocabulary.restore(
        FlatTokens(ids, offsets, next_array(int(offsets[-1]), np.uint8)),
        PairTable(*columns) if head["merges"] else None,
        [AddedToken(**token) for token in head["added"]], ignore_merges=head["ignore_merges"],
        normal_forms=tuple(head["normal_forms"]),
    )
    parts = TokenizerParts(
        vocabulary=vocabulary, outside=frozenset(head["outside"]),
        **{name: head[name] for name in _PLAIN},
    )
    return parts, head["fingerprint"]


def keep(files: TokenizerFiles, parts: TokenizerParts, fingerprint: str) -> None:
    """Cache the parts and the fingerprint of files."""
    vocabulary = parts.vocabulary
    tokens, pairs = vocabulary.flat, vocabulary.pairs
    head = {
        **{name: getattr(parts, name) for name in _PLAIN},
        "normal_forms": vocabulary.normal_forms,
        "outside": sorted(parts.outside),
        "added": [asdict(token) for token in vocabulary.added_tokens],
        "ignore_merges": vocabulary.ignore_merges,
        "merges": pairs is not None,
        "tokens": len(tokens.ids),
        "pairs": 0 if pairs is None else len(pairs.ranks),
        "fingerprint": fingerprint,
    }
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)  # aligns the arrays
    arrays = [tokens.ids, tokens.offsets, *(pairs or ()), tokens.data]
    content = [len(text).to_bytes(8, "little"), text, *(array.tobytes() for array in arrays)]
    _cache().write(_name(files), b"".join(content))
    _cache().keep_newest(_KEPT)

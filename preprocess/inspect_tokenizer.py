"""What a tokenizer is, in words and as JSON: sizes, pattern, special and strange entries.

Law: nothing is guessed.  What was looked at is said with each number; that no text gives a token is
said only where it is certain, and `out_of_reach` says why.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from preprocess.report import tokenizer_in_words

if TYPE_CHECKING:
    from bpe import Tokenizer
    from bpe.text_tokenizer import AnyTokenizer

_LISTED = 10
_LONGEST_MERGED = 1000


def facts(path: Path, tokenizer: AnyTokenizer) -> dict[str, Any]:
    """What there is to say about a tokenizer, ready for JSON.

    Args:
        path: What it is called.
        tokenizer: The tokenizer.
    """
    from bpe import Tokenizer

    special = tokenizer.special_tokens
    common: dict[str, Any] = {
        "path": str(path),
        "kind": tokenizer.pattern.partition(":")[0],
        "pattern": tokenizer.pattern,
        "unicode_version": tokenizer.unicode_version or None,
        "vocab_size": tokenizer.vocab_size,
        "special_tokens": special,
        "eos_token": tokenizer.eos_token,
        "bos_token": tokenizer.bos_token,
        "fingerprint": tokenizer.fingerprint,
    }
    if isinstance(tokenizer, Tokenizer):
        return common | _of_byte_level(tokenizer)
    words = tokenizer.vocab
    special_ids = set(special.values())
    ordinary = [token for token_id, token in words.items() if token_id not in special_ids]
    return common | {
        "kind": tokenizer.pattern,
        "ordinary_tokens": len(ordinary),
        "gaps": _gaps(words),
        "longest": [shown(token) for token in _longest(ordinary, _LISTED)],
        "strange": _strange(ordinary),
    }


def _gaps(ids: Iterable[int]) -> dict[str, Any]:
    """Ids below the largest that have no token: how many, and the first runs of them."""
    runs = []
    expected = 0
    for token_id in sorted(ids):
        if token_id > expected:
            runs.append([expected, token_id - 1])
        expected = token_id + 1
    return {"count": sum(b - a + 1 for a, b in runs), "first": runs[:_LISTED]}


def _strange(tokens: Iterable[bytes]) -> dict[str, Any]:
    """Kinds of tokens that surprise, longer than one byte: how many there are, and the longest."""
    longer = [token for token in tokens if len(token) > 1]
    kinds = {
        "control characters": [token for token in longer if _has_controls(token)],
        "runs of white space": [
            token for token in longer if not token.decode("utf-8", "replace").strip()
        ],
        "parts of characters": [token for token in longer if not _is_text(token)],
        "letters of several scripts": [token for token in longer if len(_scripts(token)) > 1],
        "the same again and again": [t for t in longer if len(t) >= 16 and len(set(t)) == 1],
    }
    return {
        name: {"count": len(found), "longest": [shown(token) for token in _longest(found, 3)]}
        for name, found in kinds.items()
    }


# By the first word of a letter's name: good enough to find what is odd.
_SCRIPTS_THAT_MIX = {"HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "CJK", "HANGUL", "IDEOGRAPHIC"}


def _scripts(token: bytes) -> set[str]:
    if token.isascii():
        return set()
    names = {
        unicodedata.name(character, "UNKNOWN").split()[0]
        for character in token.decode("utf-8", "ignore")
        if character.isalpha()
    }
    # Japanese is written in three, and letters of width or style are Latin.
    if names & _SCRIPTS_THAT_MIX:
        names = (names - _SCRIPTS_THAT_MIX) | {"CJK"}
    return names - {
        "MODIFIER",
        "MATHEMATICAL",
        "FULLWIDTH",
        "HALFWIDTH",
        "UNKNOWN",
        "FEMININE",
        "MASCULINE",
        "MICRO",
    }


def _of_byte_level(tokenizer: Tokenizer) -> dict[str, Any]:
    from bpe.patterns import PATTERNS

    vocabulary = tokenizer.vocabulary
    tokens = vocabulary.tokens
    added = vocabulary.added_tokens
    reach = out_of_reach(tokenizer)
    return {
        "kind": "byte-level BPE",
        "pattern_text": PATTERNS.get(tokenizer.pattern, tokenizer.pattern),
        "ordinary_tokens": len(tokens),
        "merges": len(tokenizer.merges),
        "ranked_by": "bytes" if vocabulary.ranked_by_bytes else "merges",
        "whole_pretokens_first": vocabulary.whole_first,
        "tie_break": tokenizer.tie_break,
        "normal_forms": list(tokenizer.normal_forms),
        "added_tokens_not_special": {t.text: t.id for t in added if not t.special},
        "gaps": _gaps(vocabulary.bytes_of_id),
        "longest": [shown(token) for token in _longest(tokens.values(), _LISTED)],
        "strange": _strange(tokens.values()),
        "out_of_reach": {
            name: {"count": len(ids), "first": {str(i): shown(tokens[i]) for i in ids[:_LISTED]}}
            for name, ids in (("never", reach.never), ("cut_by_the_pattern", reach.cut))
        },
    }


def _longest(tokens: Iterable[bytes], count: int) -> list[bytes]:
    return sorted(tokens, key=len, reverse=True)[:count]


def _is_text(token: bytes) -> bool:
    try:
        token.decode()
    except UnicodeDecodeError:
        return False
    return True


def _has_controls(token: bytes) -> bool:
    return any(
        unicodedata.category(character) == "Cc" and not character.isspace()
        for character in token.decode("utf-8", "ignore")
    )


def shown(token: bytes) -> str:
    """A token in print: its text, shortened, with what cannot be printed escaped."""
    if len(token) > 8 and len(set(token)) == 1:
        return f"{shown(token[:1])} * {len(token)}"
    text = token[:80].decode("utf-8", "backslashreplace")
    return ascii(text)[1:-1] if not text.isprintable() else text


@dataclass(frozen=True)
class OutOfReach:
    """Ordinary tokens that text is not encoded to.

    Attributes:
        never: Ids of those that their own bytes are not encoded to: no text gives them.  For whole
            pre-tokens that are looked up first, also of those that no pre-token is.
        cut: Ids of those that merges do make, but that the split pattern cuts where they stand
            alone: no text gives them, unless the pattern keeps them together beside other text.
    """

    never: list[int]
    cut: list[int]


def out_of_reach(tokenizer: Tokenizer) -> OutOfReach:
    """Look for ordinary tokens that no text is encoded to; what happens before splitting aside.

    Each token is encoded as if it were a document.  If that is one pre-token, merges give the token
    now or never: whatever stands around it, inside it the same pairs are joined in the same order
    as long as nothing is joined across its edges, and then it would not be there.
    """
    from bpe.encode import Encoder, EncoderTables
    from bpe.patterns import PATTERNS
    from bpe.pretokenize import is_utf8
    from bpe.reference import encode, rank_by_bytes, rank_by_merges

    vocabulary = tokenizer.vocabulary
    made = {left + right for left, right in vocabulary.merges}
    texts = {i: t for i, t in vocabulary.tokens.items() if is_utf8(np.frombuffer(t, np.uint8))}
    buffer = np.frombuffer(b"".join(texts.values()), np.uint8)
    offsets = np.cumsum([0, *map(len, texts.values())], dtype=np.int64)
    tables = EncoderTables(vocabulary, tokenizer.pattern)
    starts = tables.pretokenizer.boundaries(buffer, offsets)
    is_start = np.unpackbits(starts.view(np.uint8), bitorder="little")[: len(buffer) + 1]
    n_before = np.cumsum(is_start)
    # Starts behind the first byte of a token up to its last.
    whole = n_before[offsets[1:] - 1] == n_before[offsets[:-1]]
    ids, ends = Encoder(tables).encode(buffer, offsets)
    itself = (np.diff(ends) == 1) & (ids[ends[:-1]] == np.fromiter(texts, np.int64, len(texts)))
    never: list[int] = []
    cut: list[int] = []
    # What a scanner cuts alone is nowhere a whole pre-token; of another regex that is not known.
    certain = tokenizer.pattern in PATTERNS
    for token_id, is_whole, is_itself in zip(texts, whole.tolist(), itself.tolist(), strict=True):
        if is_whole and not is_itself:
            never.append(token_id)
        elif not is_whole:
            (never if certain and texts[token_id] not in made else cut).append(token_id)
    # Parts of characters are never a pre-token, so that only merges can make them.
    rank = (
        rank_by_bytes({token: token_id for token_id, token in vocabulary.tokens.items()})
        if vocabulary.ranked_by_bytes
        else rank_by_merges(vocabulary.merges)
    )
    for token_id in vocabulary.tokens.keys() - texts.keys():
        token = vocabulary.tokens[token_id]
        # The definition takes quadratic time; nobody has such a token but to spite.
        long = len(token) > _LONGEST_MERGED
        if len(token) > 1 and (token not in made or not (long or encode(token, rank) == [token])):
            never.append(token_id)
    return OutOfReach(sorted(never), sorted(cut))


def lines(path: Path, tokenizer: AnyTokenizer) -> list[str]:
    """The same in words, one line for each fact."""
    said = facts(path, tokenizer)
    special = list(said["special_tokens"].items())
    more = f" and {len(special) - 20:,} more" if len(special) > 20 else ""
    listed = ", ".join(f"{text} {token_id}" for text, token_id in special[:20])
    ties = f", ties {said['tie_break'] or 'not known'}" if "tie_break" in said else ""
    result = [
        f"{path}: {said['kind']}, {tokenizer_in_words(tokenizer)}",
        f"  pattern {said['pattern']}, Unicode {said['unicode_version'] or 'not known'}{ties}",
    ]
    if said.get("pattern_text", said["pattern"]) != said["pattern"]:
        result.append(f"  which is {said['pattern_text']}")
    result += [
        f"  special tokens: {listed or 'none'}{more}",
        f"  end of text {said['eos_token'] or 'not known'}, begin of text"
        f" {said['bos_token'] or 'not known'}",
    ]
    gaps = said["gaps"]
    runs = ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in gaps["first"])
    result.append(
        f"  {said['ordinary_tokens']:,} ordinary tokens; ids without a token: {gaps['count']:,}"
        + (f" ({runs}{', ...' if len(gaps['first']) == _LISTED else ''})" if runs else "")
    )
    if "merges" in said:
        result += _lines_of_byte_level(said)
    result += _named("longest", len(said["longest"]), said["longest"][:5])
    for name, found in said["strange"].items():
        result += _named(name, found["count"], found["longest"])
    for name, found in said.get("out_of_reach", {}).items():
        result += _named(_OUT_OF_REACH[name], found["count"], found["first"].values())
        if not found["count"]:
            result.append(f"  {_OUT_OF_REACH[name]}: none")
    return [*result, f"  fingerprint {said['fingerprint']}"]


_OUT_OF_REACH = {
    "never": "tokens that no text gives (their own bytes are encoded otherwise)",
    "cut_by_the_pattern": "tokens that the pattern cuts where they stand alone",
}


def _lines_of_byte_level(said: dict[str, Any]) -> list[str]:
    result = [
        f"  {said['merges']:,} merges, ranked by {said['ranked_by']}"
        + (", whole pre-tokens first" if said["whole_pretokens_first"] else "")
    ]
    if said["normal_forms"]:
        result.append(f"  text is normalized: {', '.join(said['normal_forms'])}")
    others = said["added_tokens_not_special"]
    return result + _named("added tokens that are not special", len(others), list(others)[:5])


def _named(name: str, count: int, examples: Iterable[str]) -> list[str]:
    """A line about a kind of tokens, none if there are none of it."""
    shown_ones = ", ".join(f"'{one}'" for one in examples)
    return (
        [f"  {name}: {shown_ones if name == 'longest' else f'{count:,}, as {shown_ones}'}"]
        if count
        else []
    )

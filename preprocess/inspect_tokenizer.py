"""What a tokenizer is, in words and as JSON: sizes, pattern, special and strange entries.

Law: nothing is guessed.  An entry is called unreachable only where encoding its own bytes as one
pre-token does not give it: then no text does, for joining never goes across a pre-token's edge, and
inside one the same pairs are joined wherever the bytes stand.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from preprocess.report import tokenizer_in_words

if TYPE_CHECKING:
    from bpe import Tokenizer
    from bpe.text_tokenizer import AnyTokenizer

_LISTED = 10


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
    longest = sorted(words.values(), key=len, reverse=True)[:_LISTED]
    return common | {
        "kind": "word-level" if tokenizer.pattern == "word-level" else tokenizer.pattern,
        "entries": len(words),
        "longest": [shown(token) for token in longest],
    }


def _of_byte_level(tokenizer: Tokenizer) -> dict[str, Any]:
    from bpe.patterns import PATTERNS

    vocabulary = tokenizer.vocabulary
    tokens = vocabulary.tokens
    added = vocabulary.added_tokens
    by_length = sorted(tokens.values(), key=len, reverse=True)
    strange = {
        "control characters": [t for t in tokens.values() if len(t) > 1 and _has_controls(t)],
        "runs of white space": [t for t in tokens.values() if len(t) > 1 and not t.strip()],
        "parts of characters": [t for t in tokens.values() if len(t) > 1 and not _is_text(t)],
    }
    unreachable = unreachable_ids(tokenizer)
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
        "ids_without_token": tokenizer.vocab_size - len(vocabulary.bytes_of_id),
        "longest": [shown(token) for token in by_length[:_LISTED]],
        "strange": {
            name: {"count": len(found), "longest": [shown(t) for t in _longest(found)]}
            for name, found in strange.items()
        },
        "unreachable": {
            "count": len(unreachable),
            "first": {str(i): shown(tokens[i]) for i in unreachable[:_LISTED]},
        },
    }


def _longest(tokens: Iterable[bytes]) -> list[bytes]:
    return sorted(tokens, key=len, reverse=True)[:3]


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


def unreachable_ids(tokenizer: Tokenizer) -> list[int]:
    """The ids of ordinary tokens that no text is encoded to, ascending.

    Each token's bytes are encoded as one pre-token; what that does not give is reached from nowhere.
    (A token that is given may still be out of reach, where no text has such a pre-token.)
    """
    from bpe.reference import encode, rank_by_bytes, rank_by_merges

    vocabulary = tokenizer.vocabulary
    if vocabulary.ranked_by_bytes:
        ranks = {token: token_id for token_id, token in vocabulary.tokens.items()}
        rank, made = rank_by_bytes(ranks), {a + b for a, b in vocabulary.merges}
    else:
        rank, made = rank_by_merges(vocabulary.merges), {a + b for a, b in vocabulary.merges}
    unreachable = []
    for token_id, token in sorted(vocabulary.tokens.items()):
        if len(token) == 1:
            continue
        if vocabulary.whole_first:
            # The whole of a pre-token, if text can be split so that it is one.
            reached = token in made or _is_pretoken(tokenizer, token)
        else:
            reached = token in made and encode(token, rank) == [token]
        if not reached:
            unreachable.append(token_id)
    return unreachable


def _is_pretoken(tokenizer: Tokenizer, token: bytes) -> bool:
    from bpe.pretokenize import Pretokenizer, is_utf8

    if not is_utf8(np.frombuffer(token, np.uint8)):
        return False
    return Pretokenizer(tokenizer.pattern).split(token) == [token]


def lines(path: Path, tokenizer: AnyTokenizer) -> list[str]:
    """The same in words, one line for each fact."""
    said = facts(path, tokenizer)
    special = ", ".join(
        f"{text} {number}" for text, number in list(said["special_tokens"].items())[:20]
    )
    more = len(said["special_tokens"]) - 20
    result = [
        f"{path}: {said['kind']}, {tokenizer_in_words(tokenizer)}",
        f"  pattern {said['pattern']}"
        + (f", Unicode {said['unicode_version']}" if said["unicode_version"] else ""),
        f"  special tokens: {special or 'none'}" + (f" and {more:,} more" if more > 0 else ""),
        f"  end of text {said['eos_token'] or 'not known'}, begin {said['bos_token'] or 'not known'}",
    ]
    if "merges" in said:
        result += [
            f"  {said['ordinary_tokens']:,} ordinary tokens, {said['merges']:,} merges, ranked by"
            f" {said['ranked_by']}, ties {said['tie_break'] or 'not known'},"
            f" {said['ids_without_token']:,} ids without a token",
        ]
        if said["normal_forms"]:
            result.append(f"  text is normalized: {', '.join(said['normal_forms'])}")
        if others := said["added_tokens_not_special"]:
            result.append(
                f"  added tokens that are not special: {len(others):,}, as "
                + ", ".join(map(repr, list(others)[:5]))
            )
        for name, found in said["strange"].items():
            if found["count"]:
                result.append(
                    f"  {name}: {found['count']:,} tokens, as "
                    + ", ".join(map(repr, found["longest"]))
                )
        missed = said["unreachable"]
        result.append(
            f"  tokens that no text gives: {missed['count']:,}"
            + (f", as {', '.join(map(repr, missed['first'].values()))}" if missed["count"] else "")
        )
    result += [
        "  longest: " + ", ".join(map(repr, said["longest"][:5])),
        f"  fingerprint {said['fingerprint']}",
    ]
    return result

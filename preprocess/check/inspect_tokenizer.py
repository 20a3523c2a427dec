"""Exact statistics of a tokenizer: sizes, pattern, special tokens, unusual tokens."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from preprocess.report.summary import listed

if TYPE_CHECKING:
    from bpe import Tokenizer
    from bpe.text_tokenizer import AnyTokenizer

_LISTED = 10
_LONGEST_MERGED = 1000


def describe(path: Path, tokenizer: AnyTokenizer) -> dict[str, Any]:
    """Describe a tokenizer from `path` as a dictionary for JSON."""
    from bpe import Tokenizer

    special, vocab = tokenizer.special_tokens, tokenizer.vocab
    if isinstance(tokenizer, Tokenizer):
        ordinary = list(tokenizer.vocabulary.tokens.values())
        more = _describe_byte_level(tokenizer)
    else:
        special_ids, more = set(special.values()), {"kind": tokenizer.pattern}
        ordinary = [token for i, token in vocab.items() if i not in special_ids]
    return {
        "path": str(path),
        "pattern": tokenizer.pattern,
        "unicode_version": tokenizer.unicode_version or None,
        "vocab_size": tokenizer.vocab_size,
        "special_tokens": special,
        "eos_token": tokenizer.eos_token,
        "bos_token": tokenizer.bos_token,
        "fingerprint": tokenizer.fingerprint,
        "ordinary_tokens": len(ordinary),
        "gaps": _find_gaps(vocab),
        "longest": _longest(ordinary, _LISTED),
        "strange": _find_strange(ordinary),
        **more,
    }


def _find_gaps(ids: Iterable[int]) -> dict[str, Any]:
    """Count the ids below the largest that have no token, and list their first ranges."""
    runs = [[a + 1, b - 1] for a, b in pairwise([-1, *sorted(ids)]) if b > a + 1]
    return {"count": sum(b - a + 1 for a, b in runs), "first": runs[:_LISTED]}


def _find_strange(tokens: Iterable[bytes]) -> dict[str, Any]:
    """Count unusual tokens of more than one byte by kind, and list the longest."""
    longer = [token for token in tokens if len(token) > 1]
    kinds: dict[str, Callable[[bytes], bool]] = {
        "control characters": _has_controls,
        "runs of white space": lambda token: not token.decode("utf-8", "replace").strip(),
        "parts of characters": lambda token: not _is_text(token),
        "letters of several scripts": lambda token: len(_find_scripts(token)) > 1,
        "the same again and again": lambda token: len(token) >= 16 and len(set(token)) == 1,
    }
    found = {name: list(filter(is_kind, longer)) for name, is_kind in kinds.items()}
    return {name: {"count": len(of), "longest": _longest(of, 3)} for name, of in found.items()}


# First words of Unicode names approximate scripts. Japanese mixes several; letters of another width
# or style count as Latin.
_SCRIPTS_THAT_MIX = {"HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "CJK", "HANGUL", "IDEOGRAPHIC"}
_NO_SCRIPTS = {"MODIFIER", "MATHEMATICAL", "FULLWIDTH", "HALFWIDTH", "UNKNOWN"}
_NO_SCRIPTS |= {"FEMININE", "MASCULINE", "MICRO"}


def _find_scripts(token: bytes) -> set[str]:
    if token.isascii():
        return set()
    letters = filter(str.isalpha, token.decode("utf-8", "ignore"))
    names = {unicodedata.name(letter, "UNKNOWN").split()[0] for letter in letters}
    return {"CJK" if name in _SCRIPTS_THAT_MIX else name for name in names - _NO_SCRIPTS}


def _describe_byte_level(tokenizer: Tokenizer) -> dict[str, Any]:
    from bpe.pretokenize.patterns import PATTERNS

    vocabulary = tokenizer.vocabulary
    tokens, added = vocabulary.tokens, vocabulary.added_tokens
    return {
        "kind": "byte-level BPE",
        "pattern_text": PATTERNS.get(tokenizer.pattern, tokenizer.pattern),
        "merges": len(tokenizer.merges),
        "ranked_by": "bytes" if vocabulary.has_tiktoken_ranks else "merges",
        "whole_pretokens_first": vocabulary.ignore_merges,
        "tie_break": tokenizer.tie_break,
        "normal_forms": list(tokenizer.normal_forms),
        "added_tokens_not_special": {each.text: each.id for each in added if not each.special},
        "out_of_reach": {
            name: {"count": len(ids), "first": {str(i): shown(tokens[i]) for i in ids[:_LISTED]}}
            for name, ids in zip(_OUT_OF_REACH, find_out_of_reach(tokenizer), strict=True)
        },
    }


def _longest(tokens: Iterable[bytes], count: int) -> list[str]:
    return [shown(token) for token in sorted(tokens, key=len, reverse=True)[:count]]


def _is_text(token: bytes) -> bool:
    return token.decode("utf-8", "ignore").encode() == token


def _has_controls(token: bytes) -> bool:
    text = token.decode("utf-8", "ignore")
    return any(unicodedata.category(x) == "Cc" and not x.isspace() for x in text)


def shown(token: bytes) -> str:
    """Format a token: its text, shortened, with unprintable characters escaped."""
    if len(token) > 8 and len(set(token)) == 1:
        return f"{shown(token[:1])} * {len(token)}"
    text = token[:80].decode("utf-8", "backslashreplace")
    return ascii(text)[1:-1] if not text.isprintable() else text


class OutOfReach(NamedTuple):
    """Ids of ordinary tokens that encoding does not produce, sorted.

    Attributes:
        never: No text produces them: their own bytes encode to other ids, or, with `ignore_merges`,
            they are no pre-token.
        cut: Merges produce them, but the split pattern divides them as a whole text: they occur
            only if the pattern does not divide them inside a longer text.
    """

    never: list[int]
    cut: list[int]


def find_out_of_reach(tokenizer: Tokenizer) -> OutOfReach:
    """Find ordinary tokens that encoding does not produce; normalization is ignored.

    Each token is encoded as a document. If it is one pre-token, the result holds in any context:
    the same pairs inside it are merged in the same order, unless a merge crosses its edges, and
    then the token does not occur.
    """
    from bpe.encoding.encoder import Encoder, EncoderTables
    from bpe.pretokenize.patterns import PATTERNS
    from bpe.reference import encode, rank_by_bytes, rank_by_merges

    vocabulary = tokenizer.vocabulary
    made = {left + right for left, right in vocabulary.merges}
    texts = {i: t for i, t in vocabulary.tokens.items() if t and _is_text(t)}
    buffer = np.frombuffer(b"".join(texts.values()), np.uint8)
    offsets = np.cumsum([0, *map(len, texts.values())], dtype=np.int64)
    tables = EncoderTables(vocabulary, tokenizer.pattern)
    starts = tables.pretokenizer.boundaries(buffer, offsets)
    is_start = np.unpackbits(starts.view(np.uint8), bitorder="little")[: len(buffer) + 1]
    n_before = np.cumsum(is_start)
    # True if no pre-token starts after the first byte of a token.
    whole = n_before[offsets[1:] - 1] == n_before[offsets[:-1]]
    ids, ends = Encoder(tables).encode(buffer, offsets)
    itself = (np.diff(ends) == 1) & (ids[ends[:-1]] == np.fromiter(texts, np.int64, len(texts)))
    never, cut = [i for i, token in vocabulary.tokens.items() if not token], list[int]()
    # A scanner divides a token in every context if it does alone; other regexes may not.
    certain = tokenizer.pattern in PATTERNS
    for token_id, is_whole, is_itself in zip(texts, whole.tolist(), itself.tolist(), strict=True):
        if is_whole and not is_itself:
            never.append(token_id)
        elif not is_whole:
            (never if certain and texts[token_id] not in made else cut).append(token_id)
    # Incomplete characters are never a pre-token, so only merges produce them.
    if vocabulary.has_tiktoken_ranks:
        rank = rank_by_bytes({token: i for i, token in vocabulary.tokens.items()})
    else:
        rank = rank_by_merges(vocabulary.merges)
    for token_id in vocabulary.tokens.keys() - texts.keys():
        token = vocabulary.tokens[token_id]
        # `encode` of the reference takes quadratic time.
        long = len(token) > _LONGEST_MERGED
        if len(token) > 1 and (token not in made or not (long or encode(token, rank) == [token])):
            never.append(token_id)
    return OutOfReach(sorted(never), sorted(cut))


_OUT_OF_REACH = {
    "never": "tokens that no text produces (their bytes encode to other ids)",
    "cut_by_the_pattern": "tokens that the pattern divides as a whole text",
}


def format_lines(found: dict[str, Any]) -> list[str]:
    """Format the result of `describe` for people."""
    special = found["special_tokens"]
    with_ids = [f"{text} {token_id}" for text, token_id in special.items()]
    made = f"{found['merges']:,} merges" if "merges" in found else found["pattern"]
    ties = f", ties {found['tie_break'] or 'not known'}" if "tie_break" in found else ""
    result = [
        f"{found['path']}: {found['kind']}, {found['vocab_size']:,} tokens ({made}), special:"
        f" {listed(list(special), 5) or 'none'}",
        f"  pattern {found['pattern']}, Unicode {found['unicode_version'] or 'not known'}{ties}",
    ]
    if found.get("pattern_text", found["pattern"]) != found["pattern"]:
        result.append(f"  which is {found['pattern_text']}")
    gaps = found["gaps"]
    runs = [str(a) if a == b else f"{a} to {b}" for a, b in gaps["first"]]
    runs += ["..."] * (len(runs) == _LISTED)
    end, begin = (found[key] or "not known" for key in ("eos_token", "bos_token"))
    result += [
        f"  special tokens: {listed(with_ids, 20) or 'none'}",
        f"  end of text {end}, begin of text {begin}",
        f"  {found['ordinary_tokens']:,} ordinary tokens; ids without a token: {gaps['count']:,}"
        + (f" ({', '.join(runs)})" if runs else ""),
    ]
    if "merges" in found:
        first = ", whole pre-tokens first" if found["whole_pretokens_first"] else ""
        result.append(f"  {made}, ranked by {found['ranked_by']}{first}")
        if found["normal_forms"]:
            result.append(f"  text is normalized: {', '.join(found['normal_forms'])}")
        others = found["added_tokens_not_special"]
        result += _format_kind("added tokens that are not special", len(others), list(others)[:5])
    if found["longest"]:
        result.append(f"  longest: {_quote(found['longest'][:5])}")
    for name, strange in found["strange"].items():
        result += _format_kind(name, strange["count"], strange["longest"])
    for name, unreached in found.get("out_of_reach", {}).items():
        named = _format_kind(_OUT_OF_REACH[name], unreached["count"], unreached["first"].values())
        result += named or [f"  {_OUT_OF_REACH[name]}: none"]
    return [*result, f"  fingerprint {found['fingerprint']}"]


def _format_kind(name: str, count: int, examples: Iterable[str]) -> list[str]:
    """Format a kind of tokens as a line; [] if there are none."""
    return [f"  {name}: {count:,}, as {_quote(examples)}"] if count else []


def _quote(texts: Iterable[str]) -> str:
    return ", ".join(f"'{text}'" for text in texts)

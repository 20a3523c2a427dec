"""Describe a tokenizer: sizes, pattern, special tokens, longest tokens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from preprocess.report.summary import listed

if TYPE_CHECKING:
    from bpe import Tokenizer
    from bpe.text_tokenizer import AnyTokenizer

_LISTED = 10


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
        "ids_without_token": max(vocab, default=-1) + 1 - len(vocab),
        "longest": [_shown(token) for token in sorted(ordinary, key=len, reverse=True)[:_LISTED]],
        **more,
    }


def _describe_byte_level(tokenizer: Tokenizer) -> dict[str, Any]:
    from bpe.split.patterns import PATTERNS

    vocabulary = tokenizer.vocabulary
    others = {each.text: each.id for each in vocabulary.added_tokens if not each.special}
    return {
        "kind": "byte-level BPE",
        "pattern_text": PATTERNS.get(tokenizer.pattern, tokenizer.pattern),
        "merges": len(tokenizer.merges),
        "ranked_by": "bytes" if vocabulary.has_tiktoken_ranks else "merges",
        "whole_pretokens_first": vocabulary.ignore_merges,
        "tie_break": tokenizer.tie_break,
        "normal_forms": list(tokenizer.normal_forms),
        "added_tokens_not_special": others,
    }


def _shown(token: bytes) -> str:
    """Format a token: its text, shortened, with unprintable characters escaped."""
    if len(token) > 8 and len(set(token)) == 1:
        return f"{_shown(token[:1])} * {len(token)}"
    text = token[:80].decode("utf-8", "backslashreplace")
    return ascii(text)[1:-1] if not text.isprintable() else text


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
    end, begin = (found[key] or "not known" for key in ("eos_token", "bos_token"))
    result += [
        f"  special tokens: {listed(with_ids, 20) or 'none'}",
        f"  end of text {end}, begin of text {begin}",
        f"  {found['ordinary_tokens']:,} ordinary tokens; ids without a token:"
        f" {found['ids_without_token']:,}",
    ]
    if "merges" in found:
        first = ", whole pre-tokens first" if found["whole_pretokens_first"] else ""
        result.append(f"  {made}, ranked by {found['ranked_by']}{first}")
        if found["normal_forms"]:
            result.append(f"  text is normalized: {', '.join(found['normal_forms'])}")
        if others := found["added_tokens_not_special"]:
            result.append(f"  added tokens that are not special: {listed(list(others), 5)}")
    if found["longest"]:
        longest = ", ".join(f"'{text}'" for text in found["longest"][:5])
        result.append(f"  longest: {longest}")
    return [*result, f"  fingerprint {found['fingerprint']}"]

"""Answers about tokenizers: tokens of a text, merges of a token, the vocabulary.

Each answer is a dictionary for JSON. In lists of tokens, `texts` has the text of each token: a
character belongs to the token that has its last byte, so the texts together are the text of all.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bpe.errors import TokenmillError
from bpe.parallel import cached_property
from bpe.special import utf8
from preprocess.check.report_numbers import script_of

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer

Answer = dict[str, Any]

TOKENS = 2_000  # of a text or document in one answer
ROWS = 100  # of the vocabulary in one answer
ORDERS = ("id", "longest", "shortest", "most frequent", "least frequent")


class ViewError(TokenmillError, ValueError):
    """There is nothing to show, or it was asked for wrongly."""


class ViewedTokenizer:
    """A tokenizer, its name on the page and its location in Python code.

    Attributes:
        has_bytes: True if the bytes of tokens, joined, are those of the text.
    """

    def __init__(self, name: str, location: str, tokenizer: AnyTokenizer) -> None:
        from bpe import Tokenizer

        self.name, self.location, self.tokenizer = name, location, tokenizer
        self._vocabulary = tokenizer.vocabulary if isinstance(tokenizer, Tokenizer) else None
        self.has_bytes = self._vocabulary is not None

    @cached_property
    def bytes_of_id(self) -> Mapping[int, bytes]:
        """Id -> bytes, special tokens included; without `has_bytes` as the file spells them."""
        if self._vocabulary is None:
            return self.tokenizer.vocab
        return self._vocabulary.bytes_of_id  # without a copy

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of the special tokens."""
        return frozenset(self.tokenizer.special_tokens.values())

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Number of bytes of each id, 0 for an id without a token: int64[vocab_size]."""
        found = np.zeros(self.tokenizer.vocab_size, np.int64)
        found[[*self.bytes_of_id]] = [*map(len, self.bytes_of_id.values())]
        return found

    @cached_property
    def scripts(self) -> NDArray[np.str_]:
        """Script of the letters of each id, see `script_of`: str[vocab_size]."""
        found = np.full(self.tokenizer.vocab_size, "no letters", "<U32")
        for token_id, content in self.bytes_of_id.items():
            found[token_id] = script_of(content.decode("utf-8", "ignore"))
        return found

    @cached_property
    def merges(self) -> dict[bytes, tuple[int, bytes, bytes]]:
        """Token -> (rank, left, right) of the first merge that makes it."""
        found: dict[bytes, tuple[int, bytes, bytes]] = {}
        merges = [] if self._vocabulary is None else self._vocabulary.merges
        for rank, (left, right) in enumerate(merges):
            found.setdefault(left + right, (rank, left, right))
        return found

    @cached_property
    def id_of_bytes(self) -> dict[bytes, int]:
        """Bytes -> id of each token."""
        return {token: token_id for token_id, token in reversed([*self.bytes_of_id.items()])}

    def token(self, token_id: int) -> Answer:
        """Describe a token: id, text, bytes in hexadecimal, whether it is special."""
        content = self.bytes_of_id[token_id]
        return {
            "id": token_id, "text": content.decode("utf-8", "replace"), "bytes": content.hex(" "),
            "special": token_id in self.special_ids,
        }

    def facts(self) -> Answer:
        """Describe the tokenizer."""
        tokenizer = self.tokenizer
        return {
            "name": self.name, "location": self.location, "vocab_size": tokenizer.vocab_size,
            "pattern": tokenizer.pattern, "special_tokens": tokenizer.special_tokens,
            "has_bytes": self.has_bytes,
        }


def describe_tokens(
    ids: list[int], viewed: ViewedTokenizer | None, before: Iterable[int] = (), is_end: bool = True
) -> Answer:
    """Describe tokens: `ids`, and with a tokenizer `texts`, and places in them by their kind.

    The first character may begin in the tokens `before`; unless this `is_end`, the last one may end
    in tokens after these, whose text then has it.

    `parts` has the bytes, in hexadecimal, of tokens that are not whole characters, by place;
    `special` has the places of special tokens, `unknown` those of ids without a token.
    """
    if viewed is None:
        return {"ids": ids}
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(b"".join(viewed.bytes_of_id.get(token_id, b"") for token_id in before))
    texts, parts, unknown = list[str](), dict[str, str](), list[int]()
    for place, token_id in enumerate(ids):
        content = viewed.bytes_of_id.get(token_id)
        if content is None:
            unknown.append(place)
        text = decoder.decode(content or b"")
        if text.encode() != (content or b""):
            parts[str(place)] = (content or b"").hex(" ")
        texts.append(text)
    if texts and is_end:
        texts[-1] += decoder.decode(b"", final=True)
    special = [place for place, token_id in enumerate(ids) if token_id in viewed.special_ids]
    return {"ids": ids, "texts": texts, "parts": parts, "special": special, "unknown": unknown}


def encode(viewed: ViewedTokenizer, text: str, with_special: bool = True) -> Answer:
    """Encode a text; the answer has its first `TOKENS` tokens, and the numbers of all.

    Raises:
        EncodingError: The text has a lone surrogate.
    """
    return _encode(viewed, text, with_special)[0]


def compare(
    first: ViewedTokenizer, second: ViewedTokenizer, text: str, with_special: bool = True
) -> Answer:
    """Encode a text with two tokenizers, see `encode`.

    `differ` has the places of tokens whose bytes are no token of the other at the same position,
    `n_differ` the number of all such tokens.
    """
    sides, spans = [], list[set[tuple[int, int]]]()
    for viewed in (first, second):
        answer, ids = _encode(viewed, text, with_special)
        ends = np.cumsum(viewed.lengths[ids], dtype=np.int64)
        answer["spans"] = [*zip((ends - viewed.lengths[ids]).tolist(), ends.tolist(), strict=True)]
        spans.append(set(answer["spans"]))
        sides.append(answer)
    for answer, others in zip(sides, reversed(spans), strict=True):
        differ = [place for place, span in enumerate(answer.pop("spans")) if span not in others]
        answer["n_differ"] = len(differ)
        answer["differ"] = [place for place in differ if place < TOKENS]
    return {"first": sides[0], "second": sides[1]}


def _encode(
    viewed: ViewedTokenizer, text: str, with_special: bool
) -> tuple[Answer, NDArray[np.int64]]:
    """Return (answer of `encode`, all ids)."""
    ids = viewed.tokenizer.encode(text, "all" if with_special else ())
    n_bytes, allowed = len(text.encode()), "" if with_special else ", allowed_special=()"
    answer = describe_tokens(ids[:TOKENS], viewed) | {
        "tokenizer": viewed.name, "n_tokens": len(ids), "n_bytes": n_bytes,
        "bytes_per_token": n_bytes / max(len(ids), 1),
        "python": f"{_load(viewed)}ids = tokenizer.encode({text!r}{allowed})\n",
    }
    return answer, np.array(ids, np.int64)


def merges(viewed: ViewedTokenizer, token_id: int) -> Answer:
    """Return the merges that make a token of its bytes, by rank; `why` tells why there is none.

    Raises:
        ViewError: There is no such token.
    """
    token = viewed.bytes_of_id.get(token_id)
    if token is None:
        raise ViewError(
            f"{viewed.name}: there is no token with the id {token_id:,}; ids are below"
            f" {viewed.tokenizer.vocab_size:,}"
        )
    steps, left = dict[bytes, tuple[int, bytes, bytes]](), [token]
    while left:
        made = left.pop()
        if made in viewed.merges and made not in steps:
            steps[made] = viewed.merges[made]
            left += steps[made][1:]
    if token_id in viewed.special_ids:
        steps.clear()
        why = "it is a special token, which is found before text is split"
    elif not viewed.has_bytes:
        why = "this tokenizer does not merge bytes"
    else:
        why = "it is one byte" if len(token) == 1 else "it is found only as a whole pre-token"
    listed = [
        {"rank": rank, **{
            name: viewed.token(viewed.id_of_bytes[each])
            for name, each in (("left", left), ("right", right), ("made", left + right))
        }}
        for rank, left, right in sorted(steps.values())
    ]  # fmt: skip
    code = f"{_load(viewed)}token = tokenizer.vocab[{token_id}]\n"
    return {"token": viewed.token(token_id), "steps": listed, "why": "" if steps else why,
            "python": code}  # fmt: skip


def vocabulary(
    viewed: ViewedTokenizer, query: str = "", order: str = "id", start: int = 0,
    counts: NDArray[np.int64] | None = None, unused: bool = False, script: str = "",
) -> Answer:
    """Return `ROWS` tokens of the vocabulary from the `start`-th on, and how many there are.

    Args:
        viewed: The tokenizer.
        query: Text that tokens have, or an id after "#"; "" for all.
        order: One of `ORDERS`.
        start: Number of tokens before, in this order.
        counts: How often each id occurs in a dataset, int64[vocab_size]; None if it is not known.
        unused: True for tokens that do not occur.
        script: Script of their letters; "" for all. `scripts` of the answer has all scripts, and
            the numbers of tokens.

    Raises:
        ViewError: There is no such order, or it needs counts.
    """
    if order not in ORDERS:
        raise ViewError(f"order: should be one of {', '.join(ORDERS)}; got {order!r}")
    if counts is None and (unused or order.endswith("frequent")):
        raise ViewError("how often tokens occur is known with a dataset of this tokenizer only")
    wanted, number = utf8(query), query[1:]
    ids: Iterable[int] = viewed.bytes_of_id
    if query[:1] == "#" and re.fullmatch(r"\d{1,18}", number):
        ids = [int(number)] if int(number) in viewed.bytes_of_id else []
    elif wanted:
        ids = [token_id for token_id, token in viewed.bytes_of_id.items() if wanted in token]
    found = np.fromiter(ids, np.int64)
    if script:
        found = found[viewed.scripts[found] == script]
    if unused and counts is not None:
        found = found[counts[found] == 0]
    if order != "id":
        by = viewed.lengths if counts is None or not order.endswith("frequent") else counts
        sign = -1 if order in ("longest", "most frequent") else 1
        found = found[np.argsort(sign * by[found], kind="stable")]
    rows = [viewed.token(token_id) for token_id in found[start : start + ROWS].tolist()]
    if counts is not None:
        for row in rows:
            row["count"] = int(counts[row["id"]])
    code = f"tokens = {{i: token for i, token in tokenizer.vocab.items() if {wanted!r} in token}}\n"
    of_all = Counter(viewed.scripts[[*viewed.bytes_of_id]].tolist())
    scripts = [*map(list, of_all.most_common())]
    return {"tokens": rows, "n_tokens": len(found), "start": start, "scripts": scripts,
            "python": _load(viewed) + code}  # fmt: skip


def _load(viewed: ViewedTokenizer) -> str:
    location = viewed.location
    return f"from bpe import load_tokenizer\n\ntokenizer = load_tokenizer({location!r})\n"

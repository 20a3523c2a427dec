"""Answers about tokenizers: tokens of a text, merges of a token, the vocabulary.

Each answer is a dictionary for JSON. In lists of tokens, `texts` has the text of each token: a
character belongs to the token that has its last byte, so the texts together are the text of all.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from bpe.special import utf8
from preprocess.view.library import Answer, ViewedDataset, ViewedTokenizer, ViewError

TOKENS = 2_000  # of a text or document in one answer
ROWS = 100  # of the vocabulary in one answer
ORDERS = ("id", "longest", "shortest", "most frequent", "least frequent")


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
    texts, parts = list[str](), dict[str, str]()
    for place, token_id in enumerate(ids):
        content = viewed.bytes_of_id.get(token_id, b"")
        text = decoder.decode(content)
        if text.encode() != content:
            parts[str(place)] = content.hex(" ")
        texts.append(text)
    if texts and is_end:
        texts[-1] += decoder.decode(b"", final=True)
    special = [place for place, token_id in enumerate(ids) if token_id in viewed.special_ids]
    unknown = [place for place, token_id in enumerate(ids) if token_id not in viewed.bytes_of_id]
    return {"ids": ids, "texts": texts, "parts": parts, "special": special, "unknown": unknown}


def encode(tokenizer: ViewedTokenizer, text: str, with_special: bool = True) -> Answer:
    """Encode a text; the answer has its first `TOKENS` tokens, and the numbers of all.

    Raises:
        EncodingError: The text has a lone surrogate.
    """
    return _encode(tokenizer, text, with_special)[0]


def compare(
    tokenizer: ViewedTokenizer, beside: ViewedTokenizer, text: str, with_special: bool = True
) -> Answer:
    """Encode a text with two tokenizers, see `encode`.

    `differ` has the places of tokens whose bytes are no token of the other at the same position,
    `n_differ` the number of all such tokens.
    """
    sides, spans = list[Answer](), list[list[tuple[int, int]]]()
    for each in (tokenizer, beside):
        answer, ids = _encode(each, text, with_special)
        ends = np.cumsum(each.lengths[ids], dtype=np.int64)
        spans.append([*zip((ends - each.lengths[ids]).tolist(), ends.tolist(), strict=True)])
        sides.append(answer)
    for answer, own, others in zip(sides, spans, map(set, reversed(spans)), strict=True):
        differ = [place for place, span in enumerate(own) if span not in others]
        answer |= {"n_differ": len(differ), "differ": [x for x in differ if x < TOKENS]}
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
        "python": f"{viewed.load_in_python()}ids = tokenizer.encode({text!r}{allowed})\n",
    }
    return answer, np.array(ids, np.int64)


def merges(tokenizer: ViewedTokenizer, id: int) -> Answer:
    """Return the merges that make a token of its bytes, by rank; `why` tells why there is none.

    Raises:
        ViewError: There is no such token.
    """
    token = tokenizer.bytes_of_id.get(id)
    if token is None:
        raise ViewError(
            f"{tokenizer.name}: there is no token with the id {id}; ids are below"
            f" {tokenizer.tokenizer.vocab_size:,}"
        )
    steps, left = dict[bytes, tuple[int, bytes, bytes]](), [token]
    if id in tokenizer.special_ids:
        left, why = [], "it is a special token, which is found before text is split"
    elif tokenizer.vocabulary is None:
        why = "this tokenizer does not merge bytes"
    else:
        why = "it is one byte" if len(token) == 1 else "it is found only as a whole pre-token"
    while left:
        made = left.pop()
        if made in tokenizer.merges and made not in steps:
            steps[made] = tokenizer.merges[made]
            left += steps[made][1:]
    listed = [
        {"rank": rank, **{
            name: _describe_token(tokenizer, tokenizer.id_of_bytes[each])
            for name, each in (("left", left), ("right", right), ("made", left + right))
        }}
        for rank, left, right in sorted(steps.values())
    ]  # fmt: skip
    code = f"{tokenizer.load_in_python()}token = tokenizer.vocab[{id}]\n"
    return {
        "token": _describe_token(tokenizer, id), "steps": listed, "why": "" if steps else why,
        "python": code,
    }


def _describe_token(viewed: ViewedTokenizer, token_id: int) -> Answer:
    """Describe a token: id, text, bytes in hexadecimal, whether it is special."""
    content = viewed.bytes_of_id[token_id]
    return {
        "id": token_id, "text": content.decode("utf-8", "replace"), "bytes": content.hex(" "),
        "special": token_id in viewed.special_ids,
    }


def vocabulary(
    tokenizer: ViewedTokenizer, query: str = "", order: str = "id", start: int = 0,
    dataset: ViewedDataset | None = None, unused: bool = False, script: str = "",
) -> Answer:
    """Return `ROWS` tokens of the vocabulary from the `start`-th on, and how many there are.

    Args:
        tokenizer: The tokenizer.
        query: Text that tokens have, or an id after "#"; "" for all.
        order: One of `ORDERS`.
        start: Number of tokens before, in this order.
        dataset: One of this tokenizer, in which tokens are counted; the answer has `progress`, too.
        unused: True for tokens that do not occur.
        script: Script of their letters; "" for all. `scripts` of the answer has all scripts, and
            the numbers of tokens.

    Raises:
        ViewError: There is no such order, or it needs counts.
    """
    counts, progress = None, Answer()
    if dataset is not None and dataset.tokenizer is tokenizer:
        counts, progress = dataset.scanned.counts, dataset.progress()
    if order not in ORDERS:
        raise ViewError(f"order: should be one of {', '.join(ORDERS)}; got {order!r}")
    if counts is None and (unused or order.endswith("frequent")):
        raise ViewError("how often tokens occur is known with a dataset of this tokenizer only")
    wanted, number, tokens = utf8(query), query[1:], tokenizer.bytes_of_id
    ids: Iterable[int] = tokens
    if query[:1] == "#" and re.fullmatch(r"\d{1,18}", number):
        ids = [int(number)] if int(number) in tokens else []
    elif wanted:
        ids = [token_id for token_id, token in tokens.items() if wanted in token]
    found = np.fromiter(ids, np.int64)
    if script:
        found = found[tokenizer.scripts[found] == script]
    if unused and counts is not None:
        found = found[counts[found] == 0]
    if order != "id":
        by = tokenizer.lengths if counts is None or not order.endswith("frequent") else counts
        sign = -1 if order in ("longest", "most frequent") else 1
        found = found[np.argsort(sign * by[found], kind="stable")]
    rows = [_describe_token(tokenizer, i) for i in found[start : start + ROWS].tolist()]
    if counts is not None:
        rows = [row | {"count": int(counts[row["id"]])} for row in rows]
    code = f"tokens = {{i: token for i, token in tokenizer.vocab.items() if {wanted!r} in token}}\n"
    of_all = Counter(tokenizer.scripts[[*tokens]].tolist())
    return progress | {
        "tokens": rows, "n_tokens": len(found), "start": start,
        "scripts": [*map(list, of_all.most_common())],
        "python": tokenizer.load_in_python() + code,
    }

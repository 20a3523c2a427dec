"""Answers about datasets: tokens of a document, where a text or ids occur.

Each answer is a dictionary for JSON. An answer reads what it shows, a search `SEARCHED` tokens at
most, so the time depends neither on the number of documents nor on their lengths.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import numpy as np

from bpe.special import utf8
from preprocess.dataset.places import Sources
from preprocess.dataset.reader import TokenFile, document_at, read_bounds, read_ids
from preprocess.find.occurrences import Occurrences
from preprocess.find.search import occurrences_of
from preprocess.find.where import check_number, describe_places
from preprocess.view.library import Answer, ViewedDataset, ViewedTokenizer, ViewError
from preprocess.view.vocabulary import TOKENS, describe_tokens

SEARCHED = 1 << 22  # tokens of one answer
_FIRST = 1 << 14  # tokens that are searched first
_BLOCK = 1 << 17
_DOCUMENTS = 1 << 22  # whose lengths are looked at for one answer
HITS = 50
_LONGEST_QUERY = 10_000  # characters
_BEGINNING = 32  # tokens of a document in a list


def document(dataset: ViewedDataset, number: int, page: int = 0) -> Answer:
    """Return a page of up to `TOKENS` tokens of a document.

    Raises:
        ViewError: There is no such page.
        TokenFileError: There is no such document, or the file is damaged.
    """
    file = dataset.file
    check_number(dataset.name, "document", number, file.n_documents)
    start, stop = read_bounds(file, number, number + 1).tolist()
    n_pages = max(-(-(stop - start) // TOKENS), 1)
    if not 0 <= page < n_pages:
        raise ViewError(
            f"{dataset.name}: there is no page {page:,} of document {number:,}; it has"
            f" {n_pages:,}, of {TOKENS:,} tokens, numbered from 0"
        )
    first = start + page * TOKENS
    last = min(first + TOKENS, stop)
    before = read_ids(file, max(start, first - 4), first).tolist()  # a character has 4 bytes
    ids = read_ids(file, first, last).tolist()
    answer = describe_tokens(ids, dataset.tokenizer, before, last == stop)
    if file.has_mask:
        answer["mask"] = np.asarray(file.loss_mask[first:last]).tolist()
    code = f"{dataset.open_in_python()}ids = file[{first}:{last}]  # of document {number}\n"
    if file.has_mask:
        code += f"mask = file.loss_mask[{first}:{last}]\n"
    code += "print(file.decode(ids))\n" if dataset.tokenizer else "print(ids.tolist())\n"
    return answer | {
        "dataset": dataset.name, "number": number, "page": page, "n_pages": n_pages,
        "start": start, "stop": stop, "first": first, "python": code,
        "source": Sources(file).describe(np.array([number]))[0],
    }


def document_with(dataset: ViewedDataset, token: int) -> Answer:
    """Return the page of a document that has the token at a position of the dataset.

    Raises:
        TokenFileError: There is no such token, or the file is damaged.
    """
    file = dataset.file
    check_number(dataset.name, "token", token, file.n_tokens)
    number = document_at(file, token)
    start = int(read_bounds(file, number, number + 1)[0])
    return document(dataset, number, (token - start) // TOKENS) | {"token": token}


# --- search ---


def of_length(dataset: ViewedDataset, least: int, most: int, start: int = 0) -> Answer:
    """Find documents of `least` to `most` tokens among the next `_DOCUMENTS` from `start` on.

    Returns:
        `hits`, each with the document, its number of `tokens` and its beginning, and `next`, where
        to go on, None at the end.
    """
    file, hits = dataset.file, list[Answer]()
    stop = min(start + _DOCUMENTS, file.n_documents)
    answer = {"hits": hits, "total": file.n_documents, "python": (
        f"import numpy as np\n\n{dataset.open_in_python()}"
        "lengths = np.diff(file.document_ends.astype(np.int64), prepend=0)\n"
        f"documents = np.flatnonzero((lengths >= {least}) & (lengths <= {most}))\n"
    )}  # fmt: skip
    for first in range(start, stop, _BLOCK):
        bounds = read_bounds(file, first, min(first + _BLOCK, stop))
        lengths = np.diff(bounds)
        found = np.flatnonzero((lengths >= least) & (lengths <= most))[: HITS - len(hits)]
        for place in found.tolist():
            begin, n_tokens = int(bounds[place]), int(lengths[place])
            text = _text(dataset, read_ids(file, begin, begin + min(n_tokens, _BEGINNING)))
            hits.append({"document": first + place, "tokens": n_tokens, "begins": text})
        if len(hits) == HITS:
            stop = hits[-1]["document"] + 1
            break
    return answer | {"next": stop if stop < file.n_documents else None}


def search(dataset: ViewedDataset, query: str, by_ids: bool = False, start: int = 0) -> Answer:
    """Search `SEARCHED` tokens from `start` on, as `preprocess.search`.

    Args:
        dataset: The dataset.
        query: Text, or ids with white space or commas between them.
        by_ids: True if `query` is ids. Text is searched by its ids without a byte-level tokenizer.
        start: Position of the first token.

    Returns:
        `hits`, each as of `describe_places`, and `next`, where to go on, None at the end. There are
        `HITS` of them, and all others of the last one's first token.

    Raises:
        ViewError: There is nothing to search for, or it cannot be in the dataset.
    """
    file, n = dataset.file, dataset.file.n_tokens
    wanted = _wanted(dataset, query, by_ids)
    answer: Answer = {"hits": [], "total": n, "next": None, "python": (
        f"from preprocess import search\n\nfound = search({str(file.absolute_path)!r},"
        f" {'ids' if by_ids else 'texts'}={wanted if by_ids else [wanted]!r})\n"
        "print(found['searched'][0]['places'])\n"
    )}  # fmt: skip
    searched = _occurrences(file, dataset.tokenizer, tuple(wanted) if by_ids else wanted)
    begin, stop, size, rows = start, start + SEARCHED, _FIRST, np.zeros((0, 5), np.int64)
    while begin < min(stop, n) and len(rows) < HITS:  # what is frequent is found in few tokens
        found, begin = searched.find(begin, min(begin + size, stop))
        rows, size = np.concatenate([rows, found[:, 1:]]), 4 * size
    if len(rows) >= HITS:
        stop = int(rows[HITS - 1, 0]) + 1
    tokenizer = None if dataset.tokenizer is None else dataset.tokenizer.tokenizer
    answer["hits"] = describe_places(file, tokenizer, rows[rows[:, 0] < stop])
    for each in answer["hits"] if tokenizer is None else ():
        ids = read_ids(file, each["token"], each["stop"])
        each |= {"before": "", "match": _text(dataset, ids), "after": ""}
    return answer | {"next": stop if stop < n else None}


@functools.lru_cache(8)
def _occurrences(
    file: TokenFile, viewed: ViewedTokenizer | None, wanted: str | tuple[int, ...]
) -> Occurrences:
    tokenizer = None if viewed is None else viewed.tokenizer
    return occurrences_of(file, tokenizer, [wanted])


def _wanted(dataset: ViewedDataset, query: str, by_ids: bool) -> Any:
    """Return the text or the list of ids of a query, which can be searched for."""
    size = dataset.file.vocab_size
    if len(query) > _LONGEST_QUERY:
        raise ViewError(f"query: is longer than {_LONGEST_QUERY:,} characters; search for a part")
    if not query.strip() if by_ids else not query:
        raise ViewError("query: is empty; give a text, or ids such as 464 318")
    if by_ids:
        words = re.split(r"[\s,]+", query.strip(" \t\n,[]"))
        if not all(re.fullmatch(r"\d{1,18}", word) and int(word) < size for word in words):
            raise ViewError(
                f"query: should be ids of 0 to {size - 1:,} such as 464 318; got {query!r:.100}"
            )
        return [*map(int, words)]
    if dataset.tokenizer is None:
        raise ViewError(
            f"{dataset.name}: its tokenizer is missing, so text cannot be searched; search for ids"
        )
    utf8(query)  # raises
    return query


def _text(dataset: ViewedDataset, ids: Any) -> str:
    if dataset.tokenizer is None:
        return " ".join(map(str, ids.tolist()))
    return dataset.tokenizer.tokenizer.decode_bytes(ids).decode("utf-8", "replace")

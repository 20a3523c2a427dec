"""Answers about datasets: tokens of a document, where a text or ids occur.

Each answer is a dictionary for JSON. An answer reads what it shows, a search `SEARCHED` tokens at
most, so the time depends neither on the number of documents nor on their lengths.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from bpe.special import utf8
from preprocess.dataset.places import source_of
from preprocess.dataset.reader import TokenFile, document_at, read_bounds, read_ids
from preprocess.view.vocabulary import (
    TOKENS,
    Answer,
    ViewedTokenizer,
    ViewError,
    describe_tokens,
)

SEARCHED = 1 << 20  # tokens of one answer, decoded in a tenth of a second
_BLOCK = 1 << 17
_DOCUMENTS = 1 << 22  # whose lengths are looked at for one answer
HITS = 50
_CANDIDATES = 20_000  # of one answer, most of which may cross the end of a document
_LONGEST_QUERY = 10_000  # characters
_AROUND = 16  # tokens shown before and after a hit

Find = Callable[[int, int], Iterator[tuple[int, int]]]


class ViewedDataset:
    """A dataset, its name on the page, and its tokenizer; None for a reason, `no_tokenizer`."""

    def __init__(
        self, name: str, file: TokenFile, tokenizer: ViewedTokenizer | None, no_tokenizer: str = "",
        is_beside: bool = True,
    ) -> None:
        self.name, self.file, self.tokenizer = name, file, tokenizer
        self.no_tokenizer, self._is_beside = no_tokenizer, is_beside

    def facts(self) -> Answer:
        """Describe the dataset from its manifest."""
        file, manifest = self.file, self.file.manifest
        return {
            "name": self.name, "path": str(file.path), "tokens": file.n_tokens,
            "documents": file.n_documents, "bytes": manifest.n_bytes, "dtype": file.dtype.name,
            "shards": len(manifest.shards), "vocab_size": file.vocab_size,
            "has_mask": file.has_mask, "no_tokenizer": self.no_tokenizer,
            "tokenizer": None if self.tokenizer is None else self.tokenizer.name,
        }

    def open_in_python(self) -> str:
        """Return Python code that opens the dataset."""
        given = ""
        if self.tokenizer is not None and not self._is_beside:
            given = f", tokenizer={self.tokenizer.location!r}"
        path = str(self.file.absolute_path)
        return f"from preprocess import open_tokens\n\nfile = open_tokens({path!r}{given})\n"


def document(viewed: ViewedDataset, number: int, page: int = 0) -> Answer:
    """Return a page of up to `TOKENS` tokens of a document.

    Raises:
        ViewError: There is no such document, or no such page.
        TokenFileError: The file is damaged.
    """
    file = viewed.file
    if not 0 <= number < file.n_documents:
        raise ViewError(
            f"{viewed.name}: there is no document {number:,}; its {file.n_documents:,} documents"
            " are numbered from 0"
        )
    start, stop = read_bounds(file, number, number + 1).tolist()
    n_pages = max(-(-(stop - start) // TOKENS), 1)
    if not 0 <= page < n_pages:
        raise ViewError(
            f"{viewed.name}: there is no page {page:,} of document {number:,}; it has"
            f" {n_pages:,}, of {TOKENS:,} tokens, numbered from 0"
        )
    first = start + page * TOKENS
    last = min(first + TOKENS, stop)
    before = read_ids(file, max(start, first - 4), first).tolist()  # a character has 4 bytes
    ids = read_ids(file, first, last).tolist()
    answer = describe_tokens(ids, viewed.tokenizer, before, last == stop)
    if file.has_mask:
        answer["mask"] = np.asarray(file.loss_mask[first:last]).tolist()
    code = f"{viewed.open_in_python()}ids = file[{first}:{last}]  # of document {number}\n"
    if file.has_mask:
        code += f"mask = file.loss_mask[{first}:{last}]\n"
    code += "print(file.decode(ids))\n" if viewed.tokenizer else "print(ids.tolist())\n"
    return answer | {
        "dataset": viewed.name, "number": number, "page": page, "n_pages": n_pages,
        "start": start, "stop": stop, "first": first, "source": source_of(file, number),
        "python": code,
    }


def document_with(viewed: ViewedDataset, token: int) -> Answer:
    """Return the page of a document that has the token at a position of the dataset.

    Raises:
        ViewError: There is no such token.
    """
    file = viewed.file
    if not 0 <= token < file.n_tokens:
        raise ViewError(
            f"{viewed.name}: there is no token {token:,}; its {file.n_tokens:,} tokens are numbered"
            " from 0"
        )
    number = document_at(file, token)
    start = int(read_bounds(file, number, number + 1)[0])
    return document(viewed, number, (token - start) // TOKENS) | {"token": token}


# --- search ---


def of_length(
    viewed: ViewedDataset, least: int, most: int, start: int = 0, limit: int = HITS
) -> Answer:
    """Find documents of `least` to `most` tokens among the next `_DOCUMENTS` from `start` on.

    Returns:
        `hits`, each with the document, its number of `tokens` and its beginning, and `next`, where
        to go on, None at the end.
    """
    file, hits = viewed.file, list[Answer]()
    stop = min(start + _DOCUMENTS, file.n_documents)
    answer = {"hits": hits, "total": file.n_documents, "python": (
        f"import numpy as np\n\n{viewed.open_in_python()}"
        "lengths = np.diff(file.document_ends.astype(np.int64), prepend=0)\n"
        f"documents = np.flatnonzero((lengths >= {least}) & (lengths <= {most}))\n"
    )}  # fmt: skip
    for first in range(start, stop, _BLOCK):
        bounds = read_bounds(file, first, min(first + _BLOCK, stop))
        lengths = np.diff(bounds)
        found = np.flatnonzero((lengths >= least) & (lengths <= most))[: limit - len(hits)]
        for place in found.tolist():
            begin, n_tokens = int(bounds[place]), int(lengths[place])
            text = _text(viewed, read_ids(file, begin, begin + min(n_tokens, 2 * _AROUND)))
            hits.append({"document": first + place, "tokens": n_tokens, "begins": text})
        if len(hits) == limit:
            stop = hits[-1]["document"] + 1
            break
    return answer | {"next": stop if stop < file.n_documents else None}


def search(
    viewed: ViewedDataset, query: str, by_ids: bool = False, start: int = 0, limit: int = HITS
) -> Answer:
    """Search `SEARCHED` tokens from `start` on; hits are inside of one document each.

    Args:
        viewed: The dataset.
        query: Text, or ids with white space or commas between them.
        by_ids: True if `query` is ids. Text is searched by its ids without a byte-level tokenizer.
        start: Position of the first token.
        limit: Number of hits at which the search stops.

    Returns:
        `hits`, each with the tokens [`token`, `stop`) of the dataset, its document, and text
        before, of and after these tokens; `next`, where to go on, None at the end. At most one hit
        begins in a token.

    Raises:
        ViewError: There is nothing to search for, or it cannot be in the dataset.
    """
    file, n = viewed.file, viewed.file.n_tokens
    find, code = _finder(viewed, query, by_ids)
    hits, left, stop = list[Answer](), _CANDIDATES, min(max(start, 0) + SEARCHED, n)
    answer = {"hits": hits, "total": n, "python": viewed.open_in_python() + code}
    for begin in range(start, stop, _BLOCK):
        end = min(begin + _BLOCK, stop)
        number = document_at(file, begin)
        bounds = read_bounds(file, number, document_at(file, end - 1) + 1).tolist()
        for first, last in find(begin, end):
            at, left = bisect_right(bounds, first, hi=len(bounds) - 1), left - 1
            if last <= bounds[at]:
                hits.append(_hit(viewed, number + at - 1, bounds[at - 1 : at + 1], first, last))
            if len(hits) == limit or not left:
                return answer | {"next": first + 1 if first + 1 < n else None}
    return answer | {"next": stop if stop < n else None}


def _finder(viewed: ViewedDataset, query: str, by_ids: bool) -> tuple[Find, str]:
    """Return a function that finds hits that begin in tokens [begin, stop), and Python code."""
    tokenizer, size = viewed.tokenizer, viewed.file.vocab_size
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
        ids = [*map(int, words)]
    elif tokenizer is None:
        raise ViewError(
            f"{viewed.name}: its tokenizer is missing, so text cannot be searched; search for ids"
        )
    elif tokenizer.has_bytes:
        numbers = "documents = [i for i in range(file.n_documents)"
        code = f"{numbers} if {query!r} in file.decode(file.doc(i))]\n"
        return partial(_find_bytes, viewed.file, tokenizer, utf8(query)), code
    else:
        ids = tokenizer.tokenizer.encode_ordinary(query)
    code = (
        "import numpy as np\n\n"
        f"wanted = np.array({ids})\n"
        "windows = np.lib.stride_tricks.sliding_window_view(file[:], len(wanted))\n"
        "tokens = np.flatnonzero((windows == wanted).all(axis=1))\n"
    )
    return partial(_find_ids, viewed.file, ids), code


def _find_bytes(
    file: TokenFile, viewed: ViewedTokenizer, wanted: bytes, begin: int, stop: int
) -> Iterator[tuple[int, int]]:
    """Yield the tokens [first, last) of each hit that begins in tokens [begin, stop)."""
    ids = read_ids(file, begin, min(stop + len(wanted) - 1, file.n_tokens))
    content = viewed.tokenizer.decode_bytes(ids)
    place = content.find(wanted)
    if place < 0:
        return
    ends = np.cumsum(viewed.lengths[ids])
    limit = ends[stop - begin - 1]
    while 0 <= place < limit:
        first = int(np.searchsorted(ends, place, "right"))
        last = int(np.searchsorted(ends, place + len(wanted), "left")) + 1
        yield begin + first, begin + last
        place = content.find(wanted, int(ends[first]))


def _find_ids(
    file: TokenFile, wanted: Sequence[int], begin: int, stop: int
) -> Iterator[tuple[int, int]]:
    """Yield the tokens [first, last) of each hit that begins in tokens [begin, stop)."""
    ids = read_ids(file, begin, min(stop + len(wanted) - 1, file.n_tokens))
    places = np.flatnonzero(ids[: stop - begin] == wanted[0])
    places = places[places + len(wanted) <= len(ids)]
    for distance, token_id in enumerate(wanted):
        places = places[ids[places + distance] == token_id]
    for place in places.tolist():
        yield begin + place, begin + place + len(wanted)


def _hit(viewed: ViewedDataset, number: int, bounds: list[int], first: int, last: int) -> Answer:
    """Describe a hit, with the text around it."""
    begin, end = max(bounds[0], first - _AROUND), min(bounds[1], last + _AROUND)
    shown = {"before": (begin, first), "match": (first, last), "after": (last, end)}
    texts = {name: _text(viewed, read_ids(viewed.file, *span)) for name, span in shown.items()}
    return {"token": first, "stop": last, "document": number, **texts}


def _text(viewed: ViewedDataset, ids: Any) -> str:
    if viewed.tokenizer is None:
        return " ".join(map(str, ids.tolist()))
    return viewed.tokenizer.tokenizer.decode_bytes(ids).decode("utf-8", "replace")

"""Find out which evaluation items are in a dataset: the share of their n-grams of words.

As in the paper of GPT-3 (Brown et al., 2020), an n-gram is of words, in lower case and without
punctuation, so neither the tokenizer nor ASCII quotes and line ends hide a copy; other characters
than ASCII are compared as they are. An item of fewer words is one n-gram.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from preprocess.dataset.places import Sources
from preprocess.dataset.reader import TokenFile, tokenizer_of
from preprocess.find.byte_search import Numbers
from preprocess.find.occurrences import (
    Occurrences,
    SearchError,
    text_of_tokens,
    words_of,
)
from preprocess.report.progress import progress_of
from preprocess.report.summary import counted

if TYPE_CHECKING:
    from preprocess.options import SearchSettings

Facts = dict[str, Any]

_SHOWN = 60  # characters of an item


def ngrams_of(text: str, n: int) -> list[bytes]:
    """Return the distinct n-grams of a text, in order, with a space before and after.

    >>> ngrams_of("One, two -- THREE.", 2), ngrams_of("One.", 2), ngrams_of("...", 2)
    ([b' one two ', b' two three '], [b' one '], [])
    """
    words = words_of(text.encode()).split()
    starts = range(max(len(words) - n + 1, bool(words)))
    return [*dict.fromkeys(b" %b " % b" ".join(words[i : i + n]) for i in starts)]


class _Item:
    """An item, the numbers of its n-grams, and how many of them its documents have."""

    def __init__(self, text: str, ngrams: list[int]) -> None:
        self._text, self.ngrams = text, ngrams
        self._n_documents, self._documents, self._last = 0, Counter[int](), -1

    def add(self, document: int, limit: int) -> None:
        """Add an n-gram of a document; documents come in order."""
        self._n_documents += document != self._last
        self._last = document
        if self._n_documents <= limit:
            self._documents[document] += 1

    def describe(self, n_found: int, sources: Sources) -> Facts:
        """Describe the item for JSON."""
        of = sources.describe(np.array([*self._documents], np.int64))
        return {
            "text": self._text[:_SHOWN], "ngrams": len(self.ngrams), "found": n_found,
            "share": n_found / max(len(self.ngrams), 1), "documents": self._n_documents,
            "places": [
                {"document": document, "source": source, "ngrams": n}
                for (document, n), source in zip(self._documents.items(), of, strict=True)
            ],
        }  # fmt: skip


def find_contamination(file: TokenFile, texts: list[str], settings: SearchSettings) -> Facts:
    """Return the items, and which of their n-grams occur in which documents.

    Raises:
        SearchError: The tokens of the dataset are not bytes of its text, or no item has a word.
        TokenFileError: The dataset is damaged.
    """
    from bpe import Tokenizer

    tokenizer = tokenizer_of(file, settings.tokenizer)
    if not isinstance(tokenizer, Tokenizer):
        raise SearchError(
            f"{file.path}: its tokenizer is not byte-level, so n-grams of words cannot be found in"
            " it; search for texts (--file)"
        )
    numbers = dict[bytes, int]()
    items = [
        _Item(text, [numbers.setdefault(x, len(numbers)) for x in ngrams_of(text, settings.ngram)])
        for text in texts
    ]
    if not numbers:
        raise SearchError(f"{settings.contamination}: no item has a word; give a file with some")
    having: list[list[_Item]] = [[] for _ in numbers]
    for item in items:
        for ngram in item.ngrams:
            having[ngram].append(item)
    words = [*map(words_of, text_of_tokens(file, tokenizer))]
    occurrences = Occurrences(file, [*numbers], words, of_words=True)
    last = np.full(len(numbers), -1)
    for found in occurrences.chunks(settings.workers, progress_of(settings.progress)):
        first = found[first_in_documents(found, last)]
        for document, ngram in first[np.argsort(first[:, 3], kind="stable")][:, [3, 0]].tolist():
            for item in having[ngram]:
                item.add(document, settings.limit)
    sources = Sources(file)
    described = [
        {"item": i} | item.describe(int((last[item.ngrams] >= 0).sum()), sources)
        for i, item in enumerate(items)
    ]
    return {
        "path": str(file.path), "tokens": file.n_tokens, "documents": file.n_documents,
        "ngram": settings.ngram, "contaminated": sum(each["found"] > 0 for each in described),
        "items": described,
    }  # fmt: skip


def first_in_documents(found: Numbers, last: Numbers) -> Any:
    """Return which occurrences are the first of a pattern in a document: bool[n].

    Args:
        found: Occurrences in a chunk, as of `Occurrences.find`.
        last: int64[n_patterns], the last document before the chunk that has the pattern; updated.
    """
    patterns, documents = found[:, 0], found[:, 3]
    is_first = np.diff(patterns, prepend=-1) != 0
    before = np.where(is_first, last[patterns], np.roll(documents, 1))
    last[patterns] = documents  # the last assignment of a pattern stays
    return documents != before


def format_items(found: Facts) -> list[str]:
    """Format the items of which something was found, and a summary."""
    lines, items, n = [], found["items"], found["ngram"]
    for each in items:
        if each["found"]:
            places = ", ".join(f"{x['document']:,}" for x in each["places"])
            where = f"documents {places}" if places else counted(each["documents"], "document")
            if 0 < len(each["places"]) < each["documents"]:
                where += " and others (--limit)"
            lines.append(
                f"item {each['item']:,}: {each['share']:.1%} of its {n}-grams"
                f" ({each['found']:,} of {each['ngrams']:,}) in {where}: {each['text']!r}"
            )
    half = sum(each["share"] >= 0.5 for each in items)
    return [*lines, f"{len(lines):,} of {len(items):,} items have a {n}-gram in {found['path']},"
            f" and {half:,} at least half of them"]  # fmt: skip

"""Find out which evaluation items are in a dataset: the share of their n-grams of words.

As in the paper of GPT-3 (Brown et al., 2020), an n-gram is of words, in lower case and without
punctuation, so neither the tokenizer nor ASCII quotes and line ends hide a copy; other characters
than ASCII are compared as they are. An item of fewer words is one n-gram.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from preprocess.dataset.places import source_of
from preprocess.dataset.reader import TokenFile, tokenizer_of
from preprocess.find.byte_search import Numbers
from preprocess.find.occurrences import Occurrences, SearchError, words_of, words_of_tokens
from preprocess.report.progress import progress_of

if TYPE_CHECKING:
    from preprocess.options import SearchSettings

Facts = dict[str, Any]

_SHOWN = 60  # characters of an item


def ngrams_of(text: str, n: int) -> list[bytes]:
    """Return the distinct n-grams of a text, in order, with a space before and after.

    >>> ngrams_of("One, two -- THREE.", 2), ngrams_of("One.", 2), ngrams_of("...", 2)
    ([b' one two ', b' two three '], [b' one '], [])
    """
    words = words_of(text.encode())
    starts = range(max(len(words) - n + 1, bool(words)))
    return [*dict.fromkeys(b" %b " % b" ".join(words[i : i + n]) for i in starts)]


class _Item:
    """An item, the n-grams of it that were found, and those of some documents."""

    def __init__(self, text: str, n_ngrams: int) -> None:
        self.text, self.n_ngrams, self.found = text, n_ngrams, set[int]()
        self.n_documents, self.documents, self._last = 0, dict[int, set[int]](), -1

    def add(self, ngram: int, document: int, limit: int) -> None:
        """Add an n-gram of a document; documents come in order."""
        self.found.add(ngram)
        self.n_documents += document != self._last
        self._last = document
        if document in self.documents or len(self.documents) < limit:
            self.documents.setdefault(document, set()).add(ngram)

    def facts(self, number: int, file: TokenFile) -> Facts:
        """Describe the item for JSON."""
        return {
            "item": number, "text": self.text[:_SHOWN], "ngrams": self.n_ngrams,
            "found": len(self.found), "share": len(self.found) / max(self.n_ngrams, 1),
            "documents": self.n_documents, "places": [
                {"document": each, "source": source_of(file, each), "ngrams": len(ngrams)}
                for each, ngrams in self.documents.items()
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
    items, of_ngram = list[_Item](), dict[bytes, list[int]]()
    for number, text in enumerate(texts):
        ngrams = ngrams_of(text, settings.ngram)
        items.append(_Item(text, len(ngrams)))
        for ngram in ngrams:
            of_ngram.setdefault(ngram, []).append(number)
    if not of_ngram:
        raise SearchError(f"{settings.contamination}: no item has a word; give a file with some")
    having = [*of_ngram.values()]
    occurrences = Occurrences(file, [*of_ngram], words_of_tokens(file, tokenizer), margin=1)
    progress = progress_of(settings.progress)
    for hits, documents in occurrences.chunks(settings.workers, progress):
        for document, found in _distinct(documents, hits[:, 0], len(having)):
            for number in having[found]:
                items[number].add(found, document, settings.limit)
    return {
        "path": str(file.path), "tokens": file.n_tokens, "documents": file.n_documents,
        "ngram": settings.ngram, "contaminated": sum(bool(each.found) for each in items),
        "items": [each.facts(number, file) for number, each in enumerate(items)],
    }


def _distinct(documents: Numbers, ngrams: Numbers, n_ngrams: int) -> list[list[int]]:
    """Return the distinct pairs, sorted."""
    found = np.divmod(np.unique(documents * n_ngrams + ngrams), n_ngrams)
    pairs: list[list[int]] = np.stack(found, axis=1).tolist()
    return pairs


def format_items(found: Facts) -> list[str]:
    """Format the items of which something was found, and a summary."""
    lines, n = [], found["ngram"]
    for each in found["items"]:
        if each["found"]:
            places = ", ".join(f"{x['document']:,}" for x in each["places"])
            where = f"documents {places}" if places else count(each["documents"], "document")
            if 0 < len(each["places"]) < each["documents"]:
                where += " and others (--limit)"
            lines.append(
                f"item {each['item']:,}: {each['share']:.1%} of its {n}-grams"
                f" ({each['found']:,} of {each['ngrams']:,}) in {where}:"
                f" {each['text']!r}"
            )
    items = found["items"]
    half = sum(each["share"] >= 0.5 for each in items)
    return [*lines, f"{len(lines):,} of {len(items):,} items have a {n}-gram in {found['path']},"
            f" and {half:,} at least half of them"]  # fmt: skip


def count(number: int, noun: str) -> str:
    """Format a number of things.

    >>> count(1, "time"), count(1000, "time")
    ('1 time', '1,000 times')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"

"""Search a token file for texts or ids, in one pass: counts, documents, sources, places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from preprocess.dataset.places import sources_of
from preprocess.dataset.reader import TokenFile, tokenizer_of
from preprocess.find.byte_search import Numbers, ids_as_bytes
from preprocess.find.contamination import count, find_contamination, format_items
from preprocess.find.occurrences import (
    Occurrences,
    SearchError,
    ids_of_tokens,
    text_of_tokens,
)
from preprocess.find.where import describe_place
from preprocess.options import SearchSettings
from preprocess.report.progress import progress_of
from preprocess.report.summary import LeftOut, check_bad_records
from preprocess.run.outputs import open_one
from preprocess.run.reading import read_options
from preprocess.settings import takes
from preprocess.sources import check_fields_are_used, find_sources
from preprocess.sources.standard_input import standard_input_in_a_file

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer

Facts = dict[str, Any]

_SHOWN = 60  # characters of a text in a line


@takes(SearchSettings)
def search(settings: SearchSettings) -> Facts:
    """Find every place where texts or ids occur in a dataset, however the text was tokenized.

    Options: docs/options.md or `tokenmill search --help`; docs/look.md has the keys.

    Raises:
        SearchError: There is nothing to search for, or text cannot be searched for.
        TokenFileError: There is not one dataset, it is damaged, or its tokenizer is missing.
        TokenizerFileError: The tokenizer cannot be read.
        CorpusError: The file of texts cannot be read.
    """
    file = open_one(settings.path)
    if settings.contamination is not None:
        items = read_texts(settings, settings.contamination)
        return find_contamination(file, items, settings)
    tokenizer = None
    if settings.ids is None or settings.tokenizer or file.has_tokenizer:
        tokenizer = tokenizer_of(file, settings.tokenizer)
    if settings.ids is not None:
        wanted: list[Any] = [[*settings.ids]]
    else:
        wanted = [*settings.texts]
        if settings.file is not None:
            wanted += read_texts(settings, settings.file)
    found = Tally(file, len(wanted), settings.limit)
    searched, numbers = occurrences_of(file, tokenizer, wanted)
    progress = progress_of(settings.progress)
    for hits, documents in searched.chunks(settings.workers, progress):
        found.add(hits, documents)
    name = "text" if settings.ids is None else "ids"
    return {
        "path": str(file.path), "tokens": file.n_tokens, "documents": file.n_documents,
        "searched": [
            {name: each} | found.facts(number, tokenizer)
            for each, number in zip(wanted, numbers, strict=True)
        ],
    }


def read_texts(settings: SearchSettings, path: str) -> list[str]:
    """Return the documents of a file, as `build` reads them; raise SearchError without any."""
    reading, left_out, texts = read_options(settings, None, ()), LeftOut(), list[str]()
    sources = find_sources([path], reading)
    with standard_input_in_a_file(sources):
        check_fields_are_used(sources, reading)
        for unit in (unit for source in sources for unit in source.units()):
            batch = unit.read()
            left_out.add(batch)
            check_bad_records(left_out, batch, settings.max_bad_records)
            texts += [
                batch.buffer[start:stop].tobytes().decode()
                for start, stop in batch.bounds.reshape(-1, 2).tolist()
            ]
    if not texts:
        raise SearchError(f"{path}: has no text to search for; give a file with some")
    return texts


def occurrences_of(
    file: TokenFile, tokenizer: AnyTokenizer | None, wanted: Sequence[str | list[int]],
    tables: tuple[Any, Any] = (text_of_tokens, ids_of_tokens),
) -> tuple[Any, list[int]]:
    """Return `Occurrences` of what is wanted, and the number of each among their patterns.

    `tables` are `text_of_tokens` and `ids_of_tokens`, or functions that keep what these make.
    """
    from bpe import Tokenizer

    texts = [x for x in wanted if isinstance(x, str)]
    if texts and isinstance(tokenizer, Tokenizer):
        table, patterns = tables[0](file, tokenizer), [x.encode() for x in texts]
    else:
        table, patterns = tables[1](file), []
        for each in wanted:
            if isinstance(each, str):  # the bytes of such tokens, joined, are not the text
                assert tokenizer is not None
                each = tokenizer.encode_ordinary(each)
            patterns.append(b"".join(ids_as_bytes(_checked(file, each), file.vocab_size)))
    distinct = {pattern: i for i, pattern in enumerate(dict.fromkeys(patterns))}
    return Occurrences(file, [*distinct], table), [distinct[pattern] for pattern in patterns]


def _checked(file: TokenFile, ids: Iterable[int]) -> list[int]:
    found = [*ids]
    if not found or not all(0 <= i < file.vocab_size for i in found):
        raise SearchError(
            f"--ids {found!r:.100}: expected at least one id, from 0 to {file.vocab_size - 1:,}, of"
            f" the vocabulary of {file.path}"
        )
    return found


class Tally:
    """Counts and first places of patterns; occurrences are added chunk by chunk, in order."""

    def __init__(self, file: TokenFile, n_patterns: int, limit: int) -> None:
        self._file, self._limit = file, limit
        known = sources_of(file, np.zeros(0, np.int64))
        self._names = None if known is None else known[0]
        self.counts, self.documents = (np.zeros(n_patterns, np.int64) for _ in range(2))
        self._last = np.full(n_patterns, -1, np.int64)  # document that had the pattern
        self._of_sources: dict[int, Counter[int]] = {}  # pattern -> source -> occurrences
        self._places: dict[int, list[tuple[int, int, int]]] = {}

    def add(self, hits: Numbers, documents: Numbers) -> None:
        """Add occurrences, as `Occurrences.chunks` yields them."""
        if not len(hits):
            return
        patterns = hits[:, 0]
        firsts = np.flatnonzero(np.diff(patterns, prepend=-1))  # of each pattern
        rank = np.arange(len(hits)) - np.repeat(firsts, np.diff(firsts, append=len(hits)))
        listed = np.flatnonzero(rank + self.counts[patterns] < self._limit)
        rows = zip(hits[listed].tolist(), documents[listed].tolist(), strict=True)
        for (pattern, first, stop), document in rows:
            self._places.setdefault(pattern, []).append((first, stop, document))
        before = np.concatenate([[-1], documents[:-1]])[: len(hits)]
        before[firsts] = self._last[patterns[firsts]]
        self.documents += np.bincount(patterns[documents != before], minlength=len(self.counts))
        self._last[patterns] = documents  # the last assignment of a pattern stays
        self.counts += np.bincount(patterns, minlength=len(self.counts))
        if (found := sources_of(self._file, documents)) is not None:
            n = len(found[0])
            pairs, counts = np.unique(patterns * n + found[1], return_counts=True)
            for pair, each in zip(pairs.tolist(), counts.tolist(), strict=True):
                self._of_sources.setdefault(pair // n, Counter())[pair % n] += each

    def facts(self, pattern: int, tokenizer: AnyTokenizer | None) -> Facts:
        """Describe the occurrences of a pattern."""
        sources = None
        if (names := self._names) is not None:
            of_pattern = sorted(self._of_sources.get(pattern, {}).items())
            sources = [{"name": names[of], "count": n} for of, n in of_pattern]
        return {
            "count": int(self.counts[pattern]), "documents": int(self.documents[pattern]),
            "sources": sources, "places": [
                describe_place(self._file, tokenizer, *each)
                for each in self._places.get(pattern, ())
            ],
        }  # fmt: skip


# --- text for people ---


def format_lines(found: Facts) -> list[str]:
    """Format what `search` found."""
    if "items" in found:
        return format_items(found)
    lines = []
    for each in found["searched"]:
        shown = each.get("text", each.get("ids"))
        n, n_documents = each["count"], each["documents"]
        lines.append(f"{shown!r:.{_SHOWN}}: {count(n, 'time')} in {count(n_documents, 'document')}")
        lines += [f"  {x['count']:,} in {x['name']}" for x in each["sources"] or ()]
        for place in each["places"]:
            text = ""
            if "match" in place:
                before, match, after = (repr(place[x])[1:-1] for x in ("before", "match", "after"))
                text = f": {before[-_SHOWN // 2:]}[{match[:_SHOWN]}]{after[: _SHOWN // 2]}"
            lines.append(f"  token {place['token']:,} of document {place['document']:,}{text}")
        if n > len(each["places"]) > 0:
            lines.append(f"  and {n - len(each['places']):,} more (--limit)")
    return lines

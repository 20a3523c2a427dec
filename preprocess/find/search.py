"""Search a token file for texts or ids, in one pass: counts, documents, sources, places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from preprocess.dataset.places import Sources
from preprocess.dataset.reader import TokenFile, tokenizer_of
from preprocess.find.byte_search import Numbers
from preprocess.find.contamination import find_contamination, first_in_documents, format_items
from preprocess.find.occurrences import Occurrences, SearchError, ids_as_bytes, text_of_tokens
from preprocess.find.where import describe_places
from preprocess.options import SearchSettings
from preprocess.report.progress import progress_of
from preprocess.report.summary import LeftOut, check_bad_records, counted
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
    tokenizer, name = None, "text" if settings.ids is None else "ids"
    if settings.ids is None or settings.tokenizer or file.has_tokenizer:
        tokenizer = tokenizer_of(file, settings.tokenizer)
    wanted: list[Any] = [*settings.texts] if settings.ids is None else [[*settings.ids]]
    if settings.file is not None:
        wanted += read_texts(settings, settings.file)
    occurrences = occurrences_of(file, tokenizer, wanted)
    tally = Tally(file, len(wanted), settings.limit)
    for found in occurrences.chunks(settings.workers, progress_of(settings.progress)):
        tally.add(found)
    described = zip(wanted, tally.describe(tokenizer), strict=True)
    return {
        "path": str(file.path), "tokens": file.n_tokens, "documents": file.n_documents,
        "searched": [{name: each} | facts for each, facts in described],
    }  # fmt: skip


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
            bounds = batch.bounds.reshape(-1, 2).tolist()
            texts += [batch.buffer[start:stop].tobytes().decode() for start, stop in bounds]
    if not texts:
        raise SearchError(f"{path}: has no text to search for; give a file with some")
    return texts


def occurrences_of(
    file: TokenFile, tokenizer: AnyTokenizer | None, wanted: Sequence[str | Sequence[int]]
) -> Occurrences:
    """Return `Occurrences` of texts, or of lists of ids; raise SearchError for ids of no token."""
    from bpe import Tokenizer

    if isinstance(wanted[0], str) and isinstance(tokenizer, Tokenizer):
        patterns = [str(each).encode() for each in wanted]
        return Occurrences(file, patterns, text_of_tokens(file, tokenizer))
    patterns, size = [], file.vocab_size
    for each in wanted:
        if isinstance(each, str):  # the bytes of such tokens, joined, are not the text
            assert tokenizer is not None
            if not (ids := tokenizer.encode_ordinary(each)):
                raise SearchError(
                    f"{file.path}: its tokenizer makes no token of {each!r:.100}; search for text"
                    " that has one"
                )
            each = ids
        if not each or not 0 <= min(each) <= max(each) < size:
            raise SearchError(
                f"{file.path}: expected at least one id of its vocabulary, from 0 to"
                f" {size - 1:,} (--ids); got {[*each]!r:.100}"
            )
        patterns.append(b"".join(ids_as_bytes(each, size)))
    return Occurrences(file, patterns, ids_as_bytes(range(size), size))


class Tally:
    """Counts, sources and first places of patterns; occurrences are added chunk by chunk."""

    def __init__(self, file: TokenFile, n_patterns: int, limit: int) -> None:
        self._file, self._sources, self._limit = file, Sources(file), limit
        self._counts, self._documents = (np.zeros(n_patterns, np.int64) for _ in range(2))
        self._last = np.full(n_patterns, -1)
        self._of_sources = Counter[int]()  # pattern * number of sources + source
        self._places = [np.zeros((0, 6), np.int64)]

    def add(self, found: Numbers) -> None:
        """Add the occurrences in the next chunk, as of `Occurrences.find`."""
        patterns, n = found[:, 0], len(self._counts)
        rank = np.arange(len(found)) - np.searchsorted(patterns, patterns)
        self._places.append(found[rank + self._counts[patterns] < self._limit])
        is_first = first_in_documents(found, self._last)
        self._documents += np.bincount(patterns[is_first], minlength=n)
        self._counts += np.bincount(patterns, minlength=n)
        if names := self._sources.names:
            of = self._sources.of(found[:, 3])
            self._of_sources.update((patterns * len(names) + of).tolist())

    def describe(self, tokenizer: AnyTokenizer | None) -> list[Facts]:
        """Describe the occurrences of each pattern."""
        names, n = self._sources.names, len(self._counts)
        places = np.concatenate(self._places)
        places = places[np.argsort(places[:, 0], kind="stable")]
        described = describe_places(self._file, tokenizer, places[:, 1:])
        bounds = np.searchsorted(places[:, 0], np.arange(n + 1)).tolist()
        sources: list[list[Facts]] = [[] for _ in range(n)]
        for key, count in sorted(self._of_sources.items()):
            pattern, source = divmod(key, len(names))
            sources[pattern].append({"name": names[source], "count": count})
        counts = zip(self._counts.tolist(), self._documents.tolist(), strict=True)
        return [
            {"count": count, "documents": n_documents, "sources": of if names else None,
             "places": described[start:stop]}
            for (count, n_documents), of, (start, stop)
            in zip(counts, sources, pairwise(bounds), strict=True)
        ]  # fmt: skip


# --- text for people ---


def format_lines(found: Facts) -> list[str]:
    """Format what `search` found."""
    if "items" in found:
        return format_items(found)
    lines = []
    for each in found["searched"]:
        shown = each.get("text", each.get("ids"))
        n, n_documents = each["count"], counted(each["documents"], "document")
        lines.append(f"{shown!r:.{_SHOWN}}: {counted(n, 'time')} in {n_documents}")
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

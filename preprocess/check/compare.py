"""Compare two tokenizers on the same text: number of tokens and speed.

Both encode the same documents, unit by unit, on one thread each, in alternating order. The time
excludes reading, loading, compiling and, if there is enough text, the first units, which warm up
caches. One unit is in memory at a time, or one whole document if a tokenizer has no safe cuts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from preprocess.documents.batch import Bytes, DocumentBatch
from preprocess.options import CompareSettings
from preprocess.report.progress import progress_of
from preprocess.report.summary import LeftOut, check_bad_records, table
from preprocess.run.reading import read_options
from preprocess.settings import takes
from preprocess.sources import Source, check_fields_are_used, find_sources
from preprocess.sources.standard_input import standard_input_in_a_file
from preprocess.sources.standard_library import StandardLibrary

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer

# Units excluded from the time if there are more than twice as many.
_WARMING_UP = 4


class _Side:
    """One of the two tokenizers, its number of tokens so far, and (bytes, MB/s) of each unit."""

    def __init__(self, name: Path, pattern: str | None) -> None:
        from bpe import load_tokenizer

        pattern = pattern if name.suffix == ".tiktoken" else None
        self.name, self.tokenizer = name, load_tokenizer(name, pattern=pattern)
        self.n_tokens, self._units = 0, list[tuple[int, float]]()
        self.tokens = set(self.tokenizer.vocab.values())
        self._encoder = self.tokenizer.new_encoder()
        # Compile and initialize before the time counts.
        self._encoder.encode(np.frombuffer(b"some text", np.uint8), np.array([[0, 9]], np.int64))

    def encode(self, batch: DocumentBatch) -> list[NDArray[np.uint32]]:
        """Return the ids of each document, or of its part."""
        started = time.perf_counter()
        ids, ends = self._encoder.encode(
            batch.buffer, batch.bounds.reshape(-1, 2),
            starts_mid_document=batch.starts_mid_document,
            ends_mid_document=batch.ends_mid_document,
        )
        seconds = time.perf_counter() - started
        self.n_tokens += len(ids)
        self._units.append((batch.n_bytes, batch.n_bytes / 1e6 / seconds))
        return np.split(ids, ends[1:-1])

    def describe(self, n_documents: int, other: set[bytes]) -> dict[str, Any]:
        """Describe the results; MB/s is the median of the large units."""
        sizes = [n for n, _ in self._units]
        rates = [rate for n, rate in self._units if n >= max(sizes) / 2]
        warm = rates[_WARMING_UP:] if len(rates) > 2 * _WARMING_UP else rates
        return {
            "name": str(self.name),
            "pattern": self.tokenizer.pattern,
            "vocab_size": self.tokenizer.vocab_size,
            "tokens": self.n_tokens,
            "bytes_per_token": sum(sizes) / max(self.n_tokens, 1),
            "tokens_per_document": self.n_tokens / max(n_documents, 1),
            "megabytes_per_second": float(np.median(warm)) if warm else 0.0,
            "only_here": len(self.tokens - other),
        }


@takes(CompareSettings)
def compare(settings: CompareSettings) -> dict[str, Any]:
    """Encode the same text with two tokenizers.

    Options: docs/options.md or `tokenmill compare --help`; `progress=False` shows none.

    Returns:
        A dictionary for JSON: `text` (documents, bytes, and everything: True if all was read);
        for each of `tokenizers` its vocab_size, tokens, bytes_per_token, tokens_per_document,
        megabytes_per_second and only_here (number of tokens that the other lacks); `same_tokens`,
        the number of common tokens; `same_vocabulary`; `same_ids`, the share of documents with the
        same ids in both, None for different vocabularies.

    Raises:
        TokenmillError: A tokenizer or the text cannot be read.
    """
    progress = progress_of(settings.progress)
    sides = [_Side(Path(name), settings.pattern) for name in (settings.first, settings.second)]
    first, second = sides
    atomic = (token for side in sides for token in side.tokenizer.atomic_texts)
    safe_cut = _common_safe_cut(first.tokenizer, second.tokenizer)
    reading = read_options(settings, safe_cut, atomic)
    sources: list[Source] = [StandardLibrary(reading)]
    if settings.paths:
        sources = find_sources(settings.paths, reading)
    same_vocabulary = first.tokenizer.vocab == second.tokenizer.vocab
    n_documents = n_same = n_read = n_bytes = 0
    is_same_so_far, left_out = True, LeftOut()
    with _one_thread(), standard_input_in_a_file(sources):
        check_fields_are_used(sources, reading)
        n_all = sum(source.n_bytes for source in sources)
        with progress.stage("comparing", min(settings.max_bytes, n_all)) as stage:
            for unit in (unit for source in sources for unit in source.units()):
                batch = unit.read()
                left_out.add(batch)
                check_bad_records(left_out, batch, settings.max_bad_records)
                n_read += unit.n_bytes
                stage.advance(unit.n_bytes)
                if len(batch):
                    sides.reverse()
                    pairs = zip(*(side.encode(batch) for side in sides), strict=True)
                    if same_vocabulary:
                        equal = [np.array_equal(*pair) for pair in pairs]
                        # A document in several units is equal if all of its parts are.
                        equal[0] &= is_same_so_far or not batch.starts_mid_document
                        n_same, is_same_so_far = n_same + sum(equal[: batch.n_ended]), equal[-1]
                    n_documents, n_bytes = n_documents + batch.n_ended, n_bytes + batch.n_bytes
                if n_read >= settings.max_bytes:
                    break
    return {
        "text": {"documents": n_documents, "bytes": n_bytes, "everything": n_read == n_all},
        "tokenizers": [
            first.describe(n_documents, second.tokens), second.describe(n_documents, first.tokens),
        ],
        "same_tokens": len(first.tokens & second.tokens),
        "same_vocabulary": same_vocabulary,
        "same_ids": n_same / max(n_documents, 1) if same_vocabulary else None,
    }


def _common_safe_cut(first: AnyTokenizer, second: AnyTokenizer) -> Any:
    """Make a function like `Pretokenizer.safe_cut` that finds cuts which both allow."""

    def safe_cut(buffer: Bytes, position: int, stop: int) -> int:
        while position < stop:
            place = first.safe_cut(buffer, position, stop)
            position = second.safe_cut(buffer, place, stop) if place < stop else stop
            if position == place:
                return place
        return stop

    return safe_cut


@contextmanager
def _one_thread() -> Iterator[None]:
    """Limit Hugging Face's library, which reads this variable on each call, to one thread."""
    name = "TOKENIZERS_PARALLELISM"
    before, os.environ[name] = os.environ.get(name), "false"
    try:
        yield
    finally:
        del os.environ[name]
        os.environ |= {} if before is None else {name: before}


def format_lines(found: dict[str, Any]) -> list[str]:
    """Format the result of `compare` for people."""
    columns = {
        "ids": "{vocab_size:,}", "only here": "{only_here:,}", "tokens": "{tokens:,}",
        "bytes/token": "{bytes_per_token:.3f}", "tokens/document": "{tokens_per_document:,.1f}",
        "MB/s": "{megabytes_per_second:,.1f}", "tokenizer": "{name}",
    }
    rows = [[text.format_map(one) for text in columns.values()] for one in found["tokenizers"]]
    first, second = found["tokenizers"]
    text = found["text"]
    all_of_it = "" if text["everything"] else " (not all of the text: --max-bytes)"
    result = [
        *table([[*columns], *rows]),
        f"text: {text['documents']:,} documents, {text['bytes']:,} bytes{all_of_it};"
        " one thread each",
        "tokens of the second per token of the first:"
        f" {second['tokens'] / max(first['tokens'], 1):.3f};"
        f" {found['same_tokens']:,} tokens are in both vocabularies",
    ]
    if found["same_vocabulary"]:
        result.append(f"documents with the same ids: {found['same_ids']:.2%}")
    return result

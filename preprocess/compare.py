"""Two tokenizers on the same text: how many tokens each makes of it, and how fast.

Law: both get the same documents by the same reader, a part at a time, one after the other in turn,
each in one thread; what is not measured (reading, loading, the first use of compiled code) is kept
out of the time.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from preprocess.config import CompareSettings, checked
from preprocess.documents import Reading
from preprocess.progress import Progress
from preprocess.report import table
from preprocess.sources import Source, find_sources
from preprocess.sources.standard_library import StandardLibrary


def compare(*, progress: Progress | None = None, **options: Any) -> dict[str, Any]:
    """Encode the same text with two tokenizers.

    Args:
        progress: Shows what goes on; None shows nothing.
        **options: Fields of `preprocess.config.CompareSettings`: tokenizers, paths, max_bytes, ...

    Returns:
        What was found, ready for JSON: `text` (documents, bytes) and for each of `tokenizers` its
        vocab_size, tokens, bytes_per_token, tokens_per_document, megabytes_per_second; `same_ids`,
        the share of documents that both encode to the same ids; `same_tokens`, how many entries
        both vocabularies have.

    Raises:
        TokenbinError: A tokenizer or the text cannot be read.
    """
    from bpe import load_tokenizer

    settings = checked(CompareSettings, options)
    progress = progress or Progress()
    tokenizers = [load_tokenizer(settings.first), load_tokenizer(settings.second)]
    encoders = [tokenizer.new_encoder() for tokenizer in tokenizers]
    # Neither tokenizer's documents are cut: each may allow it elsewhere.
    reading = Reading(
        separator=settings.separator.encode(),
        unit_size=1 << 20,
        on_invalid_utf8=settings.on_invalid_utf8,
        safe_cut=lambda buffer, position, stop: stop,
    )
    sources: list[Source] = (
        list(find_sources(settings.paths, reading))
        if settings.paths
        else [StandardLibrary(reading)]
    )
    n_documents = n_bytes = n_same = 0
    n_tokens = [0, 0]
    seconds: list[list[float]] = [[], []]
    sizes: list[int] = []
    warm = np.frombuffer(b"compiles what is used ", np.uint8)
    for encoder in encoders:
        encoder.encode(warm, np.array([0, len(warm)]))
    limit = settings.max_bytes
    with progress.stage(
        "comparing", min(limit, sum(source.n_bytes for source in sources))
    ) as stage:
        for unit in (unit for source in sources for unit in source.units()):
            batch = unit.read()
            encoded = []
            for index in (0, 1) if len(sizes) % 2 == 0 else (1, 0):
                started = time.perf_counter()
                encoded.append((index, encoders[index].encode(batch.buffer, batch.offsets)))
                seconds[index].append(time.perf_counter() - started)
            (ids_a, ends_a), (ids_b, ends_b) = (
                result for _, result in sorted(encoded, key=lambda e: e[0])
            )
            n_tokens[0] += len(ids_a)
            n_tokens[1] += len(ids_b)
            n_same += sum(
                np.array_equal(ids_a[a:b], ids_b[c:d])
                for a, b, c, d in zip(ends_a[:-1], ends_a[1:], ends_b[:-1], ends_b[1:], strict=True)
            )
            n_documents += len(batch.offsets) - 1
            n_bytes += len(batch.buffer)
            sizes.append(len(batch.buffer))
            stage.advance(unit.n_bytes)
            if n_bytes >= limit:
                break
    vocabularies = [set(tokenizer.vocab.values()) for tokenizer in tokenizers]
    return {
        "text": {"documents": n_documents, "bytes": n_bytes},
        "tokenizers": [
            {
                "name": str(name),
                "vocab_size": tokenizer.vocab_size,
                "pattern": tokenizer.pattern,
                "tokens": n,
                "bytes_per_token": n_bytes / max(n, 1),
                "tokens_per_document": n / max(n_documents, 1),
                "megabytes_per_second": _rate(sizes, times),
            }
            for name, tokenizer, n, times in zip(
                (settings.first, settings.second), tokenizers, n_tokens, seconds, strict=True
            )
        ],
        "same_ids": n_same / max(n_documents, 1),
        "same_tokens": len(vocabularies[0] & vocabularies[1]),
    }


def _rate(sizes: list[int], seconds: list[float]) -> float:
    """The median rate of the parts, in MB/s; a last part that is small says nothing."""
    rates = [n / 1e6 / s for n, s in zip(sizes, seconds, strict=True) if n >= max(sizes) / 2 and s]
    return float(np.median(rates)) if rates else 0.0


def lines(found: dict[str, Any]) -> list[str]:
    """What `compare` found, in words."""
    rows = [["ids", "tokens", "bytes/token", "tokens/document", "MB/s", "tokenizer"]]
    for one in found["tokenizers"]:
        rows.append(
            [
                f"{one['vocab_size']:,}",
                f"{one['tokens']:,}",
                f"{one['bytes_per_token']:.3f}",
                f"{one['tokens_per_document']:,.1f}",
                f"{one['megabytes_per_second']:,.1f}",
                one["name"],
            ]
        )
    first, second = found["tokenizers"]
    share = second["tokens"] / max(first["tokens"], 1)
    text = found["text"]
    return [
        *table(rows),
        f"on {text['documents']:,} documents of {text['bytes']:,} bytes: the second makes"
        f" {share:.3f} tokens for one of the first; {found['same_tokens']:,} entries are in both"
        f" vocabularies; {found['same_ids']:.1%} of the documents have the same ids",
    ]

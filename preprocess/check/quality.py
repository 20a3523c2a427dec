"""Statistics of a token file: tokens that occur, lengths and copies of documents, samples.

All tokens are read, in chunks; nothing is estimated. Memory is that of the vocabulary, one chunk,
and 16 bytes per document. Documents are compared by the xxh3_64 of their ids: with 1e8 documents,
one false pair of copies is expected in 3,000 corpora. Statistics are dictionaries for JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from preprocess.dataset.reader import TokenFile, read_bounds, read_ids

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer

_TOKENS_AT_A_TIME = 1 << 20
_SHARES = (0, 1, 10, 50, 90, 99, 100)
_LISTED = 5
_SAMPLE_TOKENS = 24

Facts = dict[str, Any]
Hashes = NDArray[np.uint64]


def describe(file: TokenFile, tokenizer: AnyTokenizer | None) -> Facts:
    """Describe a token file, except copies of documents; without a tokenizer in less detail.

    Raises:
        TokenFileError: The file is damaged.
    """
    manifest, n_trained = file.manifest, 0
    counts, bounds = np.zeros(file.vocab_size, np.int64), read_bounds(file, 0, file.n_documents)
    for start in range(0, len(file), _TOKENS_AT_A_TIME):
        stop = min(start + _TOKENS_AT_A_TIME, len(file))
        counts += np.bincount(read_ids(file, start, stop), minlength=file.vocab_size)
        n_trained += int(np.count_nonzero(file.loss_mask[start:stop]))
    lengths, around = np.diff(bounds), 1 if manifest.begin_of_text_id is None else 2
    n_empty, spread = int(np.count_nonzero(lengths <= around)), None
    if len(lengths):
        values = np.percentile(lengths, _SHARES, method="nearest").tolist()
        percentiles = dict(zip(map(str, _SHARES), values, strict=True))
        spread = {"mean": int(lengths.sum()) / len(lengths), "percentiles": percentiles}
    found: Facts = {
        "path": str(file.path),
        "dtype": file.dtype.name,
        "tokens": file.n_tokens,
        "documents": file.n_documents,
        "shards": len(manifest.shards),
        "bytes": manifest.n_bytes,
        "bytes_per_token": manifest.n_bytes / max(file.n_tokens, 1),
        "vocab_size": file.vocab_size,
        "ids_that_occur": int(np.count_nonzero(counts)),
        "end_of_text_id": manifest.end_of_text_id,
        "begin_of_text_id": manifest.begin_of_text_id,
        "sources": [str(source.get("name")) for source in manifest.sources],
        "empty_documents": n_empty,
        "tokens_per_document": spread,
    }
    if file.has_mask:
        found["trained_share"] = n_trained / max(file.n_tokens, 1)
    if tokenizer is not None:
        found["vocabulary"] = _describe_vocabulary(counts, tokenizer)
        found["samples"] = [*_decode_samples(file, bounds, tokenizer)]
    return found


def _describe_vocabulary(counts: NDArray[np.int64], tokenizer: AnyTokenizer) -> Facts:
    """Describe frequent and unused tokens, without special ones; `counts` are those of all ids."""
    spelled, special = tokenizer.vocab, set(tokenizer.special_tokens.values())
    ordinary = np.array(sorted(i for i in spelled if i not in special and i < len(counts)), int)
    used, unused = ordinary[counts[ordinary] > 0], ordinary[counts[ordinary] == 0]

    def first(ids: NDArray[np.int64]) -> list[Facts]:
        return [
            {"id": i, "token": spelled[i].decode("utf-8", "replace"), "count": int(counts[i])}
            for i in ids[:_LISTED].tolist()
        ]

    # Stable: ties are in ascending order of ids.
    return {
        "most_frequent": first(used[np.argsort(-counts[used], kind="stable")]),
        "ordinary_tokens": len(ordinary), "unused": len(unused), "unused_first": first(unused),
    }


def _decode_samples(
    file: TokenFile, bounds: NDArray[np.int64], tokenizer: AnyTokenizer
) -> Iterator[Facts]:
    """Decode the beginnings of the first, the middle and the last document."""
    last = file.n_documents - 1
    for number in sorted({0, last // 2, last} if file.n_documents else ()):
        start, stop = bounds[number : number + 2].tolist()
        ids = file[start : min(stop, start + _SAMPLE_TOKENS)]
        text = tokenizer.decode_bytes(ids).decode("utf-8", "replace")
        yield {"document": number, "begins": text}


# --- copies of documents ---


def document_hashes(file: TokenFile) -> Hashes:
    """Return the xxh3_64 of the ids of each document, sorted: uint64[n_documents].

    Raises:
        TokenFileError: The file is damaged.
    """
    hashes = np.fromiter(_hash_documents(file), np.uint64, file.n_documents)
    hashes.sort()
    return hashes


def _hash_documents(file: TokenFile) -> Iterator[int]:
    ends = read_bounds(file, 0, file.n_documents)[1:]
    digest = xxhash.xxh3_64()
    for start in range(0, len(file), _TOKENS_AT_A_TIME):
        part = file.tokens[start : start + _TOKENS_AT_A_TIME]
        data = np.ascontiguousarray(part).view(np.uint8).data
        first, last = np.searchsorted(ends, [start, start + len(part)], "right")
        place = 0
        for end in ((ends[first:last] - start) * part.itemsize).tolist():
            digest.update(data[place:end])
            yield digest.intdigest()
            digest.reset()
            place = end
        digest.update(data[place:])


def count_copies(hashes: Hashes) -> int:
    """Count copies of earlier documents, n_documents - n_unique, from `document_hashes`."""
    return int(np.count_nonzero(hashes[1:] == hashes[:-1]))


def compare_val_with_train(files: Mapping[str, tuple[TokenFile, Hashes]]) -> Iterator[Facts]:
    """Count the documents of each NAMEval that are in NAMEtrain of the same directory, too."""
    for name, (val, of_val) in files.items():
        other = f"{name.removesuffix('val')}train"
        if not name.endswith("val") or other not in files:
            continue
        train, of_train = files[other]
        found: Facts = {"val": name, "train": other, "documents": val.n_documents}
        ids = [
            (x.manifest.tokenizer_fingerprint, x.manifest.end_of_text_id,
             x.manifest.begin_of_text_id)
            for x in (val, train)
        ]  # fmt: skip
        if ids[0] == ids[1]:
            first, stop = (np.searchsorted(of_train, of_val, x) for x in ("left", "right"))
            yield found | {"in_train": int(np.count_nonzero(first < stop))}
        else:
            why = "they were built with different tokenizers or special tokens"
            yield found | {"not_compared": why}

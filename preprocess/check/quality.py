"""Statistics of a token file: tokens that occur, lengths and copies of documents, samples.

All tokens are read, in chunks; nothing is estimated, and omitted statistics are reported. Memory is
that of the vocabulary, one chunk, and 16 bytes per document. Documents are compared by the xxh3_64
of their ids: with 1e8 documents, one false pair of copies is expected in 3,000 corpora.

Statistics are dictionaries for JSON; `format_lines` formats them for people.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from preprocess.dataset.checked import read_bounds, read_ids
from preprocess.dataset.reader import TokenFile
from preprocess.report.progress import percent
from preprocess.report.summary import listed

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer

_TOKENS_AT_A_TIME = 1 << 20
_SHARES = (0, 1, 10, 50, 90, 99, 100)
_LISTED = 5
_SAMPLE_TOKENS = 24

Facts = dict[str, Any]


def describe(file: TokenFile, tokenizer: AnyTokenizer | None) -> Facts:
    """Describe a token file, except copies of documents; without a tokenizer in less detail.

    Raises:
        TokenFileError: The file is damaged.
    """
    manifest = file.manifest
    counts, bounds = count_ids(file), read_bounds(file, 0, file.n_documents)
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
        **_describe_lengths(np.diff(bounds), 1 if manifest.begin_of_text_id is None else 2),
    }
    if file.has_mask:
        found["trained_share"] = _count_trained(file) / max(file.n_tokens, 1)
    if tokenizer is not None:
        found["vocabulary"] = describe_vocabulary(counts, tokenizer)
        found["samples"] = list(_decode_samples(file, bounds, tokenizer))
    return found


def _count_trained(file: TokenFile) -> int:
    """Count the tokens that the mask says to train on."""
    starts = range(0, len(file), _TOKENS_AT_A_TIME)
    mask = file.loss_mask
    return sum(int(np.count_nonzero(mask[start : start + _TOKENS_AT_A_TIME])) for start in starts)


def count_ids(file: TokenFile) -> NDArray[np.int64]:
    """Count each id: int64[vocab_size]; raise TokenFileError for an unknown id."""
    counts = np.zeros(file.vocab_size, np.int64)
    for start in range(0, len(file), _TOKENS_AT_A_TIME):
        stop = min(start + _TOKENS_AT_A_TIME, len(file))
        found = np.bincount(read_ids(file, start, stop))
        counts[: len(found)] += found
    return counts


# --- documents ---


def _describe_lengths(lengths: NDArray[np.int64], around: int) -> Facts:
    """Describe lengths of documents in tokens, `around` of them special; reorders `lengths`."""
    if not len(lengths):
        return {"empty_documents": 0, "tokens_per_document": None}
    empty, mean = int(np.count_nonzero(lengths <= around)), int(lengths.sum()) / len(lengths)
    found = np.percentile(lengths, _SHARES, method="nearest", overwrite_input=True).tolist()
    spread = {"mean": mean, "percentiles": dict(zip(map(str, _SHARES), found, strict=True))}
    return {"empty_documents": empty, "tokens_per_document": spread}


def document_hashes(file: TokenFile) -> NDArray[np.uint64]:
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


def count_copies(hashes: NDArray[np.uint64]) -> int:
    """Count copies of earlier documents, n_documents - n_unique, from `document_hashes`."""
    return int(np.count_nonzero(hashes[1:] == hashes[:-1]))


def count_shared(of_val: NDArray[np.uint64], of_train: NDArray[np.uint64]) -> int:
    """Count documents of one file that are in another, from their `document_hashes`."""
    first, stop = (np.searchsorted(of_train, of_val, side) for side in ("left", "right"))
    return int(np.count_nonzero(first < stop))


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


# --- vocabulary ---


def describe_vocabulary(counts: NDArray[np.int64], tokenizer: AnyTokenizer) -> Facts:
    """Describe frequent and unused tokens, without special ones; `counts` as of `count_ids`."""
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
        "ordinary_tokens": len(ordinary),
        "unused": len(unused),
        "unused_first": first(unused),
    }


# --- text for people ---


def format_lines(found: Facts) -> list[str]:
    """Format the result of `describe`, optionally with "copies" and "no_tokenizer"."""
    shards = f", {found['shards']:,} shards" if found["shards"] else ""
    heading = (
        "{path}: {tokens:,} tokens ({dtype}), {documents:,} documents" + shards,
        "  {bytes:,} bytes of text, {bytes_per_token:.2f} per token",
        "  vocabulary {vocab_size:,}, of which {ids_that_occur:,} occur; end of text"
        " {end_of_text_id}, begin of text {begin_of_text_id}",
    )
    lines = [text.format_map(found) for text in heading]
    lines.append(f"  sources: {listed(found['sources'])}")
    if "trained_share" in found:
        lines.append(f"  trained on: {100 * found['trained_share']:.1f} % of the tokens")
    if lengths := found["tokens_per_document"]:
        shares = (f"{share} % {value:,}" for share, value in lengths["percentiles"].items())
        lines.append(f"  tokens per document: {lengths['mean']:,.1f} on average")
        lines.append(f"  tokens per document, by share of documents: {', '.join(shares)}")
    repeated = ""
    if "copies" in found:
        share = percent(found["copies"] / max(found["documents"], 1), 1)
        repeated = f"; copies of other documents: {found['copies']:,} ({share})"
    lines.append(f"  empty documents: {found['empty_documents']:,}{repeated}")
    if "no_tokenizer" in found:
        return [*lines, f"  no samples, for lack of its tokenizer: {found['no_tokenizer']}"]
    vocabulary = found["vocabulary"]
    unused = ", ".join(repr(each["token"]) for each in vocabulary["unused_first"])
    lines += [
        f"  most frequent: {_format_tokens(vocabulary['most_frequent'])}",
        f"  {vocabulary['unused']:,} of {vocabulary['ordinary_tokens']:,} ordinary tokens do not"
        f" occur{', as ' * bool(unused)}{unused}",
    ]
    samples = map("  document {document:,} begins: {begins!r}".format_map, found["samples"])
    return [*lines, *samples]


def format_shared(found: Facts) -> str:
    """Format how many documents of a validation file are in its train file, or why not."""
    if "not_compared" in found:
        return f"{found['val']} in {found['train']}: not compared, for {found['not_compared']}"
    counts = f"{found['in_train']:,} of {found['documents']:,} validation documents"
    return f"{found['val']} in {found['train']}: {counts} are in train, too"


def format_run(stats: Facts) -> str:
    """Format the counts of dropped and replaced text in stats.json."""
    found = {token: n for token, n in stats["look_alikes"].items() if n}
    spelled = ", ".join(f"{text!r} {n:,} times" for text, n in found.items()) or "none"
    text = (
        "dropped on encoding: {empty_documents:,} empty documents, {skipped_documents:,} that were"
        " not UTF-8; {replaced_sequences:,} sequences became U+FFFD; text that spelled special"
        " tokens: "
    )
    return text.format_map(stats) + spelled


def _format_tokens(tokens: list[Facts]) -> str:
    return ", ".join(map("{token!r} {count:,}".format_map, tokens)) or "none"

"""Order the documents of token files at random, in bounded memory.

A token file is filled in the order of the text first. Then its documents are sorted by random keys,
which depend on a seed and the number of the document in its file alone: pieces of the file are
sorted and written one after another, then merged by ranges of keys. After an interruption, this is
done again. The pieces are a file of each column, and one of the keys and lengths of documents.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing

import numpy as np
import xxhash
from numpy.typing import NDArray

from preprocess.dataset.columns import BLOCK_BYTES, DOCUMENT_ENDS, IDS, Values
from preprocess.dataset.manifest import DataFile, Manifest
from preprocess.dataset.writer import TokenFileWriter
from preprocess.report.progress import Progress, Stage
from preprocess.split_mix import mix
from preprocess.storage import IN_ORDER, DamagedStateError, Storage, Stream

_PIECE_TOKENS = 8 << 20  # sorted at a time
_PIECE_DOCUMENTS = 1 << 16  # sorted at a time
_MAX_PIECES = 4096  # of more than 32 billion tokens or 268 million documents, each is larger
_KEYED = np.dtype([("key", "<u8"), ("size", "<i8")])
_KEYS = "keys"  # name of their file among those of columns

# Name of a column or `_KEYS` -> the values of some documents.
_Documents = dict[str, Values]


def random_keys(seed: int, first: int, n: int) -> NDArray[np.uint64]:
    """Return the keys of documents `first` to `first + n`."""
    start = mix(np.array([seed % 2**64], np.uint64))
    numbers = np.arange(first, first + n, dtype=np.uint64)
    return mix(start + numbers)


def shuffle_token_file(
    storage: Storage, name: str, manifest: Manifest, writer: TokenFileWriter, seed: int,
    progress: Progress,
) -> Manifest:
    """Write the documents of a token file without shards into another one, in random order.

    Returns the manifest of the other token file, whose `writer` is finished and closed. Raises
    DamagedStateError if a file does not have its digests.
    """
    # Documents of one source are not one after another any more.
    sources = [{x: each[x] for x in ("name", "bytes", "digest")} for each in manifest.sources]
    title = f"shuffling {name.removesuffix(IN_ORDER)}"
    with closing(writer), progress.stage(title, 2 * manifest.n_tokens, "tokens") as stage:
        _write(storage, name, manifest, writer, seed, stage)
        return writer.finish(
            end_of_text_id=manifest.end_of_text_id, begin_of_text_id=manifest.begin_of_text_id,
            n_bytes=manifest.n_bytes, tokenizer_fingerprint=manifest.tokenizer_fingerprint,
            pattern=manifest.pattern, unicode_version=manifest.unicode_version,
            sources=sources,
        )


def _write(
    storage: Storage, name: str, manifest: Manifest, writer: TokenFileWriter, seed: int,
    stage: Stage,
) -> None:
    """Append the documents of a token file to a writer in random order, range by range."""
    n_tokens, n_documents = manifest.n_tokens, manifest.n_documents
    piece_tokens = max(_PIECE_TOKENS, n_tokens // _MAX_PIECES)
    piece_documents = max(_PIECE_DOCUMENTS, n_documents // _MAX_PIECES)
    n_ranges = max(-(-n_tokens // piece_tokens), -(-n_documents // piece_documents))
    files = {file.column.name: file for file in manifest.files(name)}
    values = {x: _open(storage, file) for x, file in files.items()}
    all_ends, per = values.pop(DOCUMENT_ENDS.name), {x: files[x].column.per for x in values}
    dtypes = {x: files[x].dtype for x in values} | {_KEYS: _KEYED}
    places, starts = {x: f"{name}.pieces-{x}" for x in dtypes}, []
    with ExitStack() as stack:
        streams = {
            x: stack.enter_context(closing(storage.stream(file))) for x, file in places.items()
        }
        for keyed, some in _pieces(all_ends, values, per, (piece_tokens, piece_documents), seed):
            piece = _sort(some | {_KEYS: keyed}, per)
            starts.append(_append_piece(piece, per, streams, n_ranges))
            stage.advance(int(keyed["size"].sum()))
    for number in range(n_ranges):
        read = {}
        for each, file in places.items():
            bounds = (start[each][number : number + 2].tolist() for start in starts)
            data = b"".join(storage.read(file, *each_bounds) for each_bounds in bounds)
            read[each] = np.frombuffer(data, dtypes[each])
        piece = _sort(read, per)
        ids, ends = piece.pop(IDS.name), np.cumsum(piece.pop(_KEYS)["size"])
        writer.append(ids, ends, **piece)
        stage.advance(len(ids))
    for file in places.values():
        storage.remove(file)


def _open(storage: Storage, file: DataFile) -> Values:
    """Map the values of a column, after a check of its digests."""
    for number, digest in enumerate(file.digests):
        block = storage.read(file.name, number * BLOCK_BYTES, (number + 1) * BLOCK_BYTES)
        if xxhash.xxh3_128_hexdigest(block) != digest:
            raise DamagedStateError(
                f"{storage.where(file.name)}: block {number:,} is damaged since it was written;"
                " start over (--overwrite)"
            )
    if not file.count:  # an empty file cannot be mapped
        return np.zeros(0, file.dtype)
    return np.memmap(storage.path(file.name), file.dtype, "r")


def _pieces(
    all_ends: Values, values: _Documents, per: Mapping[str, str], piece: tuple[int, int], seed: int
) -> Iterator[tuple[NDArray[np.void], _Documents]]:
    """Yield (keys and lengths, values) of at most (tokens, documents), or of one document."""
    first, start = 0, 0
    while first < len(all_ends):
        ends = np.array(all_ends[first : first + piece[1]], np.int64)
        n = max(int(np.searchsorted(ends, start + piece[0], side="right")), 1)
        stop = int(ends[n - 1])
        keyed = np.zeros(n, _KEYED)
        keyed["key"] = random_keys(seed, first, n)
        keyed["size"] = np.diff(ends[:n], prepend=start)
        ranges = {"token": slice(start, stop), "document": slice(first, first + n)}
        yield keyed, {x: array[ranges[per[x]]] for x, array in values.items()}
        first, start = first + n, stop


def _append_piece(
    piece: _Documents, per: Mapping[str, str], streams: Mapping[str, Stream], n_ranges: int
) -> dict[str, NDArray[np.int64]]:
    """Append a sorted piece to its files; return where its ranges begin in each: int64[n + 1]."""
    keyed, starts = piece[_KEYS], {}
    # All ranges of keys are of one size.
    range_of = (keyed["key"] >> np.uint64(32)) * np.uint64(n_ranges) >> np.uint64(32)
    limits = np.searchsorted(range_of, np.arange(n_ranges + 1))
    tokens = np.append(0, np.cumsum(keyed["size"]))[limits]
    for each, array in piece.items():
        begins = tokens if per.get(each) == "token" else limits
        starts[each] = streams[each].n_bytes + array.itemsize * begins
        streams[each].append(memoryview(array.tobytes()))
    return starts


def _sort(documents: _Documents, per: Mapping[str, str]) -> _Documents:
    """Return documents sorted by their keys."""
    keyed = documents[_KEYS]
    order = np.argsort(keyed["key"], kind="stable")
    stops = np.cumsum(keyed["size"])
    ranges = np.stack([stops - keyed["size"], stops], axis=1)[order].tolist()
    return {
        x: _joined(array, ranges) if per.get(x) == "token" else array[order]
        for x, array in documents.items()
    }


def _joined(values: Values, ranges: list[list[int]]) -> Values:
    """Return the values of ranges, one after another."""
    data, size = values.view(np.uint8).data, values.itemsize
    joined = b"".join(data[size * start : size * stop] for start, stop in ranges)
    return np.frombuffer(joined, values.dtype)

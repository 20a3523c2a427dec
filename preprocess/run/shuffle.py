"""Order the documents of token files at random, in bounded memory.

A token file is filled in the order of the text first. Then its documents are sorted by random keys,
which depend on a seed and the number of the document in its file alone: pieces of the file are
sorted and written one after another, then merged by ranges of keys. After an interruption, this is
done again. The pieces are a file of each column, and one of the keys and lengths of documents.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from preprocess.dataset.columns import BLOCK_BYTES, DOCUMENT_ENDS, IDS, Column, Values
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

# (keys and lengths of documents, name of a column -> values of all of them)
_Documents = tuple[NDArray[np.void], dict[str, Values]]


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

    Args:
        storage: Has the files of the token file.
        name: NAME of its files.
        manifest: Its manifest.
        writer: Of the other token file, which is finished and closed.
        seed: Seed of the order.
        progress: Gets a stage.

    Returns:
        The manifest of the other token file.

    Raises:
        DamagedStateError: A file does not have its digests.
        OutputError: A file cannot be written.
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
    files = manifest.files(name)
    columns = [file.column for file in files if file.column != DOCUMENT_ENDS]
    places = {_KEYS: f"{name}.pieces", **{x.name: f"{name}.pieces{x.suffix}" for x in columns}}
    starts = []
    with ExitStack() as stack:
        streams = {
            each: stack.enter_context(closing(storage.stream(file)))
            for each, file in places.items()
        }
        values = dict(_open(storage, file) for file in files)
        for piece in _pieces(manifest, values, columns, (piece_tokens, piece_documents), seed):
            starts.append(_append_piece(piece, columns, streams, n_ranges))
            stage.advance(int(piece[0]["size"].sum()))
    dtypes = {x.name: x.dtype_for(manifest.vocab_size) for x in columns} | {_KEYS: _KEYED}
    for number in range(n_ranges):
        read = {}
        for each, file in places.items():
            bounds = (start[each][number : number + 2].tolist() for start in starts)
            data = b"".join(storage.read(file, *each_bounds) for each_bounds in bounds)
            read[each] = np.frombuffer(data, dtypes[each])
        keyed, sorted_values = _sort((read.pop(_KEYS), read), columns)
        ids = sorted_values.pop(IDS.name)
        writer.append(ids, np.cumsum(keyed["size"]), **sorted_values)
        stage.advance(len(ids))
    for file in places.values():
        storage.remove(file)


def _append_piece(
    piece: _Documents, columns: Sequence[Column], streams: Mapping[str, Stream], n_ranges: int
) -> dict[str, NDArray[np.int64]]:
    """Append a sorted piece to its files; return where its ranges begin in each: int64[n + 1]."""
    keyed, values = piece
    limits = np.searchsorted(_range_of(keyed["key"], n_ranges), np.arange(n_ranges + 1))
    tokens = np.append(0, np.cumsum(keyed["size"]))[limits]
    starts = {_KEYS: streams[_KEYS].n_bytes + _KEYED.itemsize * limits}
    streams[_KEYS].append(memoryview(keyed.tobytes()))
    for column in columns:
        stream, array = streams[column.name], values[column.name]
        of_ranges = tokens if column.per == "token" else limits
        starts[column.name] = stream.n_bytes + array.itemsize * of_ranges
        stream.append(memoryview(array.tobytes()))
    return starts


def _open(storage: Storage, file: DataFile) -> tuple[str, Values]:
    """Return (name of a column, its values), after a check of the digests."""
    for number, digest in enumerate(file.digests):
        block = storage.read(file.name, number * BLOCK_BYTES, (number + 1) * BLOCK_BYTES)
        if xxhash.xxh3_128_hexdigest(block) != digest:
            raise DamagedStateError(
                f"{storage.where(file.name)}: block {number:,} is damaged since it was written;"
                " start over (--overwrite)"
            )
    if not file.count:  # an empty file cannot be mapped
        return file.column.name, np.zeros(0, file.dtype)
    return file.column.name, np.memmap(storage.path(file.name), file.dtype, "r")


def _range_of(keys: NDArray[np.uint64], n_ranges: int) -> NDArray[np.uint64]:
    """Return the number of the range of each key; all ranges are of one size."""
    return (keys >> np.uint64(32)) * np.uint64(n_ranges) >> np.uint64(32)


def _pieces(
    manifest: Manifest, values: dict[str, Values], columns: Sequence[Column],
    piece: tuple[int, int], seed: int,
) -> Iterator[_Documents]:
    """Yield pieces of at most (tokens, documents), if a document is not longer, each sorted."""
    all_ends, first, start = values[DOCUMENT_ENDS.name], 0, 0
    while first < manifest.n_documents:
        ends = np.array(all_ends[first : first + piece[1]], np.int64)
        n = max(int(np.searchsorted(ends, start + piece[0], side="right")), 1)
        stop = int(ends[n - 1])
        keyed = np.zeros(n, _KEYED)
        keyed["key"] = random_keys(seed, first, n)
        keyed["size"] = np.diff(ends[:n], prepend=start)
        ranges = {"token": slice(start, stop), "document": slice(first, first + n)}
        some = {x.name: values[x.name][ranges[x.per]] for x in columns}
        yield _sort((keyed, some), columns)
        first, start = first + n, stop


def _sort(documents: _Documents, columns: Sequence[Column]) -> _Documents:
    """Return documents sorted by their keys."""
    keyed, values = documents
    order = np.argsort(keyed["key"], kind="stable")
    stops = np.cumsum(keyed["size"])
    ranges = np.stack([stops - keyed["size"], stops], axis=1)[order].tolist()
    return keyed[order], {
        x.name: _joined(values[x.name], ranges) if x.per == "token" else values[x.name][order]
        for x in columns
    }


def _joined(values: Values, ranges: list[list[int]]) -> NDArray[Any]:
    """Return the values of ranges, one after another."""
    data, size = values.view(np.uint8).data, values.itemsize
    joined = b"".join(data[size * start : size * stop] for start, stop in ranges)
    return np.frombuffer(joined, values.dtype)

"""The files a corpus ends in: token ids, document ends and the manifest that vouches for them.

Law: this module alone knows the bytes. NAME.bin is raw little-endian token ids without a header, so
that `np.memmap(path, dtype=np.uint16)` reads what was meant; NAME.docs says where documents end;
NAME.json, the manifest, says what the other two are. A manifest under its final name always stands
beside complete files: it is removed before they are replaced and put in place after them
(`preprocess.storage` does that). Nothing here depends on the time, the machine or the path: the
same ids give the same bytes.

    NAME.bin    uint16 or uint32 [n_tokens]: token ids of all documents, one after the other
    NAME.docs   uint64 [n_documents]: the position in NAME.bin just past each document
    NAME.json   the manifest: a JSON object, described by `Manifest`

With shards there is NAME_00000.bin with NAME_00000.docs, NAME_00001.bin and so on instead, each as
above and with ends that count from its own start; NAME.json is one for all of them. A shard ends
before the document that would not fit; a document larger than a shard has one of its own. Where
documents may be split, every shard but the last is full, and a document's end is in the shard that
holds it.
"""

from __future__ import annotations

import glob
import json
import mmap
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, overload

import numpy as np
import numpy.typing as npt
import xxhash

from bpe.errors import TokenbinError
from bpe.locations import local_path
from preprocess.joined import JoinedArrays

if TYPE_CHECKING:
    from preprocess.storage import Storage, Stream

FORMAT = "tokenbin"
FORMAT_VERSION = 1
# Digests are of this many bytes of a file at a time, so that damage is located, not just noticed.
BLOCK_BYTES = 4 * 1024 * 1024
DIGEST = "xxh3_128"
# The last key of a manifest: the digest of its text before the comma in front of this key.
_OWN_DIGEST = "manifest_digest"
DOCUMENT_END_DTYPE = np.dtype("<u8")
_SHARD_NAME = re.compile(r"(.+)_\d{5,}")
# What is read at a time of a document that moves to the next shard.
_MOVED_BYTES = 16 * 1024 * 1024

Integers = npt.NDArray[np.integer[Any]]


class TokenFileError(TokenbinError, ValueError):
    """A token file cannot be written or read, or is not what it should be."""


class HasFingerprint(Protocol):
    """What `open_tokens` needs of a tokenizer."""

    @property
    def fingerprint(self) -> str:
        """The sha256 of the tokenizer's file, in hexadecimal."""


def token_dtype(vocab_size: int) -> np.dtype[np.unsignedinteger[Any]]:
    """The type of a `.bin` for a vocabulary of `vocab_size` ids; nothing else decides it.

    Args:
        vocab_size: One more than the greatest id, 1 to 2**32.

    Returns:
        Little-endian uint16 if every id is at most 65,535, else little-endian uint32.

    Raises:
        TokenFileError: No integer type of at most 32 bits holds such ids.
    """
    if not 1 <= vocab_size <= 2**32:
        raise TokenFileError(f"a vocabulary has between 1 and 2**32 ids; got {vocab_size:,}")
    return np.dtype("<u2") if vocab_size <= 2**16 else np.dtype("<u4")


def shard_name(name: str, number: int) -> str:
    """NAME of a shard's .bin and .docs.

    >>> shard_name("train", 3)
    'train_00003'
    """
    return f"{name}_{number:05d}"


@dataclass(frozen=True)
class Shard:
    """What a manifest says of one shard: the fields of `Manifest`, of this shard alone."""

    n_tokens: int
    n_documents: int
    bin_digests: tuple[str, ...]
    docs_digests: tuple[str, ...]

    def check(self, itemsize: int, where: str) -> None:
        """Raise TokenFileError where fields contradict one another."""
        for name, n_bytes, digests in (
            ("bin", self.n_tokens * itemsize, self.bin_digests),
            ("docs", self.n_documents * DOCUMENT_END_DTYPE.itemsize, self.docs_digests),
        ):
            blocks = -(-n_bytes // BLOCK_BYTES)
            if len(digests) != blocks:
                raise TokenFileError(
                    f'{where}: "{name}_digests" should have {blocks:,} entries and has '
                    f"{len(digests):,}; build the files again"
                )


@dataclass(frozen=True)
class Manifest:
    """What NAME.json says; its fields are the keys of the JSON object, in this order.

    Attributes:
        dtype: "uint16" or "uint32", the type of NAME.bin; always little-endian.
        vocab_size: Every id in NAME.bin is below it.
        n_tokens: Ids in NAME.bin, end-of-text ids included.
        n_documents: Documents, and so entries of NAME.docs.
        n_bytes: UTF-8 bytes of the documents as they were encoded: separators, dropped documents
            and special tokens do not count. With `n_tokens` it turns loss per token into bits per
            byte.
        end_of_text_id: The id behind every document.
        begin_of_text_id: The id before every document, or None where there is none.
        tokenizer_fingerprint: sha256 of the exact text of the tokenizer.json, in hexadecimal.
        pattern: Name of the split pattern.
        unicode_version: Version of the character classes that the pattern was applied with.
        sources: One object for each source file, in the order they were read: "name", "bytes",
            "digest" (xxh3_128), and "documents" and "tokens" that it gave to this token file.
        bin_digests: xxh3_128 of every 4 MiB of NAME.bin, in hexadecimal; the last block may be
            shorter.
        docs_digests: The same for NAME.docs.
        shards: One `Shard` for each, in order; they take the place of both digests in the JSON
            object. () where there are none.
    """

    dtype: str
    vocab_size: int
    n_tokens: int
    n_documents: int
    n_bytes: int
    end_of_text_id: int
    begin_of_text_id: int | None
    tokenizer_fingerprint: str
    pattern: str
    unicode_version: str
    sources: tuple[Mapping[str, Any], ...]
    bin_digests: tuple[str, ...]
    docs_digests: tuple[str, ...]
    shards: tuple[Shard, ...] = ()

    @property
    def parts(self) -> tuple[Shard, ...]:
        """The shards; where there are none, all of it as if it were one."""
        whole = Shard(self.n_tokens, self.n_documents, self.bin_digests, self.docs_digests)
        return self.shards or (whole,)

    def stems(self, name: str) -> list[str]:
        """What the .bin of each part is called, without its suffix, if this is NAME.json."""
        return [shard_name(name, i) for i in range(len(self.shards))] or [name]

    def to_json(self) -> str:
        """The exact text of NAME.json."""
        head = {"format": FORMAT, "format_version": FORMAT_VERSION}
        digests = {"digest": DIGEST, "digest_block_bytes": BLOCK_BYTES}
        content = asdict(self)
        for key in ("bin_digests", "docs_digests") if self.shards else ("shards",):
            del content[key]
        text = json.dumps(head | content | digests, indent=2, ensure_ascii=False)
        text = text.removesuffix("\n}")
        return f'{text},\n  "{_OWN_DIGEST}": "{xxhash.xxh3_128_hexdigest(text.encode())}"\n}}\n'

    @classmethod
    def from_json(cls, text: str, path: str | os.PathLike[str]) -> Manifest:
        """Read the text of a NAME.json; keys that are not known are passed over.

        Raises:
            TokenFileError: It is not JSON, not a manifest, from a newer format, or contradicts
                itself; the message names `path`.
        """
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise TokenFileError(
                f"{path}: not a manifest, for it is not JSON ({error}); build the files again"
            ) from error
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise TokenFileError(
                f'{path}: not a manifest of tokenbin: a JSON object with "format": "{FORMAT}" is '
                "expected; for a .bin that another tool made, pass np.memmap(path, dtype=...) "
                "instead"
            )
        if data.get("format_version") != FORMAT_VERSION:
            raise TokenFileError(
                f"{path}: format version {data.get('format_version')!r}; this tokenbin reads "
                f"version {FORMAT_VERSION}: upgrade it (pip install -U tokenbin) or build the "
                "files again"
            )
        expected_digest = (DIGEST, BLOCK_BYTES)
        if (data.get("digest"), data.get("digest_block_bytes")) != expected_digest:
            raise TokenFileError(
                f"{path}: digests are expected to be {DIGEST} of {BLOCK_BYTES} bytes, not "
                f"{data.get('digest')!r} of {data.get('digest_block_bytes')!r}; build the files "
                "again"
            )
        if "shards" in data:
            data |= {"bin_digests": [], "docs_digests": []}
        else:
            data["shards"] = []
        _refuse_other_kinds(data, _MANIFEST_KINDS, str(path))
        values = {field.name: data[field.name] for field in fields(cls)}
        shards = []
        for number, shard in enumerate(data["shards"]):
            _refuse_other_kinds(shard, _SHARD_KINDS, f"{path}: shard {number:,}")
            digests = tuple(shard["bin_digests"]), tuple(shard["docs_digests"])
            shards.append(Shard(shard["n_tokens"], shard["n_documents"], *digests))
        for key in ("sources", "bin_digests", "docs_digests"):
            values[key] = tuple(values[key])
        manifest = cls(**values | {"shards": tuple(shards)})
        manifest._check(path)
        return manifest

    def _check(self, path: str | os.PathLike[str]) -> None:
        """Raise TokenFileError where fields contradict one another."""
        dtype = token_dtype(self.vocab_size).name
        if self.dtype != dtype:
            raise TokenFileError(
                f"{path}: dtype {self.dtype} does not fit a vocabulary of {self.vocab_size:,} ids, "
                f"whose files are {dtype}; build the files again"
            )
        is_divided = bool(self.shards)
        for number, part in enumerate(self.parts):
            where = f"{path}: shard {number:,}" if is_divided else str(path)
            part.check(np.dtype(self.dtype).itemsize, where)
        for what in ("n_tokens", "n_documents"):
            wanted, found = getattr(self, what), sum(getattr(part, what) for part in self.parts)
            if wanted != found:
                raise TokenFileError(
                    f'{path}: "{what}" is {wanted:,}, and the shards have {found:,}; build the'
                    " files again"
                )


def manifest_is_as_written(content: bytes) -> bool:
    """Whether no byte of a NAME.json was changed since it was written."""
    before, comma, own = content.rpartition(f',\n  "{_OWN_DIGEST}": '.encode())
    return bool(comma) and own == f'"{xxhash.xxh3_128_hexdigest(before)}"\n}}\n'.encode()


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_list_of(kind: type, value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)


_COUNT = ("a whole number of at least 0", _is_count)
_TEXT = ("text", lambda value: isinstance(value, str))
_DIGESTS = ("a list of digests", lambda value: _is_list_of(str, value))
_MANIFEST_KINDS: dict[str, tuple[str, Any]] = {
    "dtype": ('"uint16" or "uint32"', lambda value: value in ("uint16", "uint32")),
    "vocab_size": (
        "a whole number of 1 to 2**32",
        lambda value: _is_count(value) and 1 <= value <= 2**32,
    ),
    "n_tokens": _COUNT,
    "n_documents": _COUNT,
    "n_bytes": _COUNT,
    "end_of_text_id": _COUNT,
    "begin_of_text_id": (
        "a whole number of at least 0 or null",
        lambda value: value is None or _is_count(value),
    ),
    "tokenizer_fingerprint": _TEXT,
    "pattern": _TEXT,
    "unicode_version": _TEXT,
    "sources": ("a list of objects", lambda value: _is_list_of(dict, value)),
    "bin_digests": _DIGESTS,
    "docs_digests": _DIGESTS,
    "shards": ("a list of objects", lambda value: _is_list_of(dict, value)),
}
_SHARD_KINDS: dict[str, tuple[str, Any]] = {
    "n_tokens": _COUNT,
    "n_documents": _COUNT,
    "bin_digests": _DIGESTS,
    "docs_digests": _DIGESTS,
}


def _refuse_other_kinds(
    data: Mapping[str, Any], kinds: Mapping[str, tuple[str, Any]], where: str
) -> None:
    """Raise TokenFileError if a value is missing or of another kind."""
    for key, (kind, is_kind) in kinds.items():
        if key not in data or not is_kind(data[key]):
            found = f"is {str(data[key])[:80]!r}" if key in data else "is missing"
            raise TokenFileError(
                f'{where}: "{key}" should be {kind} and {found}; build the files again'
            )


class _BlockDigests:
    """Digests of a stream, block by block, whatever the pieces it arrives in."""

    def __init__(self) -> None:
        self.finished: list[str] = []
        self._block = xxhash.xxh3_128()
        self._in_block = 0

    def update(self, data: memoryview) -> None:
        while len(data):
            piece = data[: BLOCK_BYTES - self._in_block]
            self._block.update(piece)
            self._in_block += len(piece)
            data = data[len(piece) :]
            if self._in_block == BLOCK_BYTES:
                self.finished.append(self._block.hexdigest())
                self._block.reset()
                self._in_block = 0

    def last(self) -> str:
        """The digest of the block that is not full yet."""
        return str(self._block.hexdigest())

    def result(self) -> tuple[str, ...]:
        last = [self._block.hexdigest()] if self._in_block else []
        return (*self.finished, *last)


@dataclass(frozen=True)
class StreamState:
    """What the journal says of a stream at one moment.

    Attributes:
        n_bytes: Its length.
        blocks: Digests of its full blocks; in an entry of the journal, those that the entries
            before it do not have.
        last: The digest of the block behind them, which is not full.
    """

    n_bytes: int = 0
    blocks: tuple[str, ...] = ()
    last: str = xxhash.xxh3_128_hexdigest(b"")


class _DigestedStream:
    """A stream whose blocks are digested on the way."""

    def __init__(self, storage: Storage, name: str, state: StreamState) -> None:
        self.name = name
        self._digests = _BlockDigests()
        self._digests.finished += state.blocks
        self._n_told = len(state.blocks)
        full = len(state.blocks) * BLOCK_BYTES
        self.stream = storage.stream(name, state.n_bytes)
        if state.n_bytes:
            self._digests.update(memoryview(storage.read(name, full, state.n_bytes)))
        if self._digests.last() != state.last or len(self._digests.finished) != len(state.blocks):
            from preprocess.storage import DamagedStateError

            self.stream.close()
            raise DamagedStateError(
                f"{name}: what was written before the interruption is damaged (its last block, from"
                f" byte {full:,}, is not what the journal says); start anew (--overwrite)"
            )

    def append(self, array: npt.NDArray[Any]) -> None:
        if not array.size:  # an empty array has no view of its bytes
            return
        data = memoryview(np.ascontiguousarray(array).data).cast("B")
        self.stream.append(data)
        self._digests.update(data)

    def state(self) -> StreamState:
        """What it is now, with the blocks that were not told of yet."""
        blocks = tuple(self._digests.finished[self._n_told :])
        self._n_told = len(self._digests.finished)
        return StreamState(self.stream.n_bytes, blocks, self._digests.last())

    def finish(self) -> tuple[str, ...]:
        """Bring the file to the disk and return its digests."""
        self.stream.sync()
        self.stream.close()
        return self._digests.result()

    def finish_before(self, n_bytes: int, storage: Storage) -> tuple[str, ...]:
        """`finish`, and the digests of its first bytes; the others are still there."""
        digests = self.finish()
        if n_bytes == self.stream.n_bytes:
            return digests
        full = n_bytes // BLOCK_BYTES
        rest = storage.read(self.name, full * BLOCK_BYTES, n_bytes)
        last = [xxhash.xxh3_128_hexdigest(rest)] if rest else []
        return (*digests[:full], *last)


def refuse_to_overwrite(
    directory: Path, name: str, overwrite: bool, why: str = "", shards: bool = False
) -> None:
    """Refuse what is in the way of NAME's files, before hours of work and not after.

    Args:
        directory: Where the files would be.
        name: NAME of the three files.
        overwrite: Whether they may be replaced.
        why: More about what is there.
        shards: Whether there will be shards, so that any of them is in the way, too.

    Raises:
        TokenFileError: One exists and may not be replaced, or is a NAME.json that is no manifest.
    """
    manifest_path = directory / f"{name}.json"
    in_the_way = [manifest_path, directory / f"{name}.bin", directory / f"{name}.docs"]
    if shards:
        data = f"{glob.escape(name)}_{'[0-9]' * 5}"
        in_the_way += sorted([*directory.glob(f"{data}.bin"), *directory.glob(f"{data}.docs")])
    for path in in_the_way:
        if not path.exists():
            continue
        if path == manifest_path:
            try:
                Manifest.from_json(path.read_text("utf-8", errors="replace"), path)
            except TokenFileError as error:
                raise TokenFileError(
                    f"{path}: exists and is not a manifest that this tokenbin wrote, so it is left "
                    "alone; move it away or choose another directory or name"
                ) from error
        if not overwrite:
            raise TokenFileError(
                f"{path}: exists; {why}choose another directory or name, or overwrite it"
                " (--overwrite)"
            )


def data_names(stems: Sequence[str]) -> list[str]:
    """The .bin and the .docs of each."""
    return [f"{stem}{suffix}" for stem in stems for suffix in (".bin", ".docs")]


def manifest_name(name: str) -> str:
    """NAME.json."""
    return f"{name}.json"


class TokenFileWriter:
    """Writes NAME.bin, NAME.docs and NAME.json into a storage; it gives them their final names.

    `append` as often as needed, then `finish` once. `state` says how far that is, and a writer that
    is made with it goes on there.

    >>> import tempfile
    >>> from preprocess.storage import LocalStorage
    >>> with tempfile.TemporaryDirectory() as directory, LocalStorage(
    ...     Path(directory), "example"
    ... ) as storage:
    ...     writer = TokenFileWriter(storage, "train", vocab_size=300)
    ...     writer.append(np.array([5, 7, 299, 8, 299], np.uint32), np.array([3, 5]))
    ...     _ = writer.finish(
    ...         end_of_text_id=299, n_bytes=3, tokenizer_fingerprint="", pattern="gpt2",
    ...         unicode_version="16.0.0", sources=[],
    ...     )
    ...     storage.publish(writer.data_names, [writer.manifest_name])
    ...     open_tokens(Path(directory, "train.bin")).tokens.tolist()
    [5, 7, 299, 8, 299]

    Args:
        storage: Where the files grow.
        name: NAME of the three files.
        vocab_size: Every id is below it; it decides the type of the `.bin`.
        states: Name of a stream -> how far an earlier writer came; what lies behind that is cut
            off. None: from the start.
        last_end: The end of the last document that ended there, in its shard.
        shard_tokens: Make shards of so many ids at most; None: none.
        split_documents: Whether a document may go on in the next shard.
        shards: Those that an earlier writer was done with.

    Attributes:
        manifest_name: NAME.json.
        last_end: The end of the last document, in the shard that grows.

    Raises:
        OutputError: The files cannot be written.
        DamagedStateError: They are not what `states` says.
    """

    def __init__(
        self,
        storage: Storage,
        name: str,
        *,
        vocab_size: int,
        states: Mapping[str, StreamState] | None = None,
        last_end: int = 0,
        shard_tokens: int | None = None,
        split_documents: bool = False,
        shards: Sequence[Shard] = (),
    ) -> None:
        if not name or name != os.path.basename(name):
            raise TokenFileError(f"a name for files in a directory is expected; got {name!r}")
        self.vocab_size = vocab_size
        self.dtype = token_dtype(vocab_size)
        self.manifest_name = manifest_name(name)
        self.last_end = last_end
        self._name = name
        self._storage = storage
        self._shard_tokens, self._splits = shard_tokens, split_documents
        self._shards = list(shards)
        self._n_told = len(self._shards)
        self._open(states)

    def _open(self, states: Mapping[str, StreamState] | None) -> None:
        """Begin or go on with the files that grow."""
        self._digested: list[_DigestedStream] = []
        try:
            for each in data_names([self._stem]):
                state = StreamState() if states is None else states[each]
                self._digested.append(_DigestedStream(self._storage, each, state))
        except BaseException:
            self.close()
            raise
        self._bin, self._docs = self._digested

    @property
    def _stem(self) -> str:
        return self._name if self._shard_tokens is None else shard_name(self._name, self._number)

    @property
    def _number(self) -> int:
        return len(self._shards)

    @property
    def _n_here(self) -> int:
        """Ids in the file that grows."""
        return self._bin.stream.n_bytes // self.dtype.itemsize

    @property
    def _documents_here(self) -> int:
        return self._docs.stream.n_bytes // DOCUMENT_END_DTYPE.itemsize

    @property
    def data_names(self) -> list[str]:
        """NAME.bin and NAME.docs, or those of all shards."""
        finished = [shard_name(self._name, number) for number in range(self._number)]
        return data_names([*finished, self._stem])

    @property
    def n_tokens(self) -> int:
        """Ids that were appended."""
        return sum(shard.n_tokens for shard in self._shards) + self._n_here

    @property
    def n_documents(self) -> int:
        """Documents that ended."""
        return sum(shard.n_documents for shard in self._shards) + self._documents_here

    @property
    def streams(self) -> list[Stream]:
        """What has to be on the disk before a journal may say what `state` says."""
        return [digested.stream for digested in self._digested]

    def state(self) -> dict[str, StreamState]:
        """Name of a stream -> how far it is, with the blocks that were not told of yet."""
        return {digested.name: digested.state() for digested in self._digested}

    def new_shards(self) -> list[Shard]:
        """Shards that are done and were not told of yet."""
        new = self._shards[self._n_told :]
        self._n_told = len(self._shards)
        return new

    def append(self, ids: Integers, document_ends: Integers) -> None:
        """Append token ids and the ends of the documents that end among them.

        Args:
            ids: integer[t], token ids, each in [0, vocab_size).
            document_ends: integer[k], positions in `ids` just past a document's end-of-text id,
                each in [1, t], strictly rising. A document may go on in the next call.

        Raises:
            TokenFileError: Ids or ends are out of range; nothing was written then.
            OutputError: A write failed; the writer is of no use then.
        """
        name = self._bin.name
        place = f"{name}: token {self.n_tokens:,} and on"
        for what, array in (("token ids", ids), ("document ends", document_ends)):
            if array.ndim != 1 or array.dtype.kind not in "iu":
                raise TokenFileError(
                    f"{place}: {what} should be a 1-D array of integers, not {array.dtype} of "
                    f"shape {array.shape}"
                )
        if ids.size and (ids.max() >= self.vocab_size or (ids.dtype.kind == "i" and ids.min() < 0)):
            position = int(np.flatnonzero((ids < 0) | (ids >= self.vocab_size))[0])
            raise TokenFileError(
                f"{name}: token {self.n_tokens + position:,} would have the id "
                f"{int(ids[position])}, and the vocabulary has the ids 0 to {self.vocab_size - 1}: "
                "encode with the tokenizer that the vocabulary size was taken from"
            )
        ends = document_ends.astype(np.int64)
        if ends.size and not (
            ends[0] >= 1 and ends[-1] <= ids.size and (ends[1:] > ends[:-1]).all()
        ):
            raise TokenFileError(
                f"{place}: document ends should rise from at least 1 to at most {ids.size:,}, the "
                f"number of ids; got {ends.size:,} from {int(ends[0])} to {int(ends[-1])}"
            )
        ids = ids.astype(self.dtype, copy=False)
        while (n := self._fitting(ids.size, ends)) < ids.size:
            n_ends = int(np.searchsorted(ends, n, "right"))
            if n:
                self._write(ids[:n], ends[:n_ends])
            else:
                self._next_shard()
            ids, ends = ids[n:], ends[n_ends:] - n
        self._write(ids, ends)

    def _fitting(self, n: int, ends: npt.NDArray[np.int64]) -> int:
        """How many of `n` ids go into the shard that grows; if 0, the next one is due."""
        if self._shard_tokens is None:
            return n
        room = self._shard_tokens - self._n_here
        if n <= room or self._splits:
            return min(n, room)
        n_ends = int(np.searchsorted(ends, room, "right"))
        if n_ends:
            return int(ends[n_ends - 1])
        if self.last_end:
            return 0
        # A document that is larger than a shard has one of its own.
        return int(ends[0]) if ends.size else n

    def _write(self, ids: Integers, ends: npt.NDArray[np.int64]) -> None:
        n = self._n_here
        self._bin.append(ids)
        self._docs.append((ends + n).astype(DOCUMENT_END_DTYPE))
        if ends.size:
            self.last_end = n + int(ends[-1])

    def _next_shard(self) -> None:
        """Close the shard that grows; what it has of a document that goes on moves to the next.

        The old file keeps that at its end until `finish`, for the journal still counts on it.
        """
        name, n = self._bin.name, self._n_here
        keeps = n if self._splits else self.last_end
        itemsize = self.dtype.itemsize
        self._shards.append(
            Shard(
                keeps,
                self._documents_here,
                self._bin.finish_before(keeps * itemsize, self._storage),
                self._docs.finish(),
            )
        )
        self.last_end = 0
        self._open(None)
        for start in range(keeps * itemsize, n * itemsize, _MOVED_BYTES):
            piece = self._storage.read(name, start, min(start + _MOVED_BYTES, n * itemsize))
            self._bin.append(np.frombuffer(piece, self.dtype))

    def finish(
        self,
        *,
        end_of_text_id: int,
        n_bytes: int,
        tokenizer_fingerprint: str,
        pattern: str,
        unicode_version: str,
        sources: Sequence[Mapping[str, Any]],
        begin_of_text_id: int | None = None,
    ) -> Manifest:
        """Write the manifest and bring everything to the disk, not yet under final names.

        The arguments are the fields of `Manifest` that the writer does not know itself.

        Raises:
            TokenFileError: The last document has no end, or a special id is not below the
                vocabulary size.
            OutputError: A write failed.
        """
        if self.last_end != self._n_here:
            raise TokenFileError(
                f"{self._bin.name}: {self._n_here - self.last_end:,} ids stand behind the last "
                "document's end; append the end of every document before finishing"
            )
        for special_id in (end_of_text_id, begin_of_text_id):
            if special_id is not None and not 0 <= special_id < self.vocab_size:
                raise TokenFileError(
                    f"{self._bin.name}: the special id {special_id} is not in the vocabulary, whose"
                    f" ids are 0 to {self.vocab_size - 1}"
                )
        n_tokens, n_documents = self.n_tokens, self.n_documents
        here = Shard(self._n_here, self._documents_here, self._bin.finish(), self._docs.finish())
        for number, shard in enumerate(self._shards):
            # What moved on to the next shard goes, now that the journal knows of that.
            name = f"{shard_name(self._name, number)}.bin"
            stream = self._storage.stream(name, shard.n_tokens * self.dtype.itemsize)
            try:
                stream.sync()
            finally:
                stream.close()
        is_whole = self._shard_tokens is None
        manifest = Manifest(
            dtype=self.dtype.name,
            vocab_size=self.vocab_size,
            n_tokens=n_tokens,
            n_documents=n_documents,
            n_bytes=n_bytes,
            end_of_text_id=end_of_text_id,
            begin_of_text_id=begin_of_text_id,
            tokenizer_fingerprint=tokenizer_fingerprint,
            pattern=pattern,
            unicode_version=unicode_version,
            sources=tuple(sources),
            bin_digests=here.bin_digests if is_whole else (),
            docs_digests=here.docs_digests if is_whole else (),
            shards=() if is_whole else (*self._shards, here),
        )
        self._storage.put(self.manifest_name, manifest.to_json().encode())
        return manifest

    def close(self) -> None:
        """Let go of the files; what was appended stays. It may be called more than once."""
        for digested in self._digested:
            digested.stream.close()


def saved_manifest(storage: Storage, name: str) -> Manifest:
    """The manifest of a token file that a writer finished in a storage, and an earlier run left.

    The length and the last block of each file are compared with it.

    Raises:
        DamagedStateError: Something is not what the writer left.
    """
    from preprocess.storage import DamagedStateError

    def damaged(what: str) -> DamagedStateError:
        return DamagedStateError(
            f"{what}: was finished before the interruption, and is damaged or gone now; start anew"
            " (--overwrite)"
        )

    text = storage.get(manifest_name(name)) or b""
    if not manifest_is_as_written(text):
        raise damaged(manifest_name(name))
    manifest = Manifest.from_json(text.decode(), manifest_name(name))
    itemsize = token_dtype(manifest.vocab_size).itemsize
    for stem, part in zip(manifest.stems(name), manifest.parts, strict=True):
        for each, n_bytes, digests in (
            (f"{stem}.bin", part.n_tokens * itemsize, part.bin_digests),
            (f"{stem}.docs", part.n_documents * DOCUMENT_END_DTYPE.itemsize, part.docs_digests),
        ):
            start = max(len(digests) - 1, 0) * BLOCK_BYTES
            # One byte more than there should be.
            block = storage.read(each, start, n_bytes + 1)
            # A shard that lies inside one document has no ends, an empty .docs and no digests.
            digest = (xxhash.xxh3_128_hexdigest(block),) if block else ()
            if start + len(block) != n_bytes or digest != digests[-1:]:
                raise damaged(each)
    return manifest


class TokenFile:
    """A finished `.bin` with its documents and manifest, mapped and never copied whole.

    `len(file)` is the number of tokens. `file[i]` is an id, `file[a:b]` a fresh array of ids that
    shares no memory with the file. The maps live as long as the object or any array made from
    `tokens` does. It is pickled as its absolute path and the digest of its manifest; unpickling
    opens the files again, and refuses them if they were built again since.

    Attributes:
        path: The `.bin`; with shards the manifest.
        manifest: What the manifest says.
        shards: For each part: read-only uint16|uint32[n], its ids, and read-only uint64[k], the
            ends in it; both mapped. A file without shards is one part.
        tokens: read-only uint16|uint32[n_tokens], mapped; with shards a `JoinedArrays` of them.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path.with_suffix(".json") if manifest.shards else path
        self._absolute_path = os.path.abspath(self.path)
        self.manifest = manifest
        dtype = token_dtype(manifest.vocab_size)
        self.shards: list[tuple[npt.NDArray[Any], npt.NDArray[np.uint64]]] = []
        for stem, part in zip(manifest.stems(path.stem), manifest.parts, strict=True):
            where = path.with_name(f"{stem}.bin")
            manifest_path = path.with_suffix(".json")
            ids = _map(where, dtype, part.n_tokens, "tokens", manifest_path)
            where = where.with_suffix(".docs")
            ends = _map(where, DOCUMENT_END_DTYPE, part.n_documents, "documents", manifest_path)
            self.shards.append((ids, ends))
        arrays = [ids for ids, _ in self.shards]
        self.tokens: npt.NDArray[np.unsignedinteger[Any]] | JoinedArrays = (
            arrays[0] if len(arrays) == 1 else JoinedArrays(arrays)
        )

    @cached_property
    def document_ends(self) -> npt.NDArray[np.uint64]:
        """read-only uint64[n_documents]: the position just past each document.

        Mapped; with shards, whose ends count from their own starts, made when first asked for.
        """
        if len(self.shards) == 1:
            return self.shards[0][1]
        starts = np.cumsum([0, *(len(ids) for ids, _ in self.shards)], dtype=np.uint64)
        ends = [ends + start for (_, ends), start in zip(self.shards, starts, strict=False)]
        joined: npt.NDArray[np.uint64] = np.concatenate(ends)
        joined.flags.writeable = False
        return joined

    @property
    def vocab_size(self) -> int:
        """Every id is below it."""
        return self.manifest.vocab_size

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger[Any]]:
        """Little-endian uint16 or uint32."""
        return self.tokens.dtype

    @property
    def n_tokens(self) -> int:
        """Number of token ids."""
        return len(self.tokens)

    @property
    def n_documents(self) -> int:
        """Number of documents."""
        return self.manifest.n_documents

    def __len__(self) -> int:
        return len(self.tokens)

    @overload
    def __getitem__(self, key: int) -> int: ...
    @overload
    def __getitem__(self, key: slice) -> npt.NDArray[np.unsignedinteger[Any]]: ...
    def __getitem__(self, key: int | slice) -> int | npt.NDArray[np.unsignedinteger[Any]]:
        found = self.tokens[key]
        return np.array(found) if isinstance(key, slice) else int(found)

    def __reduce__(self) -> tuple[Any, ...]:
        # The data stays where it is: another process maps the same files.
        return _open_again, (self._absolute_path, _manifest_digest(self.manifest))

    def __repr__(self) -> str:
        return f"TokenFile({str(self.path)!r}: {self.n_tokens:,} {self.dtype.name} tokens)"


def _manifest_digest(manifest: Manifest) -> str:
    return str(xxhash.xxh3_128_hexdigest(manifest.to_json().encode()))


def _open_again(path: str, digest: str) -> TokenFile:
    """Open the token file of a `TokenFile` that was pickled.

    Raises:
        TokenFileError: It cannot be opened, or was built again since.
    """
    file = open_tokens(path)
    found = _manifest_digest(file.manifest)
    if found != digest:
        raise TokenFileError(
            f"{path}: was built again since it was pickled: expected a manifest with the digest"
            f" {digest}, found {found}; open it anew with open_tokens"
        )
    return file


def _map(
    path: Path, dtype: np.dtype[Any], count: int, things: str, manifest_path: Path
) -> npt.NDArray[Any]:
    """The whole file as a read-only array, if its size is that of `count` items of `dtype`."""
    try:
        with open(path, "rb") as file:
            n_bytes = os.fstat(file.fileno()).st_size
            if n_bytes != count * dtype.itemsize:
                raise TokenFileError(
                    f"{path}: {count * dtype.itemsize:,} bytes are expected ({count:,} {things} of "
                    f"{dtype.name}, says its manifest) and {n_bytes:,} were found; it was damaged "
                    "or replaced: build the files again"
                )
            if not n_bytes:  # an empty file cannot be mapped
                return np.frombuffer(b"", dtype)
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype)
    except FileNotFoundError:
        raise TokenFileError(
            f"{path}: missing, though its manifest {manifest_path} is there; put it "
            "back or build the files again"
        ) from None


def open_tokens(
    path: str | os.PathLike[str], *, tokenizer: HasFingerprint | str | None = None
) -> TokenFile:
    """Open a `.bin` that tokenbin built, after checking all that can be checked without reading it.

    Args:
        path: NAME.bin or NAME.json; for shards, NAME.json opens all of them.
        tokenizer: The tokenizer that the ids are about to be used with, or its fingerprint; None
            leaves that unchecked.

    Raises:
        TokenFileError: A file is missing, unfinished, of another size than its manifest says, or
            was built with another tokenizer.
        LocationError: The path is a URL.
    """
    if Path(local_path(path)).suffix not in (".bin", ".json"):
        raise TokenFileError(
            f"{path}: the .bin of a built corpus or its .json is expected; for a file of raw ids "
            "that another tool made, pass np.memmap(path, dtype=...) instead"
        )
    bin_path = Path(path).with_suffix(".bin")
    manifest = _read_manifest(bin_path)
    if tokenizer is not None:
        wanted = tokenizer if isinstance(tokenizer, str) else tokenizer.fingerprint
        if manifest.tokenizer_fingerprint != wanted:
            raise TokenFileError(
                f"{bin_path}: built with the tokenizer {manifest.tokenizer_fingerprint[:16]}..., "
                f"and the one given is {wanted[:16]}...; use the tokenizer.json that was built "
                "with it, or build the files again with this one"
            )
    return TokenFile(bin_path, manifest)


def _read_manifest(bin_path: Path) -> Manifest:
    manifest_path = bin_path.with_suffix(".json")
    try:
        text = manifest_path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise TokenFileError(
            f"{manifest_path}: not a manifest, for it is not UTF-8 ({error}); build the files again"
        ) from error
    except FileNotFoundError:
        # Where `preprocess.storage` keeps what is not finished.
        if any(bin_path.parent.glob(f".*.partial/{glob.escape(bin_path.name)}")):
            message = "is not finished; run the command that builds it again, to the end"
        elif (whole := _of_shard(bin_path)) is not None:
            message = f"is one of several shards; open all of them by their manifest {whole}"
        elif bin_path.with_name(f"{shard_name(bin_path.stem, 0)}.bin").exists():
            message = (
                f"the manifest of its shards ({manifest_path.name}) is missing; put it back or"
                " build the files again"
            )
        elif bin_path.exists():
            message = (
                f"has no manifest ({manifest_path.name}), so its type is not known; if another "
                "tool made it, pass np.memmap(path, dtype=np.uint16, mode='r'), or whatever its "
                "type is, instead"
            )
        else:
            message = "there is no such file; build it first (tokenbin build, or make preprocess)"
        raise TokenFileError(f"{bin_path}: {message}") from None
    return Manifest.from_json(text, manifest_path)


def _of_shard(path: Path) -> Path | None:
    """The manifest that lists this file as a shard, if there is one."""
    match = _SHARD_NAME.fullmatch(path.stem)
    whole = path.with_name(manifest_name(match[1])) if match else None
    return whole if whole is not None and whole.exists() else None


def name_of(path: Path) -> str:
    """NAME of a .bin or .docs; for a shard that has no manifest of its own, that of the whole.

    >>> name_of(Path("data/train.bin")), name_of(Path("data/train_00002.docs"))
    ('train', 'train')
    """
    match = _SHARD_NAME.fullmatch(path.stem)
    return match[1] if match and not path.with_suffix(".json").exists() else path.stem

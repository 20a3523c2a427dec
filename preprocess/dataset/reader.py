"""Read the columns of a finished token file through memory maps."""

from __future__ import annotations

import glob
import operator
import os
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never, overload

import numpy as np
import numpy.typing as npt

from bpe.arguments import check, checked, tells_missing
from bpe.errors import ArgumentError, TokenmillError
from bpe.files.locations import given_location, is_url, shown_url
from bpe.parallel import cached_property
from preprocess.dataset.columns import (
    DOCUMENT_ENDS,
    IDS,
    MASK,
    TokenFileError,
    Values,
    dataset_of_shard,
    manifest_name,
    shard_name,
)
from preprocess.dataset.file_map import FileMap
from preprocess.dataset.manifest import DataFile, Manifest, manifest_is_as_written
from preprocess.dataset.shards import ShardView
from preprocess.locations import url_name

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer
    from preprocess.dataset.remote import RemoteView
    from preprocess.storage.files import UrlFiles

_RESIDENT = 1 << 32
_MAPPED_AT_ONCE = 1 << 16  # bytes that the system maps around a page that is read
_TOKENIZER = "tokenizer.json"


class TokenFile:
    """A finished `.bin` with its documents and manifest, memory-mapped, or at a URL.

    `len(file)` is the number of tokens. `file[i]` is an id, `file[a:b]` a copy of ids,
    `file.doc(i)` a copy of those of a document. The maps live as long as the object or any view of
    `tokens`. A pickle holds the absolute path, the digest of the manifest, and the tokenizer if one
    was given; unpickling opens the files again, and raises if they were rebuilt.

    At a URL, values are read through a cache of blocks (docs/remote.md), each compared with its
    digest: reading raises TokenFileError, CacheError or RemoteError if that is not possible.

    Attributes:
        path: Path of the `.bin`; with shards, of the manifest; or the URL, without a query.
        absolute_path: The same, also after a change of the working directory.
        directory: Directory of the files, or of the dataset in the cache; for what is made of it.
        manifest: Content of the manifest.
        parts: For each shard: name of a column -> read-only, mapped array of its values; at a URL a
            `ShardView`. Without shards there is one part.
        tokens: read-only uint16|uint32[n_tokens], mapped; with shards or at a URL a `ShardView`.
    """

    @checked
    def __init__(
        self, path: Path | str, manifest: Manifest, tokenizer: AnyTokenizer | None = None
    ) -> None:
        self._tokenizer = self._given_tokenizer = tokenizer
        self.manifest = manifest
        self.parts: Sequence[Mapping[str, Values | ShardView]]
        self._maps: list[FileMap] = []
        self._read = 0  # bytes that may be resident
        self._remote: Mapping[str, RemoteView] = {}
        if isinstance(path, str):
            self._open_url(path)
        else:
            self.path: Path | str = path.with_suffix(".json") if manifest.shards else path
            self.absolute_path = os.path.abspath(self.path)
            self.directory = Path(os.path.dirname(self.absolute_path))
            self._open_files(path)
        self.tokens: Values | ShardView = self.column(IDS.name)

    def _open_files(self, path: Path) -> None:
        parts: list[dict[str, Values | ShardView]] = [{} for _ in self.manifest.parts]
        files, n = self.manifest.files(path.stem), len(self.manifest.columns)
        for number, file in enumerate(files):
            self._maps.append(_map(path, file))
            parts[number // n][file.column.name] = self._maps[-1].view(file.dtype)
        self.parts = parts

    def _open_url(self, url: str) -> None:
        from preprocess.dataset.remote import open_columns

        files, stem = _files_beside(url)
        name = manifest_name(stem) if self.manifest.shards else f"{stem}{IDS.suffix}"
        self.path = self.absolute_path = files.url(name)
        self.parts, self._remote, cache = open_columns(files, self.manifest, stem)
        self.directory, self._maps = cache.directory, [cache.mapped]

    @property
    def shards(self) -> list[tuple[Values | ShardView, npt.NDArray[np.uint64]]]:
        """(ids uint16|uint32[n], document ends uint64[k] relative to the shard) of each part."""
        return [
            (part[IDS.name], np.asarray(part[DOCUMENT_ENDS.name])) for part in self.parts
        ]

    @checked
    def column(self, name: str) -> Values | ShardView:
        """Return all values of a column, positions in shards computed, or raise TokenFileError."""
        found = {column.name: column for column in self.manifest.columns}
        if name not in found:
            raise TokenFileError(
                f"{self.path}: there is no column {name!r}; its columns are {', '.join(found)}"
            )
        if name in self._remote and not found[name].is_position:
            return self._remote[name]
        arrays = [part[name] for part in self.parts]
        if len(arrays) == 1:
            only = np.asarray(arrays[0])
            only.flags.writeable = False
            return only
        if not found[name].is_position:
            return ShardView([np.asarray(each) for each in arrays])
        starts = np.cumsum([0, *(len(part[IDS.name]) for part in self.parts)], dtype=np.uint64)
        joined = np.concatenate(
            [np.asarray(each) + at for each, at in zip(arrays, starts, strict=False)]
        )
        joined.flags.writeable = False
        return joined

    @cached_property
    def loss_mask(self) -> Values | ShardView:
        """1 for each token to train on: read-only uint8[n_tokens], mapped; with shards a view.

        It is the column of a dataset with conversations; of another all are 1, without memory.
        """
        if self.has_mask:
            return self.column(MASK.name)
        return np.broadcast_to(np.uint8(1), len(self.tokens))

    @property
    def has_mask(self) -> bool:
        """True if some tokens may not be trained on."""
        return MASK in self.manifest.columns

    @cached_property
    def document_ends(self) -> npt.NDArray[np.uint64]:
        """Position after the last id of each document: read-only uint64[n_documents]."""
        return np.asarray(self.column(DOCUMENT_ENDS.name))

    @tells_missing
    def doc(self, number: int, **_unknown: Never) -> npt.NDArray[np.unsignedinteger[Any]]:
        """Copy the ids of a document, special ids included: uint16|uint32[n].

        Negative numbers count from the end, as in a list.

        Raises:
            IndexError: There is no such document.
        """
        ends = self.document_ends
        n = len(ends)
        if _unknown or type(number) is not int:
            check(TokenFile.doc, (self, number), _unknown)
            number = operator.index(number)  # small NumPy integers would overflow
        if not -n <= number < n:
            raise IndexError(f"{self.path}: there is no document {number:,} of {n:,}")
        number %= n
        start = int(ends[number - 1]) if number else 0
        return np.array(self.tokens[start : int(ends[number])])

    @checked
    def decode(self, ids: npt.ArrayLike) -> str:
        """Decode ids, special ones included, with the tokenizer of the dataset.

        It is the one given to `open_tokens`, else tokenizer.json beside the file. Incomplete
        characters become U+FFFD.

        Raises:
            TokenFileError: There is no tokenizer.json, or the dataset was built with another one.
            EncodingError: An id is not in the vocabulary.
        """
        if self._tokenizer is None:
            self._tokenizer = tokenizer_of(self)
        content = self._tokenizer.decode_bytes(np.atleast_1d(ids).ravel())
        return content.decode("utf-8", "replace")

    @property
    def has_tokenizer(self) -> bool:
        """True if `decode` has a tokenizer, given or beside the file.

        One beside ids that were imported without a tokenizer is of another dataset.
        """
        if self._tokenizer is not None:
            return True
        return bool(self.manifest.tokenizer_fingerprint) and self.tokenizer_file()[0] is not None

    def tokenizer_file(self) -> tuple[Path | None, str]:
        """Return the tokenizer.json of the dataset, None if there is none, and its location."""
        if isinstance(self.path, Path):
            path = self.directory / _TOKENIZER
            return (path if path.exists() else None), str(path)
        from preprocess.dataset.remote import tokenizer_file

        files, _ = _files_beside(self.path)
        found = tokenizer_file(files, self.directory, self.manifest.tokenizer_fingerprint)
        return found, files.where(_TOKENIZER)

    def count_reads(self, n_places: int, n_tokens: int) -> None:
        """Count tokens that are read at so many places; now and then, give mapped pages back.

        Pages of a file that a process has read count as its memory, though they are in the cache of
        the system. They are given back when there may be 4 GiB of them; reading maps them again.
        """
        size = self.dtype.itemsize
        if self.n_tokens * size <= _RESIDENT:
            return
        self._read += n_places * _MAPPED_AT_ONCE + n_tokens * size
        if self._read > _RESIDENT:
            self._read = 0
            for each in self._maps:
                each.give_back()

    @property
    def vocab_size(self) -> int:
        """Exclusive upper bound of ids."""
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
        try:
            found = self.tokens[key]
            return np.array(found) if isinstance(key, slice) else int(found)
        except (IndexError, OverflowError, TypeError):
            n = self.n_tokens
            raise IndexError(
                f"index: should be a slice, or a whole number below {n:,}, the number of ids; got"
                f" {key!r:.100}"
            ) from None

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_again, (self.absolute_path, self.manifest.digest, self._given_tokenizer)

    def __repr__(self) -> str:
        return f"TokenFile({str(self.path)!r}: {self.n_tokens:,} {self.dtype.name} tokens)"


def _open_again(path: str, digest: str, tokenizer: AnyTokenizer | None) -> TokenFile:
    """Open the files of a pickled `TokenFile`; raise TokenFileError if they were rebuilt."""
    file = open_tokens(path)
    found = file.manifest.digest
    if found != digest:
        raise TokenFileError(
            f"{path}: was rebuilt since it was pickled: expected a manifest with the digest"
            f" {digest}, found {found}; open it again with open_tokens"
        )
    return open_tokens(path, tokenizer=tokenizer) if tokenizer else file


def _map(bin_path: Path, data: DataFile) -> FileMap:
    """Map a data file read-only; raise TokenFileError if its size is not that in the manifest."""
    path = os.path.join(os.path.dirname(bin_path), data.name)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe is not waited for
    except FileNotFoundError:
        raise TokenFileError(
            f"{path}: missing, though its manifest {bin_path.with_suffix('.json')} exists; restore"
            " it or build the files again"
        ) from None
    try:
        found = os.fstat(descriptor).st_size
        if found == data.n_bytes:
            return FileMap(descriptor, found)
    finally:
        os.close(descriptor)
    raise TokenFileError(
        f"{path}: expected {data.n_bytes:,} bytes ({data.count:,} {data.column.per}s of"
        f" {data.dtype.name} in its manifest), found {found:,}; it was damaged or replaced: build"
        " the files again"
    )


@checked
def open_tokens(
    path: str | os.PathLike[str], *, tokenizer: Any = None
) -> TokenFile:
    """Open a `.bin` that tokenmill built, and check everything except its content.

    Args:
        path: NAME.bin or NAME.json, or its URL; for shards, NAME.json opens all of them.
        tokenizer: The tokenizer that the ids must be of, as `build` takes it, or its fingerprint;
            None: unchecked.

    Raises:
        TokenFileError: A file is missing, unfinished, of another size than in its manifest, or
            was built with another tokenizer.
        CacheError: The cache for datasets at URLs cannot be used.
        RemoteError: The server of a URL does not answer or refuses the request.
    """
    location = given_location(path)
    is_remote = is_url(location)
    shown = shown_url(location) if is_remote else location
    stem, suffix = os.path.splitext(shown)
    if suffix not in (".bin", ".json"):
        raise TokenFileError(
            f"{shown}: the .bin of a built corpus or its .json is expected; for a file of raw ids "
            "that another tool made: tokenmill import, or np.memmap(path, dtype=...) in Python"
        )
    bin_path = location if is_remote else Path(f"{stem}.bin")
    manifest = _read_manifest(bin_path)
    found = None if tokenizer is None or _is_fingerprint(tokenizer) else _load(tokenizer)
    wanted = tokenizer if found is None else found
    while True:
        if wanted is not None:
            check_tokenizer(shown if is_remote else bin_path, manifest, wanted)
        try:
            return TokenFile(bin_path, manifest, found)
        except TokenFileError:
            before, manifest = manifest, _read_manifest(bin_path)
            if manifest == before:
                raise
            # Documents were appended since the manifest was read, and its files renamed.


def _is_fingerprint(tokenizer: Any) -> bool:
    return isinstance(tokenizer, str) and re.fullmatch("[0-9a-f]{64}", tokenizer) is not None


def _load(tokenizer: Any) -> AnyTokenizer:
    """Load a tokenizer that is given; raise ArgumentError if it is none."""
    from bpe import load_tokenizer
    from preprocess.settings import read_tokenizer

    try:
        return load_tokenizer(read_tokenizer(tokenizer))
    except TokenmillError:
        raise
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            "tokenizer: should be a path, a name or a tokenizer, or its fingerprint; got"
            f" {tokenizer!r:.100}"
        ) from error


def check_tokenizer(path: Path | str, manifest: Manifest, tokenizer: AnyTokenizer | str) -> None:
    """Raise TokenFileError if a dataset was built with another tokenizer than this.

    Args:
        path: Of the dataset, for messages.
        manifest: Of the dataset.
        tokenizer: The tokenizer, or its fingerprint.
    """
    expected = manifest.tokenizer_fingerprint
    if not expected:
        raise TokenFileError(
            f"{path}: its ids were imported without a tokenizer, so none can be compared with it;"
            " import them again with the tokenizer (--tokenizer)"
        )
    if isinstance(tokenizer, str):
        found = tokenizer
    else:
        found = expected if tokenizer.has_fingerprint(expected) else tokenizer.fingerprint
    if found != expected:
        raise TokenFileError(
            f"{path}: built with the tokenizer {expected[:16]}..., "
            f"and the one given is {found[:16]}...; use the tokenizer.json that was built "
            "with it, or build the files again with this one"
        )


def tokenizer_of(file: TokenFile, given: Any = None) -> AnyTokenizer:
    """Load the given tokenizer, else that beside a dataset, and compare it.

    Raises:
        TokenFileError: There is none, or the dataset was built with another one.
    """
    from bpe import load_tokenizer

    path, where = (given, "") if given is not None else file.tokenizer_file()
    if path is None:
        raise TokenFileError(
            f"{where}: missing, and no tokenizer was given; give the one that the dataset was built"
            " with (--tokenizer, or open_tokens(path, tokenizer=...) in Python)"
        )
    tokenizer = load_tokenizer(path)
    check_tokenizer(file.path, file.manifest, tokenizer)
    return tokenizer


def _files_beside(url: str) -> tuple[UrlFiles, str]:
    """Return the files in the directory of a URL, and NAME of its dataset."""
    from preprocess.storage.files import UrlFiles, directory_of

    return UrlFiles(directory_of(url)), os.path.splitext(url_name(url))[0]


def _read_manifest(bin_path: Path | str) -> Manifest:
    if isinstance(bin_path, Path):
        path = bin_path.with_suffix(".json")
        if not (path.is_file() or path.is_dir()):
            if not path.exists():
                raise TokenFileError(f"{bin_path}: {_why_missing(bin_path)}")
            # Reading it might never end.
            raise TokenFileError(f"{path}: is a pipe or a device, expected a manifest; remove it")
        return Manifest.from_json(path.read_bytes(), path)
    files, stem = _files_beside(bin_path)
    where, content = files.where(manifest_name(stem)), files.get(manifest_name(stem))
    if content is None:
        raise TokenFileError(
            f"{where}: there is no such file, and a dataset at a URL is read by its manifest; check"
            " the URL, or copy the manifest there with the other files"
        )
    manifest = Manifest.from_json(content, where)
    if not manifest_is_as_written(content):
        raise TokenFileError(
            f"{where}: does not have the digest at its end, so it was changed or damaged; copy it"
            " there again, or build the files again"
        )
    return manifest


def _why_missing(bin_path: Path) -> str:
    """Return why there is no manifest beside a `.bin`, and what to do, for a message."""
    whole = bin_path.with_name(manifest_name(dataset_of_shard(bin_path.stem)))
    # `preprocess.storage` keeps unfinished files there.
    if any(bin_path.parent.glob(f".*.partial/{glob.escape(bin_path.name)}")):
        return "is not finished; run the command that builds it again, to the end"
    if whole != bin_path.with_suffix(".json") and whole.exists():
        return f"is one of several shards; open all of them by their manifest {whole}"
    name = manifest_name(bin_path.stem)
    if bin_path.with_name(f"{shard_name(bin_path.stem, 0)}.bin").exists():
        return (
            f"the manifest of its shards ({name}) is missing; restore it or build the files again"
        )
    if bin_path.exists():
        return (
            f"has no manifest ({name}), so its dtype is unknown; if another tool made it, use"
            " tokenmill import, or np.memmap(path, dtype=np.uint16, mode='r') in Python"
        )
    return "there is no such file; build it first (tokenmill build, or make preprocess)"


def read_ids(file: TokenFile, start: int, stop: int) -> Values:
    """Return token ids [start, stop): uint16|uint32[n], mapped without shards.

    Raises:
        TokenFileError: One is outside of the vocabulary, which only damage explains.
    """
    file.count_reads(1, stop - start)
    found = file.tokens[start:stop]
    if len(found) and int(found.max()) >= file.vocab_size:
        place = start + int((found >= file.vocab_size).argmax())
        expected = f"should be an id of 0 to {file.vocab_size - 1:,}"
        raise damaged(file, f"token {place:,} {expected} and is {file[place]:,}")
    return found


def document_at(file: TokenFile, token: int) -> int:
    """Return the number of the document that has a token; of the last one for later positions."""
    n_documents = 0
    for part in file.parts:
        n_tokens, ends = len(part[IDS.name]), part[DOCUMENT_ENDS.name]
        if token < n_tokens:
            return n_documents + bisect_right(ends, token)
        token, n_documents = token - n_tokens, n_documents + len(ends)
    return n_documents - 1


def read_bounds(file: TokenFile, first: int, stop: int) -> npt.NDArray[np.int64]:
    """Return the start of document `first`, then the ends of [first, stop): int64[n + 1].

    Raises:
        TokenFileError: Ends do not ascend, are not in their shard, or the last is not the number of
            tokens, which only damage explains.
    """
    begin = max(first - 1, 0)
    bounds = np.zeros(stop - begin + 1, np.int64)
    n_read = n_documents = n_tokens = 0
    for part in file.parts:
        ends = part[DOCUMENT_ENDS.name]
        here = np.asarray(ends[max(begin - n_documents, 0) : max(stop - n_documents, 0)])
        filled = bounds[n_read : n_read + len(here) + 1]
        # A value that overflows int64 becomes negative, so it is not above the previous end.
        filled[1:] = here
        filled[1:] += n_tokens
        most = n_tokens + len(part[IDS.name])
        bad = (filled[1:] <= filled[:-1]) | (filled[1:] > most)
        if bad.any():
            place = int(bad.argmax())
            expected = f"should end after {filled[place]:,} and at {most:,} at most"
            end, document = int(here[place]) + n_tokens, begin + n_read + place
            raise damaged(file, f"document {document:,} {expected}, and ends at {end:,}")
        n_read, n_documents, n_tokens = n_read + len(here), n_documents + len(ends), most
    if stop == file.n_documents and bounds[-1] != file.n_tokens:
        expected = f"should end at {file.n_tokens:,}, the number of tokens,"
        raise damaged(file, f"the last document {expected} and ends at {bounds[-1]:,}")
    return bounds[1:] if first else bounds


def damaged(file: TokenFile, what: str) -> TokenFileError:
    """Return the error for values that only damage explains."""
    rebuilt = "it" if isinstance(file.path, Path) else "a copy on this machine"
    return TokenFileError(
        f"{file.path}: {what}; the file is damaged: 'tokenmill verify {file.path}' reports where,"
        f" and with --repair rebuilds {rebuilt} from the sources"
    )

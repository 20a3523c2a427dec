"""Manifest of a dataset, NAME.json: counts, provenance and digests of blocks."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, ClassVar, Literal, Self

import msgspec
import numpy as np
import xxhash
from msgspec import Meta, Struct
from msgspec.structs import replace

from bpe.errors import TokenmillError
from preprocess.dataset import columns as table

FORMAT = "tokenmill"
FORMAT_VERSION = 1
DIGEST = "xxh3_128"
# Key of a source whose ids were made by another program: their format.
IMPORTED = "imported"
# Keys of a source of a dataset that was changed: what the dataset was before the documents of this
# source and of those that follow were appended; how many documents of it were dropped.
APPENDED, DROPPED = "appended_to", "dropped"
# Name of the only source of a dataset whose documents an earlier version selected.
SELECTED = "selected documents"
_AGAIN = (
    "build the files again; files of ids that another tool made are read by tokenmill import, or"
    " np.memmap(path, dtype=...) in Python"
)
# Last key of a manifest: the digest of the text before the preceding comma.
_OWN_DIGEST = "manifest_digest"

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Digests = dict[str, tuple[str, ...]]


class Shard(Struct, frozen=True):
    """Fields of `Manifest` that describe one shard.

    Attributes:
        n_tokens: Number of ids.
        n_documents: Number of documents that end in it.
        digests: Name of a column -> hexadecimal xxh3_128 of each block of 4 MiB of its file; the
            last may be shorter. JSON has separate keys: "bin_digests" and so on.
        stem: Name of its files without suffix, if they are those of a part of another name; key
            "files", else absent.
    """

    n_tokens: Count
    n_documents: Count
    digests: Digests = {}
    stem: Annotated[str, Meta(pattern="^[^./][^/]*$")] | None = msgspec.field(
        default=None, name="files"
    )

    def count(self, column: table.Column) -> int:
        """Return the number of values of a column."""
        return self.n_tokens if column.per == "token" else self.n_documents

    def content(self) -> dict[str, Any]:
        """Return the fields as a JSON object."""
        files = {} if self.stem is None else {"files": self.stem}
        counts = {"n_tokens": self.n_tokens, "n_documents": self.n_documents}
        return files | counts | {f"{name}_digests": each for name, each in self.digests.items()}


class DataFile(Struct, frozen=True):
    """One data file of a dataset: a column of one shard."""

    name: str
    column: table.Column
    dtype: np.dtype[Any]
    count: int  # number of values
    before: Shard  # total counts of all earlier shards
    digests: tuple[str, ...]  # as in `Shard`

    @property
    def n_bytes(self) -> int:
        """Size of the file in bytes."""
        return self.count * self.dtype.itemsize

    def block(self, number: int) -> range:
        """Return the range of values in a block."""
        per_block = table.BLOCK_BYTES // self.dtype.itemsize
        return range(number * per_block, min((number + 1) * per_block, self.count))


class ExtraColumn(Struct, frozen=True):
    """A column besides ids and document ends, in a manifest."""

    name: Annotated[str, Meta(pattern="^(?!(bin|docs|json)$)[a-z][a-z0-9_]*$")]
    dtype: Literal["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"]
    per: Literal["token", "document"]


class Manifest(Struct, frozen=True, kw_only=True):
    """Content of NAME.json; fields are the keys of the JSON object, in order.

    Attributes:
        format: "tokenmill"; of a file from before the product was renamed, the former name, so
            that the digest of the manifest does not change.
        dtype: "uint16" or "uint32", the type of NAME.bin; always little-endian.
        vocab_size: Exclusive upper bound of ids in NAME.bin.
        n_tokens: Number of ids in NAME.bin, special ids included.
        n_documents: Number of documents, the length of NAME.docs.
        n_bytes: UTF-8 bytes of the encoded documents, without separators, dropped documents and
            special tokens. With `n_tokens` it converts loss per token to bits per byte. 0: not
            known, of imported ids.
        end_of_text_id: Id after each document.
        begin_of_text_id: Id before each document; None: none.
        tokenizer_fingerprint: Hexadecimal sha256 of the text of tokenizer.json; "": not known, of
            imported ids.
        pattern: Name of the split pattern.
        unicode_version: Unicode version of the character classes in the pattern.
        sources: One object for each source, in reading order: "name", "bytes", "digest" (see
            `preprocess.sources.digest`; "" if it was not read to its end), and its "documents" and
            "tokens" in this token file, unless these are shuffled; of imported ids also "imported",
            of a dataset that was changed "appended_to" and "dropped".
        extra_columns: Columns besides ids and document ends; key "columns", absent without any.
        digests: As in `Shard`; {} with shards.
        shards: The shards, in order; they replace the digests in the JSON object. (): none.
    """

    format: str = FORMAT
    dtype: str
    vocab_size: Annotated[int, Meta(ge=1, le=2**32)]
    n_tokens: Count
    n_documents: Count
    n_bytes: Count
    end_of_text_id: Count
    begin_of_text_id: Count | None
    tokenizer_fingerprint: str
    pattern: str
    unicode_version: str
    sources: tuple[dict[str, Any], ...]
    extra_columns: tuple[ExtraColumn, ...] = msgspec.field(default=(), name="columns")
    digests: Digests = {}
    shards: tuple[Shard, ...] = ()

    @property
    def is_imported(self) -> bool:
        """True if its ids were made by another program."""
        return any(IMPORTED in source for source in self.sources)

    @property
    def is_edited(self) -> bool:
        """True if documents were appended or dropped since it was built."""
        return any(APPENDED in source or DROPPED in source for source in self.sources)

    @property
    def columns(self) -> tuple[table.Column, ...]:
        """All columns; values of columns not in `COLUMNS` are digested, but not checked."""
        known = {column.name: column for column in table.COLUMNS}
        extra = []
        for each in self.extra_columns:
            stated = table.Column(each.name, each.per, np.dtype(each.dtype))
            found = known.get(each.name, stated)
            same = (found.per, found.dtype) == (stated.per, stated.dtype)
            extra.append(found if same else stated)
        return (table.IDS, table.DOCUMENT_ENDS, *extra)

    @property
    def parts(self) -> tuple[Shard, ...]:
        """The shards; without shards, the dataset as a single one."""
        return self.shards or (Shard(self.n_tokens, self.n_documents, self.digests),)

    def stems(self, name: str) -> list[str]:
        """Return the names of the files of each part without suffix; `name` is NAME."""
        numbered = (table.shard_name(name, i) for i in range(len(self.shards)))
        return [
            own if shard.stem is None else shard.stem
            for own, shard in zip(numbered, self.shards, strict=True)
        ] or [name]

    def files(self, name: str) -> list[DataFile]:
        """Return all data files, shard by shard; `name` is NAME."""
        files, before = [], Shard(0, 0)
        for stem, part in zip(self.stems(name), self.parts, strict=True):
            for column in self.columns:
                dtype, digests = column.dtype_for(self.vocab_size), part.digests[column.name]
                file = f"{stem}{column.suffix}"
                files.append(DataFile(file, column, dtype, part.count(column), before, digests))
            before = Shard(before.n_tokens + part.n_tokens, before.n_documents + part.n_documents)
        return files

    def own_files(self, name: str) -> list[str]:
        """Return the names of the data files that are not those of a part."""
        stems = {part.stem for part in self.parts}
        return [] if stems != {None} else [file.name for file in self.files(name)]

    @property
    def digest(self) -> str:
        """Digest of the text of NAME.json, which identifies the dataset: hexadecimal xxh3_128."""
        return str(xxhash.xxh3_128_hexdigest(self.to_json().encode()))

    def to_json(self) -> str:
        """Return the exact text of NAME.json."""
        about = {"format": self.format, "format_version": FORMAT_VERSION}
        content = about | msgspec.to_builtins(self)
        del content["digests"]
        if not self.extra_columns:
            del content["columns"]
        if self.shards:
            content["shards"] = [shard.content() for shard in self.shards]
        else:
            del content["shards"]
            content |= self.parts[0].content()
        content |= {"digest": DIGEST, "digest_block_bytes": table.BLOCK_BYTES}
        return with_own_digest(content)

    @classmethod
    def from_json(cls, content: str | bytes, path: str | os.PathLike[str]) -> Manifest:
        """Parse the content of a NAME.json; unknown keys are ignored.

        Raises:
            TokenFileError: The text is not JSON, not a manifest, of a newer format, or
                inconsistent; the message names `path`.
        """
        data: Any = None
        try:
            about = FORMAT, FORMAT_VERSION
            data = _parse(content, str(path), about, table.TokenFileError, _AGAIN)
            if (data["digest"], data["digest_block_bytes"]) != (DIGEST, table.BLOCK_BYTES):
                raise ValueError(f"digests should be {DIGEST} of {table.BLOCK_BYTES} bytes")
            shards = data.get("shards")
            for part in [data, *(shards if isinstance(shards, list) else ())]:
                if isinstance(part, dict):
                    found = {x[:-8]: y for x, y in part.items() if x.endswith("_digests")}
                    part["digests"] = {x: y for x, y in found.items() if isinstance(y, list)}
            return msgspec.convert(data, cls)._checked()
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, table.TokenFileError):
                raise
            raise table.TokenFileError(
                f"{path}: not a manifest: {error}{_found_at(str(error), data)}; {_AGAIN}"
            ) from error

    def _checked(self) -> Manifest:
        """Leave out unknown digests; raise ValueError if the fields contradict each other."""
        dtype = f"uint{8 * table.token_dtype(self.vocab_size).itemsize}"
        if self.dtype != dtype:
            raise ValueError(
                f"dtype {self.dtype} does not fit a vocabulary of {self.vocab_size:,} ids, whose"
                f" files are {dtype}"
            )
        parts, columns = [], self.columns
        for number, part in enumerate(self.parts):
            where = f"shard {number:,}: " if self.shards else ""
            for column in columns:
                n_bytes = part.count(column) * column.dtype_for(self.vocab_size).itemsize
                n_blocks = -(-n_bytes // table.BLOCK_BYTES)
                if (found := len(part.digests.get(column.name, ""))) != n_blocks:
                    raise ValueError(
                        f'{where}"{column.name}_digests" should have {n_blocks:,} entries and has'
                        f" {found:,}"
                    )
            digests = {column.name: part.digests.get(column.name, ()) for column in columns}
            parts.append(replace(part, digests=digests))
        for name in ("n_tokens", "n_documents"):
            wanted, total = getattr(self, name), sum(getattr(part, name) for part in parts)
            if wanted != total:
                raise ValueError(f'"{name}" is {wanted:,}, and the shards have {total:,}')
        if self.shards:
            return replace(self, digests={}, shards=tuple(parts))
        return replace(self, digests=parts[0].digests)


def spellings_of(name: str) -> tuple[str, str]:
    """Return the names of a file format that are read: its own, and its former one.

    >>> spellings_of("tokenmill-rows")
    ('tokenmill-rows', 'tokenbin-rows')
    """
    return name, name.replace("tokenmill", "tokenbin")


def with_own_digest(content: Mapping[str, Any]) -> str:
    """Format a manifest as JSON, with the digest of its text as the last key."""
    text = json.dumps(content, indent=2, ensure_ascii=False).removesuffix("\n}")
    return f'{text},\n  "{_OWN_DIGEST}": "{xxhash.xxh3_128_hexdigest(text.encode())}"\n}}\n'


def manifest_is_as_written(content: bytes) -> bool:
    """Return True if the content of a NAME.json has its own digest, so it is unchanged."""
    before, comma, own = content.rpartition(f',\n  "{_OWN_DIGEST}": '.encode())
    return bool(comma) and own == f'"{xxhash.xxh3_128_hexdigest(before)}"\n}}\n'.encode()


class DerivedManifest(Struct, frozen=True, kw_only=True):
    """Manifest of files that are made of a dataset, rows or an export; it has its own digest.

    Attributes:
        dataset: Path of the manifest of the dataset, from the directory of the files; or its URL.
        dataset_digest: Its xxh3_128.
        settings: Options that change the files.
    """

    about: ClassVar[tuple[str, int]]  # format and version of the file
    error: ClassVar[type[TokenmillError]]  # of a manifest that cannot be read
    again: ClassVar[str]  # what to do then

    dataset: str
    dataset_digest: str
    settings: dict[str, Any]

    def check(self) -> None:
        """Raise ValueError for values that are impossible."""

    def to_json(self) -> str:
        """Return the exact text of the file."""
        about = {"format": self.about[0], "format_version": self.about[1]}
        return with_own_digest(about | msgspec.to_builtins(self))

    @classmethod
    def from_json(cls, content: bytes, where: str) -> Self:
        """Parse the content of a file, which `where` names in messages.

        Raises:
            TokenmillError: It is damaged, of a newer version, or of another program: `error`.
        """
        data = _parse(content, where, cls.about, cls.error, cls.again)
        if not manifest_is_as_written(content):
            raise cls.error(f"{where}: was changed since it was written; {cls.again}")
        try:
            manifest = msgspec.convert(data, cls)
            manifest.check()
            return manifest
        except ValueError as wrong:
            raise cls.error(
                f"{where}: is no manifest of its kind ({wrong}); {cls.again}"
            ) from wrong


def _parse(
    content: str | bytes, where: str, about: tuple[str, int], error: type[TokenmillError],
    again: str,
) -> dict[str, Any]:
    """Return the JSON object of a manifest; arguments as the attributes of `DerivedManifest`."""
    try:
        data = msgspec.json.decode(content)
    except (ValueError, RecursionError) as wrong:
        raise error(f"{where}: not a manifest, for it is not JSON ({wrong}); {again}") from wrong
    if not isinstance(data, dict) or data.get("format") not in spellings_of(about[0]):
        raise error(
            f'{where}: not a manifest: a JSON object with "format": "{about[0]}" is expected;'
            f" {again}"
        )
    if data.get("format_version") != about[1]:
        raise error(
            f"{where}: format version {data.get('format_version')!r}; this tokenmill reads version"
            f" {about[1]}: upgrade it (pip install -U tokenmill), or {again}"
        )
    return data


def _found_at(text: str, data: Any) -> str:
    """Format the value at the path in an error message of msgspec; "" without a path."""
    place = re.search(r"- at `\$(.*)`$", text)
    with suppress(KeyError, IndexError, ValueError):
        for key in re.findall(r"\w+", place[1]) if place else ():
            data = data[int(key) if isinstance(data, list) else key]
        return f", found {str(data)[:80]!r}" if place else ""
    return ""

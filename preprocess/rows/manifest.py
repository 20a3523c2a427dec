"""Manifest of rows, rows.json: how they were made, their files, and digests.

A file has two digests: of its bytes, and of its content. A newer library may write the same rows as
other bytes, which is no damage.
"""

from __future__ import annotations

import os

import msgspec
import xxhash
from msgspec import Struct

from preprocess.dataset.manifest import Count, DerivedManifest, spellings_of
from preprocess.rows.columns import RowBatch
from preprocess.rows.formats import RowsError, format_of
from preprocess.storage import Files, open_files

MANIFEST_FILE = "rows.json"
FORMAT = "tokenmill-rows"


class ShardFacts(Struct, frozen=True):
    """One file of rows.

    Attributes:
        name: File name.
        rows: Number of rows.
        tokens: Tokens in them, without padding.
        bytes: Size of the file.
        digest: Hexadecimal xxh3_128 of its bytes.
        content: The same of its rows, as `ContentDigest`.
    """

    name: str
    rows: Count
    tokens: Count
    bytes: Count
    digest: str
    content: str


class RowsManifest(DerivedManifest, frozen=True, kw_only=True):
    """Content of rows.json.

    Attributes:
        around: Ids before and after each row.
        columns: Names of the arrays, in their order.
        vocab_size: Exclusive upper bound of ids.
        pad_id: Id of padding.
        length: To which rows are padded; None: not at all, or in each file to another length.
        rows, tokens: Totals of all files.
        documents: Documents of the dataset.
        longest: Tokens of the longest row.
        text_bytes: Bytes of text of the dataset.
        shards: The files, in order.
        beside: Name of a file that describes the rows -> its xxh3_128.
    """

    about, error, again = (FORMAT, 1), RowsError, "write the rows again (--overwrite)"

    around: tuple[tuple[int, ...], tuple[int, ...]]
    columns: tuple[str, ...]
    vocab_size: Count
    pad_id: Count
    length: Count | None
    rows: Count
    tokens: Count
    documents: Count
    longest: Count
    text_bytes: Count
    shards: tuple[ShardFacts, ...]
    beside: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def format(self) -> str:
        """Name of the format of the files, in `FORMATS`."""
        return str(self.settings["format"])

    def check(self) -> None:
        """Raise ValueError for a name that no file has, and totals that are not sums of files."""
        for each in self.shards:
            is_inside = os.path.basename(each.name) == each.name
            if not is_inside or format_of(each.name) != self.format:
                raise ValueError(f"{each.name!r} is no name of a file of {self.format}")
        for key in ("rows", "tokens"):
            wanted, total = getattr(self, key), sum(getattr(each, key) for each in self.shards)
            if wanted != total:
                raise ValueError(f'"{key}" is {wanted:,}, and the files have {total:,}')


def has_manifest(files: Files) -> bool:
    """Return True if a directory has a manifest of rows, which may be damaged."""
    content = files.get(MANIFEST_FILE) or b""  # perhaps of another program
    return any(each.encode() in content for each in spellings_of(FORMAT))


def read_manifest(directory: str | os.PathLike[str]) -> RowsManifest:
    """Read the manifest of a directory of rows.

    Raises:
        RowsError: It is missing, damaged, or of a newer format.
    """
    files = open_files(directory)
    content, where = files.get(MANIFEST_FILE), files.where(MANIFEST_FILE)
    if content is None:
        raise RowsError(f"{where}: missing; no rows were written in this directory")
    return RowsManifest.from_json(content, where)


class ContentDigest:
    """xxh3_128 of rows, whatever the batches: of the digests of lengths and of each column."""

    def __init__(self) -> None:
        self._lengths = xxhash.xxh3_128()
        self._columns: dict[str, xxhash.xxh3_128] = {}

    def update(self, batch: RowBatch) -> None:
        """Add rows."""
        lengths = batch.offsets[1:] - batch.offsets[:-1]
        self._lengths.update(lengths.astype("<i8", copy=False).data)
        for name, values in batch.values.items():
            digest = self._columns.setdefault(name, xxhash.xxh3_128())
            digest.update(values.astype("<i4", copy=False).data)

    def hexdigest(self) -> str:
        """Return the digest of all rows so far."""
        parts = [self._lengths.hexdigest()]
        parts += [f"{name} {each.hexdigest()}" for name, each in self._columns.items()]
        return xxhash.xxh3_128_hexdigest("\n".join(parts).encode())


def replace_shard(manifest: RowsManifest, number: int, facts: ShardFacts) -> RowsManifest:
    """Return a manifest with other facts of a file."""
    shards = [*manifest.shards]
    shards[number] = facts
    return msgspec.structs.replace(manifest, shards=tuple(shards))

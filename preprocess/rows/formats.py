"""Formats of shards of rows: how arrays of rows become bytes, and are read again.

Each format is a module of its own; `FORMATS` is their table. Bytes are the same whenever the rows
and the version of the library are.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from typing import IO, NamedTuple, Protocol, cast

from bpe.errors import TokenmillError
from preprocess.rows.columns import RowBatch
from preprocess.rows.places import AnyPath

DUMP_FILE = "dump-meta_data.json"  # counts of pickled rows


class RowsError(TokenmillError):
    """Rows cannot be made, or a file of rows cannot be read."""


class Codec(Protocol):
    """Module of a format."""

    def write_shard(
        self, file: IO[bytes], columns: tuple[str, ...], compression: str, n_rows: int,
        batches: Callable[[], Iterable[RowBatch]],
    ) -> None:
        """Write the rows of all batches, which may be asked for several times.

        The next batch takes the place of a batch in memory.
        """

    def read_shard(self, path: AnyPath) -> Iterator[RowBatch]:
        """Yield the rows of a file in batches.

        Raises:
            RowsError: It is damaged, or of another kind.
        """


class Format(NamedTuple):
    """A format: its module, the suffix of files, and compressions, the default first."""

    module: str
    suffix: str
    compressions: tuple[str, ...]

    def codec(self) -> Codec:
        """Import the module of the format."""
        return cast(Codec, importlib.import_module(f"preprocess.rows.{self.module}"))

    def suffix_of(self, compression: str) -> str:
        """Return the suffix of files with a compression around all of the file."""
        outer = {"gzip": ".gz", "zstd": ".zst"} if self.module == "json_lines" else {}
        return self.suffix + outer.get(compression, "")


FORMATS = {
    "parquet": Format("parquet", ".parquet", ("zstd", "snappy", "none")),
    "arrow": Format("arrow", ".arrow", ("none", "zstd")),
    "jsonl": Format("json_lines", ".jsonl", ("none", "gzip", "zstd")),
    "npz": Format("npz", ".npz", ("zlib",)),
    "pickle": Format("pickled", ".pkl", ("none",)),
}


def format_of(path: AnyPath) -> str | None:
    """Return the name of the format of a file, by its name; None: it has no rows."""
    name = path.name.removesuffix(".gz").removesuffix(".zst")
    return next((key for key, each in FORMATS.items() if name.endswith(each.suffix)), None)

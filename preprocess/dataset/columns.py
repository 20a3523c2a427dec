"""Columns of a dataset: one for each kind of data file.

Writer, reader, manifest, verification, repair and journal iterate over columns. To add one, append
it to `COLUMNS`: its `make` computes the values of each encoded batch, for every source of a build.
Outputs without the column are out of date then (`preprocess.run.record`). Datasets that are
imported have ids and document ends alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from bpe.errors import TokenmillError

# Size of the blocks of a file that have digests, to locate damage.
BLOCK_BYTES = 4 * 1024 * 1024

Values = npt.NDArray[Any]


class TokenFileError(TokenmillError, ValueError):
    """A token file cannot be written or read, or is damaged."""


def token_dtype(vocab_size: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Return the dtype of a `.bin`: little-endian uint16 up to 65,536 ids, else uint32.

    Args:
        vocab_size: One more than the greatest id, 1 to 2**32.

    Raises:
        TokenFileError: `vocab_size` is out of range.
    """
    if not 1 <= vocab_size <= 2**32:
        raise TokenFileError(f"vocab_size is {vocab_size:,}, expected 1 to 2**32")
    return np.dtype("<u2") if vocab_size <= 2**16 else np.dtype("<u4")


class Column(Struct, frozen=True):
    """One array of values, stored in one file for each shard.

    Attributes:
        name: Suffix of the file without its dot, and stem of the manifest key NAME_digests.
        per: "token" or "document": each has one value.
        dtype: dtype of the file, of integers; None: that of token ids.
        make: Computes the values of an `EncodedBatch` of `preprocess.run.encode_pass`, one for each
            token, or for each document that ends in it; `batch.spans` is None for sources without
            spans. None: the encoder returns the values.
        limit: Exclusive upper bound of values; None: the vocabulary size for ids, else unchecked.
        is_position: True if values are positions in the token stream, stored relative to the shard.
        noun: Name of a value, for messages.
        needs: What only some datasets have, and those alone the column: "spans", if a source has
            spans, or "provenance", if it was asked for.
    """

    name: str
    per: Literal["token", "document"]
    dtype: np.dtype[Any] | None = None
    make: Callable[[Any], Values] | None = None
    limit: int | None = None
    is_position: bool = False
    noun: str = "value"
    needs: Literal["", "spans", "provenance"] = ""

    @property
    def suffix(self) -> str:
        """Suffix of the file, with its dot."""
        return f".{self.name}"

    def dtype_for(self, vocab_size: int) -> np.dtype[Any]:
        """Return the dtype of the file."""
        return self.dtype or token_dtype(vocab_size)

    def limit_for(self, vocab_size: int) -> int | None:
        """Return the exclusive upper bound of values; None: unchecked."""
        return vocab_size if self.dtype is None else self.limit

    def to_stored(self, values: Values, vocab_size: int, n_before: int) -> Values:
        """Convert values to those in the file, after `n_before` tokens of the shard."""
        shifted = values + n_before if self.is_position else values
        return shifted.astype(self.dtype_for(vocab_size), copy=False)


IDS = Column("bin", "token", noun="id")
DOCUMENT_ENDS = Column("docs", "document", np.dtype("<u8"), is_position=True, noun="end")
# 1 for the tokens to train on; datasets without it are trained on as a whole.
MASK = Column(
    "mask", "token", np.dtype("u1"), make=lambda encoded: encoded.mask(), limit=2, noun="mask",
    needs="spans",
)
# Where each document is from: index of its source in the manifest, and number of its record there.
# `in_sources` completes what is computed of a batch.
SOURCE = Column(
    "src", "document", np.dtype("<u4"), noun="source", needs="provenance",
    make=lambda encoded: np.zeros(encoded.batch.n_ended, np.uint32),
)
RECORD = Column(
    "rec", "document", np.dtype("<u8"), noun="record", needs="provenance",
    make=lambda encoded: encoded.batch.numbers[: encoded.batch.n_ended],
)
# The columns that a build writes. Every dataset begins with IDS and DOCUMENT_ENDS.
COLUMNS: tuple[Column, ...] = (IDS, DOCUMENT_ENDS, MASK, SOURCE, RECORD)
# Regex of what follows NAME in the names of shards.
SHARD = r"_\d{5,}"
# Regex of what follows NAME. in the names of plans of packed rows, also of unfinished ones.
PLAN = r"[a-z_]+(-turns)?-\d+-[0-9a-f]{16}\.plan(\.partial(\.\d+)?)?"


def columns_of(has_spans: bool, has_provenance: bool = False) -> tuple[Column, ...]:
    """Return the columns of a dataset; `has_spans` if some of its sources have spans."""
    has = {"": True, "spans": has_spans, "provenance": has_provenance}
    return tuple(column for column in COLUMNS if has[column.needs])


def in_sources(columns: Mapping[str, Values], source: int, n_before: int) -> dict[str, Values]:
    """Return the values of columns of a unit of a source, which has `n_before` records before it.

    >>> columns = {"src": np.zeros(2, np.uint32), "rec": np.array([1, 3])}
    >>> {name: values.tolist() for name, values in in_sources(columns, 5, 10).items()}
    {'src': [5, 5], 'rec': [11, 13]}
    """
    added = {SOURCE.name: source, RECORD.name: n_before}
    return {name: x + added[name] if name in added else x for name, x in columns.items()}


def shard_name(name: str, number: int) -> str:
    """Return the NAME of the files of a shard.

    >>> shard_name("train", 3)
    'train_00003'
    """
    return f"{name}_{number:05d}"


def dataset_of_shard(name: str) -> str:
    """Return NAME of the dataset of a shard; another name as it is.

    >>> dataset_of_shard("train_00003"), dataset_of_shard("train")
    ('train', 'train')
    """
    return re.sub(rf"(?<=.){SHARD}$", "", name)


def manifest_name(name: str) -> str:
    """Return NAME.json."""
    return f"{name}.json"

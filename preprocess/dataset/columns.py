"""The columns of a dataset: one entry for each data file that stands next to a manifest.

Writer, reader, manifest, verification, repair and journal iterate over columns and know no file by
name. A column that is added to `COLUMNS` is computed by its `make` for each batch that is encoded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from bpe.errors import TokenbinError

# Digests are of this many bytes of a file at a time, so that damage is located, not just noticed.
BLOCK_BYTES = 4 * 1024 * 1024

Values = npt.NDArray[Any]


class TokenFileError(TokenbinError, ValueError):
    """A token file cannot be written or read, or is not what it should be."""


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


class Column(Struct, frozen=True):
    """One array of values, stored in one file for each shard.

    Attributes:
        name: Suffix of the file without its dot, and stem of the manifest key NAME_digests.
        per: What has one value: every token, or every document.
        dtype: Type of the values in the file; None: the type of token ids for the vocabulary.
        make: Compute the values of an `EncodedBatch` of `preprocess.run.encode_pass`, one for each
            token, or for each document that ends in it. None: the encoder yields them.
        limit: Every value is below it; None: the size of the vocabulary for ids, else not checked.
        is_position: Values are positions in the token stream, stored relative to the shard.
        noun: One value, for messages.
    """

    name: str
    per: Literal["token", "document"]
    dtype: np.dtype[Any] | None = None
    make: Callable[[Any], Values] | None = None
    limit: int | None = None
    is_position: bool = False
    noun: str = "value"

    @property
    def suffix(self) -> str:
        """Suffix of the file."""
        return f".{self.name}"

    def dtype_for(self, vocab_size: int) -> np.dtype[Any]:
        """Type of the values in the file."""
        return self.dtype or token_dtype(vocab_size)

    def limit_for(self, vocab_size: int) -> int | None:
        """Every value is below it; None: not checked."""
        return vocab_size if self.dtype is None else self.limit

    def stored(self, values: Values, vocab_size: int, n_before: int) -> Values:
        """Values as the file has them, `n_before` tokens after its start."""
        shifted = values + n_before if self.is_position else values
        return shifted.astype(self.dtype_for(vocab_size), copy=False)


IDS = Column("bin", "token", noun="id")
DOCUMENT_ENDS = Column("docs", "document", np.dtype("<u8"), is_position=True, noun="end")
# What a build writes. IDS and DOCUMENT_ENDS are in every dataset, in this order.
COLUMNS: tuple[Column, ...] = (IDS, DOCUMENT_ENDS)


def shard_name(name: str, number: int) -> str:
    """NAME of a shard's files.

    >>> shard_name("train", 3)
    'train_00003'
    """
    return f"{name}_{number:05d}"


def manifest_name(name: str) -> str:
    """NAME.json."""
    return f"{name}.json"

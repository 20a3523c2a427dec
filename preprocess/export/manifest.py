"""Manifest of an export: what it was made of, its files, and digests.

It is `export.json` in the directory of the files, or NAME.export.json beside files with a name of
their own, so that one directory may have several.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec
from msgspec import Struct

from preprocess.dataset.manifest import (
    Count,
    decode_manifest,
    with_own_digest,
)
from preprocess.export.source import ExportError
from preprocess.storage import Files

FORMAT = "tokenmill-export"
FORMAT_VERSION = 1


class FileFacts(Struct, frozen=True):
    """One file of an export.

    Attributes:
        name: File name.
        bytes: Size of the file.
        digest: Hexadecimal xxh3_128 of its bytes.
    """

    name: str
    bytes: Count
    digest: str


class ExportManifest(Struct, frozen=True, kw_only=True):
    """Content of the manifest of an export.

    Attributes:
        dataset: Path of the manifest of the dataset, from the directory of the export.
        dataset_digest: Its xxh3_128.
        settings: Options that change the files.
        tokens, documents: Totals of the dataset.
        dtype: Type of its ids; formats without it have another one.
        vocab_size: Exclusive upper bound of ids.
        end_of_text_id: Id after each document.
        begin_of_text_id: Id before each document; None: none.
        tokenizer_fingerprint: SHA-256 of the tokenizer.
        files: The files, in the order in which they were written.
    """

    dataset: str
    dataset_digest: str
    settings: dict[str, Any]
    tokens: Count
    documents: Count
    dtype: str
    vocab_size: Count
    end_of_text_id: Count
    begin_of_text_id: Count | None
    tokenizer_fingerprint: str
    files: tuple[FileFacts, ...]

    def to_json(self) -> str:
        """Return the exact text of the manifest."""
        about = {"format": FORMAT, "format_version": FORMAT_VERSION}
        return with_own_digest(about | msgspec.to_builtins(self))


def read_manifest(files: Files, name: str) -> ExportManifest:
    """Read the manifest of an export, which exists.

    Raises:
        ExportError: It is damaged, of a newer format, or of another program.
    """
    return decode_manifest(
        files.get(name) or b"", files.where(name), ExportManifest, (FORMAT, FORMAT_VERSION),
        _check_names, ExportError, "export again (--overwrite), or choose another place",
    )


def _check_names(manifest: ExportManifest) -> None:
    for each in manifest.files:
        if os.path.basename(each.name) != each.name:
            raise ValueError(f"{each.name!r} is no name of a file in its directory")

"""Formats of exports: what each carries, and the module that describes its files.

Each format is a module of its own; `FORMATS` is their table. The bytes of an export depend on the
dataset and the settings alone.
"""

from __future__ import annotations

import importlib
from typing import NamedTuple, Protocol, cast

from preprocess.export.source import OutputFile, Source


class Exporter(Protocol):
    """Module of a format."""

    def plan_files(self, source: Source, shard_tokens: int) -> list[OutputFile]:
        """Return the files of an export, in the order in which they are written.

        Args:
            source: The dataset, with at least one document.
            shard_tokens: Tokens of a file at most; 0 for formats without shards.

        Raises:
            ExportError: The format cannot have this dataset.
        """


class Format(NamedTuple):
    """A format.

    Attributes:
        module: Name of its module.
        shard_tokens: Tokens of a file at most, unless chosen; None: the format has no shards.
        in_directory: True if its files have fixed names, in a directory NAME.
        has_documents: True if it carries document ends.
        has_mask: True if it carries the loss mask.
        note: Sentence about its tokens, for the closing lines; "": none.
    """

    module: str
    shard_tokens: int | None = None
    in_directory: bool = False
    has_documents: bool = True
    has_mask: bool = True
    note: str = ""

    def exporter(self) -> Exporter:
        """Import the module of the format."""
        return cast(Exporter, importlib.import_module(f"preprocess.export.{self.module}"))


FORMATS = {
    "megatron": Format("megatron", has_mask=False),
    "llmc": Format(
        "llmc", 100_000_000, has_documents=False, has_mask=False,
        note="the end-of-text id follows each document; llm.c's own scripts put it before",
    ),
    "datatrove": Format("datatrove"),
    "mds": Format("mds", 1 << 24, in_directory=True),
    "litdata": Format(
        "litdata", 1 << 24, in_directory=True, has_documents=False, has_mask=False,
        note="TokensLoader leaves out what remains of each chunk after the last whole block",
    ),
    "npy": Format("npy"),
}

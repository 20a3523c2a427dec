"""Formats of files of ids; each is a module of its own, and `FORMATS` is their table."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Protocol, cast

from preprocess.imports.ids_file import Ids


class Importer(Protocol):
    """Module of a format."""

    def open_ids(self, path: Path, dtype: str | None) -> Ids:
        """Open files of ids, and check all but the ids.

        Raises:
            CorpusError: Files are missing, damaged, or of another kind.
            SettingsError: The dtype is missing, or is given and the files have it.
        """


FORMATS = {"megatron": "megatron", "raw": "raw"}


def importer(name: str) -> Importer:
    """Import the module of a format."""
    return cast(Importer, importlib.import_module(f"preprocess.imports.{FORMATS[name]}"))

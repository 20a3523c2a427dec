"""Describe files of rows: their arrays, lengths and padding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from preprocess.check.verify_rows import read_rows, row_files
from preprocess.rows.formats import RowsError
from preprocess.rows.manifest import MANIFEST_FILE, read_manifest
from preprocess.sampling.data import IGNORED


def describe(directory: Path) -> dict[str, Any]:
    """Describe the rows in a directory as a dictionary for JSON; every file is read.

    Raises:
        RowsError: A file is damaged, or files have different columns.
    """
    files = row_files(directory)
    if (directory / MANIFEST_FILE).exists():
        files = [directory / each.name for each in read_manifest(directory).shards]
    columns: tuple[str, ...] = ()
    n_rows = n_places = n_tokens = n_trained = longest = 0
    for path in files:
        for batch in read_rows(path):
            if columns and tuple(batch.values) != columns:
                raise RowsError(
                    f"{path}: has the columns {', '.join(batch.values)}, and files before it"
                    f" {', '.join(columns)}; keep different rows in different directories"
                )
            columns, ids = tuple(batch.values), batch.values["input_ids"]
            masks = "attention_mask", "segment_ids"
            known = (batch.values[name] for name in masks if name in columns)
            is_token = next(known, np.ones(len(ids), np.int32)) > 0
            sizes = np.diff(np.append(0, np.cumsum(is_token))[batch.offsets])
            n_rows, n_places = n_rows + len(sizes), n_places + len(ids)
            n_tokens, longest = n_tokens + int(sizes.sum()), max(longest, int(sizes.max(initial=0)))
            if "labels" in columns:
                n_trained += int((batch.values["labels"] != IGNORED).sum())
    return {
        "path": str(directory), "files": len(files), "columns": list(columns), "dtype": "int32",
        "rows": n_rows, "tokens": n_tokens, "average_length": n_tokens / max(n_rows, 1),
        "longest": longest, "padding_share": 1 - n_tokens / max(n_places, 1),
        "trained_share": n_trained / max(n_tokens, 1) if "labels" in columns else None,
    }


def format_lines(found: dict[str, Any]) -> list[str]:
    """Format the result of `describe` for people."""
    trained = found["trained_share"]
    lines = [
        f"{found['path']}: {found['rows']:,} rows in {found['files']:,}"
        f" file{'s' * (found['files'] != 1)}, columns"
        f" {', '.join(found['columns'])} ({found['dtype']})",
        f"  {found['tokens']:,} tokens, {found['average_length']:.1f} per row on average,"
        f" {found['longest']:,} at most",
        f"  {found['padding_share']:.1%} padding",
    ]
    return lines if trained is None else [*lines, f"  {trained:.1%} of the tokens have a label"]

"""Describe files of rows: their arrays, lengths and padding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from preprocess.check.findings import noted
from preprocess.check.verify_rows import ids_of
from preprocess.rows.access import row_files
from preprocess.rows.formats import RowsError, open_file
from preprocess.rows.manifest import MANIFEST_FILE, read_manifest
from preprocess.sampling.data import IGNORED


def describe(directory: Path, bad: list[dict[str, str]]) -> dict[str, Any]:
    """Describe the rows in a directory as a dictionary for JSON; every file is read.

    To `bad` are added path and text of each file that is damaged, of which rows before the damage
    are counted, or that has other columns than those before it.
    """
    files, has_mask = row_files(directory), False
    if (directory / MANIFEST_FILE).exists():
        with noted(bad, directory / MANIFEST_FILE):
            manifest = read_manifest(directory)
            files = [directory / each.name for each in manifest.shards]
            has_mask = manifest.length is None  # nothing is padded
    columns: tuple[str, ...] = ()
    n_rows = n_places = n_tokens = n_trained = longest = 0
    for path in files:
        with noted(bad, path):
            for row in open_file(path).rows():
                if columns and tuple(row) != columns:
                    raise RowsError(
                        f"{path}: has the columns {', '.join(row)}, and files before it"
                        f" {', '.join(columns)}; keep different rows in different directories"
                    )
                ids, columns = ids_of(path, row), tuple(row)
                mask = row.get("attention_mask", row.get("segment_ids"))
                has_mask = has_mask or mask is not None
                n = len(ids) if mask is None else int((mask > 0).sum())
                n_rows, n_places, n_tokens = n_rows + 1, n_places + len(ids), n_tokens + n
                longest = max(longest, n)
                if "labels" in row:
                    n_trained += int((row["labels"] != IGNORED).sum())
    # Files of others may have other integers.
    dtype = "int32" if (directory / MANIFEST_FILE).exists() else "read as int32"
    return {
        "path": str(directory), "files": len(files), "columns": list(columns), "dtype": dtype,
        "rows": n_rows, "tokens": n_tokens, "average_length": n_tokens / max(n_rows, 1),
        "longest": longest, "padding_share": 1 - n_tokens / max(n_places, 1) if has_mask else None,
        "trained_share": n_trained / max(n_tokens, 1) if "labels" in columns else None,
    }


def format_lines(found: dict[str, Any]) -> list[str]:
    """Format the result of `describe` for people."""
    trained, share = found["trained_share"], found["padding_share"]
    padding = "padding unknown, no attention_mask" if share is None else f"{share:.1%} padding"
    lines = [
        f"{found['path']}: {found['rows']:,} rows in {found['files']:,}"
        f" file{'s' * (found['files'] != 1)}, columns"
        f" {', '.join(found['columns'])} ({found['dtype']})",
        f"  {found['tokens']:,} tokens, {found['average_length']:.1f} per row on average,"
        f" {found['longest']:,} at most",
        f"  {padding}",
    ]
    if trained is not None:
        lines.append(f"  {trained:.1%} of the tokens have a label")
    return lines

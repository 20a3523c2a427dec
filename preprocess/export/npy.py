"""Arrays of NumPy: NAME.npy with the ids, NAME_document_ends.npy, and NAME_loss_mask.npy."""

from __future__ import annotations

import io

from numpy.lib import format as npy

from preprocess.dataset.columns import Values
from preprocess.export.source import OutputFile, Segment, Source, plain


def plan_files(source: Source, shard_tokens: int) -> list[OutputFile]:
    """Return the files; NAME_loss_mask.npy only if the dataset has a loss mask."""
    n = source.n_documents

    def ends(first: int, stop: int) -> Values:
        return source.bounds(first, stop)[1:].astype("<u8")

    ids = source.ids_segment(0, source.n_tokens)
    files = [
        _array(f"{source.name}_document_ends.npy", "<u8", Segment(n, 8 * n, ends)),
        _array(f"{source.name}.npy", source.file.dtype.str, ids),
    ]
    if source.file.has_mask:
        files.append(_array(f"{source.name}_loss_mask.npy", "|u1", source.mask_segment()))
    return files


def _array(name: str, dtype: str, values: Segment) -> OutputFile:
    header = io.BytesIO()
    about = {"descr": dtype, "fortran_order": False, "shape": (values.n_values,)}
    npy.write_array_header_1_0(header, about)
    return OutputFile(name, (plain(header.getvalue()), values))

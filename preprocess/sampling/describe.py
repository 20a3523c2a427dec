"""Describe rows of a batch: the documents in them, their places in the dataset, ids and masks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from preprocess.dataset.places import source_of
from preprocess.dataset.reader import TokenFile, document_at, read_bounds
from preprocess.sampling.fields import Fields

ALL = slice(0, 1 << 62)


def describe_rows(
    file: TokenFile, fields: Fields, rows: Iterable[int], shown: slice = ALL
) -> Iterator[dict[str, Any]]:
    """Yield a description of some rows, for JSON.

    Args:
        file: The dataset.
        fields: Of the batch.
        rows: Numbers of rows in it.
        shown: Columns to describe.

    Yields:
        `row`; the `ids` of the inputs; `segments`, numbers of documents in the row, 0 for padding;
        `mask`, 1 where the target is trained on; `documents`: number, position in the dataset,
        source, and their tokens [`start`, `stop`) in the whole row.
    """
    pieces, length = fields.pieces.T, fields.inputs.shape[1]
    of_row = pieces[:, 3] // length
    for row in rows:
        inputs, segments, mask = fields.inputs, fields.segment_ids, fields.loss_mask
        yield {
            "row": row, "ids": inputs[row, shown].tolist(),
            "segments": segments[row, shown].tolist(), "mask": mask[row, shown].tolist(),
            "documents": _documents(file, pieces[of_row == row].tolist(), row * length, shown),
        }  # fmt: skip


def add_texts(
    file: TokenFile, rows: Iterable[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Add to each document of rows its `texts`, those of tokens with equal masks in a row.

    Each is a list, the mask and the text. Without a tokenizer nothing is added.
    """
    has_tokenizer = file.has_tokenizer
    for row in rows:
        for each in row["documents"] if has_tokenizer else ():
            places = groupby(range(each["start"], each["stop"]), row["mask"].__getitem__)
            each["texts"] = [
                [mask, file.decode([row["ids"][i] for i in run])] for mask, run in places
            ]
        yield row


def _documents(
    file: TokenFile, pieces: list[list[int]], place_of_row: int, shown: slice
) -> list[dict[str, Any]]:
    """Return the documents in the shown tokens of a row."""
    found = list[dict[str, Any]]()
    for begin, n_inputs, _, place, _ in pieces:
        to_row = place - place_of_row - begin  # from positions in the dataset
        token = max(begin, shown.start - to_row)
        while token < min(begin + n_inputs, shown.stop - to_row):
            number = document_at(file, token)
            bounds = read_bounds(file, number, number + 1).tolist()
            first, token = max(bounds[0], begin), min(bounds[1], begin + n_inputs)
            found.append({
                "document": number, "token": first, "start": first + to_row,
                "stop": token + to_row, "source": source_of(file, number),
            })  # fmt: skip
    return found

"""Describe rows of a batch: the documents in them, their places in the dataset, ids and masks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import numpy as np

from preprocess.dataset.places import Sources
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
    pieces, length, sources = fields.pieces.T, fields.inputs.shape[1], Sources(file)
    arrays = {"ids": fields.inputs, "segments": fields.segment_ids, "mask": fields.loss_mask}
    for row in rows:
        documents = list[dict[str, Any]]()
        for begin, n_inputs, _, place, _ in pieces[pieces[:, 3] // length == row].tolist():
            to_row = place - row * length - begin  # from positions in the dataset
            token, stop = max(begin, shown.start - to_row), begin + n_inputs
            while token < min(stop, shown.stop - to_row):
                number = document_at(file, token)
                (source,) = sources.describe(np.array([number]))
                start, end = read_bounds(file, number, number + 1).tolist()
                first, token = max(start, begin), min(end, stop)
                documents.append({
                    "document": number, "token": first, "start": first + to_row,
                    "stop": token + to_row, "source": source,
                })  # fmt: skip
        shown_arrays = {name: array[row, shown].tolist() for name, array in arrays.items()}
        yield {"row": row} | shown_arrays | {"documents": documents}


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

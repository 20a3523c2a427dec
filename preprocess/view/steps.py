"""Answers about training: the rows of a step, and the documents in each."""

from __future__ import annotations

import functools
from bisect import bisect_right
from typing import Any

import numpy as np

from preprocess.dataset.reader import TokenFile
from preprocess.sampling.describe import describe_rows
from preprocess.sampling.orders import permute
from preprocess.sampling.sampler import Sampler
from preprocess.view.library import Answer, ViewedDataset, ViewError
from preprocess.view.vocabulary import describe_tokens

ROWS, COLUMNS = 4, 500  # of one answer
_LARGEST, _MOST_ROWS = 1 << 24, 1 << 14  # tokens and rows of a batch, all of which is made
_EPOCHS = 64  # in which a token is looked for: each leaves out other windows than the one before


class _Sampler(Sampler):
    _keeps_plan = False  # nothing is written

    def find(self, token: int) -> tuple[int, int, int] | None:
        """Return the first step that has a token, its row and column there; None if none has."""
        pieces, numbers = self._windows.pieces, range(self.n_windows)
        number = bisect_right(numbers, token, key=lambda x: int(pieces(np.array([x]))[0, 0])) - 1
        start, n_inputs = pieces(np.array([max(number, 0)]))[:2, 0].tolist()
        for epoch in range(_EPOCHS if start <= token < start + n_inputs else 0):
            place = np.array([number])
            if self.layout["order"] == "epoch":
                place = permute(place, self.n_windows, self.layout["seed"], epoch, inverse=True)
            step, row = divmod(int(place[0]), self.layout["global_batch_size"])
            if step < len(self):
                return epoch * len(self) + step, row, token - start
        return None


@functools.lru_cache(4)
def _sampler(file: TokenFile, *sizes: int, **options: Any) -> _Sampler:
    return _Sampler(file, *sizes, fields=("inputs", "segment_ids", "loss_mask"), **options)


def step(
    dataset: ViewedDataset, step: int, batch_size: int, context_length: int, *, seed: int = 0,
    order: str = "epoch", windows: str = "stride", row: int = 0, column: int = 0,
) -> Answer:
    """Return rows of a training step, as `Sampler` with these options has them.

    Args:
        dataset: The dataset.
        step: The number of the step.
        batch_size: Of all ranks.
        context_length: Of the sampler.
        seed: Of the sampler.
        order: Of the sampler.
        windows: Of the sampler; of "packed" no plan is made.
        row: First row of the answer, which has `ROWS`.
        column: First token of them, of which it has `COLUMNS`.

    Returns:
        `rows`, each with its tokens, `segments` (numbers of documents in the row, 0 for padding),
        `mask`, and `documents` that it shows, as of `describe_rows`.

    Raises:
        ViewError: The batch is too large, or there is no such row or column.
        SamplingError: An option has a value that cannot work.
    """
    if batch_size > _MOST_ROWS or batch_size * context_length > _LARGEST:
        raise ViewError(
            f"a batch of {batch_size:,} rows of {context_length:,} tokens is too large to be shown;"
            f" choose at most {_MOST_ROWS:,} rows and {_LARGEST:,} tokens"
        )
    options = {"seed": seed, "order": order, "windows": windows}
    sampler = _sampler(dataset.file, batch_size, context_length, **options)
    fields = sampler.fields_of(step)
    n_rows = len(fields.inputs)
    if not (0 <= row < n_rows and 0 <= column < context_length):
        raise ViewError(
            f"step {step:,} has {n_rows:,} rows of {context_length:,} tokens; row {row:,} and"
            f" column {column:,} are not among them"
        )
    stop = min(row + ROWS, n_rows)
    shown = slice(column, column + COLUMNS)
    rows = [
        each | describe_tokens(each["ids"], dataset.tokenizer)
        for each in describe_rows(dataset.file, fields, range(row, stop), shown)
    ]
    given = "".join(f", {name}={value!r}" for name, value in options.items())
    code = (
        f"{dataset.open_in_python()}sampler = Sampler(\n    file, {batch_size}, {context_length}"
        f"{given},\n    fields=('inputs', 'segment_ids', 'loss_mask'),\n)\n"
        f"batch = sampler.batch({step})\n"
    ).replace("import open_tokens", "import Sampler, open_tokens")
    return {
        "dataset": dataset.name, "step": step, "n_rows": n_rows, "context_length": context_length,
        "n_steps": None if order == "random" else len(sampler), "row": row, "column": column,
        "rows": rows, "python": code,
    }  # fmt: skip


def step_with(
    dataset: ViewedDataset, token: int, batch_size: int, context_length: int, *, seed: int = 0,
    order: str = "epoch", windows: str = "stride",
) -> Answer:
    """Return rows of the first training step that has the token at a position, as `step` does.

    Raises:
        ViewError: No step has it, or it cannot be known which.
        SamplingError: An option has a value that cannot work.
    """
    options: dict[str, Any] = {"seed": seed, "order": order, "windows": windows}
    if order == "random" or windows == "packed":
        raise ViewError(
            f"the step of a token is not known with order {order!r} and windows {windows!r}; choose"
            " another order than 'random', and other windows than 'packed'"
        )
    found = _sampler(dataset.file, batch_size, context_length, **options).find(token)
    if found is None:
        raise ViewError(
            f"token {token:,} is an input of no row: the last window and the last batch are left"
            " out unless they are full, and documents without a target are, too"
        )
    number, row, column = found
    column -= column % COLUMNS
    return step(dataset, number, batch_size, context_length, row=row, column=column, **options)

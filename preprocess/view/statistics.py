"""One pass over a dataset, on a thread of its own: how often ids occur, unusual documents.

Memory is that of the vocabulary and a block. Answers say how far the pass is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bpe.errors import TokenmillError
from bpe.parallel import Task, start_thread
from preprocess.dataset.reader import read_bounds, read_ids
from preprocess.view.documents import ViewedDataset, document_at
from preprocess.view.vocabulary import Answer

_BLOCK = 1 << 20
_KEPT = 50  # documents of each kind
MIN_TOKENS = 16  # ordinary tokens of a document whose bytes per token are compared


class Extremes:
    """The documents of the highest values, of equal ones the first."""

    def __init__(self) -> None:
        self.values, self.rows = np.empty(0), np.empty((0, 3), np.int64)

    def add(self, values: NDArray[np.float64], rows: NDArray[np.int64]) -> None:
        """Add documents: float64[n], and int64[n, 3] of (number, ordinary tokens, bytes)."""
        if len(self.values) == _KEPT:
            rows, values = rows[values > self.values[-1]], values[values > self.values[-1]]
        values, rows = np.append(self.values, values), np.concatenate([self.rows, rows])
        kept = np.argsort(-values, kind="stable")[:_KEPT]
        self.values, self.rows = values[kept], rows[kept]

    def answer(self) -> list[Answer]:
        """List the documents."""
        return [
            {"document": number, "tokens": n_tokens, "bytes": n_bytes}
            for number, n_tokens, n_bytes in self.rows.tolist()
        ]


class Statistics:
    """Numbers of a dataset; special tokens count neither as tokens nor as bytes of a document.

    Attributes:
        counts: How often each id occurs, int64[vocab_size].
        done: Number of tokens that are counted.
        longest: Documents of most tokens.
        worst: Documents of `MIN_TOKENS` tokens with the fewest bytes per token.
        error: Why the pass stopped, "" if it did not.
    """

    def __init__(self, viewed: ViewedDataset) -> None:
        file, tokenizer = viewed.file, viewed.tokenizer
        size = file.vocab_size if tokenizer is None else tokenizer.tokenizer.vocab_size
        self.counts, self.done, self.error = np.zeros(max(size, file.vocab_size), np.int64), 0, ""
        self.longest, self.worst = Extremes(), Extremes()
        self._viewed, self._lengths = viewed, np.zeros_like(self.counts)
        self._ordinary = np.ones_like(self.counts)
        self._task, self._is_started = Task(self._run_noting_errors), False
        if tokenizer is not None:
            self._lengths[: len(tokenizer.lengths)] = tokenizer.lengths
            special = [*tokenizer.special_ids]
            self._lengths[special] = self._ordinary[special] = 0

    def start(self) -> None:
        """Begin the pass on another thread, unless it was begun."""
        if not self._is_started:
            self._is_started = True
            start_thread(self._task.run)

    def _run_noting_errors(self) -> None:
        try:
            self.run()
        except (TokenmillError, OSError, MemoryError) as error:
            self.error = f"{type(error).__name__}: {error}"

    def run(self) -> None:
        """Make the pass."""
        file, n_documents = self._viewed.file, 0
        carried = np.zeros(2, np.int64)  # ordinary tokens and bytes of the document that is open
        for start in range(0, file.n_tokens, _BLOCK):
            ids = read_ids(file, start, min(start + _BLOCK, file.n_tokens))
            self.counts += np.bincount(ids, minlength=len(self.counts))
            stop = start + len(ids)
            n_ended = file.n_documents if stop == file.n_tokens else document_at(file, stop)
            sums = np.zeros((len(ids) + 1, 2), np.int64)
            np.cumsum(self._ordinary[ids], out=sums[1:, 0])
            np.cumsum(self._lengths[ids], out=sums[1:, 1])
            ends = read_bounds(file, n_documents, n_ended)[1:] - start
            sizes = np.diff(sums[ends], axis=0, prepend=-carried[np.newaxis])
            carried = sums[-1] - sums[ends[-1]] if len(ends) else carried + sums[-1]
            self._add(np.column_stack([np.arange(n_documents, n_ended), sizes]))
            n_documents, self.done = n_ended, stop

    def _add(self, rows: NDArray[np.int64]) -> None:
        """Add documents that end in a block, rows as of `Extremes.add`."""
        self.longest.add(rows[:, 1].astype(np.float64), rows)
        compared = rows[rows[:, 1] >= MIN_TOKENS] if self._viewed.tokenizer else rows[:0]
        self.worst.add(-compared[:, 2] / compared[:, 1], compared)

    def answer(self) -> Answer:
        """Describe what is known so far."""
        return {
            "done": self.done, "total": self._viewed.file.n_tokens, "error": self.error,
            "unused": int(np.count_nonzero(self.counts == 0)),
            "longest": self.longest.answer(), "worst": self.worst.answer(),
        }

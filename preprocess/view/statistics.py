"""The pass over a dataset on a thread of its own: unusual documents, and how far it is."""

from __future__ import annotations

import numpy as np

from bpe.parallel import Task, start_thread
from preprocess.check.scan import KEPT, Numbers, Scan, spans_of_documents
from preprocess.view.documents import ViewedDataset
from preprocess.view.vocabulary import Answer


class Statistics:
    """Numbers of a dataset; special tokens count neither as tokens nor as bytes of a document.

    Attributes:
        scanned: The pass.
    """

    def __init__(self, viewed: ViewedDataset) -> None:
        self._viewed, self._is_started = viewed, False
        self.scanned = Scan(viewed.file, _sizes_of(viewed), repeats=True)
        self._task = Task(lambda: _list_copies(self.scanned.run()))

    def start(self) -> None:
        """Begin the pass on another thread, unless it was begun."""
        if not self._is_started:
            self._is_started = True
            start_thread(self._task.run)

    def wait(self) -> None:
        """Wait until the pass is over, or has failed; make it unless it was begun."""
        self._task.wait()

    @property
    def error(self) -> str:
        """Why the pass stopped, "" if it did not."""
        error = self._task.error
        return "" if error is None else f"{type(error).__name__}: {error}"

    def progress(self) -> Answer:
        """Describe how far the pass is."""
        is_over, total = self._task.is_done, self._viewed.file.n_tokens
        return {"done": self.scanned.done, "total": total, "over": is_over, "error": self.error}

    def answer(self) -> Answer:
        """Describe what is known so far: documents with copies when the pass is over."""
        scanned, progress = self.scanned, self.progress()
        is_whole = progress["over"] and not progress["error"]
        lists = {
            name: [
                {"document": number, "tokens": n_tokens, "bytes": n_bytes, "repeats": n_repeats}
                for number, n_tokens, n_bytes, n_repeats in extremes.rows.tolist()
            ]
            for name, extremes in (
                ("longest", scanned.longest), ("worst", scanned.worst),
                ("repetitive", scanned.repetitive),
            )
        }  # fmt: skip
        unused = int(np.count_nonzero(scanned.counts == 0))
        copies = self._task.result() if is_whole else []
        return progress | lists | {"unused": unused, "copies": copies}


def _sizes_of(viewed: ViewedDataset) -> Numbers | None:
    """Return the sizes of ids, see `Scan`."""
    tokenizer = viewed.tokenizer
    if tokenizer is None:
        return None
    sizes = np.zeros(max(tokenizer.tokenizer.vocab_size, viewed.file.vocab_size), np.int64)
    sizes[: len(tokenizer.lengths)] = tokenizer.lengths
    sizes[[*tokenizer.special_ids]] = -1
    return sizes


def _list_copies(scanned: Scan) -> list[Answer]:
    """List the documents that have most copies, of each the number and the first three."""
    copies, firsts = scanned.copies
    numbers, counts = np.unique(firsts, return_counts=True)
    kept = np.argsort(-counts, kind="stable")[:KEPT]
    lengths = spans_of_documents(scanned.file, numbers[kept])[1]
    return [
        {"document": number, "tokens": length, "copies": count,
         "others": np.sort(copies[firsts == number])[:3].tolist()}
        for number, length, count in np.stack([numbers[kept], lengths, counts[kept]], 1).tolist()
    ]  # fmt: skip

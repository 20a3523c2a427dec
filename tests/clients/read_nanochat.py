"""nanochat: the two loops of its dataloaders, over our documents instead of text to encode."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from answer import answer


def documents_of(out: Path) -> list[list[int]]:
    """Documents, as nanochat's tokenizer returns those of a batch of text."""
    ids = np.load(out / "train.npy", mmap_mode="r")
    ends = np.load(out / "train_document_ends.npy")
    return [document.tolist() for document in np.split(ids, ends[:-1])]


def stream(
    documents: Iterator[list[int]], batch_size: int, length: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The first loader: documents one after another, cut into batches."""
    buffer: deque[int] = deque()
    while True:
        while len(buffer) < batch_size * length + 1:
            try:
                buffer.extend(next(documents))
            except StopIteration:
                return
        taken = torch.tensor([buffer.popleft() for _ in range(batch_size * length + 1)])
        yield taken[:-1].view(batch_size, length), taken[1:].view(batch_size, length)


def best_fit(
    documents: Iterator[list[int]], length: int, buffer_size: int
) -> Iterator[torch.Tensor]:
    """The present loader: rows that begin with a document and have the largest ones that fit."""
    buffer: list[list[int]] = []
    while True:
        row: list[int] = []
        while (room := length + 1 - len(row)) > 0:
            while len(buffer) < buffer_size:
                try:
                    buffer.append(next(documents))
                except StopIteration:
                    return
            fitting = [i for i, document in enumerate(buffer) if len(document) <= room]
            if fitting:
                row += buffer.pop(max(fitting, key=lambda i: len(buffer[i])))
            else:
                shortest = min(range(len(buffer)), key=lambda i: len(buffer[i]))
                row += buffer.pop(shortest)[:room]
        yield torch.tensor(row)


def read(out: Path, length: int, batch_size: int, buffer_size: int) -> dict[str, Any]:
    documents = documents_of(out)
    batches = list(stream(iter(documents), batch_size, length))
    rows = list(best_fit(iter(documents), length, buffer_size))
    return {
        "documents": documents,
        "inputs": [inputs.tolist() for inputs, _ in batches],
        "targets": [targets.tolist() for _, targets in batches],
        "rows": [row.tolist() for row in rows],
    }


if __name__ == "__main__":
    answer(read)

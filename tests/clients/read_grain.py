"""grain: a `MapDataset` of documents, and one of windows, batched and shuffled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grain
import numpy as np
from answer import answer


class Documents:
    def __init__(self, out: Path) -> None:
        files = {"ids": out / "train.npy", "mask": out / "train_loss_mask.npy"}
        self.columns = {k: np.load(v, mmap_mode="r") for k, v in files.items() if v.exists()}
        self.ends = np.load(out / "train_document_ends.npy")

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, i: int) -> dict[str, np.ndarray]:
        part = slice(self.ends[i - 1] if i else 0, self.ends[i])
        return {name: np.array(values[part]) for name, values in self.columns.items()}


class Windows:
    def __init__(self, out: Path, length: int) -> None:
        self.ids = np.load(out / "train.npy", mmap_mode="r")
        self.length = length

    def __len__(self) -> int:
        return (len(self.ids) - 1) // self.length

    def __getitem__(self, i: int) -> dict[str, np.ndarray]:
        window = self.ids[i * self.length : (i + 1) * self.length + 1].astype(np.int64)
        return {"inputs": window[:-1], "targets": window[1:]}


def lists_of(document: dict[str, np.ndarray]) -> dict[str, list[int]]:
    return {name: values.tolist() for name, values in document.items()}


def read(out: Path, length: int) -> dict[str, Any]:
    documents = grain.MapDataset.source(Documents(out))
    shuffled = documents.shuffle(seed=0)
    windows = grain.MapDataset.source(Windows(out, length)).batch(2)
    batches = list(windows.to_iter_dataset())
    return {
        "documents": [lists_of(document) for document in documents],
        "shuffled": [lists_of(document) for document in shuffled],
        "inputs": [row.tolist() for batch in batches for row in batch["inputs"]],
        "targets": [row.tolist() for batch in batches for row in batch["targets"]],
    }


if __name__ == "__main__":
    answer(read)

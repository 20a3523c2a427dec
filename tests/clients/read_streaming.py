"""MosaicML Streaming: `StreamingDataset`, in order and shuffled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from answer import answer
from streaming import StreamingDataset


def documents_of(dataset: StreamingDataset) -> list[dict[str, list[int]]]:
    """All columns of all samples, as the dataset yields them."""
    return [{name: values.tolist() for name, values in sample.items()} for sample in dataset]


def read(out: Path) -> dict[str, Any]:
    dataset = StreamingDataset(local=str(out), split="train", batch_size=1)
    first = dataset[0]["tokens"]
    return {
        "first": first.tolist(),
        "dtype": str(first.dtype),
        "at": [dataset[i]["tokens"].tolist() for i in range(len(dataset))],
        "in_order": documents_of(dataset),
        "shuffled": documents_of(
            StreamingDataset(local=str(out), split="train", batch_size=1, shuffle=True)
        ),
    }


if __name__ == "__main__":
    answer(read)

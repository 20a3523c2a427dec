"""datatrove: `DatatroveFolderDataset`, with the positions of tokens in their documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from answer import answer
from datatrove.utils.dataset import DatatroveFolderDataset


def read(out: Path, length: int, token_size: int) -> dict[str, Any]:
    dataset = DatatroveFolderDataset(
        str(out), seq_len=length, token_size=token_size, return_positions=True
    )
    windows = [dataset[i] for i in range(len(dataset))]
    return {
        "windows": [window["input_ids"].tolist() for window in windows],
        "positions": [window["positions"].tolist() for window in windows],
    }


if __name__ == "__main__":
    answer(read)

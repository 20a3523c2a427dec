"""OLMo-core: its numpy datasets, of fixed windows and of one instance per document.

They map raw ids, so they read the `.bin` and `.mask` that tokenmill writes; there is no export.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from answer import answer
from olmo_core.data import NumpyFSLDataset, NumpyPaddedFSLDataset


def read(out: Path, length: int, dtype: str, vocab_size: int, end_id: int) -> dict[str, Any]:
    options: dict[str, Any] = {
        "dtype": getattr(np, dtype),
        "vocab_size": vocab_size,
        "eos_token_id": end_id,
        "pad_token_id": end_id,
    }
    paths = sorted(out.glob("train*.bin"))
    masks = sorted(out.glob("train*.mask")) or None
    dataset = NumpyFSLDataset(
        *paths, label_mask_paths=masks, sequence_length=length, generate_doc_lengths=True, **options
    )
    dataset.prepare()
    windows = [dataset[i] for i in range(len(dataset))]

    padded = NumpyPaddedFSLDataset(*paths, label_mask_paths=masks, sequence_length=4096, **options)
    padded.work_dir = out / "olmo"
    padded.prepare()
    documents = [padded[i] for i in range(len(padded))]
    return {
        "windows": [window["input_ids"].tolist() for window in windows],
        "masks": [window["label_mask"].tolist() for window in windows if masks],
        "lengths": [window["doc_lens"].tolist() for window in windows],
        "documents": [document["input_ids"].tolist() for document in documents],
        "document_masks": [document["label_mask"].tolist() for document in documents],
    }


if __name__ == "__main__":
    answer(read)

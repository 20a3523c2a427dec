"""litdata: `StreamingDataset` with a `TokensLoader`, and one item per document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from answer import answer
from litdata import StreamingDataLoader, StreamingDataset, TokensLoader


def read(out: Path, length: int) -> dict[str, Any]:
    dataset = StreamingDataset(f"{out}/train", item_loader=TokensLoader(block_size=length + 1))
    blocks = [dataset[i] for i in range(len(dataset))]
    batches = StreamingDataLoader(dataset, batch_size=1, num_workers=0)
    return {
        "blocks": [block.tolist() for block in blocks],
        "batches": [block.tolist() for batch in batches for block in batch],
        "dtype": str(blocks[0].dtype),
    }


if __name__ == "__main__":
    answer(read)

"""nanoGPT: the loop of its `train.py`, which draws windows at random from a memory map."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from answer import answer


def read(out: Path, length: int) -> dict[str, Any]:
    torch.manual_seed(1337)
    data = np.memmap(out / "train.bin", dtype=np.uint16, mode="r")
    starts = torch.randint(len(data) - length, (16,))
    x = torch.stack([torch.from_numpy(data[i : i + length].astype(np.int64)) for i in starts])
    y = torch.stack(
        [torch.from_numpy(data[i + 1 : i + 1 + length].astype(np.int64)) for i in starts]
    )
    return {"starts": starts.tolist(), "inputs": x.tolist(), "targets": y.tolist()}


if __name__ == "__main__":
    answer(read)

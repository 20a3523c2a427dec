"""JAX: windows gathered on the device, from ids that were put there once."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from answer import answer


@partial(jax.jit, static_argnames=("batch_size", "length"))
def get_batch(
    key: jax.Array, ids: jax.Array, batch_size: int, length: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    starts = jax.random.randint(key, (batch_size,), 0, len(ids) - length)
    windows = ids[starts[:, None] + jnp.arange(length + 1)].astype(jnp.int32)
    return windows[:, :-1], windows[:, 1:], starts


def read(out: Path, length: int) -> dict[str, Any]:
    ids = jnp.asarray(np.load(out / "train.npy", mmap_mode="r"))
    mask = out / "train_loss_mask.npy"
    ends = np.load(out / "train_document_ends.npy")
    inputs, targets, starts = get_batch(jax.random.key(0), ids, 16, length)
    return {
        "ids": ids.tolist(),
        "dtype": str(ids.dtype),
        "mask": jnp.asarray(np.load(mask)).tolist() if mask.exists() else [],
        "documents": [part.tolist() for part in jnp.split(ids, ends[:-1])],
        "inputs": inputs.tolist(),
        "targets": targets.tolist(),
        "starts": starts.tolist(),
    }


if __name__ == "__main__":
    answer(read)

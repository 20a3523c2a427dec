"""The fields of batches, token by token."""

from __future__ import annotations

from typing import Any

import numpy as np


def expected_fields(batch: dict[str, Any], end: int) -> dict[str, list[int]]:
    """Return the fields that depend on documents, computed in Python from inputs and mask."""
    inputs, mask = batch["inputs"], batch["attention_mask"]
    n_inputs = mask.sum(axis=1).tolist()
    length = inputs.shape[1]
    assert mask.tolist() == [[1] * n + [0] * (length - n) for n in n_inputs]
    segments, positions, begins = [], [], []
    for number, (row, n) in enumerate(zip(inputs.tolist(), n_inputs, strict=True)):
        segment, position = 1, 0
        for place, token in enumerate(row):
            if place == n or (place < n and position == 0):
                begins.append(number * length + place)
            segments.append(segment if place < n else 0)
            positions.append(position if place < n else 0)
            position += 1
            if token == end:
                segment, position = segment + 1, 0
    return {
        "segment_ids": segments, "position_ids": positions, "cu_seqlens": [*begins, inputs.size],
        "loss_mask": (batch["targets"] != -100).astype(int).ravel().tolist(),
    }


def check_fields(batch: dict[str, Any], end: int) -> int:
    """Check the fields of a batch; return how many inputs are no padding."""
    for name, values in expected_fields(batch, end).items():
        assert batch[name].ravel().tolist() == values, name
    assert batch["cu_seqlens"].dtype == np.int32
    return int(batch["attention_mask"].sum())

"""Tasks and merges that are killed at any call that changes the disk, and run again."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torture
from run_cases import contents

from preprocess import build, merge_parts
from preprocess.pipeline import train


@pytest.fixture
def task(corpus: Path, tmp_path: Path, options: dict[str, Any]) -> dict[str, Any]:
    train(paths=corpus, out=tmp_path / "tokenizer.json", vocab_size=280)
    del options["vocab_size"]
    return options | {"tokenizer": tmp_path / "tokenizer.json", "task_count": 2}


def test_a_task_and_a_merge_that_are_killed_at_every_call(
    task: dict[str, Any], tmp_path: Path
) -> None:
    for index in (0, 1):
        build(**task | {"task_index": index, "out": tmp_path / "peace"})
    merge_parts(tmp_path / "peace")
    expected = contents(tmp_path / "peace")
    build(**task | {"task_index": 1})

    # Each run is killed one call later than the one before, and what it left is gone on with.
    at, kills = 1, 0
    run = partial(build, **task, task_index=0)
    while (code := torture.in_a_child(run, at, None)) == -signal.SIGKILL:
        at, kills = at + 3, kills + 1
    assert code == 0
    assert kills > 5
    for at in range(1, 200, 2):
        code = torture.in_a_child(partial(merge_parts, task["out"]), at, None)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        assert torture.in_a_child(partial(merge_parts, task["out"]), 0, None) == 0
        assert contents(task["out"]) == expected
        for name in ("train.json", "val.json", "stats.json"):
            (task["out"] / name).unlink()
    assert at > 5
    assert contents(task["out"]) == expected

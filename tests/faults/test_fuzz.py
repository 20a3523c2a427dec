"""A little of tests/support/fuzz.py: damaged and hostile files, read or refused."""

from __future__ import annotations

import fuzz
import pytest


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> fuzz.Ground:
    return fuzz.Ground(tmp_path_factory.mktemp("fuzz"))


@pytest.mark.parametrize("target", fuzz.TARGETS)
def test_what_is_damaged_is_read_or_refused(ground: fuzz.Ground, target: str) -> None:
    n = 200 if target == "tokenizer.json" else 20
    assert fuzz.run(target, ground, n, 0) >= 3 * n // 4


def test_unfinished_runs_are_of_every_stage(ground: fuzz.Ground) -> None:
    kinds = [
        {entry["key"] for entry, _, _ in fuzz.read_entries(work["journal.jsonl"], "journal")}
        for work in ground.unfinished
    ]
    assert len(kinds) > 2
    assert set.union(*kinds) >= {"begun", "counted", "trained", "encoded 0"}
    assert not kinds[0] & {"trained"}

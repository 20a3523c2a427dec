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


def test_a_failure_is_found_and_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(data: fuzz.st.DataObject, ground: fuzz.Ground) -> None:
        assert len(data.draw(fuzz.st.binary(max_size=3))) < 3

    monkeypatch.setattr(fuzz, "TARGETS", {"failing": failing})
    monkeypatch.setattr(fuzz, "Ground", lambda root: None)
    assert fuzz.main(["--minutes", "0"]) == 1
    said = capsys.readouterr().out
    assert "--- failing, seed 1 ---" in said
    assert ": 1 failures (seeds 1 to 1)" in said


def test_unfinished_runs_are_of_every_stage(ground: fuzz.Ground) -> None:
    kinds = [
        {entry["key"] for entry, _, _ in fuzz.read_entries(work["journal.jsonl"], "journal")}
        for work in ground.unfinished
    ]
    assert len(kinds) > 2
    assert set.union(*kinds) >= {"begun", "counted", "trained", "encoded 0"}
    assert not kinds[0] & {"trained"}

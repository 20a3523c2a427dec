"""A limit of memory changes no byte, and what cannot be done within it is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import processes
import pytest
import torture

from bpe.train.counts import FrozenCounts
from preprocess import build
from preprocess.options import BuildSettings, EncodeSettings
from preprocess.run import memory_limit as memory
from preprocess.run.memory_limit import MemoryLimitError, fit_to_memory
from preprocess.settings import SettingsError

END = "<|endoftext|>"


@pytest.fixture
def options(tmp_path: Path, often: None) -> dict[str, Any]:
    """Of a build that saves counts after every unit."""
    (tmp_path / "text").write_text(
        END.join(f"document {i} of many, {i * i} words: {'naïve ' * (i % 5)}" for i in range(160))
    )
    return {"train": tmp_path / "text", "vocab_size": 290, "unit_size": 400}


def test_counts_that_contradict_one_another_are_refused() -> None:
    with pytest.raises(ValueError, match="contradict one another"):
        FrozenCounts("gpt2", (), np.zeros(3, np.uint8), np.array([0, 2]), np.array([1]))


def encoding(limit: str, **more: Any) -> EncodeSettings:
    values = {"paths": "x", "tokenizer": "t", "memory_limit": limit, "workers": 8}
    return fit_to_memory(EncodeSettings(**values | more))


def test_a_limit_that_is_too_small_is_refused_with_the_least() -> None:
    with pytest.raises(SettingsError, match=r"300MB is below the minimum .* 406MB or more"):
        encoding("300MB")
    assert encoding("406MB").workers == 1
    with pytest.raises(SettingsError, match="memory_limit: should be a number of bytes"):
        encoding("much")
    large = BuildSettings(**{"vocab_size": 10**6, "memory_limit": "1GB"})
    with pytest.raises(SettingsError, match="set it to 1406MB or more"):
        fit_to_memory(large)
    # With a tokenizer that is there, none is trained.
    given = BuildSettings(**{"vocab_size": 10**6, "tokenizer": "t", "memory_limit": "406MB"})
    assert fit_to_memory(given).workers == 1


def test_merging_that_does_not_fit_is_refused_and_counts_are_kept(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(out=tmp_path / "whole", **options)
    with monkeypatch.context() as patch:
        patch.setattr(memory, "_BASE", 0)
        patch.setattr(memory, "_CACHE", 0)
        patch.setattr(memory, "_OF_WORKER", 0)
        with pytest.raises(MemoryLimitError, match=r"merging \d+ different .* memory_limit 51MB"):
            build(out=tmp_path / "out", memory_limit="40MB", **options)
    names = {path.name for path in (tmp_path / "out" / ".build.partial").iterdir()}
    assert names == {"journal.jsonl", "counts-all"}
    result = build(out=tmp_path / "out", memory_limit="1GB", **options)
    assert result.stats["stages"][0]["name"] == "counting"
    assert torture.contents(tmp_path / "out") == torture.contents(tmp_path / "whole")


def test_a_run_keeps_to_its_limit(tmp_path: Path) -> None:
    """In a process of its own, so that nothing of the other tests is in its memory."""
    chosen = np.random.default_rng(0)
    words = chosen.integers(ord("a"), ord("z") + 1, (400_000, 9)).astype(np.uint8)
    words[:, 8] = ord(" ")
    (tmp_path / "text").write_bytes(words.tobytes())
    code = (
        "from preprocess import build; from preprocess.report.progress import Progress\n"
        "p = Progress()\n"
        f"build(train={str(tmp_path / 'text')!r}, out={str(tmp_path / 'out')!r}, progress=p,"
        " vocab_size=300, val_fraction=0, memory_limit='450MB')\n"
        "assert 50e6 < p.peak_memory <= 450e6, p.peak_memory"
    )
    processes.run("-c", code)


_PEAKS = """
import json, sys, tracemalloc
from contextlib import contextmanager
from preprocess import build, reused_memory
from preprocess.report.progress import Progress

# Memory that is mapped is not traced.
reused_memory._mapped = bytearray
peaks = {}

class Peaks(Progress):
    @contextmanager
    def stage(self, name, *others, **more):
        with super().stage(name, *others, **more) as stage:
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            yield stage
            peaks[name.split()[0]] = tracemalloc.get_traced_memory()[1] - before

settings = json.loads(sys.argv[1])
# Kernels are compiled, or read from their cache.
build(train="small", out="first", **settings)
tracemalloc.start()
build(train="large", out="second", progress=Peaks(), **settings)
print(json.dumps(peaks))
"""


def test_short_documents_take_no_more_than_is_reckoned_with(tmp_path: Path) -> None:
    """In a process of their own: at most what is reckoned with, and no far cry from it."""
    workers, unit_size = 1, 150_000
    n_units = 2 * workers + 3
    letters = b"\xff\n<a>\n<b>\n" + b"".join(b"%c\n" % letter for letter in range(33, 127))
    (tmp_path / "small").write_bytes(letters * 20)
    (tmp_path / "large").write_bytes(letters * (n_units * unit_size // len(letters)))
    settings = {
        "vocab_size": 300,
        "separator": "\n",
        "workers": workers,
        "unit_size": unit_size,
        "on_invalid_utf8": "replace",
        "val_fraction": 0.1,
        "special_tokens": ["<a>", "<b>"],
        "begin_of_text": "<s>",
    }
    peaks = json.loads(processes.run("-c", _PEAKS, json.dumps(settings), cwd=tmp_path).stdout)
    reckoned = workers * memory._OF_UNIT_BYTE * unit_size
    assert 0.2 * reckoned < peaks["counting"] <= reckoned
    assert 0.4 * reckoned < peaks["encoding"] <= reckoned

"""Work that moves: counting and encoding in other processes, by an executor of a few lines."""

from __future__ import annotations

import multiprocessing
import pickle
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from bpe import Tokenizer
from preprocess.documents.batch import ReadOptions
from preprocess.report.progress import Progress
from preprocess.report.summary import LeftOut, Report
from preprocess.run.count_pass import train_tokenizer
from preprocess.run.encode_pass import EncodePass
from preprocess.run.encoding import SpecialIds
from preprocess.run.journal import Journal
from preprocess.run.sinks import TokenFiles
from preprocess.run.units import Executor, run_on_threads
from preprocess.settings.options import convert
from preprocess.settings.schema import BuildSettings
from preprocess.sources import Source, find_sources
from preprocess.storage import LocalStorage


@cache
def worker(make_work: bytes) -> Callable[[Any], Any]:
    return pickle.loads(make_work)()


def work(make_work: bytes, unit: Any) -> Any:
    return worker(make_work)(unit)


class Processes:
    """Runs work in other processes that start from nothing."""

    def __init__(self, workers: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pool = ProcessPoolExecutor(workers, mp_context=context)
        self.n_units = 0

    def __call__(
        self, units: Iterable[Any], make_work: Callable[[], Any], workers: int
    ) -> Generator[Any, None, None]:
        pickled, under_way = pickle.dumps(make_work), deque[Future[Any]]()
        for unit in units:
            self.n_units += 1
            under_way.append(self.pool.submit(work, pickled, unit))
            if len(under_way) > 2 * workers:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    executor = Processes(2)
    with executor.pool:
        yield executor


@pytest.mark.parametrize("on_invalid_utf8", ["replace", "skip"])
def test_processes_give_the_bytes_of_threads(
    processes: Processes, tmp_path: Path, on_invalid_utf8: Any
) -> None:
    documents = [
        f"Document {i} of many, 日本語, {i * i} words.\n".encode() * (i % 60) for i in range(99)
    ]
    documents[7] = b"not UTF-8: \xff"
    (tmp_path / "text.txt").write_bytes(b"<|endoftext|>".join(documents))
    given = {"train": tmp_path / "text.txt", "vocab_size": 300, "workers": 2}
    settings = convert(given, BuildSettings)
    choices = {"on_invalid_utf8": on_invalid_utf8, "validation_fraction": 0.3}
    sources: list[Source] = find_sources(
        [tmp_path / "text.txt"], ReadOptions(unit_size=2000, **choices)
    )

    def built(name: str, executor: Executor) -> dict[str, bytes]:
        with LocalStorage(tmp_path / name, "run") as storage, Journal(storage) as journal:
            left_out, progress = LeftOut(), Progress()
            tokenizer: Tokenizer = train_tokenizer(
                sources, settings, journal, progress, left_out, executor
            )
            ids, report = SpecialIds.of(tokenizer, settings), Report()
            encoding = EncodePass(
                0, sources, tokenizer, ids, 2, report, progress, journal, executor
            )
            encoding.fill({"train": "train", "val": "val"}, TokenFiles(storage, 300))
            assert report.left_out == left_out
        tokenizer.save(tmp_path / name / ".run.partial" / "tokenizer.json")
        return {
            # Pre-tokens are in no particular order.
            path.name: path.read_bytes()
            for path in (tmp_path / name / ".run.partial").iterdir()
            if not path.name.startswith(("counts-", "journal"))
        }

    here = built("threads", run_on_threads)
    before = processes.n_units
    there = built("processes", processes)
    assert processes.n_units - before > 60
    assert there == here
    assert {"train.bin", "val.bin", "train.json", "tokenizer.json"} <= here.keys()

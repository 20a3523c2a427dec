"""Ours alone: scaling, growth, worst cases, where the time goes, instructions.

Law: what a study compares was measured in the same round; rounds alternate as those with peers do.
"""

from __future__ import annotations

import platform
import re
import shutil
import statistics
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.corpora import MB, WORST_BYTES, sized, worst_cases
from benchmarks.job import END_OF_TEXT, OURS, SIDES, Clock, Job, Result, installed, side
from benchmarks.rounds import Measured, MeasurementError, measure

GROWTH_BYTES = (10 * MB, 100 * MB, 1000 * MB)


@dataclass(frozen=True)
class Table:
    """What a study found: a title, the names of the columns, rows of text, and what it means."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str


def _spread(values: list[float], digits: int = 2) -> str:
    middle = statistics.median(values)
    return f"{middle:.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def _peak(measurements: list[Measured]) -> str:
    peaks = [max(measured.memory.values()) for measured in measurements if measured.memory]
    return f"{max(peaks) / MB:.0f}" if peaks else "not told by the system"


# --- two workers against one ---


@side("pure-compute", OURS, package="numba")
def pure_compute(job: Job, clock: Clock) -> Result:
    """What the machine gains by a second thread: arithmetic in registers, no lock, no memory."""
    import numba

    def compute(n: int) -> Any:
        x = np.uint64(1)
        for _ in range(n):
            x = x * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
        return x

    compute = numba.njit("uint64(uint64)", nogil=True)(compute)
    n, n_threads = 1 << 29, job.threads
    clock.time("one", lambda: [compute(n) for _ in range(n_threads)])
    with ThreadPoolExecutor(n_threads) as pool:
        list(pool.map(compute, [1] * n_threads))
        clock.time("all", lambda: list(pool.map(compute, [n] * n_threads)))
    return Result(0, None)


def scaling(job: Job, rounds: int) -> Table:
    """The whole way to a `.bin` with one worker and with all, beside pure compute."""
    big = replace(job, work="steady", corpus=sized(job.corpus, 1000 * MB, job.directory))
    gains, gains_after, limits = [], [], []
    for _ in range(rounds):
        one = measure(replace(big, threads=1))
        limit = measure(replace(job, work="pure-compute"))
        every = measure(big)
        if one.digest != every.digest:
            raise MeasurementError("one worker and several made different files")
        gains.append(one.seconds["build"] / every.seconds["build"])
        gains_after.append(_milliseconds_per_mb(one) / _milliseconds_per_mb(every))
        limits.append(limit.seconds["one"] / limit.seconds["all"])
    shares, shares_after = (
        [gain / limit for gain, limit in zip(some, limits, strict=True)]
        for some in (gains, gains_after)
    )
    return Table(
        f"{job.threads} workers against 1, file to .bin, 1 GB",
        ["", "gain", "gain of pure compute", "share of it"],
        [
            ["all", _spread(gains), _spread(limits), _spread(shares)],
            ["after the start", _spread(gains_after), _spread(limits), _spread(shares_after)],
        ],
        "Pure compute is a kernel in registers that holds no lock, in the same round. The start is"
        " the time for a text of a few bytes: tokenizer, tables, files.",
    )


# --- time per MB ---


def growth(job: Job, rounds: int) -> Table:
    """The time per MB at several sizes, the start left out."""
    jobs = [
        replace(job, work="steady", corpus=sized(job.corpus, n_bytes, job.directory))
        for n_bytes in GROWTH_BYTES
    ]
    taken = [[measure(one) for one in jobs] for _ in range(rounds)]
    rows = []
    for index, n_bytes in enumerate(GROWTH_BYTES):
        per_mb = [_milliseconds_per_mb(some[index]) for some in taken]
        ratios = [
            _milliseconds_per_mb(some[index]) / _milliseconds_per_mb(some[0]) for some in taken
        ]
        memory = _peak([some[index] for some in taken])
        rows.append([f"{n_bytes // MB:,}", _spread(per_mb), _spread(ratios), memory])
    return Table(
        "Time per MB, file to .bin",
        ["MB", "ms per MB", "times that of the smallest", "peak MB"],
        rows,
        "The time for a text of a few bytes is taken off: tokenizer, tables, files.",
    )


def _milliseconds_per_mb(measured: Measured) -> float:
    seconds = measured.seconds["build"] - measured.seconds["tiny"]
    return seconds / measured.n_bytes * MB * 1000


# --- worst cases ---


def worst(job: Job, rounds: int) -> Table:
    """Texts that bring tokenizers down, beside as much of the corpus."""
    usual = sized(job.corpus, WORST_BYTES, job.directory)
    rows = []
    for name, path in worst_cases(job.corpus, job.directory).items():
        row = [name]
        for work, figure in (("encode", "cold"), ("train", "train")):
            ours = replace(job, work=work)
            pairs = [
                (measure(replace(ours, corpus=usual)), measure(replace(ours, corpus=path)))
                for _ in range(rounds)
            ]
            ratios = [
                (b.seconds[figure] / b.n_bytes) / (a.seconds[figure] / a.n_bytes) for a, b in pairs
            ]
            row += [_spread(ratios), _peak([b for _, b in pairs])]
        rows.append(row)
    return Table(
        "Worst cases: time per MB, as times that of 10 MB of the corpus",
        ["text", "encode, cold", "peak MB", "train", "peak MB"],
        rows,
        "Each is one document.",
    )


# --- where the time goes ---


@side("breakdown", OURS, threads=1)
def measure_breakdown(job: Job, clock: Clock) -> Result:
    """The steps of the whole way one after the other, each over all of the text."""
    import xxhash

    from bpe import Tokenizer
    from bpe.split.pretokenizer import Pretokenizer
    from preprocess.dataset.columns import token_dtype
    from preprocess.dataset.writer import TokenFileWriter
    from preprocess.documents.batch import ReadOptions
    from preprocess.reused_memory import ReusedMemory
    from preprocess.sources import find_sources
    from preprocess.storage import LocalStorage

    tokenizer = Tokenizer.from_file(job.tokenizer)
    reading = ReadOptions(
        separator=END_OF_TEXT.encode(),
        unit_size=1 << 20,
        on_invalid_utf8="error",
        validation_fraction=0.0,
        safe_cut=tokenizer.safe_cut,
        atomic=tuple(token.encode() for token in tokenizer.atomic_texts),
    )
    units = [unit for source in find_sources([job.corpus], reading) for unit in source.units()]
    end_of_text = tokenizer.special_tokens[END_OF_TEXT]
    pretokenizer = Pretokenizer(job.pattern)
    dtype, memory = token_dtype(tokenizer.vocab_size), ReusedMemory(limit=256, largest=1 << 26)
    encoder = tokenizer.new_encoder(dtype)
    encoder.encode(np.frombuffer(b"text", np.uint8), np.array([[0, 4]]))

    batches = clock.time("read", lambda: [unit.read() for unit in units])
    xxh = xxhash.xxh3_128()

    def digest() -> None:
        for unit in units:
            xxh.update(unit.content().data)

    clock.time("digest", digest)
    clock.time(
        "split", lambda: [pretokenizer.boundaries(batch.buffer, batch.bounds) for batch in batches]
    )

    def encode() -> list[Any]:
        return [
            encoder.encode(
                batch.buffer,
                batch.bounds.reshape(-1, 2),
                suffix_id=end_of_text,
                starts_mid_document=batch.starts_mid_document,
                ends_mid_document=batch.ends_mid_document,
                memory=memory.array,
            )
            for batch in batches
        ]

    encoder = tokenizer.new_encoder(dtype)
    clock.time("cold", encode)
    encoded = clock.time("warm", encode)

    with LocalStorage(job.directory, "breakdown") as storage:
        writer = TokenFileWriter(storage, "breakdown", vocab_size=tokenizer.vocab_size)

        def write() -> None:
            for batch, (ids, offsets) in zip(batches, encoded, strict=True):
                writer.append(ids, offsets[1 : batch.n_ended + 1])

        clock.time("write", write)
        writer.close()
        storage.clear()
    return Result(job.corpus.stat().st_size, None)


def breakdown(job: Job, rounds: int) -> Table:
    """Read, split, look-up, miss, write, on one thread."""
    taken = [measure(replace(job, work="breakdown", threads=1)) for _ in range(rounds)]
    steps: dict[str, Callable[[dict[str, float]], float]] = {
        "read: find documents, check UTF-8": lambda s: s["read"],
        "digest of the text": lambda s: s["digest"],
        "split": lambda s: s["split"],
        "look-up: second pass, without split": lambda s: s["warm"] - s["split"],
        "miss: first pass, without the second": lambda s: s["cold"] - s["warm"],
        "write: check, digest, write": lambda s: s["write"],
    }
    totals = [sum(step(measured.seconds) for step in steps.values()) for measured in taken]
    rows = []
    for name, step in steps.items():
        per_mb = [step(measured.seconds) * 1000 * MB / measured.n_bytes for measured in taken]
        shares = [
            100 * step(measured.seconds) / total
            for measured, total in zip(taken, totals, strict=True)
        ]
        rows.append([name, _spread(per_mb, 3), f"{statistics.median(shares):.0f} %"])
    return Table(
        "Where the time goes, file to .bin, one thread",
        ["step", "ms per MB", "share"],
        rows,
        "Each step runs over the whole text before the next, so none finds it in a cache.",
    )


# --- instructions ---


_ALIKE_EACH_TIME = ["env", "PYTHONHASHSEED=0"]
if platform.machine() == "x86_64":
    # valgrind knows no AVX-512.
    _ALIKE_EACH_TIME += [
        "NUMBA_CPU_NAME=haswell",
        "NUMBA_CPU_FEATURES=+avx2,+bmi,+bmi2,+fma,+lzcnt,+popcnt,+sse4.2",
    ]


def _instructions_per_byte(job: Job) -> dict[str, float]:
    """Of each figure that a clock runs for."""
    # Kernels are compiled as fast as usual, and come from the cache then.
    measure(job, _ALIKE_EACH_TIME)
    told = job.directory / f"callgrind-{job.work}-{job.side}"
    # `Clock.time` calls it where it begins and where it ends.
    valgrind = ["valgrind", "--tool=callgrind", "--dump-before=getppid"]
    measured = measure(job, [*_ALIKE_EACH_TIME, *valgrind, f"--callgrind-out-file={told}"])
    # The first has what was before the first begin, the second what the first clock covers.
    dumps = sorted(told.parent.glob(f"{told.name}.*"), key=lambda path: int(path.suffix[1:]))
    found = {}
    for figure, dump in zip(measured.clocked, dumps[1::2], strict=True):
        counted = re.findall(r"^totals: (\d+)", dump.read_text(), re.MULTILINE)
        found[figure] = int(counted[0]) / measured.n_bytes
    return found


def instructions(job: Job, rounds: int) -> Table:
    """Instructions per byte of all that a clock covers, counted by valgrind.

    The same in every run, whatever else the machine does, so one round is enough.
    """
    columns = ["work", "figure", "instructions per byte", "gigatoken's"]
    title = "Instructions"
    if not shutil.which("valgrind"):
        none = ["none", "none", "not counted", "not counted"]
        return Table(title, columns, [none], "Install valgrind to count them.")
    corpus = sized(job.corpus, 2 * MB, job.directory)
    rows = []
    for work in ("split", "count", "encode-one-thread", "train"):
        of_work = replace(job, work=work, corpus=corpus)
        ours = _instructions_per_byte(of_work)
        peers: dict[str, float] = {}
        # Its training takes a quarter of an hour in valgrind.
        if work != "train" and "gigatoken" in SIDES[work] and installed("gigatoken") is not None:
            peers = _instructions_per_byte(replace(of_work, side="gigatoken"))
        for figure, value in ours.items():
            peer = f"{peers[figure]:.2f}" if figure in peers else "not counted"
            rows.append([work, figure, f"{value:.2f}", peer])
    return Table(
        title, columns, rows, "2 MB of text, all threads together; on x86-64 code for AVX2."
    )


STUDIES: dict[str, Callable[[Job, int], Table]] = {
    "scaling": scaling,
    "growth": growth,
    "worst": worst,
    "breakdown": breakdown,
    "instructions": instructions,
}

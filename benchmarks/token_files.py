"""From a text file to a `.bin`, and from either to the first batch, in a new process.

Law: the process is measured from its start to its end, imports and everything else included, so
that nothing is imported here that a side would not import itself. The `.bin` of both sides must be
the same bytes: the ids of each document, the end-of-text id behind it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from benchmarks.job import END_OF_TEXT, OURS, Clock, Job, Result, digest_of, side

_IDS_PER_WRITE = 1 << 22


def _build(job: Job, path: Path) -> None:
    from preprocess.pipeline import encode

    encode(
        paths=[job.corpus],
        tokenizer=job.tokenizer,
        out=path,
        workers=job.threads,
        overwrite=True,
    )


def new_directory(job: Job) -> Path:
    """Nothing is there that would have to be given back to the system first."""
    directory = job.directory / f"{job.side}-{os.getpid()}"
    directory.mkdir()
    return directory


def _write_gigatoken(job: Job, path: Path) -> None:
    """As little work and memory as it can be done with: blocks of documents, each copied once."""
    import awkward
    import gigatoken
    import numpy as np

    tokenizer = gigatoken.Tokenizer(str(job.tokenizer))
    end_of_text = tokenizer._special_tokens()[END_OF_TEXT]
    source = gigatoken.TextFileSource([str(job.corpus)], separator=END_OF_TEXT)
    encoded = tokenizer.encode_files(source)
    ends = np.cumsum(awkward.to_numpy(awkward.num(encoded))).tolist()
    ids = np.asarray(awkward.flatten(encoded))
    dtype = np.uint16 if tokenizer.vocab_size <= 65536 else np.uint32
    with open(path, "wb") as file:
        block: list[Any] = []
        start = size = 0
        separator = np.array([end_of_text], np.uint32)
        for end in ends:
            block += [ids[start:end], separator]
            size += end - start
            start = end
            if size >= _IDS_PER_WRITE or end == ends[-1]:
                np.concatenate(block, dtype=dtype, casting="unsafe").tofile(file)
                block, size = [], 0


@side("to-bin", OURS, whole=True)
def to_bin_tokenmill(job: Job, clock: Clock) -> Result:
    """Ours: `tokenmill encode`; it checks, digests and brings to the disk, too."""
    from preprocess.cli import main

    path = new_directory(job) / "ours.bin"
    workers = ["--workers", str(job.threads)]
    files = [str(job.corpus), "--tokenizer", str(job.tokenizer), "--out", str(path)]
    try:
        main(["encode", *files, *workers, "--overwrite"])
    except SystemExit as end:
        if end.code:
            raise
    corpus = job.corpus
    files = sorted(corpus.iterdir()) if corpus.is_dir() else [corpus]
    return Result(sum(file.stat().st_size for file in files), None, path)


@side("to-bin", "gigatoken", whole=True)
def to_bin_gigatoken(job: Job, clock: Clock) -> Result:
    """By gigatoken and NumPy; nothing is checked, digested or brought to the disk."""
    path = new_directory(job) / "gigatoken.bin"
    _write_gigatoken(job, path)
    return Result(job.corpus.stat().st_size, None, path)


@side("first-batch", OURS, whole=True)
def first_batch_tokenmill(job: Job, clock: Clock) -> Result:
    """Ours: open the `.bin`, which `prepare` has built, and draw a batch."""
    import numpy as np

    from preprocess import get_batch, open_tokens

    tokens = open_tokens(job.directory / "first.bin")
    batch = get_batch(tokens, 64, 1024, rng=np.random.default_rng(0))
    return Result(job.corpus.stat().st_size, digest_of(*batch))


@side("first-batch", "gigatoken", whole=True)
def first_batch_gigatoken(job: Job, clock: Clock) -> Result:
    """Read the text, encode it with gigatoken, and draw a batch."""
    import numpy as np

    from preprocess import get_batch

    path = job.directory / "first-gigatoken.bin"
    _write_gigatoken(job, path)
    ids = np.fromfile(path, np.uint16 if job.vocab_size <= 65536 else np.uint32)
    batch = get_batch(ids, 64, 1024, rng=np.random.default_rng(0))
    return Result(job.corpus.stat().st_size, digest_of(*batch))


@side("build-first", OURS)
def build_first(job: Job, clock: Clock) -> Result:
    """What `first-batch` opens."""
    _build(job, job.directory / "first.bin")
    return Result(job.corpus.stat().st_size, None)


@side("steady", OURS)
def steady_tokenmill(job: Job, clock: Clock) -> Result:
    """Ours, in a process that has built a file before: without start, compiled code and imports.

    The figure `tiny` is a text of a few bytes: the tokenizer and its tables.
    """
    tiny = job.directory / "tiny.txt"
    tiny.write_text("Nothing much.")
    for figure in ("first", "tiny"):
        clock.time(figure, lambda: _build(_with_corpus(job, tiny), job.directory / "tiny.bin"))
    path = new_directory(job) / "steady.bin"
    clock.time("build", lambda: _build(job, path))
    return Result(job.corpus.stat().st_size, None, path)


def _with_corpus(job: Job, corpus: Path) -> Job:
    return Job(**(vars(job) | {"corpus": corpus}))

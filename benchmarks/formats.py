"""The same documents in every format, beside text; and from JSON Lines to a `.bin` beside others.

Law: every side has the same documents, and the `.bin` of all must be the same bytes: the ids of
each document, the end-of-text id behind it.
"""

from __future__ import annotations

import gzip
import json
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.corpora import MB
from benchmarks.job import END_OF_TEXT, OURS, Clock, Job, Result, documents, side
from benchmarks.rounds import Measured, MeasurementError, measure
from benchmarks.studies import Table
from benchmarks.token_files import new_directory, to_bin_tokenmill

_PEERS_AT_MOST = 50 * MB
FORMATS = ("jsonl", "parquet", "txt.gz", "txt.zst")


def json_lines(corpus: Path, n_files: int, directory: Path) -> Path:
    """Write the documents of a corpus as JSON Lines, into files of a directory of their own."""
    target = directory / f"{corpus.stem}-jsonl-{n_files}"
    if target.exists():
        return target
    target.mkdir()
    texts = documents(corpus)
    share = -(-len(texts) // n_files)
    for number in range(n_files):
        part = texts[number * share : (number + 1) * share]
        lines = (json.dumps({"id": i, "text": text}) for i, text in enumerate(part))
        (target / f"{number}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return target


def in_format(corpus: Path, name: str, directory: Path) -> Path:
    """Write the documents of a corpus in a format of `FORMATS`."""
    path = directory / f"{corpus.stem}.{name}"
    if path.exists():
        return path
    if name == "jsonl":
        (json_lines(corpus, 1, directory) / "0.jsonl").rename(path)
    elif name == "parquet":
        import pyarrow as pa
        from pyarrow import parquet

        parquet.write_table(pa.table({"text": documents(corpus)}), path, compression="snappy")
    elif name == "txt.gz":
        path.write_bytes(gzip.compress(corpus.read_bytes(), 6))
    else:
        path.write_bytes(_zstd().compress(corpus.read_bytes()))
    return path


def _zstd() -> Any:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd


@side("decompress", OURS, whole=True)
def decompress(job: Job, clock: Clock) -> Result:
    """The library's own decompression on one thread; what comes out is thrown away."""
    if job.corpus.suffix == ".gz":
        from isal import igzip

        opened = igzip.open(job.corpus, "rb")
    else:
        opened = _zstd().open(job.corpus, "rb")
    n_bytes = 0
    with opened:
        while piece := opened.read(1 << 20):
            n_bytes += len(piece)
    return Result(n_bytes, None)


def formats(job: Job, rounds: int) -> Table:
    """A new process, file to `.bin`, in every format."""
    to_bin = replace(job, work="to-bin")
    rows = []
    for name in FORMATS:
        own = replace(to_bin, corpus=in_format(job.corpus, name, job.directory))
        jobs = [own, to_bin]
        if name.startswith("txt."):
            jobs.append(replace(own, work="decompress"))
        ours, text, *library = zip(*([*map(measure, jobs)] for _ in range(rounds)), strict=True)
        if len({each.digest for each in ours + text}) > 1:
            raise MeasurementError(f"{name} and text made different files")
        size = f"{own.corpus.stat().st_size / MB:,.1f}"
        of_library = _ratio(ours, library[0]) if library else ""
        rows.append([name, size, _ratio(ours, text), of_library])
    return Table(
        "From a file to a .bin, as the speed of text",
        ["format", "MB", "speed of text", "speed of decompression alone"],
        rows,
        "Decompression alone is that of the library, on one thread, in a process of its own.",
    )


def _ratio(ours: Any, theirs: Any) -> str:
    """Format the speedup of `ours` over `theirs`: median, minimum and maximum."""
    seconds: list[tuple[Measured, Measured]] = list(zip(ours, theirs, strict=True))
    ratios = [b.seconds["process"] / a.seconds["process"] for a, b in seconds]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


# --- beside others ---


@side("jsonl-to-bin", OURS, whole=True)
def jsonl_tokenmill(job: Job, clock: Clock) -> Result:
    """Ours: `tokenmill encode`."""
    return to_bin_tokenmill(job, clock)


@side("jsonl-to-bin", "datasets", whole=True, at_most=_PEERS_AT_MOST)
def jsonl_datasets(job: Job, clock: Clock) -> Result:
    """`load_dataset`, `map` with tiktoken in several processes, and NumPy to write the ids."""
    import datasets
    import numpy as np

    from bpe import Tokenizer

    directory = new_directory(job)
    encoding = Tokenizer.from_file(job.tokenizer).to_tiktoken()
    end_of_text = encoding.encode_single_token(END_OF_TEXT)
    dtype = np.uint16 if encoding.n_vocab <= 65536 else np.uint32

    def encode(batch: dict[str, list[str]]) -> dict[str, list[Any]]:
        texts = (encoding.encode_ordinary(text) for text in batch["text"])
        return {"ids": [[*ids, end_of_text] for ids in texts]}

    loaded = datasets.load_dataset(
        "json", data_files=[*map(str, sorted(job.corpus.iterdir()))], split="train",
        cache_dir=str(directory / "cache"),
    )  # fmt: skip
    encoded = loaded.map(
        encode, batched=True, num_proc=job.threads, remove_columns=loaded.column_names
    )
    path = directory / "datasets.bin"
    with open(path, "wb") as file:
        for chunk in encoded.data["ids"].chunks:
            file.write(chunk.flatten().to_numpy().astype(dtype).tobytes())
    return Result(_size_of(job.corpus), None, path)


@side("jsonl-to-bin", "datatrove", whole=True, at_most=_PEERS_AT_MOST)
def jsonl_datatrove(job: Job, clock: Clock) -> Result:
    """Its reader and its tokenizer, one process for each file; the parts are put together."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens.tokenizer import DocumentTokenizer

    directory = new_directory(job)
    tokens = directory / "tokens"
    steps = [
        JsonlReader(str(job.corpus)),
        DocumentTokenizer(
            str(tokens), str(job.tokenizer), eos_token=END_OF_TEXT, shuffle_documents=False
        ),
    ]
    LocalPipelineExecutor(
        steps, tasks=job.threads, workers=job.threads, logging_dir=str(directory / "logs")
    ).run()
    path = directory / "datatrove.bin"
    with open(path, "wb") as file:
        for part in sorted(tokens.glob("*.ds")):
            file.write(part.read_bytes())
    return Result(_size_of(job.corpus), None, path)


def _size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())

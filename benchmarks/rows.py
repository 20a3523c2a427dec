"""Files of rows beside the libraries that write the same arrays from memory; text to rows.

Law: the arrays are equal. Ours makes them from the dataset, digests them and makes the files
durable; the libraries only write, once as they do, and once until the disk has it.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.job import OURS, Clock, Job, Result, digest_of, side
from benchmarks.studies import Table
from benchmarks.token_files import new_directory

_LENGTH = 1024
_AT_MOST = 100_000_000


def rows(job: Job, rounds: int) -> Table:
    """Packed rows of the text in every format."""
    import pyarrow as pa
    from pyarrow import parquet

    from preprocess import open_tokens, write_rows
    from preprocess.options import RowsSettings
    from preprocess.pipeline import encode
    from preprocess.rows.columns import RowBatch, RowReader
    from preprocess.rows.formats import table_of
    from preprocess.rows.write import plan_rows

    directory = new_directory(job)
    encode(paths=[job.corpus], tokenizer=job.tokenizer, out=directory / "text.bin")
    how: dict[str, Any] = {
        "seq_length": _LENGTH, "strategy": "best_fit", "num_shards": job.threads,
    }
    padded = how | {"padding": "max-length"}

    def arrays(options: dict[str, Any]) -> list[RowBatch]:
        file = open_tokens(directory / "text.bin")
        settings = RowsSettings(**options | {"path": "."})
        plan, shape = plan_rows(file, settings, ((), ()), 0)
        reader = RowReader(file, plan, shape)
        return [
            RowBatch(batch.offsets, {name: each.copy() for name, each in batch.values.items()})
            for batch in reader.batches(0, len(plan))
        ]

    table = pa.concat_tables([table_of(each) for each in arrays(how)]).combine_chunks()
    npz_arrays = [
        np.concatenate([batch.values[name] for batch in arrays(padded | {"format": "npz"})])
        for name in ("input_ids", "attention_mask")
    ]

    def by_parquet(path: Path) -> None:
        parquet.write_table(table, path, compression="zstd")

    def by_arrow(path: Path) -> None:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)

    def by_zlib(path: Path) -> None:
        path.write_bytes(b"".join(zlib.compress(each.data, 6) for each in npz_arrays))

    libraries: dict[str, tuple[str, dict[str, Any], Callable[[Path], None] | None]] = {
        "parquet": ("pyarrow", how, by_parquet), "arrow": ("pyarrow", how, by_arrow),
        "npz": ("zlib", padded, by_zlib), "jsonl": ("", how, None), "pickle": ("", how, None),
    }  # fmt: skip
    shown = []
    for name, (library, options, write) in libraries.items():
        ratios, synced, speeds, size = [], [], [], 0
        for _ in range(rounds):
            _remove(directory / name)
            started = time.perf_counter()
            (made,) = write_rows(  # the type of `format` is one of several words
                directory / "text.bin", out=directory / name, format=name,  # type: ignore[arg-type]
                workers=job.threads, **options,
            )
            ours = time.perf_counter() - started
            size = sum(each.bytes for each in made.manifest.shards)
            speeds.append(size / ours / 1e6)
            for found, wait in ((ratios, False), (synced, True)) if write else ():
                _remove(directory / "theirs")
                started = time.perf_counter()
                assert write is not None
                write(directory / "theirs")
                if wait:
                    _sync(directory / "theirs")
                found.append((time.perf_counter() - started) / ours)
        shown.append([
            name, f"{size / 1e6:,.1f}", f"{statistics.median(speeds):,.0f}", library,
            _shown(ratios), _shown(synced),
        ])  # fmt: skip
    return Table(
        f"Packed rows of {_LENGTH:,} tokens, {table.nbytes / 1e6:,.0f} MB of arrays",
        ["format", "MB", "MB/s", "library", "speedup", "until the disk has it"],
        shown,
        "The library writes the same arrays from memory, on its own threads; ours makes them from"
        " the dataset.",
    )


def _remove(path: Path) -> None:
    """Remove a file or a directory, and wait for the disk: who writes next would wait for it."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    os.sync()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR)
    os.fsync(descriptor)
    os.close(descriptor)


def _shown(ratios: list[float]) -> str:
    if not ratios:
        return ""
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


# --- text to rows ---


def _digest_of_rows(paths: list[Path]) -> str:
    from pyarrow import parquet

    digest = []
    for path in paths:
        column = parquet.read_table(path, columns=["input_ids"])["input_ids"].combine_chunks()
        digest.append(np.diff(column.offsets.to_numpy()).astype(np.int64))
        digest.append(column.flatten().to_numpy().astype(np.int64))
    return digest_of(np.concatenate(digest[::2]), np.concatenate(digest[1::2]))


@side("jsonl-to-rows", OURS, at_most=_AT_MOST)
def rows_tokenmill(job: Job, clock: Clock) -> Result:
    """Ours: `tokenize_and_save`."""
    from preprocess import tokenize_and_save

    directory = new_directory(job)
    clock.time(
        "rows",
        lambda: tokenize_and_save(
            data_files=job.corpus, tokenizer=job.tokenizer, output_path=directory,
            drop_end_of_text=True, columns=("input_ids", "attention_mask"), workers=job.threads,
        ),
    )
    return Result(_size_of(job.corpus), _digest_of_rows(sorted(directory.glob("*.parquet"))))


@side("jsonl-to-rows", "datasets", package="datasets", at_most=_AT_MOST)
def rows_datasets(job: Job, clock: Clock) -> Result:
    """`load_dataset`, `map` with a fast tokenizer in several processes, and `to_parquet`."""
    import datasets
    import transformers

    directory = new_directory(job)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(job.tokenizer))
    path = directory / "theirs.parquet"

    def work() -> None:
        loaded = datasets.load_dataset(
            "json", data_files=[*map(str, sorted(job.corpus.iterdir()))], split="train",
            cache_dir=str(directory / "cache"),
        )  # fmt: skip
        encoded = loaded.map(
            lambda batch: tokenizer(batch["text"], add_special_tokens=False), batched=True,
            num_proc=job.threads, remove_columns=loaded.column_names,
        )
        encoded.select_columns(["input_ids", "attention_mask"]).to_parquet(path)

    clock.time("rows", work)
    return Result(_size_of(job.corpus), _digest_of_rows([path]))


def _size_of(directory: Path) -> int:
    return sum(each.stat().st_size for each in directory.iterdir())

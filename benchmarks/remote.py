"""Batches of a dataset at a URL whose blocks are in the cache, beside the same dataset on the disk.

Law: both sides draw the same batches, and alternate every few batches, for the speed of a shared
machine changes from second to second. CPU time counts: nothing waits once blocks are in the cache.
The server is on this machine, so filling the cache says nothing about a network.
"""

from __future__ import annotations

import itertools
import os
import re
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.job import Job
from benchmarks.sampling import BATCH_SIZE, CONTEXT_LENGTH, document_file
from benchmarks.studies import Table

_TURNS, _BATCHES = 40, 25  # turns of each side in a round, batches in a turn


@contextmanager
def _serve(directory: Path) -> Iterator[str]:
    """Serve the files of a directory, whole or in ranges; yield the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = np.memmap(directory / os.path.basename(self.path), np.uint8, "r")
            match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            first, stop = (int(match[1]), int(match[2]) + 1) if match else (0, len(content))
            self.send_response(206 if match else 200)
            self.send_header("Content-Length", str(stop - first))
            self.send_header("Content-Range", f"bytes {first}-{stop - 1}/{len(content)}")
            self.send_header("Last-Modified", self.date_time_string(0))
            self.end_headers()
            self.wfile.write(content[first:stop].data)

        def log_message(self, format: str, *args: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def _readers(file: Any) -> dict[str, Callable[[], Any]]:
    """Return what draws the next batch of a dataset."""
    from preprocess import Sampler, get_batch

    rng = np.random.default_rng(0)
    fields = ("inputs", "targets", "segment_ids")
    samplers = {
        "Sampler, epoch": Sampler(file, BATCH_SIZE, CONTEXT_LENGTH, order="epoch"),
        "Sampler, packed": Sampler(
            file, BATCH_SIZE, CONTEXT_LENGTH, windows="packed", order="epoch", fields=fields
        ),
    }

    def next_of(sampler: Any) -> Callable[[], Any]:
        steps = itertools.count()
        return lambda: sampler.batch(next(steps))

    found = {"get_batch": lambda: get_batch(file, BATCH_SIZE, CONTEXT_LENGTH, rng=rng)}
    return found | {name: next_of(sampler) for name, sampler in samplers.items()}


def remote(job: Job, rounds: int) -> Table:
    """CPU time of a batch of a dataset on the disk, and of one at a URL, from the cache."""
    from preprocess import open_tokens
    from preprocess.dataset.remote import DIRECTORY_VARIABLE, SIZE_VARIABLE

    path = document_file(job.directory)
    os.environ[DIRECTORY_VARIABLE] = str(job.directory / "cache")
    os.environ[SIZE_VARIABLE] = "1GB"
    with _serve(path.parent) as url:
        files = [open_tokens(path), open_tokens(f"{url}/{path.name}")]
        begin = time.perf_counter()
        # Also, every page of both is in the map.
        n_bytes = files[1][:].nbytes
        seconds = time.perf_counter() - begin
        assert np.array_equal(*(file[:] for file in files))
        sides = [_readers(file) for file in files]
        rows = []
        for name in sides[0]:
            times: list[list[float]] = [[], []]
            for turn in range(2 * _TURNS * rounds):
                side = turn % 2
                begin = time.process_time()
                for _ in range(_BATCHES):
                    sides[side][name]()
                times[side].append((time.process_time() - begin) / _BATCHES * 1e6)
            ratios = [local / other for local, other in zip(*times, strict=True)]
            local, other = map(statistics.median, times)
            speed = statistics.median(ratios)
            rows.append([name, f"{local:.0f}", f"{other:.0f}", f"{speed:.2f}"])
    return Table(
        f"Batches ({BATCH_SIZE}, {CONTEXT_LENGTH}) of a dataset at a URL, from the cache",
        ["batches of", "on the disk, us", "at a URL, us", "speed of the URL to the disk"],
        rows,
        "CPU time. Medians, of turns and of the ratios of turns beside one another. Filling the"
        f" cache with {n_bytes / 1e6:,.0f} MB from a server on this machine took {seconds:.1f} s.",
    )

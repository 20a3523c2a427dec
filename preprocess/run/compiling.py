"""Compile the kernels of training or encoding before their use, in a stage of their own.

Compiling takes some seconds once per machine. Kernels are compiled by calling them on a few bytes.
While this process compiles those of training, another one compiles those of encoding.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from preprocess.report.progress import Progress, duration, logger

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer

# The last kernel of a step -> typical seconds to compile all kernels of the step.
Kernels = dict[Any, float]

STAGE = "compiling kernels"
_SECONDS_FOR_OTHER = 120.0
_PROGRAM = "import sys; from preprocess.run import compiling; compiling.call_encoding(sys.argv[1])"
_others: list[subprocess.Popen[bytes]] = []  # processes that compile the kernels of encoding


def compile_training(pattern: str, progress: Progress, encodes: bool = False) -> None:
    """Compile the kernels of training that are missing; begin with those of encoding, too."""
    from bpe.parallel import available_workers
    from bpe.runtime.machine_code import kept_code

    has_place = available_workers() > 1 and kept_code().directory is not None
    if encodes and has_place and seconds_to_compile(_encoding_kernels()):
        with suppress(OSError):  # then this process compiles all
            _start_other(pattern)
    _compile(_training_kernels(pattern), lambda: _call_training(pattern), progress)


def _start_other(pattern: str) -> None:
    # Python ignores entries that are no text.
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path if isinstance(path, str))
    # -P: do not import a bpe.py of the current directory.
    command = [sys.executable, "-P", "-c", _PROGRAM, pattern]
    null, environment = subprocess.DEVNULL, os.environ | {"PYTHONPATH": paths}
    _others.append(
        subprocess.Popen(command, stdin=null, stdout=null, stderr=null, env=environment)
    )
    atexit.register(_others[-1].kill)


def compile_encoding(tokenizer: AnyTokenizer, progress: Progress) -> None:
    """Compile the kernels of encoding that are missing."""
    from bpe import Tokenizer

    def call() -> None:
        while _others:
            other = _others.pop()
            with suppress(subprocess.TimeoutExpired):  # this process compiles what is missing
                other.wait(_SECONDS_FOR_OTHER)
            other.kill()
        _call_reading(tokenizer.pattern)
        call_encoding(tokenizer.pattern)

    if isinstance(tokenizer, Tokenizer):  # others encode without kernels
        _compile(_reading_kernels(tokenizer.pattern) | _encoding_kernels(), call, progress)


def _compile(kernels: Kernels, call: Callable[[], None], progress: Progress) -> None:
    """Time the compiling of kernels by `call`, if some are missing."""
    from bpe.runtime import jit

    if seconds := seconds_to_compile(kernels):
        logger.info("%s, once per machine: takes about %s", STAGE, duration(round(seconds)))
        with jit.reported_elsewhere(), progress.stage(STAGE, 1, "run") as stage:
            call()
            stage.advance(1)


def seconds_to_compile(kernels: Kernels) -> float:
    """Return the time for kernels without machine code in this process or in the cache."""
    from bpe.runtime import jit
    from bpe.runtime.machine_code import kept_code

    if jit.DISABLE_JIT:
        return 0
    directory = kept_code().directory
    kept = {path.name.rpartition("-")[0] for path in directory.glob("*.o")} if directory else set()
    return sum(s for k, s in kernels.items() if not k.is_loaded and k.name not in kept)


# --- kernels, and calls of them ---


def _training_kernels(pattern: str) -> Kernels:
    from bpe.train import count_pretokens

    return _reading_kernels(pattern) | {count_pretokens.move_rows: 4.5}


def _encoding_kernels() -> Kernels:
    from bpe.encode import cache_rows

    return {cache_rows.move_rows: 9.5}


def _reading_kernels(pattern: str) -> Kernels:
    """Return the kernels of both training and encoding."""
    from bpe.split.patterns import steps
    from bpe.split.pretokenizer import splitting
    from bpe.text import search

    scanners = [step for step in steps(pattern) if isinstance(step, str)]
    seconds = {splitting(step)[0]: 1.2 if step == "gpt2" else 4.0 for step in scanners}
    return {search.find_some: 1.5} | seconds


def _call_reading(pattern: str) -> None:
    from bpe.split.pretokenizer import Pretokenizer
    from bpe.text.search import find_all
    from bpe.text.utf8 import is_utf8
    from preprocess.sources.json_kernels import decode_strings, is_nested_deeper
    from preprocess.sources.text_file import new_array

    text = np.frombuffer(b"ab\nab\n", np.uint8)
    find_all(text, b"\n")
    is_utf8(text)
    is_nested_deeper(memoryview(b'"a"'))
    decode_strings([b'"a"'], 1, new_array)
    Pretokenizer(pattern).boundaries(text, np.array([0, len(text)]))


def _call_training(pattern: str) -> None:
    from bpe.train import count_pretokens as count
    from bpe.train.counts import PretokenCounts, sum_counts
    from bpe.train.trainer import train_from_counts

    _call_reading(pattern)
    text = np.frombuffer(b"abab ab", np.uint8)
    counts = [PretokenCounts(pattern) for _ in range(2)]  # two, so that they are merged
    for each in counts:
        each.add(text, np.array([0, len(text)]))
    seeds = counts[0]._table.seeds
    train_from_counts(sum_counts(counts), 258)
    count.move_rows(np.zeros(4, np.uint64), np.zeros(8, np.uint64), False, seeds)


def call_encoding(pattern: str) -> None:
    """Have all kernels of encoding compiled, but for those of reading."""
    from bpe.encode import cache_rows
    from bpe.encode.encoder import EncoderTables
    from bpe.vocabulary import Vocabulary

    tables = EncoderTables(Vocabulary.from_merges([(b"a", b"b")]), pattern)
    tables.fill_tokens()  # calls encode_pretokens
    _, cache, _ = tables.cache.current
    cache_rows.move_rows(cache.rows, cache, False)  # there are none yet

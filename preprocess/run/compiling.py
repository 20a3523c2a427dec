"""Compile the kernels of training or encoding before their use, in a stage of their own.

Compiling takes some seconds once per machine. Kernels are compiled by calling them on a few bytes.
While this process compiles those of training, another one compiles those of encoding.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from preprocess.report.progress import Progress, duration, logger
from preprocess.run.signals import repeating

if TYPE_CHECKING:
    import subprocess

    from bpe.text_tokenizer import AnyTokenizer

Kernels = dict[Any, float]  # kernel -> typical seconds to compile it

STAGE = "compiling kernels"
_SECONDS_BETWEEN_LOOKS = 0.25
_SECONDS_FOR_OTHER = 120.0
_PROGRAM = "import sys; from preprocess.run import compiling; compiling.call_encoding(sys.argv[1])"
_others: list[subprocess.Popen[bytes]] = []  # processes that compile the kernels of encoding


def compile_training(pattern: str, progress: Progress, encodes: bool = False) -> None:
    """Compile the kernels of training that are missing; begin with those of encoding, too."""
    from bpe.parallel import available_workers
    from bpe.runtime.machine_code import kept_code

    has_place = available_workers() > 1 and kept_code().directory is not None
    if encodes and has_place and find_missing(encoding_kernels()):
        with suppress(OSError):  # then this process compiles all
            _start_other(pattern)
    _compile(training_kernels(pattern), lambda: _call_training(pattern), progress)


def _start_other(pattern: str) -> None:
    import subprocess

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
        from subprocess import TimeoutExpired

        while _others:
            other = _others.pop()
            with suppress(TimeoutExpired):  # this process compiles what is missing
                other.wait(_SECONDS_FOR_OTHER)
            other.kill()
        _call_reading(tokenizer.pattern)
        call_encoding(tokenizer.pattern)

    if isinstance(tokenizer, Tokenizer):  # others encode without kernels
        _compile(_reading_kernels(tokenizer.pattern) | encoding_kernels(), call, progress)


def _compile(needed: Kernels, call: Callable[[], None], progress: Progress) -> None:
    """Time and show the compiling of kernels by `call`, if some are missing."""
    from bpe.runtime import jit

    if not (missing := find_missing(needed)):
        return
    n_missing, seconds = len(missing), duration(round(sum(missing.values())) or 1)
    logger.info("%s, once per machine: takes about %s", STAGE, seconds)
    with jit.reported_elsewhere(), progress.stage(STAGE, n_missing, "kernels") as stage:

        def look() -> None:
            stage.advance(n_missing - len(find_missing(needed)) - stage.done)

        with repeating(look, _SECONDS_BETWEEN_LOOKS):
            call()
        stage.advance(n_missing - stage.done)


def find_missing(kernels: Kernels) -> Kernels:
    """Return the kernels without machine code in this process or in the cache."""
    from bpe.runtime import jit
    from bpe.runtime.machine_code import kept_code

    if jit.DISABLE_JIT:
        return {}
    directory = kept_code().directory
    kept = {path.name.rpartition("-")[0] for path in directory.glob("*.o")} if directory else set()
    return {k: s for k, s in kernels.items() if not k.is_loaded and k.name not in kept}


# --- kernels, and calls of them ---


def _reading_kernels(pattern: str) -> Kernels:
    """Return the kernels of both training and encoding."""
    from bpe.split.patterns import steps
    from bpe.split.pretokenizer import splitting
    from bpe.text import search, utf8
    from preprocess.sources.json_kernels import find_element_end, strings_to_texts

    kernels = {search.find_some: 0.5, utf8.is_valid: 0.2}
    kernels |= {find_element_end: 0.2, strings_to_texts: 0.4}
    for step in steps(pattern):
        if isinstance(step, str):
            kernels[splitting(step)[0]] = 1.2 if step == "gpt2" else 4.0
    return kernels


def training_kernels(pattern: str) -> Kernels:
    """Return the kernels of training, except those for large tables."""
    from bpe.train import count_pretokens as count
    from bpe.train import learn_merges

    return _reading_kernels(pattern) | {
        count.count_pretokens: 1.2, count.move_rows: 0.1, count.merge_into: 0.4, count.export: 0.3,
        learn_merges.count_byte_pairs: 0.1, learn_merges.fill_rows: 0.2,
        learn_merges.queue_pairs: 0.4, learn_merges.merge_steps: 1.4,
    }  # fmt: skip


def encoding_kernels() -> Kernels:
    """Return the kernels of encoding, without those of reading."""
    from bpe.encode import cache_rows, model
    from bpe.encode import encode_pretokens as encode

    return {
        model.fill_pairs: 1.2, encode.encode_pretokens: 8.0, cache_rows.move_rows: 0.2,
    }  # fmt: skip


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

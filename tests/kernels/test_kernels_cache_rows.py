"""Rows of the shared cache: found, filled, moved, by several threads."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numba import config

from bpe.encode import cache_rows as word_kernels
from bpe.runtime.jit import kernel


def words_of(n_rows: int, n_long_rows: int) -> word_kernels.PretokenCache:
    """Empty tables."""
    arena = np.zeros(256, np.uint64)
    return word_kernels.PretokenCache(
        rows=np.zeros(4 * n_rows, np.uint64),
        long_rows=np.zeros(2 * n_long_rows, np.uint64),
        arena=arena,
        arena_bytes=arena.view(np.uint8),
        used=np.zeros(3, np.int64),
        limits=np.array([n_rows, n_long_rows, len(arena)]),
        own=np.zeros(4, np.int64),
    )


def key_of(number: int) -> tuple[np.uint64, np.uint64]:
    return np.uint64(number * 0x9E3779B97F4A7C15 % 2**64), np.uint64(8 << 56)


def find(words: word_kernels.PretokenCache, number: int) -> int:
    """Where `put` has put the row of a number, or -2 less where it would, or -1."""
    low, high = key_of(number)
    bucket = np.int64(word_kernels.row_bucket(low, high, words.rows))
    return int(word_kernels.find_row(words.rows, bucket, low, high))


def put(words: word_kernels.PretokenCache, number: int) -> int:
    """Add a row of its own for a number, unless it is there; its place is returned."""
    low, high = key_of(number)
    at = find(words, number)
    if at >= 0:
        return at
    return int(word_kernels.add_row(words, at, low, high, np.uint64(number), np.uint64(1)))


def test_a_row_that_somebody_fills_is_none_yet() -> None:
    words = words_of(4, 4)
    words.rows[1] = word_kernels._CLAIMED
    assert put(words, 5) == 4
    assert (find(words, 5), find(words, 6)) == (4, -2 - 8)
    larger = words_of(16, 4)
    word_kernels.move_rows(words.rows, larger, False)
    assert np.count_nonzero(larger.rows[1::4]) == 1
    assert larger.rows[find(larger, 5) + 2] == 5
    words.long_rows[1] = word_kernels._CLAIMED
    text = np.frombuffer(b"0123456789abcdefghi", np.uint8)
    text.flags.writeable = False
    hashed = word_kernels.hash_bytes(text, 0, len(text), np.uint64(7))
    free = word_kernels.find_long_row(words, hashed, text, 0, len(text))
    assert free == -2 - 2
    assert word_kernels.still_free(words.long_rows, free)
    ids = np.arange(3, dtype=np.uint32)
    place = word_kernels.remember(words, ids, 2, text, 0, len(text))
    entry = np.uint64(int(place) << 22 | 2 << 11 | len(text))
    assert word_kernels.add_long_row(words, free, hashed, entry) == 2
    assert word_kernels.find_long_row(words, hashed, text, 0, len(text)) == 2
    # The hash alone is not believed.
    other = np.frombuffer(b"0123456789abcdefghj", np.uint8)
    assert word_kernels.find_long_row(words, hashed, other, 0, len(other)) == -2 - 4
    assert not word_kernels.still_free(words.long_rows, free)
    larger = words_of(4, 16)._replace(arena=words.arena, arena_bytes=words.arena_bytes)
    word_kernels.move_rows(words.long_rows, larger, True)
    assert np.count_nonzero(larger.long_rows[1::2]) == 1
    at = int(word_kernels.find_long_row(larger, hashed, text, 0, len(text)))
    assert larger.long_rows[at + 1] == entry


@kernel
def _add_and_check(words, n):
    """Add rows whose ids follow from the key. Returns how many are found with others."""
    wrong = 0
    for i in range(n):
        low, high = np.uint64(i * 40503), np.uint64(8 << 56)
        bucket = np.int64(word_kernels.row_bucket(low, high, words.rows))
        at = word_kernels.find_row(words.rows, bucket, low, high)
        if at < 0:
            at = word_kernels.add_row(words, at, low, high, np.uint64(i), low ^ high)
        if at >= 0 and (words.rows[at + 2] != np.uint64(i) or words.rows[at + 3] != low ^ high):
            wrong += 1
    return wrong


def test_who_finds_a_row_finds_all_of_it() -> None:
    n = 200 if config.DISABLE_JIT else 100_000
    for _ in range(2 if config.DISABLE_JIT else 20):
        words = words_of(2**18, 4)
        with ThreadPoolExecutor(4) as pool:
            # One after the other in the same rows, as closely as threads come.
            each = [words._replace(own=np.zeros(4, np.int64)) for _ in range(4)]
            assert list(pool.map(_add_and_check, each, [n] * 4)) == [0] * 4
        assert np.count_nonzero(words.rows[1::4] == np.uint64(8 << 56)) >= n


@kernel
def _use(words, key, at):
    """Do with the tables what encoders do."""
    found = word_kernels.find_row(words.rows, at, key, key)
    if found < 0 and word_kernels.still_free(words.rows, found):
        word_kernels.add_row(words, found, key, key, key, key)
    place = word_kernels.find_long_row(words, key, words.arena_bytes, at, 16)
    if place < 0:
        word_kernels.add_long_row(words, place, key, key)
    word_kernels.publish_counts(words)


_KEY, _WORDS, _IDS = np.uint64(8 << 56), words_of(16, 16), np.zeros(9, np.uint32)
SHARING: list[tuple[Any, tuple[Any, ...], str]] = [
    (_use, (_WORDS, _KEY, 0), "ldar stlr casal ldadd"),
    (word_kernels.move_rows, (_WORDS.rows, _WORDS, False), "ldar stlr casal"),
    (word_kernels.remember, (_WORDS, _IDS, 3, _WORDS.arena_bytes, 0, 16), "ldadd"),
]


@pytest.mark.skipif(config.DISABLE_JIT, reason="uncompiled there are no instructions to look at")
@pytest.mark.parametrize(("used", "arguments", "expected"), SHARING)
def test_rows_are_published_in_order_on_arm(
    used: Any, arguments: tuple[Any, ...], expected: str
) -> None:
    # A processor that keeps the order of all stores would not notice if it were not asked for, nor
    # would an emulator that runs on one.
    from llvmlite import binding

    from bpe.runtime import compiler
    from bpe.runtime.machine_code import append

    kinds = tuple(append(each, [], []) for each in arguments)
    module, _, _ = compiler.linked(used, kinds, "sharing")
    of_here = r'^target .*|"(?:target|probe|tune)-[\w-]+"="[^"]*"'
    code = re.sub(of_here, "", str(module), flags=re.MULTILINE)
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    target = binding.Target.from_triple("aarch64-unknown-linux-gnu")
    assembly = target.create_target_machine(features="+lse").emit_assembly(
        binding.parse_assembly(code)
    )
    found = set(re.findall(r"^\s*(ldar|stlr|casal|ldadd)\b", assembly, re.MULTILINE))
    assert found == {*expected.split()}

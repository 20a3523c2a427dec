"""Count pre-tokens for training.

Counts do not depend on batches or threads. Memory is proportional to the bytes of the *unique*
pre-tokens. Special tokens are cut out of text: they are not learnt from or merged across.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpe.arguments import checked
from bpe.encode.encoder import new_work
from bpe.parallel import for_each, run_in_order
from bpe.runtime.arrays import read_only, zeros
from bpe.special import SpecialTokenMatcher
from bpe.split.pretokenizer import Pretokenizer
from bpe.text.spans import check_documents, close_gaps, spans_of
from bpe.train import count_pretokens as kernels

Arrays = tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]

_GROUPS_PER_CALL = 1024  # per kernel call, so that Ctrl-C is handled
_SEEDS = np.frombuffer(os.urandom(16), np.uint64)  # of the tables of this process


@checked
class PretokenCounts:
    """Unique pre-tokens and their counts. Used by one thread at a time.

    Args:
        pattern: Split pattern; an attribute, too.
        special_tokens: Texts to cut out of documents; an attribute, too.

    Attributes:
        total: Number of pre-tokens counted.

    >>> counts = PretokenCounts()
    >>> text = np.frombuffer(b"low low lower", np.uint8)
    >>> counts.add(text, np.array([0, len(text)]))
    >>> list(counts.items())
    [(b' low', 1), (b' lower', 1), (b'low', 1)]
    """

    def __init__(self, pattern: str = "gpt2", special_tokens: Sequence[str] = ()) -> None:
        self._pretokenizer = Pretokenizer(pattern)
        self.pattern = self._pretokenizer.pattern
        self.special_tokens = tuple(special_tokens)
        self.total = 0
        self._matcher = SpecialTokenMatcher(dict.fromkeys(special_tokens, 0))
        self._work = new_work()
        short, long = np.zeros(4 * 2**14, np.uint64), np.zeros(4 * 2**13, np.uint64)
        self._table = kernels.CountTable(
            short_rows=short, short_counts=short.view(np.int64),
            long_rows=long, long_counts=long.view(np.int64),
            arena=np.empty(2**18, np.uint8), seeds=_SEEDS, used=np.zeros(3, np.int64),
        )

    def __len__(self) -> int:
        """Number of unique pre-tokens."""
        return int(_measure(self._table)[:, 0].sum())

    def add(self, buffer: NDArray[np.uint8], offsets: NDArray[np.int64]) -> None:
        """Count the pre-tokens of documents.

        Args:
            buffer: uint8[n_bytes], UTF-8.
            offsets: int64[n_documents + 1], ascending from 0 to n_bytes; documents may be parts cut
                at `Pretokenizer.safe_cut`.

        Raises:
            EncodingError: The arrays or offsets are others.
        """
        check_documents(buffer, offsets)
        special = self._matcher.find_in_documents(buffer, offsets)[:, :2].ravel()
        if len(special):
            # Spans of text end, and begin again, at ends of documents and at special tokens.
            bounds = np.sort(np.concatenate([spans_of(offsets).ravel(), special]))
            buffer, offsets = close_gaps(buffer, bounds)
        starts = self._pretokenizer.boundaries(buffer, offsets)
        self._count(buffer, starts, np.empty(0, np.int64))

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process has other seeds.
        return _restore, (FrozenCounts(self.pattern, self.special_tokens, *self.arrays()),)

    def merge(self, other: PretokenCounts | FrozenCounts) -> None:
        """Add counts; raise ValueError if the pattern or the special tokens differ."""
        _check_compatible(self, other)
        buffer, offsets, counts = other.arrays()
        starts = np.zeros(64 * (len(buffer) // 64 + 1), np.bool_)
        starts[offsets] = True
        self._count(buffer, np.packbits(starts, bitorder="little").view(np.uint64), counts)

    def _count(
        self, buffer: NDArray[np.uint8], starts: NDArray[np.uint64], weights: NDArray[np.int64]
    ) -> None:
        """Count pre-tokens; see `kernels.count_pretokens`."""
        cursor = np.array([0, -1, 0, 0], np.int64)
        source, weights = read_only(buffer), read_only(weights)
        while True:
            cursor[kernels.GROUPS] = _GROUPS_PER_CALL
            status = kernels.count_pretokens(
                self._table, self._work, source, starts, cursor, weights
            )
            if status == kernels.DONE:
                break
            if status != kernels.PAUSED:
                self._grow(status, len(buffer))
        self.total += int(weights.sum() if len(weights) else cursor[kernels.COUNTED])

    def _grow(self, status: int, n_bytes: int) -> None:
        table = self._table
        if status == kernels.GROW_ARENA:
            used = int(table.used[kernels.ARENA_USED])
            # A group has at most as many bytes as the text.
            arena = zeros(max(2 * len(table.arena), used + n_bytes), np.uint8)
            arena[:used] = table.arena[:used]
            self._table = table._replace(arena=arena)
            return
        is_long = status == kernels.GROW_LONG
        kind, rows = ("long", table.long_rows) if is_long else ("short", table.short_rows)
        larger = zeros(2 * len(rows), np.uint64)
        kernels.move_rows(rows, larger, is_long, table.seeds)
        grown = {f"{kind}_rows": larger, f"{kind}_counts": larger.view(np.int64)}
        self._table = table._replace(**grown)

    def arrays(self) -> Arrays:
        """Return all pre-tokens, grouped by first letters, which makes merging 10 to 20 % faster.

        Returns:
            (bytes, offsets, counts): uint8[n_bytes], concatenated; int64[n + 1]; int64[n].
        """
        return _export([self._table])

    @property
    def n_bytes(self) -> int:
        """Size of the tables in bytes."""
        table = self._table
        return table.short_rows.nbytes + table.long_rows.nbytes + table.arena.nbytes

    def items(self) -> Iterator[tuple[bytes, int]]:
        """Iterate over (pre-token, count), sorted by bytes."""
        buffer, offsets, counts = self.arrays()
        data = buffer.tobytes()
        words = [data[i:j] for i, j in pairwise(offsets.tolist())]
        return iter(sorted(zip(words, counts.tolist(), strict=True)))


@dataclass(frozen=True, eq=False)
class FrozenCounts:
    """Counts as arrays (see `PretokenCounts.arrays`): they pickle, and take half the memory.

    Pre-tokens may repeat, except for training.

    Raises:
        ValueError: The arrays are inconsistent.
    """

    pattern: str
    special_tokens: Sequence[str]
    buffer: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    counts: NDArray[np.int64]

    def __post_init__(self) -> None:
        offsets, counts = self.offsets, self.counts
        is_whole = len(offsets) == len(counts) + 1 and offsets[0] == 0
        is_whole = is_whole and offsets[-1] == len(self.buffer)
        if not (is_whole and np.all(np.diff(offsets) > 0) and np.all(counts > 0)):
            raise ValueError("offsets and counts contradict one another")

    @property
    def total(self) -> int:
        """Number of pre-tokens counted."""
        return int(self.counts.sum())

    def arrays(self) -> Arrays:
        """Return the arrays, see `PretokenCounts.arrays`; not copied."""
        return self.buffer, self.offsets, self.counts


def _restore(frozen: FrozenCounts) -> PretokenCounts:
    counts = PretokenCounts(frozen.pattern, frozen.special_tokens)
    counts.merge(frozen)
    return counts


def sum_counts(of_threads: list[PretokenCounts]) -> FrozenCounts:
    """Sum several counts, at least one, on as many threads; the list is emptied to free memory.

    Raises:
        ValueError: The patterns or the special tokens differ.
    """
    for other in of_threads:
        _check_compatible(of_threads[0], other)
        pattern, special_tokens = other.pattern, other.special_tokens
    tables = [counts._table for counts in of_threads]
    n = len(tables)
    del of_threads[:], other

    def merge(_: int, task: tuple[tuple[int, int], int]) -> None:
        (giver, taker), half = task
        kernels.merge_into(tables[giver], tables[taker], half)

    # Each table is merged into all before it, which sets common counts to 0 in it: then no two
    # tables share a pre-token. In a turn each table is in one pair at most.
    for turn in range(n):
        pairs = [(j, i) for i, j in combinations(range(n), 2) if (i + j) % n == turn]
        for_each(product(pairs, range(2)), merge, n)
    arrays = _export(tables)
    tables.clear()  # frees memory
    return FrozenCounts(pattern, special_tokens, *arrays)


def _check_compatible(counts: PretokenCounts, other: PretokenCounts | FrozenCounts) -> None:
    """Raise ValueError if counts cannot be added."""
    mine, its = ((each.pattern, set(each.special_tokens)) for each in (counts, other))
    if mine != its:
        raise ValueError(f"counts of {its} cannot be added to counts of {mine}; count both alike")


def _measure(table: kernels.CountTable) -> NDArray[np.int64]:
    """Return the pre-tokens in each bucket and their bytes, int64[FIRST_LETTERS, 2]."""
    sizes = np.zeros(2 * kernels.FIRST_LETTERS, np.int64)
    nothing = np.empty(0, np.int64)
    kernels.export(table, sizes, nothing.view(np.uint8), nothing, nothing)
    return sizes.reshape(-1, 2)


def _export(tables: Sequence[kernels.CountTable]) -> Arrays:
    """Return the arrays of tables without common pre-tokens, on as many threads."""
    sizes = list(run_in_order(tables, lambda: _measure, len(tables)))
    total = np.sum(sizes, axis=0)
    ends = total.cumsum(axis=0)
    n, n_bytes = ends[-1].tolist()
    # Within a bucket, in the order of tables.
    firsts = np.cumsum([ends - total, *sizes[:-1]], axis=0)
    buffer = zeros(n_bytes, np.uint8)
    offsets, counts = zeros(n + 1, np.int64), zeros(n, np.int64)
    offsets[n] = n_bytes

    def export(number: int, table: kernels.CountTable) -> None:
        kernels.export(table, firsts[number].ravel(), buffer, offsets, counts)

    for_each(tables, export, len(tables))
    return buffer, offsets, counts

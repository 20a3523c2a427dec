"""Counts of pre-tokens: what training knows of a corpus.

Law: every pre-token of every document is counted once, in 64 bits; the result does not depend on
how the corpus was cut into batches, nor on who counted which. Memory is proportional to the bytes
of the *unique* pre-tokens. Text that spells a special token is cut out first: it is never learnt
from, and nothing is merged across it.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations, pairwise, product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bpe.encode import group_scratch
from bpe.errors import TokenbinError, TrainingError
from bpe.files import write_atomically
from bpe.huge_pages import zeros
from bpe.kernels import count as kernels
from bpe.pretokenize import Pretokenizer, read_only
from bpe.separated import places
from bpe.special_tokens import SpecialTokenMatcher

_FORMAT_VERSION = 1
# After so many groups the kernel comes back, so that Ctrl-C is seen.
_GROUPS_PER_CALL = 1024


class CountsFileError(TokenbinError, ValueError):
    """A file of counts cannot be read or is damaged."""


class PretokenCounts:
    """Unique pre-tokens and how often each occurs. Belongs to one thread at a time.

    Args:
        pattern: name of the split pattern.
        special_tokens: text to cut out of documents.

    >>> counts = PretokenCounts()
    >>> text = np.frombuffer(b"low low lower", np.uint8)
    >>> counts.add(text, np.array([0, len(text)]))
    >>> list(counts.items())
    [(b' low', 1), (b' lower', 1), (b'low', 1)]
    """

    def __init__(self, pattern: str = "gpt2", special_tokens: Sequence[str] = ()) -> None:
        self.special_tokens = tuple(special_tokens)
        self._pretokenizer = Pretokenizer(pattern)
        self._matcher = SpecialTokenMatcher(dict.fromkeys(special_tokens, 0))
        self._scratch = group_scratch()
        short, long = np.zeros(4 * 2**14, np.uint64), np.full(4 * 2**13, 2**64 - 1, np.uint64)
        self._table = kernels.CountTable(
            short_rows=short,
            short_counts=short.view(np.int64),
            long_rows=long,
            long_counts=long.view(np.int64),
            arena=np.empty(2**18, np.uint8),
            used=np.zeros(4, np.int64),
        )

    @property
    def pattern(self) -> str:
        """Name of the split pattern."""
        return self._pretokenizer.pattern

    @property
    def total(self) -> int:
        """Number of pre-tokens counted, each as often as it occurs."""
        return int(self._table.used[kernels.TOTAL])

    def __len__(self) -> int:
        """Number of unique pre-tokens."""
        return int(_measured(self._table)[:, 0].sum())

    def add(self, buffer: NDArray[np.uint8], offsets: NDArray[np.int64]) -> None:
        """Count the pre-tokens of some documents.

        Args:
            buffer: uint8[n_bytes], well-formed UTF-8.
            offsets: int64[n_documents + 1], ascending from 0 to n_bytes. A document that is cut
                where `Pretokenizer.safe_cut` allows it may come in several pieces, each a document
                here.
        """
        spans = self._matcher.find_in_documents(buffer, offsets)[:, :2]
        if len(spans):
            # Each occurrence becomes a document of its own. What is counted for it is taken off
            # again: that is cheaper than a copy of the text without it.
            offsets = np.sort(np.concatenate([offsets, spans.ravel()]))
        starts = self._pretokenizer.boundaries(buffer, offsets)
        cursor = np.array([0, -1], np.int64)
        source = read_only(buffer)
        while True:
            status = kernels.count_pretokens(
                self._table,
                self._scratch,
                source,
                starts,
                cursor,
                _GROUPS_PER_CALL,
            )
            if status == kernels.DONE:
                break
            if status != kernels.PAUSED:
                self._grow(status, len(buffer))
        if len(spans):
            # Not NumPy's `unique`: its texts end before the zeros that they end in.
            found = Counter(bytes(buffer[begin:end]) for begin, end in places(spans.ravel()))
            for special, n in found.items():
                pretokens = self._pretokenizer.split(special)
                self._add_words(
                    np.frombuffer(special, np.uint8),
                    np.cumsum([0, *map(len, pretokens)], dtype=np.int64),
                    np.full(len(pretokens), -n, np.int64),
                )

    def merge(self, other: PretokenCounts | FrozenCounts) -> None:
        """Add the counts of another; it must have the same pattern and special tokens.

        Raises:
            ValueError: it has not.
        """
        _refuse_unlike(self, other)
        self._add_words(*other.arrays())

    def _add_words(
        self, buffer: NDArray[np.uint8], offsets: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> None:
        cursor = np.zeros(1, np.int64)
        source = read_only(buffer)
        while True:
            status = kernels.count_words(
                self._table, self._scratch, source, offsets, counts, cursor
            )
            if status == kernels.DONE:
                return
            self._grow(status, len(buffer))

    def _grow(self, status: int, n_bytes: int) -> None:
        table = self._table
        if status == kernels.GROW_SHORT:
            short = zeros(2 * len(table.short_rows), np.uint64)
            kernels.move_short(table.short_rows, short)
            self._table = table._replace(short_rows=short, short_counts=short.view(np.int64))
        elif status == kernels.GROW_LONG:
            long = zeros(2 * len(table.long_rows), np.uint64)
            kernels.move_long(table.long_rows, long)
            self._table = table._replace(long_rows=long, long_counts=long.view(np.int64))
        else:
            used = int(table.used[kernels.ARENA_USED])
            # A group has at most as many bytes as the text it comes from.
            arena = zeros(max(2 * len(table.arena), used + n_bytes), np.uint8)
            arena[:used] = table.arena[:used]
            self._table = table._replace(arena=arena)

    def arrays(self) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
        """All pre-tokens, those that begin alike side by side; else in no particular order.

        What is merged in many of them then stands near together: merging takes 0.8 to 0.9 of the
        time.

        Returns:
            uint8[n_bytes], their bytes one after the other; int64[n + 1], where each begins and
            ends; int64[n], the counts.
        """
        return _exported([self._table], [_measured(self._table)], map)

    @classmethod
    def from_arrays(
        cls,
        pattern: str,
        special_tokens: Sequence[str],
        buffer: NDArray[np.uint8],
        offsets: NDArray[np.int64],
        counts: NDArray[np.int64],
    ) -> PretokenCounts:
        """Counts from what `arrays` returned, or several such one behind the other.

        Raises:
            CountsFileError: the arrays contradict one another.
        """
        made = cls(pattern, special_tokens)
        made.merge(FrozenCounts(pattern, special_tokens, buffer, offsets, counts))
        return made

    @property
    def n_bytes(self) -> int:
        """Bytes of memory that the tables take."""
        return sum(
            each.nbytes
            for each in (self._table.short_rows, self._table.long_rows, self._table.arena)
        )

    def items(self) -> Iterator[tuple[bytes, int]]:
        """(pre-token, count), in the order of the bytes."""
        buffer, offsets, counts = self.arrays()
        data, places = buffer.tobytes(), offsets.tolist()
        words = [data[i:j] for i, j in pairwise(places)]
        return iter(sorted(zip(words, counts.tolist(), strict=True)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the counts to a file, the same bytes for the same counts.

        The format is NumPy's .npz, without pickle.

        Raises:
            OSError: it cannot be written; then nothing is left under this name.
        """
        items = list(self.items())
        settings = {
            "format_version": _FORMAT_VERSION,
            "pattern": self.pattern,
            "special_tokens": sorted(set(self.special_tokens)),
        }
        content = io.BytesIO()
        np.savez(
            content,
            settings=np.frombuffer(json.dumps(settings).encode(), np.uint8),
            buffer=np.frombuffer(b"".join(word for word, _ in items), np.uint8),
            offsets=np.cumsum([0, *(len(word) for word, _ in items)], dtype=np.int64),
            counts=np.array([count for _, count in items], np.int64),
        )
        write_atomically(Path(path), content.getvalue())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> PretokenCounts:
        """Read counts that `save` wrote.

        Raises:
            OSError: the file cannot be read.
            CountsFileError: it is no file of counts, or it is damaged.
        """
        try:
            with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
                settings = json.loads(archive["settings"].tobytes())
                buffer, offsets, counts = archive["buffer"], archive["offsets"], archive["counts"]
            version = settings["format_version"]
            pattern, special_tokens = settings["pattern"], settings["special_tokens"]
        except (ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile) as error:
            raise CountsFileError(
                f"{os.fspath(path)}: expected a file of pre-token counts,"
                f" found something else or a damaged one ({error}); count the corpus again"
            ) from error
        if version != _FORMAT_VERSION:
            raise CountsFileError(
                f"{os.fspath(path)}: expected format version {_FORMAT_VERSION}, found {version!r};"
                " count the corpus again"
            )
        try:
            return cls.from_arrays(pattern, special_tokens, buffer, offsets, counts)
        except CountsFileError as error:
            raise CountsFileError(
                f"{os.fspath(path)}: its offsets and counts contradict one another;"
                " count the corpus again"
            ) from error


def _refuse_unsound(
    buffer: NDArray[np.uint8], offsets: NDArray[np.int64], counts: NDArray[np.int64]
) -> None:
    """Raise CountsFileError if arrays are not what `PretokenCounts.arrays` may return."""
    sound = (
        buffer.dtype == np.uint8
        and offsets.dtype == counts.dtype == np.int64
        and buffer.ndim == offsets.ndim == counts.ndim == 1
        and len(offsets) == len(counts) + 1
        and offsets[0] == 0
        and offsets[-1] == len(buffer)
        and bool(np.all(np.diff(offsets) > 0))
        and bool(np.all(counts > 0))
    )
    if not sound:
        raise CountsFileError("offsets and counts contradict one another")


class FrozenCounts:
    """Counts that nothing is added to any more: arrays alone, which pickle, in half the memory.

    Args:
        pattern: name of the split pattern.
        special_tokens: as those of `PretokenCounts`.
        buffer, offsets, counts: as `PretokenCounts.arrays` returns them, or several such one behind
            the other; training relies on it that each pre-token is there once.

    Raises:
        CountsFileError: the arrays contradict one another.
    """

    def __init__(
        self,
        pattern: str,
        special_tokens: Sequence[str],
        buffer: NDArray[np.uint8],
        offsets: NDArray[np.int64],
        counts: NDArray[np.int64],
    ) -> None:
        _refuse_unsound(buffer, offsets, counts)
        self.pattern = pattern
        self.special_tokens = tuple(special_tokens)
        self._arrays = buffer, offsets, counts

    @property
    def total(self) -> int:
        """Number of pre-tokens counted, each as often as it occurs."""
        return int(self._arrays[2].sum())

    def arrays(self) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
        """As `PretokenCounts.arrays`; shared, not copied."""
        return self._arrays


def added_up(of_threads: list[PretokenCounts]) -> FrozenCounts:
    """The counts of several, at least one, as if one had counted all.

    As many threads work as there are counts.

    Args:
        of_threads: with the same pattern and special tokens; emptied, and not to be used elsewhere:
            nothing keeps their memory then.

    Raises:
        ValueError: they were not counted alike.
    """
    first = of_threads[0]
    for other in of_threads:
        _refuse_unlike(first, other)
    pattern, special_tokens = first.pattern, first.special_tokens
    tables = [counts._table for counts in of_threads]
    n = len(tables)
    del of_threads[:], first, other

    def give(task: tuple[tuple[int, int], int]) -> None:
        (giver, taker), half = task
        kernels.give(tables[giver], tables[taker], half, 2)

    with ThreadPoolExecutor(n) as pool:
        # Each table gives to each one before it. What has nothing any more is given nothing, so in
        # the end one of any two tables has none of a pre-token. A turn has at most one pair with
        # each table: its number and the turn's say which the other one is.
        for turn in range(n):
            pairs = [(j, i) for i, j in combinations(range(n), 2) if (i + j) % n == turn]
            list(pool.map(give, product(pairs, range(2))))
        sizes = list(pool.map(_measured, tables))
        arrays = _exported(tables, sizes, pool.map)
    # Before anything else needs memory.
    tables.clear()
    return FrozenCounts(pattern, special_tokens, *arrays)


def _refuse_unlike(counts: PretokenCounts, other: PretokenCounts | FrozenCounts) -> None:
    """Raise ValueError if what two have counted cannot be added up."""
    mine, its = (
        (counts.pattern, set(counts.special_tokens)),
        (other.pattern, set(other.special_tokens)),
    )
    if mine != its:
        raise ValueError(f"counts of {its} cannot be added to counts of {mine}; count both alike")


def _measured(table: kernels.CountTable) -> NDArray[np.int64]:
    """int64[n, 2]: for each beginning the number of pre-tokens, and of their bytes."""
    sizes = np.zeros(2 * kernels.FIRST_LETTERS, np.int64)
    kernels.measure(table, sizes)
    return sizes.reshape(-1, 2)


def _exported(
    tables: Sequence[kernels.CountTable],
    sizes: Sequence[NDArray[np.int64]],
    for_each: Callable[..., Iterable[None]],
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """What `PretokenCounts.arrays` returns, of tables that have no pre-token in common.

    Args:
        tables: at least one.
        sizes: what `_measured` says of each.
        for_each: `map`, or one that works side by side.
    """
    total = np.sum(sizes, axis=0)
    ends = total.cumsum(axis=0)
    n, n_bytes = ends[-1].tolist()
    # Of each beginning, first those of the first table.
    firsts = np.cumsum([ends - total, *sizes[:-1]], axis=0)
    buffer = zeros(n_bytes, np.uint8)
    offsets, counts = zeros(n + 1, np.int64), zeros(n, np.int64)
    offsets[n] = n_bytes

    def export(table: kernels.CountTable, places: NDArray[np.int64]) -> None:
        kernels.export(table, places.ravel(), buffer, offsets, counts)

    list(for_each(export, tables, firsts))
    return buffer, offsets, counts


def require_text(counts: PretokenCounts | FrozenCounts) -> None:
    """Raise TrainingError if nothing was counted."""
    if not counts.total:
        raise TrainingError(
            "there is no text to train on: every document is empty or consists of special tokens;"
            " give at least one file with text"
        )

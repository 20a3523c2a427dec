"""Windows of a dataset: where window i begins, and how many tokens it has.

A window has up to `context_length` inputs; the target of each is the token after it. The last input
of a window that ends with the data, or with its document, has no target.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]

_BLOCK = 256  # documents whose number of windows is summed up in memory


class Pieces(NamedTuple):
    """Positions of the tokens of some windows; a window has one piece, or several.

    Attributes:
        table: int64[5, n_pieces], by column a piece: position of its first token, number of inputs,
            number of targets (as many, or one less), its place in the inputs of all windows one
            after another, and the place up to which the inputs are padded after it.
        n_in_windows: Number of inputs of each window.
    """

    table: Numbers
    n_in_windows: Numbers


class Windows(Protocol):
    """All windows of a dataset; `len` is their number."""

    def __len__(self) -> int: ...

    def pieces(self, numbers: Numbers) -> Pieces:
        """Return the pieces of windows, by their numbers from 0 on."""


def count_windows(n_tokens: Numbers, context_length: int, stride: int) -> Numbers:
    """Count the windows of sequences: int64[n] from int64[n].

    Windows begin at multiples of `stride` and have at least one target; after the one that has the
    last target there is none.
    """
    n_targets = np.maximum(n_tokens - 1, 0)
    n_to_last = -(-np.maximum(n_targets - context_length, 0) // stride)
    n_later: Numbers = np.minimum(n_to_last, np.maximum(n_targets - 1, 0) // stride)
    return n_later + (n_targets > 0)


class StrideWindows:
    """Windows that begin at multiples of `stride`, across documents.

    Args:
        n_tokens: Number of tokens.
        context_length: Number of inputs.
        stride: Distance of windows.
        drop_last: True to leave out a last window with fewer than `context_length` targets.
    """

    def __init__(self, n_tokens: int, context_length: int, stride: int, drop_last: bool) -> None:
        self._n_tokens, self._context_length, self._stride = n_tokens, context_length, stride
        n_windows = int(count_windows(np.array([n_tokens]), context_length, stride)[0])
        is_partial = n_windows > 0 and (n_windows - 1) * stride + context_length > n_tokens - 1
        self._n_whole = n_windows - is_partial
        self._n_windows = self._n_whole if drop_last else n_windows

    def __len__(self) -> int:
        return self._n_windows

    def whole_windows(self, numbers: Numbers) -> Numbers | None:
        """Return where windows begin, if all have `context_length` targets; else None."""
        is_whole = self._n_whole == self._n_windows or bool((numbers < self._n_whole).all())
        return numbers * self._stride if is_whole else None

    def pieces(self, numbers: Numbers) -> Pieces:
        starts = numbers * self._stride
        return _whole(starts, self._n_tokens - starts, self._context_length)


class DocumentWindows:
    """Windows of one document each; a document longer than a window has several.

    Args:
        ends: uint64[n_documents], the position after each document, mapped.
        context_length: Number of inputs.
        stride: Distance of windows in a document.
        drop_short: True to leave out windows with fewer than `context_length` targets.
    """

    def __init__(
        self, ends: npt.NDArray[np.uint64], context_length: int, stride: int,
        drop_short: bool = False,
    ) -> None:
        self._ends, self._context_length, self._stride = ends, context_length, stride
        self._drop_short = drop_short
        self.n_inputs = 0  # of all windows
        n_blocks = -(-len(ends) // _BLOCK)
        totals = np.zeros(n_blocks + 1, np.int64)
        step = 1 << 12
        for block in range(0, n_blocks, step):
            documents = slice(block * _BLOCK, (block + step) * _BLOCK)
            bounds, counts = self._counts(documents.start, documents.stop)
            # All windows of a document but the last have all inputs.
            lasts = np.diff(bounds) - (counts - 1) * stride
            whole = np.maximum(counts - 1, 0) * context_length
            last = np.where(counts > 0, np.minimum(lasts, context_length), 0)
            self.n_inputs += int((whole + last).sum())
            sums = np.add.reduceat(counts, np.arange(0, len(counts), _BLOCK))
            totals[block + 1 : block + 1 + len(sums)] = sums
        self._before = np.cumsum(totals)  # windows before each block

    def __len__(self) -> int:
        return int(self._before[-1])

    def pieces(self, numbers: Numbers) -> Pieces:
        all_starts, all_left = np.empty(len(numbers), np.int64), np.empty(len(numbers), np.int64)
        blocks = np.searchsorted(self._before, numbers, side="right") - 1
        for block in np.unique(blocks).tolist():
            here = blocks == block
            bounds, counts = self._counts(block * _BLOCK, (block + 1) * _BLOCK)
            before = np.append(0, np.cumsum(counts)) + self._before[block]
            document = np.searchsorted(before, numbers[here], side="right") - 1
            inside = (numbers[here] - before[document]) * self._stride
            starts = bounds[document] + inside
            all_starts[here], all_left[here] = starts, bounds[document + 1] - starts
        return _whole(all_starts, all_left, self._context_length)

    def _counts(self, first: int, stop: int) -> tuple[Numbers, Numbers]:
        """Return (bounds int64[n + 1], numbers of windows int64[n]) of documents [first, stop)."""
        ends = self._ends[first:stop].astype(np.int64)
        begin = int(self._ends[first - 1]) if first else 0
        bounds = np.append(begin, ends)
        if self._drop_short:
            n_to_last = (np.diff(bounds) - 1 - self._context_length) // self._stride
            return bounds, np.maximum(n_to_last + 1, 0)
        return bounds, count_windows(np.diff(bounds), self._context_length, self._stride)


def segments_of(pieces: Pieces, ends: npt.NDArray[np.uint64]) -> Numbers:
    """Divide pieces where documents end: table as of `Pieces`.

    The last token of a document has no target in its segment.
    """
    found: list[list[int]] = []
    for start, n, _, place, stop in pieces.table.T.tolist():
        first = int(np.searchsorted(ends, np.uint64(start), "right"))
        last = int(np.searchsorted(ends, np.uint64(start + n), "right"))
        inside = ends[first:last].astype(np.int64).tolist()
        bounds = [start, *inside, *([start + n] if not inside or inside[-1] < start + n else [])]
        for begin, end in pairwise(bounds):
            at = place + begin - start
            is_last = end == start + n
            has_end = end in inside
            found.append([begin, end - begin, end - begin - has_end, at,
                          stop if is_last else at + end - begin])
    return np.ascontiguousarray(np.array(found, np.int64).reshape(-1, 5).T)


def _whole(starts: Numbers, left: Numbers, context_length: int) -> Pieces:
    """Return windows of one piece each, of which so many tokens are left."""
    table = np.empty((5, len(starts)), np.int64)
    table[0] = starts
    np.minimum(left, context_length, out=table[1])
    np.minimum(left - 1, context_length, out=table[2])
    table[3] = np.arange(len(starts)) * context_length
    table[4] = table[3] + context_length
    return Pieces(table, table[1])

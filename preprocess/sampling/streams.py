"""Streams of windows: which window is at each position, and which positions an epoch has.

A stream may go on where another one, of the same dataset before documents were appended, was left:
its first epoch has the windows that the other one had not given, and the new ones, in one order.
Nothing is listed: both are ranges of positions.
"""

from __future__ import annotations

from typing import Self

import numpy as np
import numpy.typing as npt

from preprocess.sampling.orders import ORDERS, permute

Numbers = npt.NDArray[np.int64]


class Stream:
    """The endless stream of the windows of a dataset.

    >>> old = Stream("epoch", 6, seed=1)
    >>> given = old.at(np.arange(4)).tolist()  # the first four windows
    >>> new = Stream("epoch", 9, seed=1, after=(old, 4))  # three windows were appended
    >>> new.n_first, sorted(new.at(np.arange(5)).tolist() + given)
    (5, [0, 1, 2, 3, 4, 5, 6, 7, 8])

    Args:
        order: A name in `ORDERS`.
        n_windows: Windows of an epoch.
        seed: Of the order.
        after: Another stream, of the first windows of this one, and the position in it from which
            on this one continues; None: it begins.
        size: Windows of a batch.
        drop_last: True to leave out the last windows of an epoch that do not fill a batch.

    Attributes:
        n_windows: As given.
        n_first: Windows of the first epoch.
        n_first_batches: Batches of the first epoch.
        n_batches: Batches of each later one.
    """

    def __init__(
        self, order: str, n_windows: int, seed: int, after: tuple[Self, int] | None = None,
        size: int = 1, drop_last: bool = False,
    ) -> None:
        self._order, self.n_windows, self._seed = order, n_windows, seed
        self._after: Stream | None = None
        self.n_first, self._epoch, self._n_old, self._begin = n_windows, 0, 0, 0
        if after is not None:
            self._after, self._begin = after
            stop, self._epoch = self._after._end_of_epoch(self._begin)
            self._n_old = stop - self._begin
            self.n_first = self._n_old + n_windows - self._after.n_windows
        self._size = size
        self.n_first_batches, self.n_batches = (
            n // size if drop_last else -(-n // size) for n in (self.n_first, n_windows)
        )

    def _end_of_epoch(self, position: int) -> tuple[int, int]:
        """Return (where the epoch of a position ends, its number)."""
        if position < self.n_first:
            return self.n_first, self._epoch
        n_later = (position - self.n_first) // self.n_windows
        return self.n_first + (n_later + 1) * self.n_windows, self._epoch + 1 + n_later

    def at(self, positions: Numbers) -> Numbers:
        """Return the numbers of the windows at positions: int64[n]."""
        order, old = ORDERS[self._order], self._after
        if old is None:
            return order(positions, self.n_windows, self._seed)
        begin = (self._epoch + 1) * self.n_windows
        later = np.maximum(positions - self.n_first, 0)
        found = order(later + begin, self.n_windows, self._seed)
        is_first = positions < self.n_first
        places = positions[is_first]
        if self._order == "epoch" and self.n_first > self._n_old:
            places = permute(places, self.n_first, self._seed, self._epoch)
        is_old = places < self._n_old
        windows = places - self._n_old + old.n_windows
        windows[is_old] = old.at(places[is_old] + self._begin)
        found[is_first] = windows
        return found

    def batches(self, steps: Numbers) -> tuple[Numbers, Numbers]:
        """Return (position of the first window, number of windows) of batches: int64[n] each."""
        is_first = steps < self.n_first_batches
        epochs, batches = np.divmod(np.maximum(steps - self.n_first_batches, 0), self.n_batches)
        begins = np.where(is_first, 0, self.n_first + epochs * self.n_windows)
        stops = np.where(is_first, self.n_first, begins + self.n_windows)
        firsts = begins + np.where(is_first, steps, batches) * self._size
        return firsts, np.minimum(self._size, stops - firsts)

"""Cache of encoded pre-tokens, shared by all encoders of one tokenizer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bpe.encode import cache_rows
from bpe.encode.cache_rows import PretokenCache
from bpe.parallel import Lock
from bpe.runtime.arrays import zeros
from bpe.runtime.jit import pack

# Words of 8 bytes in the tables. Hashing touches every page of a table, so all of it becomes
# resident: tables are small for short texts, and later have room for 100 MB of English.
_SHORT_ROWS, _ROWS, _MOST_ROWS = 2**15, 2**21, 2**23
_SHORT_LONG_ROWS, _LONG_ROWS, _MOST_LONG_ROWS = 2**11, 2**17, 2**21
_SHORT_ARENA, _ARENA = 2**16, 2**23


class SharedPretokenCache:
    """Cache of encoded pre-tokens, shared by all encoders of one tokenizer; lock-free to use.

    Attributes:
        current: (number of the arena, cache, packed cache). Threads own pieces of the arena with
            this number only. Threads may use a replaced cache: entries added to it are lost and
            recomputed.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._replace(0, empty_cache(_SHORT_ROWS, _SHORT_LONG_ROWS, _SHORT_ARENA))

    def _replace(self, number: int, cache: PretokenCache) -> None:
        self.current = number, cache, pack(cache)

    def make_room(self, full: PretokenCache | None = None) -> bool:
        """Enlarge or empty the cache if it is still `full`; with None, replace it by a large one.

        Return False if another thread is replacing it.
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            number, cache, _ = self.current
            if full is None or cache is full:
                larger = None if full is None else _enlarged(full)
                if larger is None:
                    number, larger = number + 1, empty_cache(_ROWS, _LONG_ROWS, _ARENA)
                self._replace(number, larger)
        finally:
            self._lock.release()
        return True


def empty_cache(rows: int, long_rows: int, arena: int) -> PretokenCache:
    """Return an empty cache, its tables of these sizes in words."""
    ids, used, own = zeros(arena, np.uint64), np.zeros(3, np.int64), np.zeros(0, np.int64)
    tables = zeros(rows, np.uint64), zeros(long_rows, np.uint64), ids, ids.view(np.uint8)
    return _with_limits(PretokenCache(*tables, used=used, limits=used, own=own))


def _with_limits(cache: PretokenCache) -> PretokenCache:
    """Limit used rows to three quarters; a row has four words, a long row two."""
    sizes = len(cache.rows) // 4 * 3 // 4, len(cache.long_rows) // 2 * 3 // 4, len(cache.arena)
    return cache._replace(limits=np.array(sizes, np.int64))


def is_full(cache: PretokenCache) -> NDArray[np.bool]:
    """Return bool[3]: whether rows, long rows and the arena are full.

    The kernel `cache_rows.is_full` does the same, but loading its machine code takes milliseconds.
    """
    return cache.used > cache.limits


def _enlarged(cache: PretokenCache) -> PretokenCache | None:
    """Return the same rows in larger tables; None if these may not grow, or the arena is full."""
    rows, long_rows = cache.rows, cache.long_rows
    rows_full, long_rows_full, arena_full = is_full(cache)
    if arena_full or (rows_full and len(rows) >= _MOST_ROWS):
        return None
    if long_rows_full and len(long_rows) >= _MOST_LONG_ROWS:
        return None
    larger = cache._replace(own=np.zeros(4, np.int64))  # rows that are moved are counted already
    if rows_full:
        larger = larger._replace(rows=zeros(min(4 * len(rows), _MOST_ROWS), np.uint64))
        cache_rows.move_rows(rows, larger, False)
    if long_rows_full:
        n = min(4 * len(long_rows), _MOST_LONG_ROWS)
        larger = larger._replace(long_rows=zeros(n, np.uint64))
        cache_rows.move_rows(long_rows, larger, True)
    return _with_limits(larger._replace(own=cache.own))

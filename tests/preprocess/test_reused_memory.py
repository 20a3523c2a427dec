"""Memory that is handed out again: never while anybody holds some of it."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from preprocess.reused_memory import ReusedMemory

STEP = 1 << 16


def address(array: np.ndarray[Any, Any]) -> int:
    return int(array.ctypes.data)


@given(st.lists(st.tuples(st.integers(0, 3 * STEP), st.integers(0, 5)), max_size=40))
def test_what_is_held_in_any_way_is_never_handed_out(steps: list[tuple[int, int]]) -> None:
    reused = ReusedMemory(limit=3, largest=2 * STEP)
    ways: list[Callable[[Any], Any]] = [
        lambda array: array,
        lambda array: array[5:],
        lambda array: array[1:][::-1],
        lambda array: memoryview(array),
        lambda array: array[: len(array) // 8 * 8].view(np.int64),
    ]
    held: list[Any] = []
    seen: list[bytes] = []
    for number, (n_bytes, way) in enumerate(steps):
        array = reused.array(n_bytes)
        assert array.dtype == np.uint8
        assert len(array) == n_bytes
        array[:] = number
        if way < len(ways):
            held.append(ways[way](array))
            seen.append(bytes(held[-1]))
        del array
        held, seen = held[-6:], seen[-6:]
        assert [bytes(each) for each in held] == seen


def test_what_nobody_holds_is_handed_out_again() -> None:
    reused = ReusedMemory(limit=4, largest=1 << 20)
    # The last one that was in use, for one that is as large, smaller, or a little larger.
    first, second = reused.array(3 * STEP - 1000), reused.array(3 * STEP - 1000)
    places = address(first), address(second)
    del first, second
    for n_bytes in (3 * STEP - 1000, 2 * STEP, 3 * STEP):
        assert address(reused.array(n_bytes)) == places[1]
    both = reused.array(3 * STEP), reused.array(3 * STEP)
    assert {address(each) for each in both} == set(places)


@pytest.mark.parametrize("n_bytes", [STEP, STEP + 1, 2 * STEP, 10 * STEP + 5])
def test_of_one_size_no_more_is_kept_than_was_in_use(n_bytes: int) -> None:
    reused = ReusedMemory(limit=8, largest=1 << 20)
    for _ in range(5):
        held = [reused.array(n_bytes) for _ in range(2)]
        del held
    assert len(reused._free) == 2


@pytest.mark.parametrize(
    "n_bytes", [0, 10, STEP - 1, STEP, STEP + 1, 3 * STEP, 20 * STEP, 100 * STEP]
)
def test_who_keeps_an_array_keeps_little_more(n_bytes: int) -> None:
    """A batch of one sequence, kept, must not keep the memory of one of a thousand."""
    reused = ReusedMemory(limit=8, largest=100 * STEP)
    # Searched from the last one, which is the largest.
    free = [reused.array(n * STEP) for n in (1, 2, 3, 4, 5, 10, 50, 100)]
    del free
    kept: Any = reused.array(n_bytes)
    while isinstance(kept.base, np.ndarray):
        kept = kept.base
    pinned = kept.nbytes if kept.base is None else len(kept.base.obj)
    assert n_bytes <= pinned <= 2 * n_bytes
    # The large one is still there for those that need it.
    assert n_bytes == 100 * STEP or 100 * STEP in map(len, reused._free)


def test_no_more_is_kept_than_was_asked_for() -> None:
    reused = ReusedMemory(limit=2, largest=STEP)
    held = [reused.array(STEP) for _ in range(5)]
    del held
    assert len(reused._free) == 2
    # What is too small for an array is kept beside it, for one that needs it.
    small = ReusedMemory(limit=4, largest=4 * STEP)
    places = [address(small.array(n * STEP)) for n in (1, 2, 4)]
    assert [len(memory) // STEP for memory in small._free] == [1, 2, 4]
    assert [address(small.array(n * STEP)) for n in (4, 2, 1)] == places[::-1]
    reused.array(STEP + 1)
    assert all(len(memory) == STEP for memory in reused._free)


@pytest.mark.parametrize("grow", [False, True])
def test_little_more_is_free_than_is_in_use(grow: bool) -> None:
    """Free memory is bounded while arrays become larger or smaller, too."""
    reused = ReusedMemory(limit=256, largest=1 << 26)
    sizes = [1 << 26]
    while sizes[-1] > 2 * STEP:
        sizes.append(sizes[-1] * 5 // 8)
    for n_bytes in sizes[::-1] if grow else sizes:
        held = [reused.array(n_bytes) for _ in range(4)]
        used = sum(map(len, held))
        # Rounded, and the spare.
        assert sum(map(len, reused._free)) <= used + 4 * STEP + (1 << 25)
        # All that is in use is known, and is used again.
        again = {address(array) for array in held}
        del held
        assert {address(each) for each in [reused.array(n_bytes) for _ in range(4)]} == again


def test_as_much_may_be_free_as_comes_into_use_and_a_spare() -> None:
    reused = ReusedMemory(limit=256, largest=1 << 26)
    held = [reused.array(35 << 20) for _ in range(4)]
    del held
    # None of them is for one so much smaller; beside 20 MiB and the spare there is room for one.
    reused.array(20 << 20)
    assert [len(memory) >> 20 for memory in reused._free] == [35, 20]


def test_as_much_may_be_free_as_is_in_use() -> None:
    reused = ReusedMemory(limit=256, largest=1 << 26)
    held = [reused.array(1 << 23) for _ in range(12)]
    gone = {address(array) for array in held[6:]}
    del held[6:]
    small = reused.array(1 << 20)
    again = [reused.array(1 << 23) for _ in range(6)]
    assert {address(array) for array in again} == gone
    del small


def test_what_becomes_of_an_array_is_nothing_to_others() -> None:
    reused = ReusedMemory(limit=4, largest=STEP)
    base: Any = reused.array(STEP)
    while isinstance(base, np.ndarray):
        base.flags.writeable = False
        base = base.base
    del base
    assert reused.array(STEP).flags.writeable


def test_threads_never_share_memory() -> None:
    reused = ReusedMemory(limit=8, largest=4 * STEP)
    wrong: list[int] = []

    def work(number: int) -> None:
        for turn in range(300):
            arrays = [reused.array((1 + (turn + each) % 4) * STEP) for each in range(3)]
            for array in arrays:
                array[::4096] = number
            wrong.extend(turn for array in arrays if (array[::4096] != number).any())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert not reused._used
    assert len({id(memory) for memory in reused._free}) == len(reused._free) <= 8


def test_where_the_system_maps_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(n_bytes: int) -> None:
        raise OSError(12, "Cannot allocate memory")

    reused = ReusedMemory(limit=4, largest=4 * STEP)
    monkeypatch.setattr("preprocess.reused_memory._mapped", refuse)
    array = reused.array(STEP)
    assert (len(array), array.flags.writeable) == (STEP, True)
    # And it goes on when it can again.
    monkeypatch.undo()
    held = [reused.array(STEP) for _ in range(2)]
    del held
    assert len(reused._free) == 2


def test_what_is_not_written_to_takes_no_memory() -> None:
    resident = Path("/proc/self/statm")
    if not resident.exists():
        pytest.skip("the system does not tell how much memory is resident")

    def pages() -> int:
        return int(resident.read_text().split()[1])

    reused = ReusedMemory(limit=4, largest=1 << 28)
    before = pages()
    array = reused.array(1 << 28)
    array[: 1 << 20] = 1
    assert (pages() - before) * mmap.PAGESIZE < 1 << 26

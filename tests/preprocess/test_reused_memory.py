"""Memory that is handed out again: never while anybody holds some of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
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

"""Each item is taken once and in order; a failure or Ctrl-C ends it, and is what is raised."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from bpe.threads import for_each


@pytest.mark.parametrize("n_threads", [1, 2, 5])
@pytest.mark.parametrize("n_items", [0, 1, 3, 200])
def test_each_item_once(n_items: int, n_threads: int) -> None:
    done: list[tuple[int, str]] = []
    for_each(map(str, range(n_items)), lambda *item: done.append(item), n_threads)
    assert sorted(done) == [(number, str(number)) for number in range(n_items)]


def test_threads_work_side_by_side() -> None:
    # Neither goes on before both are there.
    meeting = threading.Barrier(2)
    for_each(range(2), lambda *_: meeting.wait(60) and None, 2)
    assert not meeting.broken


def test_the_first_failure_is_raised_and_no_more_is_taken() -> None:
    meeting = threading.Barrier(2)
    taken: list[int] = []

    def work(number: int, _: int) -> None:
        taken.append(number)
        meeting.wait(60)
        raise ValueError(f"item {number}")

    with pytest.raises(ValueError, match="item 0"):
        for_each(range(100), work, 2)
    assert sorted(taken) == [0, 1]


def test_a_source_that_fails() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise OSError("cannot be read")

    done: list[int] = []
    with pytest.raises(OSError, match="cannot be read"):
        for_each(items(), lambda _, item: done.append(item), 2)
    assert done == [1]


def test_an_item_that_fails_comes_before_a_source_that_fails_behind_it() -> None:
    source_failed = threading.Event()

    def items() -> Iterator[int]:
        yield from range(3)
        source_failed.set()
        raise OSError("cannot be read")

    def work(number: int, _: int) -> None:
        if number == 2:
            source_failed.wait(60)
            raise ValueError("item 2")

    with pytest.raises(ValueError, match="item 2"):
        for_each(items(), work, 2)


def test_a_thread_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    submit, begun = ThreadPoolExecutor.submit, threading.Event()
    taken: list[int] = []

    def work(number: int, _: int) -> None:
        taken.append(number)
        begun.set()
        refused.wait(60)

    refused = threading.Event()

    def submit_once(pool: ThreadPoolExecutor, *what: object) -> object:
        if begun.is_set():
            monkeypatch.setattr("bpe.threads.ThreadPoolExecutor.shutdown", end_of(refused))
            raise RuntimeError("can't start new thread")
        future = submit(pool, *what)
        begun.wait(60)
        return future

    monkeypatch.setattr("bpe.threads.ThreadPoolExecutor.submit", submit_once)
    with pytest.raises(RuntimeError, match="start new thread"):
        for_each(range(50), work, 2)
    assert taken == [0]


@pytest.mark.parametrize("n_threads", [1, 2, 5])
def test_an_error_does_not_hold_the_data(n_threads: int) -> None:
    class Data:
        pass

    data = Data()
    held = weakref.ref(data)
    # All threads fail, the last one of them, too.
    meeting = threading.Barrier(n_threads)

    def work(_: int, __: int, data: Data = data) -> None:
        meeting.wait(60)
        raise ValueError(str(data))

    gc.disable()
    try:
        with contextlib.suppress(ValueError):
            for_each(range(n_threads), work, n_threads)
        del work, data
        assert held() is None
    finally:
        gc.enable()


def test_ctrl_c_ends_it_after_the_items_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, interrupted = threading.Event(), threading.Event()
    taken: list[int] = []

    def work(number: int, _: int) -> None:
        taken.append(number)
        begun.set()
        interrupted.wait(60)

    def interrupt(_: object) -> None:
        begun.wait(60)
        # What runs once the main thread has left the wait.
        monkeypatch.setattr("bpe.threads.ThreadPoolExecutor.shutdown", end_of(interrupted))
        raise KeyboardInterrupt

    monkeypatch.setattr("bpe.threads.wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        for_each(range(100), work, 1)
    assert taken == [0]


def end_of(interrupted: threading.Event) -> Callable[..., None]:
    """`ThreadPoolExecutor.shutdown` that lets the threads go on at first."""
    shutdown = ThreadPoolExecutor.shutdown

    def end(pool: ThreadPoolExecutor, wait: bool = True) -> None:
        interrupted.set()
        shutdown(pool, wait)

    return end

"""Map a function over units on several threads.

Nobody waits for a thread that has not begun: where memory is limited, a thread that was started may
end before it runs anything. A call is a `Task`, and whoever needs its result makes the call unless
a thread has begun with it.

Results of `run_in_order` are in the order of the units:

- The first error in that order, of the function or of the iterator of units, is raised unchanged,
  after all results before it.
- At most `2 * workers + 2` units or results exist at a time: memory is bounded.
- When the consumer stops (an error, an interrupt, `close()`), no further unit is started, and
  running ones, which are short, are completed.
- The consuming thread is one of the workers, and works while the next result is not ready.

The function keeps state (an encoder, counts) and is used by one thread at a time.
"""

from __future__ import annotations

import _thread
import contextlib
import itertools
import os
import queue
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Any, Generic, Self, TypeVar, overload

from bpe.errors import TokenmillError

Unit = TypeVar("Unit")
Result = TypeVar("Result")


def available_workers() -> int:
    """Return the number of processors that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS has no affinities
        return os.cpu_count() or 1


class Lock:
    """A lock that is free in a forked process, where no thread would release it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _locks.add(self)

    def acquire(self, blocking: bool = True) -> bool:
        """Acquire the lock; return False if it is held and `blocking` is False."""
        return self._lock.acquire(blocking)

    def release(self) -> None:
        """Release the lock."""
        self._lock.release()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


_locks = weakref.WeakSet[Lock]()


def _free_locks() -> None:
    for each in _locks:
        each._lock = threading.Lock()


os.register_at_fork(after_in_child=_free_locks)


class cached_property(Generic[Result]):  # noqa: N801 (in the place of that of functools)
    """As `functools.cached_property`, without its lock (Python 3.11).

    One lock for all objects, which a forked process would find held. Threads that come at the same
    time may compute the value more than once; all get the same one.
    """

    def __init__(self, function: Callable[[Any], Result]) -> None:
        self._function, self.__doc__ = function, function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, of: None, owner: type) -> Self: ...

    @overload
    def __get__(self, of: object, owner: type) -> Result: ...

    def __get__(self, of: object | None, owner: type) -> Self | Result:
        if of is None:
            return self
        found: Result = of.__dict__.setdefault(self._name, self._function(of))
        return found


def start_thread(run: Callable[..., object], *arguments: Any) -> None:
    """Start a daemon thread, if the system has one to give; `run` raises nothing.

    `threading.Thread.start` waits until the thread runs, for ever if it ends before that.
    """
    with contextlib.suppress(RuntimeError, MemoryError):
        _thread.start_new_thread(run, arguments)


def _check_process(process: int) -> None:
    if process != os.getpid():
        raise TokenmillError(
            "the threads that run ahead are not in this process; begin the iteration after the"
            " process was forked"
        )


class Task(Generic[Result]):
    """A call that is made once, by the thread that comes first.

    Attributes:
        is_done: True when it was made.
        error: What it raised.
    """

    __slots__ = ("_call", "_claimed", "_done", "_process", "_result", "error", "is_done")

    def __init__(self, function: Callable[..., Result], *arguments: Any) -> None:
        self._call: Any = function, arguments
        self._claimed, self._done = threading.Lock(), threading.Lock()
        self._done.acquire()
        self.is_done = False
        self._process = os.getpid()
        self._result: Result
        self.error: BaseException | None = None

    def claim(self) -> bool:
        """Return True to the first who asks; nobody makes the call afterwards.

        Raises:
            TokenmillError: This is a fork of the process of the task.
        """
        _check_process(self._process)
        return self._claimed.acquire(blocking=False)

    def run(self) -> bool:
        """Make the call unless somebody has claimed it; return whether it was made here.

        Its error is kept for `result`, and an interrupt is raised, too.
        """
        if not self.claim():
            return False
        try:
            function, arguments = self._call
            self._result = function(*arguments)
        except BaseException as error:
            self.error = error
            if not isinstance(error, Exception):
                raise
        finally:
            self._call = function = arguments = None
            self.is_done = True
            self._done.release()
            del self  # the error keeps this frame
        return True

    def wait(self) -> None:
        """Wait until the call was made; make it if nobody has claimed it; see `run`."""
        try:
            if not self.is_done:
                self.run()
                with self._done:
                    pass
        finally:
            del self  # the error keeps this frame

    def result(self) -> Result:
        """Return the result, or raise the error; see `wait`."""
        try:
            self.wait()
            if self.error is not None:
                raise self.error
            return self._result
        finally:
            del self  # the error keeps this frame


class Threads:
    """Up to `n` threads that run tasks in the order in which they are submitted."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._tasks: queue.SimpleQueue[Task[Any] | None] = queue.SimpleQueue()
        self._workers: list[Task[None]] = []  # one per thread
        self._process = os.getpid()

    def submit(self, function: Callable[..., Result], *arguments: Any) -> Task[Result]:
        """Return a task that one of the threads runs soon; raise TokenmillError in a fork."""
        _check_process(self._process)
        task = Task(function, *arguments)
        self._tasks.put(task)
        if len(self._workers) < self._n:
            self._workers.append(Task(self._work))
            start_thread(self._workers[-1].run)
        return task

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            with contextlib.suppress(BaseException):  # which the task has, or a lack of memory
                task.run()
            del task

    def close(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> bool:
        """Drop tasks that nobody has claimed, and wait for the others.

        Returns:
            False where there are no threads any more: in a fork, and at the end of the process.
        """
        if self._process != os.getpid() or is_finalizing():
            return False
        with contextlib.suppress(queue.Empty):
            while True:
                if (task := self._tasks.get_nowait()) is not None:
                    task.claim()
        for _ in self._workers:
            self._tasks.put(None)
        while self._workers:
            self._workers.pop().wait()
        return True


def for_each(items: Iterable[Unit], work: Callable[[int, Unit], object], workers: int) -> None:
    """Call `work(number, item)` for each item, on several threads; see `run_in_order`."""
    done = run_in_order(enumerate(items), lambda: lambda unit: work(*unit), workers)
    with contextlib.closing(done):
        deque(done, maxlen=0)


def _raise(error: BaseException) -> Any:
    try:
        raise error
    finally:
        del error  # it keeps this frame


def run_in_order(
    units: Iterable[Unit], make_work: Callable[[], Callable[[Unit], Result]], workers: int
) -> Generator[Result, None, None]:
    """Yield the results of units, in their order.

    Close the generator (`contextlib.closing`) if it may not be exhausted.

    Args:
        units: Consumed lazily, in the calling thread.
        make_work: Called at most once per worker; returns the function.
        workers: Number of threads, including the calling one.

    Raises:
        Exceptions of `units`, `make_work` and the function, unchanged.
    """
    if workers == 1:
        work = make_work()
        for unit in units:  # not `map`, which ends where the work raises StopIteration
            yield work(unit)
        return
    remaining = iter(units)
    idle: deque[Callable[[Unit], Result]] = deque()
    threads = Threads(workers - 1)
    # An error keeps the frames it passed: with a local name there for its task or a unit, they
    # would live until a garbage collection.
    under_way: deque[Task[Result]] = deque()

    def work_on(unit: Unit) -> Result:
        # The function that was used last has warm caches.
        try:
            work = idle.pop()
        except IndexError:
            work = make_work()
        try:
            return work(unit)
        finally:
            idle.append(work)

    def take(n: int) -> None:
        try:
            for unit in itertools.islice(remaining, n):
                under_way.append(threads.submit(work_on, unit))
        except Exception as error:  # noqa: BLE001 (raised when it is its turn)
            under_way.append(Task(_raise, error))

    try:
        take(2 * workers + 2)
        while under_way:
            # The calling thread takes the first unit that no thread has begun with.
            if under_way[0].is_done or not any(map(Task.run, under_way)):
                yield under_way.popleft().result()
                take(1)
    finally:
        threads.close()
        under_way.clear()

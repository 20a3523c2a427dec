"""Read work units in processes of their own, if reading them keeps Python's interpreter busy.

Chat templates are rendered by Python code: threads would render one conversation after another.
Each worker gets a process that reads its units instead: it is sent a unit and sends back the batch.
A process is started when the first unit needs it, and knows nothing of the program that uses this
package: that need not be protected by `if __name__ == "__main__"`.
"""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from bpe.errors import TokenmillError
from preprocess.documents.batch import DocumentBatch
from preprocess.sources import Source, WorkUnit
from preprocess.sources.text_file import Array

# Bytes that are read in less time than processes take to start.
_FEW_BYTES = 32 * 1024 * 1024
_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[2:]; from preprocess.run.readers import serve;"
    " serve(int(sys.argv[1]))"
)

# Returns the documents of a unit, as `WorkUnit.read`.
Read = Callable[[WorkUnit, Array], DocumentBatch]


class ReaderError(TokenmillError):
    """A process that reads units has ended."""


def read_here(unit: WorkUnit, array: Array) -> DocumentBatch:
    """Read a unit on this thread."""
    return unit.read(array)


@contextmanager
def unit_readers(sources: Sequence[Source], workers: int) -> Iterator[Read]:
    """Yield a function that reads a unit, here or in one of up to `workers` processes.

    The function raises ReaderError if its process ends, and otherwise what `WorkUnit.read` raises.
    """
    if workers == 1 or sum(each.n_bytes for each in sources if each.has_spans) < _FEW_BYTES:
        yield read_here
        return
    started, idle = list[_Process](), list[_Process]()

    def read(unit: WorkUnit, array: Array) -> DocumentBatch:
        if not unit.is_rendered:
            return unit.read(array)
        try:
            process = idle.pop()
        except IndexError:
            process = _Process()
            started.append(process)
        found = process.read(unit)
        idle.append(process)  # one that has ended is not used again
        if isinstance(found, Exception):
            raise found
        return found

    try:
        yield read
    finally:
        for process in started:
            process.end()


class _Process:
    """A process that reads units, one at a time."""

    def __init__(self) -> None:
        self._connection, other = Pipe()
        with other:
            command = [sys.executable, "-c", _PROGRAM, str(other.fileno()), *sys.path]
            # In a group of its own, for the terminal interrupts this process, which ends it.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[other.fileno()], process_group=0
            )

    def read(self, unit: WorkUnit) -> DocumentBatch | Exception:
        try:
            self._connection.send(unit)
            found: DocumentBatch | Exception = self._connection.recv()
        except (EOFError, OSError) as error:
            status = self._process.wait()
            how = f"by signal {-status}" if status < 0 else f"with exit status {status}"
            raise ReaderError(
                f"{unit.where}: the process that renders conversations ended {how}; if memory is"
                " short, use fewer --workers; rerun the same command to resume"
            ) from error
        return found

    def end(self) -> None:
        """End the process, which has no state to lose."""
        self._connection.close()
        self._process.kill()
        self._process.wait()


def serve(descriptor: int) -> None:
    """Read the units that come through a pipe until it is closed, and send their batches."""
    # A unit is many small objects without cycles: fewer looks for cycles make reading 5 to 9 %
    # faster.
    gc.set_threshold(100_000)
    with Connection(descriptor) as connection, suppress(EOFError, ConnectionError):
        while True:
            unit: WorkUnit = connection.recv()
            found: DocumentBatch | Exception
            try:
                found = unit.read()
            except Exception as error:  # noqa: BLE001 (raised where the unit comes from)
                if not isinstance(error, TokenmillError):
                    error.add_note("".join(traceback.format_exception(error)))
                found = error
            try:
                connection.send(found)
            except (TypeError, AttributeError, pickle.PicklingError):
                # An exception of a library that cannot be pickled.
                notes = getattr(found, "__notes__", [repr(found)])
                connection.send(ReaderError(f"{unit.where}: {''.join(notes)}"))

"""Output of a command: standard streams that may fail, and the loggers of both packages."""

from __future__ import annotations

import io
import logging
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any, TextIO

from preprocess.report.progress import logger as own


class _Dropping(io.FileIO):
    """A file; what cannot be written is dropped, for the work of a run goes on.

    Attributes:
        error: Why something was dropped; None: nothing was.
    """

    error: OSError | None = None

    def write(self, data: Any) -> int:
        """Write bytes, and return how many there are."""
        try:
            while (n := super().write(data)) is None:  # another program made it non-blocking
                select.select([], [self], [])
            return n
        except OSError as error:
            self.error = error
            return len(data)


def _stream(file: str | int, encoding: str, **about: Any) -> TextIO:
    """Open a file for text; characters that the encoding lacks are escaped."""
    is_named = isinstance(file, str)
    raw = _Dropping(file, "ab" if is_named else "wb", closefd=is_named)
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, "backslashreplace", **about)


def error_of(stream: Any) -> OSError | None:
    """Return why something that was written to a standard stream was dropped; None: nothing was."""
    buffer = getattr(stream, "buffer", None)  # that of a notebook or an `io.StringIO` has none
    return getattr(getattr(buffer, "raw", None), "error", None)


def _kept(stream: Any) -> Any:
    """Return a stream for a standard stream, which may fail; one in memory stays."""
    if stream is None:
        return open(os.devnull, "w")
    buffer = getattr(stream, "buffer", None)
    if isinstance(getattr(buffer, "raw", buffer), io.FileIO):
        stream.flush()
        # One without a buffer (PYTHONUNBUFFERED) gets one, which is to keep no line back.
        is_by_line = stream.line_buffering or stream.write_through
        return _stream(stream.fileno(), stream.encoding, line_buffering=is_by_line)
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
    return stream


@contextmanager
def standard_streams() -> Iterator[None]:
    """Let standard output and errors be closed, full or of any encoding inside the `with`."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # closed: the next file that is opened would be written to by libraries
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(_kept, before)
    try:
        yield
    finally:
        sys.stdout.flush()
        if (error := error_of(sys.stdout)) and not isinstance(error, BrokenPipeError):
            print(f"tokenmill: what it printed is lost: {error.strerror}", file=sys.stderr)
        sys.stderr.flush()
        sys.stdout, sys.stderr = before


@contextmanager
def logging_to(log_file: str | None, quiet: bool) -> Iterator[None]:
    """Connect the loggers of both packages to stderr and a file inside the `with`.

    Raises:
        OutputError: The file cannot be written.
    """
    handlers: list[logging.Handler] = [_OnStderr(logging.WARNING if quiet else logging.INFO)]
    log = None if log_file is None else _open_log(log_file)
    if log is not None:
        handlers.append(logging.StreamHandler(log))
        handlers[1].setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    loggers = [own, logging.getLogger("bpe")]
    for logger, handler in product(loggers, handlers):
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)
    try:
        yield
    except BaseException as error:
        own.error("%s: %s", type(error).__name__, error, extra={"only_file": True})
        raise
    finally:
        for logger, handler in product(loggers, handlers):
            logger.removeHandler(handler)
        if log is not None:
            log.flush()
            if failed := error_of(log):
                print(
                    f"tokenmill: {log_file}: the log lacks lines, for it could not be written:"
                    f" {failed.strerror}; outputs are not affected", file=sys.stderr,
                )
            log.close()


def _open_log(path: str) -> TextIO:
    """Open a log file; a new one begins with a line that says what it is."""
    from preprocess.sources.registry import LOG_BEGINS
    from preprocess.storage import OutputError

    try:
        log = _stream(path, "utf-8")
    except OSError as error:
        text = f"no log can be written there: {error.strerror}; choose another file"
        raise OutputError(f"{path}: {text}") from error
    if os.path.isfile(path) and not os.path.getsize(path):
        log.write(LOG_BEGINS)
        log.flush()  # before sources are looked for, of which it is none
    return log


class _OnStderr(logging.Handler):
    """Handler that prints records, above a bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "only_file", False):
            return
        line = f"tokenmill: {record.getMessage()}"
        if "tqdm" in sys.modules:
            from tqdm import tqdm

            tqdm.write(line, file=sys.stderr)
        else:
            print(line, file=sys.stderr)

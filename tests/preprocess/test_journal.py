"""The journal: what was written is read, what was torn passed over, what is damaged refused."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from preprocess.run.journal import Journal, JournalError, read_entries
from preprocess.storage import JOURNAL_FILE, LocalStorage

VALUES = [("begun", {"n": 1}), ("text", 'naïve "日本"\n'), ("x", [1, None])]


def write(directory: Path, values: list[tuple[str, Any]], **more: Any) -> bytes:
    storage = LocalStorage(directory, "run")
    with Journal(storage) as journal:
        for key, value in values:
            journal.save(key, value, **more)
    return storage.get(JOURNAL_FILE) or b""


def keys(content: bytes) -> list[str]:
    return [entry["key"] for entry, _, _ in read_entries(content, "journal")]


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write(tmp_path_factory.mktemp("journal"), VALUES)


def test_a_torn_last_line_is_passed_over_and_cut_off(content: bytes, tmp_path: Path) -> None:
    last = content.rindex(b"\n", 0, -1) + 1
    for end in range(last, len(content)):
        for filling in (b"", b"\0" * 30, b"\0\n"):
            assert keys(content[:end] + filling) == ["begun", "text"]
    storage = LocalStorage(tmp_path, "run")
    storage.put(JOURNAL_FILE, content[:-5])
    with Journal(storage) as journal:
        journal.save(*VALUES[-1])
    assert storage.get(JOURNAL_FILE) == content


def test_lines_that_are_missing_or_elsewhere_are_an_error(content: bytes) -> None:
    first, second, third = content.splitlines(keepends=True)
    for wrong in (second + first + third, first + third + third, second + third):
        with pytest.raises(JournalError, match="is damaged"):
            keys(wrong)


class Slow:
    """A stream whose `sync` waits until it may."""

    n_bytes = 0

    def __init__(self) -> None:
        self.may, self.began = threading.Event(), threading.Event()

    def sync(self) -> None:
        self.began.set()
        assert self.may.wait(60)


def test_work_goes_on_while_the_disk_is_slow_and_streams_come_first(tmp_path: Path) -> None:
    storage, stream = LocalStorage(tmp_path, "run"), Slow()
    with Journal(storage) as journal:
        journal.submit("x", 1, [stream])  # type: ignore[list-item]  # it only syncs
        assert stream.began.wait(60)
        # `submit` came back though nothing is on the disk; the entry waits for the stream.
        assert storage.get(JOURNAL_FILE) is None
        stream.may.set()
        journal.wait()
        assert keys(storage.get(JOURNAL_FILE) or b"") == ["x"]

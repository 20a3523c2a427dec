"""The journal: what was written is read, what was torn passed over, what is damaged refused."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from preprocess.run.journal import Journal, JournalError, read_entries
from preprocess.storage import JOURNAL_FILE, LocalStorage, OutputError


class Encoded(Struct, tag_field="kind", tag="encoded"):
    text: str


class Other(Struct, tag_field="kind", tag="other"): ...


ENTRIES = [{"kind": "begun", "n": 1}, {"kind": "encoded", "text": 'naïve "日本"\n'}, {"kind": "x"}]


def write(directory: Path, entries: list[dict[str, Any]]) -> bytes:
    storage = LocalStorage(directory, "run")
    with Journal(storage) as journal:
        for entry in entries:
            journal.append(entry)
    return storage.get(JOURNAL_FILE) or b""


def read(content: bytes) -> list[dict[str, Any]]:
    return [entry for entry, _, _ in read_entries(content, "journal")]


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write(tmp_path_factory.mktemp("journal"), ENTRIES)


def test_entries_come_back(tmp_path: Path) -> None:
    content = write(tmp_path, ENTRIES)
    assert read(content) == ENTRIES
    assert content.isascii()
    # A later run reads them and goes on behind them.
    write(tmp_path, [{"kind": "later"}])
    journal = Journal(LocalStorage(tmp_path, "run"))
    assert journal.entries == [*ENTRIES, {"kind": "later"}]
    assert journal.last(Encoded) == Encoded('naïve "日本"\n')
    assert journal.last(Other) is None


def test_an_entry_that_is_not_what_its_kind_says(tmp_path: Path) -> None:
    write(tmp_path, [{"kind": "encoded", "text": 3}])
    journal = Journal(LocalStorage(tmp_path, "run"))
    with pytest.raises(JournalError, match=r"Expected `str`, got `int` - at `\$.text`.*start over"):
        journal.entries_of(Encoded)


def test_golden_line(content: bytes) -> None:
    first = content.splitlines()[0]
    assert first == b'{"check": "5f79bfe451485636", "entry": {"kind":"begun","n":1}}'


def test_a_torn_last_line_is_passed_over_and_cut_off(content: bytes, tmp_path: Path) -> None:
    last = content.rindex(b"\n", 0, -1) + 1
    for end in range(last, len(content)):
        for filling in (b"", b"\0" * 30, b"\0\n"):
            assert read(content[:end] + filling) == ENTRIES[:2]
    storage = LocalStorage(tmp_path, "run")
    storage.put(JOURNAL_FILE, content[:-5])
    with Journal(storage) as journal:
        journal.append({"kind": "x"})
    assert storage.get(JOURNAL_FILE) == content


@settings(max_examples=300)
@given(data=st.data())
def test_damage_before_the_last_line_is_an_error(content: bytes, data: st.DataObject) -> None:
    last = content.rindex(b"\n", 0, -1) + 1
    place = data.draw(st.integers(0, last - 2))
    bit = data.draw(st.integers(0, 7))
    damaged = bytearray(content)
    damaged[place] ^= 1 << bit
    with pytest.raises(JournalError, match=r"journal: line [123] is damaged.*overwrite=True"):
        read(bytes(damaged))


def test_lines_that_are_missing_or_elsewhere_are_an_error(content: bytes) -> None:
    lines = content.splitlines(keepends=True)
    for wrong in ([lines[1], lines[0], lines[2]], [lines[0], lines[2], lines[2]], lines[1:]):
        with pytest.raises(JournalError, match="is damaged"):
            read(b"".join(wrong))


@settings(max_examples=300)
@given(st.one_of(st.binary(max_size=300), st.text('{"check: entry}[]\n01', max_size=300)))
def test_anything_else_is_an_error_or_nothing(junk: bytes | str) -> None:
    try:
        entries = read(junk if isinstance(junk, bytes) else junk.encode())
    except JournalError as error:
        assert str(error).startswith("journal: line ")
    else:
        assert entries == []


class Slow:
    """A stream whose `sync` waits until it may."""

    n_bytes = 0

    def __init__(self) -> None:
        self.may, self.began = threading.Event(), threading.Event()

    def sync(self) -> None:
        self.began.set()
        assert self.may.wait(60)

    def append(self, data: memoryview) -> None: ...
    def close(self) -> None: ...


def test_work_goes_on_while_the_disk_is_slow_and_streams_come_first(tmp_path: Path) -> None:
    storage, stream = LocalStorage(tmp_path, "run"), Slow()
    with Journal(storage) as journal:
        journal.submit({"kind": "x"}, [stream])
        assert stream.began.wait(60)
        # `commit` came back though nothing is on the disk; the entry waits for the stream.
        assert storage.get(JOURNAL_FILE) is None
        stream.may.set()
        journal.wait()
        assert read(storage.get(JOURNAL_FILE) or b"") == [{"kind": "x"}]


def test_a_failure_on_the_disk_comes_out_at_the_next_call(tmp_path: Path) -> None:
    class Failing(Slow):
        def sync(self) -> None:
            raise OutputError("full")

    with Journal(LocalStorage(tmp_path, "run")) as journal:
        journal.submit({"kind": "x"}, [Failing()])
        journal.rest()
        with pytest.raises(OutputError, match="full"):
            journal.submit({"kind": "y"})


def test_it_is_due_after_its_seconds(tmp_path: Path) -> None:
    with Journal(LocalStorage(tmp_path, "run")) as journal:
        journal.seconds = 1e9
        assert not journal.due()
        assert journal.due(ends_soon=True)
        journal.seconds = 0.0
        assert journal.due()


def test_it_is_due_sooner_at_first_if_the_disk_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("preprocess.run.journal.time", SimpleNamespace(monotonic=lambda: now[0]))
    slow = Slow()
    with Journal(LocalStorage(tmp_path, "run")) as journal:

        def pause() -> float:
            before, passed = now[0], 0.0
            while not journal.due():
                passed += 1 / 64
                now[0] = before + passed
            now[0] = before
            return passed

        assert pause() == 1 / 16
        journal.submit({"kind": "x"}, [slow])
        assert pause() == 1.0  # the disk is at work
        assert not journal.due(ends_soon=True)
        slow.may.set()
        journal.wait()
        for passed, expected in ((0.5, 1 / 16), (2, 1 / 8), (8, 0.5), (100, 1.0)):
            now[0] = 100.0 + passed
            journal.append({"kind": "y"})
            assert pause() == pytest.approx(expected, abs=0.05)

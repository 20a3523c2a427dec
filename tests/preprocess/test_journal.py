"""The journal: what was written is read, what was torn passed over, what is damaged refused."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from preprocess.report.progress import Stage
from preprocess.run import journal as module
from preprocess.run.journal import Journal, JournalError, read_entries
from preprocess.storage import JOURNAL_FILE, LocalStorage, OutputError


class Text(Struct):
    text: str


VALUES = [("begun", {"n": 1}), ("text", Text('naïve "日本"\n')), ("x", [1, None])]


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


def test_values_come_back(tmp_path: Path) -> None:
    content = write(tmp_path, VALUES)
    assert content.isascii()
    # A later run reads them and goes on behind them.
    write(tmp_path, [("later", 3), ("x", 4)])
    write(tmp_path, [("x", 5), ("later", 6)], adds=True, stage=Stage("counting", 9, "B", 3, 2.0))
    journal = Journal(storage := LocalStorage(tmp_path, "run"))
    assert (storage.get(JOURNAL_FILE) or b"").startswith(content)
    assert journal.keys == ["begun", "text", "later", "x"]
    assert journal.value("text", Text) == Text('naïve "日本"\n')
    assert journal.values("x", int) == [4, 5]
    assert journal.value("later", int) == 6
    assert journal.value("none", int) is None
    with pytest.raises(JournalError, match=r"Expected `str`, got `int`.*start over"):
        journal.values("x", str)


def test_golden_line(content: bytes) -> None:
    first = content.splitlines()[0].decode()
    entry = '{"key":"begun","value":{"n":1},"adds":false,"stage":null}'
    assert first == f'{{"check": "dc6c3b377bdcef26", "entry": {entry}}}'


@pytest.mark.parametrize("adds", [False, True])
def test_a_long_journal_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, adds: bool
) -> None:
    """It has what is left then, and is read as it would have been without."""
    monkeypatch.setattr(module, "_LONG_BYTES", 2000)
    storage, sizes, whole = LocalStorage(tmp_path, "run"), [], 0
    with Journal(storage) as journal:
        journal.save("begun", 1)
        for number in range(300):
            whole += (is_long := journal.is_long)
            value = [*range(number + 1)] if is_long else [number]
            journal.save("list", value, adds=adds and not is_long)
            journal.save("other", number)
            sizes.append(len(storage.get(JOURNAL_FILE) or b""))
    assert whole > 2 or not adds
    assert max(sizes) < 20_000
    read = Journal(storage)
    assert (read.value("begun", int), read.value("other", int)) == (1, 299)
    found = [x for each in read.values("list", list[int]) for x in each]
    assert found == [*range(300)] if adds else found[-1] == 299


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


@settings(max_examples=200)
@given(data=st.data())
def test_damage_before_the_last_line_is_an_error(content: bytes, data: st.DataObject) -> None:
    last = content.rindex(b"\n", 0, -1) + 1
    place = data.draw(st.integers(0, last - 2))
    bit = data.draw(st.integers(0, 7))
    damaged = bytearray(content)
    damaged[place] ^= 1 << bit
    with pytest.raises(JournalError, match=r"journal: line [123] is damaged.*overwrite=True"):
        keys(bytes(damaged))


def test_lines_that_are_missing_or_elsewhere_are_an_error(content: bytes) -> None:
    lines = content.splitlines(keepends=True)
    for wrong in ([lines[1], lines[0], lines[2]], [lines[0], lines[2], lines[2]], lines[1:]):
        with pytest.raises(JournalError, match="is damaged"):
            keys(b"".join(wrong))


@settings(max_examples=200)
@given(st.one_of(st.binary(max_size=300), st.text('{"check: entry}[]\n01', max_size=300)))
def test_anything_else_is_an_error_or_nothing(junk: bytes | str) -> None:
    try:
        found = keys(junk if isinstance(junk, bytes) else junk.encode())
    except JournalError as error:
        assert str(error).startswith("journal: line ")
    else:
        assert found == []


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


def test_a_failure_on_the_disk_comes_out_at_the_next_call(tmp_path: Path) -> None:
    class Failing(Slow):
        def sync(self) -> None:
            raise OutputError("full")

    with Journal(LocalStorage(tmp_path, "run")) as journal:
        journal.submit("x", 1, [Failing()])  # type: ignore[list-item]  # it only syncs
        journal.rest()
        with pytest.raises(OutputError, match="full"):
            journal.submit("y", 2)

"""Files as sources: found in a stated order, refused by name, or changed while they are read."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from source_cases import names, parts_of, source_of, units_of

from bpe.errors import ChangedError, CorpusError, UnavailableError
from preprocess.documents.batch import ReadOptions
from preprocess.sources import find_sources, text_file
from preprocess.sources.standard_library import StandardLibrary, documents_of_standard_library
from preprocess.sources.text import TextSource
from preprocess.sources.text_file import TextFile, open_file


def test_a_file_that_ends_too_early_is_an_error(path: Path, monkeypatch: Any) -> None:
    source = source_of(path, b"some words " * 100, unit_size=100)
    units = list(source.units())
    # As one that is truncated after its size was looked at.
    monkeypatch.setattr(TextFile, "check_unchanged", lambda file: None)
    os.truncate(path, 150)
    units[0].read()
    with pytest.raises(ChangedError, match=r"text\.txt: was changed, replaced or removed"):
        units[1].read()
    changed = r"text\.txt: was changed, replaced or removed"
    with pytest.raises(ChangedError, match=changed):
        next(source.units())
    path.unlink()
    for gone in (units[0].read, lambda: next(source.units())):
        with pytest.raises(ChangedError, match=changed):
            gone()
    path.mkdir()
    for no_file in (units[0].read, lambda: next(source.units())):
        with pytest.raises(UnavailableError, match=r"\.txt: cannot be opened any more: Is a direc"):
            no_file()
    path.rmdir()
    path.parent.rmdir()
    path.parent.write_text("a file")
    for gone in (units[0].read, lambda: next(source.units())):
        with pytest.raises(ChangedError, match=changed):
            gone()
    path.parent.unlink()
    path.parent.mkdir()


def test_a_place_that_the_disk_cannot_read_is_named(path: Path, monkeypatch: Any) -> None:
    units = units_of(path, b"some words " * 100, unit_size=100)

    class Damaged(io.FileIO):
        def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
            if self.tell() >= 300:
                raise OSError(errno.EIO, "Input/output error")
            return super().readinto(buffer[: min(50, 300 - self.tell())])

    def opened(path: Path, mode: str, buffering: int = 0) -> io.FileIO:
        return Damaged(path, mode)

    monkeypatch.setattr("builtins.open", opened)
    for fraction in (0.0, 0.5):  # while places to cut at are looked for
        reading = replace(ReadOptions(unit_size=100), validation_fraction=fraction)
        wanted = r"text\.txt: byte 300 and on cannot be read: Input/output error; check the disk"
        with pytest.raises(UnavailableError, match=wanted) as caught:
            list(TextSource(open_file(path), "text", reading).units())
        assert isinstance(caught.value.__cause__, OSError)
    for unit in units:
        if unit.stop <= 300:
            assert unit.read().n_bytes == unit.n_bytes
        else:
            place = max(unit.start, 300)
            wanted = rf"text\.txt: byte {place:,} and on cannot be read: Input/output error; check"
            with pytest.raises(CorpusError, match=wanted):
                unit.read()


@pytest.mark.parametrize("fraction", [0.0, 0.5])
def test_what_is_written_while_a_file_is_read_is_not_taken_for_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fraction: float
) -> None:
    """Not even where it is no text, or has no place to cut at."""
    path, text = tmp_path / "text.txt", b"some words " * 100
    units = units_of(path, text, unit_size=100)

    class Overwritten(io.FileIO):
        def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
            path.write_bytes(b"\xff" * (len(text) + 1))
            return super().readinto(buffer)

    def opened(path: Path, mode: str, buffering: int = 0) -> io.FileIO:
        return Overwritten(path, mode)

    monkeypatch.setattr(text_file, "open", opened, raising=False)
    wanted = r"text\.txt: was changed, .*; run the command again when nothing writes to it"
    with pytest.raises(ChangedError, match=wanted):
        units[1].read()
    path.write_bytes(text)
    reading = replace(ReadOptions(unit_size=100), validation_fraction=fraction)
    with pytest.raises(ChangedError, match=wanted):
        list(TextSource(open_file(path), "text", reading).units())


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "text.txt"
    units = units_of(path, b"some words " * 100, unit_size=100)
    path.unlink()
    os.mkfifo(path)

    def opened(path: Path, mode: str, buffering: int = 0) -> io.FileIO:
        pytest.fail("to open it is to wait for somebody who writes")

    monkeypatch.setattr(text_file, "open", opened, raising=False)
    with pytest.raises(ChangedError, match=r"text\.txt: was changed, replaced or removed"):
        units[1].read()


def test_files_and_directories_in_a_stated_order(tmp_path: Path) -> None:
    for name in [
        "z.txt", "c/d/b.txt", "c/a.md", "c/d.txt", "c/é", "c/.hidden.txt", "c/.git/x.txt", "c/Z",
    ]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    os.symlink(tmp_path / "c", tmp_path / "c" / "d" / "loop")
    os.symlink(tmp_path / "z.txt", tmp_path / "c" / "link.txt")
    found = names([tmp_path / "z.txt", str(tmp_path / "c")])
    assert found == ["z.txt", "Z", "a.md", "d/b.txt", "d.txt", "link.txt", "é"]


def test_what_is_missing_or_has_no_text_is_an_error(tmp_path: Path) -> None:
    (tmp_path / ".hidden").write_text("text")
    (tmp_path / "below").mkdir()
    assert names([tmp_path / ".hidden"]) == [".hidden"]
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CorpusError, match="pipes and devices cannot be read twice"):
        find_sources([tmp_path / "pipe"], ReadOptions())


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    """The manifest could not name it, which would be found at the very end."""
    path = tmp_path / os.fsdecode(b"\xff.txt")
    path.write_bytes(b"x")
    for given_path in (path, tmp_path):
        with pytest.raises(CorpusError, match=r"xff\.txt': the name of this file is not UTF-8"):
            find_sources([given_path], ReadOptions())


def test_a_file_that_may_not_be_read_is_an_error(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "secret.txt").write_text("x")

    def refuse(path: Path) -> os.stat_result:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(text_file.os, "stat", refuse)
    with pytest.raises(CorpusError, match=r"secret\.txt: cannot be read: Permission denied"):
        TextSource(open_file(tmp_path / "secret.txt"), "secret.txt", ReadOptions())


def test_a_directory_that_may_not_be_listed_is_an_error(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "secret").mkdir()

    def refuse(path: Path) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(CorpusError, match=r"secret: cannot be listed: Permission denied; make"):
        find_sources([tmp_path / "secret"], ReadOptions())


def test_the_default_corpus_is_the_same_in_units_of_any_size() -> None:
    documents = list(documents_of_standard_library())
    assert len(documents) > 300
    assert documents == list(documents_of_standard_library())
    for unit_size in (10_000, 2**30):
        source = StandardLibrary(ReadOptions(unit_size=unit_size, whole_documents=True))
        found = []
        for unit in source.units():
            batch = unit.read()
            found += parts_of(batch)
        assert found == [document for document in documents if document]
        assert sum(unit.n_bytes for unit in source.units()) == source.n_bytes

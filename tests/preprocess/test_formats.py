"""Every format: the same documents give the same bytes, also after kills and repairs."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import faults
import format_files
import pytest
import torture
from verify_cases import damages, flip

from preprocess import CorpusError, build
from preprocess.check.verify import verify
from preprocess.documents.batch import ReadOptions
from preprocess.run import count_pass, journal
from preprocess.sources import find_sources

OPTIONS: dict[str, Any] = {"vocab_size": 300, "unit_size": 700, "workers": 2}
FILES = "train.bin", "train.docs", "val.bin", "val.docs", "tokenizer.json"


@pytest.fixture(scope="module")
def from_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("text")
    format_files.write(directory / "corpus.txt", format_files.DOCUMENTS)
    build(train=directory / "corpus.txt", out=directory / "out", val_fraction=0.1, **OPTIONS)
    return directory / "out"


# Every format, every compression, and other numbers of workers and sizes of units.
SUFFIXES = ["txt", "jsonl", "json", "txt.gz", "jsonl.zst", "json.xz", "txt.bz2"]
CASES = [(suffix, 2, 700) for suffix in SUFFIXES]
CASES += [("jsonl", 1, 1), ("json.gz", 7, 10**6), ("txt.zst", 3, 5000)]


@pytest.mark.parametrize(("suffix", "workers", "unit_size"), CASES)
def test_the_same_documents_give_the_same_bytes(
    from_text: Path, tmp_path: Path, suffix: str, workers: int, unit_size: int
) -> None:
    path = tmp_path / f"corpus.{suffix}"
    format_files.write(path, format_files.DOCUMENTS)
    options = OPTIONS | {"workers": workers, "unit_size": unit_size}
    build(train=path, out=tmp_path / "out", val_fraction=0.1, **options)
    for name in FILES:
        assert (tmp_path / "out" / name).read_bytes() == (from_text / name).read_bytes()


@pytest.mark.parametrize(
    ("suffix", "fraction"), [("jsonl", 0), ("json.gz", 0.2), ("txt.zst", 0.2)]
)
def test_a_build_is_killed_resumed_verified_and_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, fraction: float
) -> None:
    monkeypatch.setattr(journal, "SECONDS_BETWEEN_COMMITS", 0.0)
    monkeypatch.setattr(count_pass, "_WORK_PER_SAVING", 0)
    path = tmp_path / f"corpus.{suffix}"
    format_files.write(path, format_files.DOCUMENTS)
    options = OPTIONS | {"train": path, "val_fraction": fraction}
    build(**options, out=tmp_path / "whole")
    encoding = "encoding train and val" if fraction else "encoding train"
    for stage in ("counting", encoding):
        with pytest.raises(faults.CutOff):
            build(**options, out=tmp_path / "resumed", progress=faults.Stopping(stage, 4))
    build(**options, out=tmp_path / "resumed")
    expected = torture.contents(tmp_path / "whole")
    assert torture.contents(tmp_path / "resumed") == expected
    assert not damages(verify(tmp_path / "whole", deep=True))
    flip(tmp_path / "whole" / "train.bin", 1000)
    assert damages(verify(tmp_path / "whole"))
    verify(tmp_path / "whole", repair=True)
    assert torture.contents(tmp_path / "whole") == expected


def documents_of(path: Path, **options: Any) -> list[str]:
    """The documents in a file, from units that have been pickled."""
    (source,) = find_sources([path], ReadOptions(**options))
    found: list[str] = []
    for unit in source.units():
        batch = pickle.loads(pickle.dumps(unit)).read()
        for number, (start, stop) in enumerate(batch.bounds.reshape(-1, 2)):
            document = batch.buffer[start:stop].tobytes().decode()
            if number == 0 and batch.starts_mid_document:
                found[-1] += document
            else:
                found.append(document)
    return found


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_units_follow_one_another_and_are_resumed(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"corpus.{suffix}"
    format_files.write(path, format_files.DOCUMENTS)
    (source,) = find_sources([path], ReadOptions(unit_size=500))
    units = list(source.units())
    assert sum(unit.n_bytes for unit in units) == path.stat().st_size
    assert b"".join(unit.content().tobytes() for unit in units) == path.read_bytes()
    assert b"".join(piece.tobytes() for _, piece in source.content()) == path.read_bytes()
    for number in range(0, len(units) - 1, 7):
        after = units[number].after
        assert after is not None
        rest = list(source.units(after))
        assert [unit.after for unit in rest] == [unit.after for unit in units[number + 1 :]]
        assert rest[0].read().buffer.tobytes() == units[number + 1].read().buffer.tobytes()
        before = b"".join(unit.content().tobytes() for unit in units[: number + 1])
        assert b"".join(piece.tobytes() for _, piece in source.content(after)) == before


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_odd_documents(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"corpus.{suffix}"
    for documents in ([], [""], ["", "a", ""], ["é" * 3000], ["a\r\nb\r", "\0"]):
        format_files.write(path, documents)
        expected = [document for document in documents if document]
        for unit_size in (1, 100, 10**6):
            for options in ({}, {"validation_fraction": 0.5}, {"on_invalid_utf8": "skip"}):
                given: dict[str, Any] = {"unit_size": unit_size, **options}
                assert documents_of(path, **given) == expected


def test_a_format_is_recognised_by_name_and_content(tmp_path: Path) -> None:
    lines = format_files.json_lines(["a", "b"])
    for name, content in {
        "x.JSON": lines,  # not an array
        "x.jsonl.GZ": format_files.COMPRESSIONS["gz"](lines),
        "y.jsonl": format_files.COMPRESSIONS["zst"](lines),  # of another suffix
        "z.json": b"\xef\xbb\xbf \n" * 1 + format_files.json_array(["a", "b"]),
        "text": format_files.COMPRESSIONS["xz"](b"a<|endoftext|>b"),
        "text.md": b"a<|endoftext|>b",
    }.items():
        (tmp_path / name).write_bytes(content)
        assert documents_of(tmp_path / name) == ["a", "b"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'[{"text": "a"},\n]', r"byte 16: no element between the last comma and|element 2"),
        (b'[{"text": "a"}, {"text": 1}]', r"element 2 \(byte 15\): .*Expected `str`, got `int`"),
        (b'[{"text": "a"}', r"the array is not closed at byte 14, the end of the file"),
        (b'[{"text": "a"}] x', r"byte 16: the array has ended before; expected one"),
        (b'[{"text": "a"} {"text": "b"}]', r"element 1 \(byte 1\): is not JSON \(.*trailing"),
        (b"[", r"the array is not closed at byte 1,"),
        (b"[,]", r"element 1 \(byte 1\): is not JSON|no element between the last comma"),
        (b'[{"text": "a"}, "b"]', r"element 2 \(byte 15\): .*Expected `object`, got `str`"),
        (b'[{"text": "a"}, {"x": "b"}]', r"element 2 .* required field `text`.*remove the element"),
    ],
)
@pytest.mark.parametrize("unit_size", [1, 10**6])
def test_a_bad_array(tmp_path: Path, content: bytes, message: str, unit_size: int) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(CorpusError, match=rf"x\.json: {message}"):
        documents_of(tmp_path / "x.json", unit_size=unit_size)


@pytest.mark.parametrize("unit_size", [1, 10**6])
def test_invalid_utf8_in_an_array(tmp_path: Path, unit_size: int) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b'[{"text": "a"}, {"text": "b\xff"}, {"x": "\xff", "text": "c"}]')
    with pytest.raises(CorpusError, match=r"x\.json: byte 27: not valid UTF-8"):
        documents_of(path, unit_size=unit_size)
    replacing: dict[str, Any] = {"on_invalid_utf8": "replace", "unit_size": unit_size}
    assert documents_of(path, **replacing) == ["a", "b\ufffd", "c"]
    assert documents_of(path, on_invalid_utf8="skip", unit_size=unit_size) == ["a"]

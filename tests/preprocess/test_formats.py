"""Every format: the same documents give the same bytes, also after kills and repairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import format_files
import pytest
import torture
from run_cases import assert_goes_on
from source_cases import check_units, documents_of
from verify_cases import damages, flip

from preprocess import CorpusError, build
from preprocess.check.verify import verify

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
CASES = [(suffix, 2, 700) for suffix in [*SUFFIXES, *format_files.ARROW]]
CASES += [("jsonl", 1, 1), ("json.gz", 7, 10**6), ("txt.zst", 3, 5000), ("parquet", 1, 1)]
CASES += [("stream.arrow", 7, 10**6)]


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


@pytest.mark.parametrize(("suffix", "fraction"), [("jsonl", 0), ("json.gz", 0.2)])
def test_a_build_is_killed_resumed_verified_and_repaired(
    tmp_path: Path, often: None, suffix: str, fraction: float
) -> None:
    path = tmp_path / f"corpus.{suffix}"
    format_files.write(path, format_files.DOCUMENTS)
    options = OPTIONS | {"train": path, "val_fraction": fraction}
    encoding = "encoding train and val" if fraction else "encoding train"
    assert_goes_on(options, tmp_path, ["counting", encoding])
    expected = torture.contents(tmp_path / "whole")
    assert not damages(verify(tmp_path / "whole", deep=True))
    flip(tmp_path / "whole" / "train.bin", 1000)
    assert damages(verify(tmp_path / "whole"))
    verify(tmp_path / "whole", repair=True)
    assert torture.contents(tmp_path / "whole") == expected


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_units_follow_one_another_and_are_resumed(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"corpus.{suffix}"
    format_files.write(path, format_files.DOCUMENTS)
    assert check_units(path, unit_size=500, step=7) > 7


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
        "other.txt": b"BZh, as bzip2 begins<|endoftext|>b",
    }.items():
        (tmp_path / name).write_bytes(content)
        expected = "BZh, as bzip2 begins" if name == "other.txt" else "a"
        assert documents_of(tmp_path / name) == [expected, "b"]


BAD_ELEMENTS = [
    (b'[{"text": "a"}, {"text": 1}]', r"element 2 \(byte 15\): .*Expected `str`, got `int`"),
    (b'[{"text": "a"} {"text": "b"}]', r"element 1 \(byte 1\): is not JSON \(.*trailing"),
    (b'[{"text": "a"}, "b"]', r"element 2 \(byte 15\): .*Expected `object`, got `str`"),
    (b'[{"text": "a"}, {"x": "b"}]', r"element 2 .* required field `text`.*remove the element"),
]
DAMAGED_ARRAYS = [
    (b'[{"text": "a"},\n]', r".*no element between the last comma and the end of the|element 2"),
    (b'[{"text": "a"}', r"the array is not closed at byte 14, the end of the file"),
    (b'[{"text": "a"}] x', r"byte 16: the array has ended before; expected one"),
    (b'[{"text": "a"}]\n[{"text": "b"}]', r"byte 16: the array has ended before; expected one"),
    (b'[{"text": "a"}}, {"text": "b"}]', r"byte 14: this brace closes nothing; correct it|el"),
    (b'[{"text": "a"}, {"text": "b", {"text": "c"}]', r".*from byte .* on is not closed"),
    (b"[", r"the array is not closed at byte 1,"),
    (b"[,]", r"element 1 \(byte 1\): is not JSON|.*no element between the last comma"),
]


@pytest.mark.parametrize("unit_size", [1, 10**6])
@pytest.mark.parametrize(
    ("content", "message", "skips"),
    [*((*each, False) for each in [*BAD_ELEMENTS, *DAMAGED_ARRAYS]),
     *((*each, True) for each in DAMAGED_ARRAYS)],
)  # fmt: skip
def test_a_bad_array(
    tmp_path: Path, content: bytes, message: str, skips: bool, unit_size: int
) -> None:
    """One that is damaged is not skipped as a bad record is."""
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(CorpusError, match=rf"x\.json: {message}"):
        documents_of(tmp_path / "x.json", unit_size=unit_size, skip_bad_records=skips)


@pytest.mark.parametrize("unit_size", [1, 10**6])
def test_invalid_utf8_in_an_array(tmp_path: Path, unit_size: int) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b'[{"text": "a"}, {"text": "b\xff"}, {"x": "\xff", "text": "c"}]')
    with pytest.raises(CorpusError, match=r"x\.json: byte 27: not valid UTF-8"):
        documents_of(path, unit_size=unit_size)
    replacing: dict[str, Any] = {"on_invalid_utf8": "replace", "unit_size": unit_size}
    assert documents_of(path, **replacing) == ["a", "b\ufffd", "c"]
    assert documents_of(path, on_invalid_utf8="skip", unit_size=unit_size) == ["a"]

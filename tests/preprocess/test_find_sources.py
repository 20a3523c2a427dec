"""Patterns, lists and directories; --format and --separator."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import format_files
import pytest
from source_cases import documents_of, names

from bpe.errors import TokenmillError
from bpe.files.locations import LocationError
from preprocess import CorpusError, build
from preprocess.check.compare import compare
from preprocess.documents.batch import ReadOptions
from preprocess.options import BuildSettings
from preprocess.pipeline import count
from preprocess.settings import SettingsError
from preprocess.sources import find_sources


def test_patterns(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c.md", "[x].txt", "below/d.txt", "below/e/f.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    assert names([tmp_path / "*.txt"]) == ["[x].txt", "a.txt", "b.txt"]
    assert names([tmp_path / "[x].txt"]) == ["[x].txt"]  # a path that exists is no pattern
    assert names([str(tmp_path / "**" / "*.txt")])[-2:] == ["d.txt", "f.txt"]
    assert names([tmp_path / "bel*", tmp_path / "?.md"]) == ["d.txt", "e/f.txt", "c.md"]
    # A directory is searched itself, so what is below it does not match once more.
    assert names([str(tmp_path / "**")]) == names([tmp_path])
    assert len(names([str(tmp_path / "**" / "*")])) == len(names([tmp_path]))
    with pytest.raises(CorpusError, match=r"\*\.json: no file or directory matches this pattern"):
        names([tmp_path / "*.json"])


def test_outputs_among_the_matches_of_a_pattern(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of `*`, which the shell or find_sources expands, they are not text of the next run."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "b.txt", "stopped/.build.partial/x", "killed/.tokenmill.lock"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("some text")
    options: dict[str, Any] = {"vocab_size": 257, "val_fraction": 0, "out": "data"}
    Path("image.d").mkdir()
    build(train="*", **options)
    for paths in (["*"], ["a.txt", "b.txt", "data", "killed", "stopped"]):
        assert "up to date" in build(train=paths, **options).lines[0]
    Path("c.txt").write_text("more")
    for paths in (["data"], ["d*", "sto*"], ["a.txt", "image.d"]):
        with pytest.raises(CorpusError, match="no text files in this directory or below it"):
            names(paths)


def test_outputs_beside_a_link_that_cannot_be_followed(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some text")
    build(train=tmp_path / "a.txt", out=tmp_path, vocab_size=257, val_fraction=0)
    (tmp_path / "link").symlink_to("x" * 300)
    assert names([tmp_path / "a.txt", *tmp_path.glob("*.json")]) == ["a.txt"]
    with pytest.raises(CorpusError, match=r"link: cannot be read: File name too long; make it"):
        names([tmp_path])


def test_what_is_no_file_is_left_out_of_directories(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.txt").write_text("some text")
    (tmp_path / ".gitignore").write_text("scratch*\n")
    for name in ("dang.json", ".#a.txt", "scratch.txt", "b.txt"):
        (tmp_path / name).symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "zero").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    assert names([tmp_path]) == ["a.txt"]
    (said,) = (each.getMessage() for each in caplog.records if each.levelname == "WARNING")
    assert said == (
        f"{tmp_path / 'b.txt'}: is no file (a link that leads nowhere, a pipe or a device), and is"
        " left out, as are 4 others beside it"
    )
    with pytest.raises(CorpusError, match=r"b\.txt: no such file or directory"):
        names([tmp_path / "b.txt"])


def test_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "b.txt", "@c", "c"):
        Path(name).write_text("x")
    Path("list").write_text("\ufeffb.txt\n\na*.txt \r\n@c\n")
    assert names(["@list", "a.txt"]) == ["b.txt", "a.txt", "@c", "a.txt"]
    assert names(["@c"]) == ["@c"]  # it exists
    Path("empty").write_text(" \n")
    with pytest.raises(CorpusError, match="empty: the list has no path; write one in each line"):
        names(["@empty"])
    with pytest.raises(LocationError, match="'' should not be an empty path"):
        names(["@"])
    Path("binary").write_bytes(b"a\n\xff")
    with pytest.raises(CorpusError, match="binary: the list of paths is not UTF-8 at byte 2; corr"):
        names(["@binary"])
    Path("remote").write_text("file:///x.txt\n")
    with pytest.raises(TokenmillError, match=r"file:///x\.txt: is on this machine"):
        names(["@remote"])
    with pytest.raises(CorpusError, match="none: no such file or directory"):
        names(["@none"])


def test_what_git_ignores_is_skipped(tmp_path: Path) -> None:
    files = {
        ".gitignore": "*.log\nbuild/\n/only_here.txt\n!kept.log\n",
        "a.py": "", "x.log": "", "kept.log": "", "only_here.txt": "", "build/out.txt": "",
        "sub/only_here.txt": "", "sub/y.log": "", "sub/deep/build/z.txt": "", "sub/build": "",
        "own/.gitignore": "!*.log\nb.txt\n", "own/b.txt": "", "own/c.log": "", "other/b.txt": "",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert names([tmp_path]) == [
        "a.py", "kept.log", "other/b.txt", "own/c.log", "sub/build", "sub/only_here.txt",
    ]  # fmt: skip


def test_binary_files_of_a_directory_are_skipped_and_counted(tmp_path: Path) -> None:
    root = tmp_path / "code"
    root.mkdir()
    (root / "a.py").write_text("print(1)\n" * 9)
    (root / "logo.png").write_bytes(b"\x89PNG\0\0")
    (root / "late").write_bytes(b"x" * 8192 + b"\0")  # as git, which looks no further
    options: dict[str, Any] = {"vocab_size": 260, "val_fraction": 0, "separator": "file"}
    result = build(train=root, out=tmp_path / "out", **options)
    assert result.stats["binary_files"] == 1
    assert any("skipped: 1 binary file, such as " in line for line in result.lines)
    assert result.manifests["train"].n_documents == 2
    found: list[Path] = []
    find_sources([root], ReadOptions(format="text"), found)
    assert found == [root / "logo.png"]
    # One that is named is read.
    assert documents_of(root / "logo.png", on_invalid_utf8="replace") == ["\ufffdPNG\0\0"]


def test_files_beside_arrow_files_are_skipped(tmp_path: Path) -> None:
    for name in ("dataset_info.json", "state.json", "cache-1.arrow", "x.lock", "data.txt"):
        (tmp_path / name).write_text("{}")
    assert names([tmp_path]) == ["data.txt"]


def test_a_format_is_forced(tmp_path: Path) -> None:
    lines = format_files.json_lines(["a", "b"])
    (tmp_path / "x.txt").write_bytes(lines)
    (tmp_path / "y.txt.gz").write_bytes(format_files.COMPRESSIONS["gz"](lines))
    (tmp_path / "z.json").write_bytes(lines)
    assert documents_of(tmp_path / "x.txt", format="jsonl") == ["a", "b"]
    assert documents_of(tmp_path / "y.txt.gz", format="jsonl") == ["a", "b"]
    assert documents_of(tmp_path / "z.json", format="text") == [lines.decode()]
    with pytest.raises(CorpusError, match=r"x\.txt: Parquet data is damaged|read with pyarrow"):
        documents_of(tmp_path / "x.txt", format="parquet")
    with pytest.raises(SettingsError, match=r"format: should be 'text', .* or 'arrow'; got 'csv'"):
        BuildSettings(**{"train": "x", "format": "csv"})


@pytest.mark.parametrize(
    ("separator", "documents"),
    [
        ("blank-line", ["a\nb", "c", "d\n"]),
        ("line", ["a", "b", "c", "d"]),
        ("file", ["a\nb\n\nc\n\n\n\nd\n"]),
        ("\n\n\n\n", ["a\nb\n\nc", "d\n"]),
    ],
)
def test_separators_with_names(tmp_path: Path, separator: str, documents: list[str]) -> None:
    path = tmp_path / "x.txt"
    path.write_text("a\nb\n\nc\n\n\n\nd\n")
    settings = BuildSettings(**{"train": path, "separator": separator})
    assert documents_of(path, separator=settings.separator_bytes) == documents
    result = build(train=path, separator=separator, vocab_size=257, val_fraction=0, out=tmp_path)
    assert result.manifests["train"].n_documents == len(documents)
    counted = count(paths=path, tokenizer=tmp_path / "tokenizer.json", separator=separator)
    assert counted.total().documents == len(documents)


def test_fields_of_text_are_refused(tmp_path: Path) -> None:
    """JSON Lines under another name would be encoded as text, JSON and all."""
    path = tmp_path / "x.dat"
    path.write_text('{"text": "a"}\n' * 50)
    (tmp_path / "y.jsonl").write_text('{"text": "a"}\n' * 50)
    for given in ({"content_field": "text"}, {"text_preset": "title-text"}):
        (name,) = given
        with pytest.raises(CorpusError, match=f"{name} is given, and all files are text"):
            build(train=path, out=tmp_path / "out", vocab_size=260, **given)
    given = {"content_field": "text", "vocab_size": 260, "val_fraction": 0}
    # One of them has records, or their format is given.
    build(train=[path, tmp_path / "y.jsonl"], out=tmp_path / "a", **given)
    build(train=path, format="jsonl", out=tmp_path / "b", **given)
    tokenizer = tmp_path / "a" / "tokenizer.json"
    with pytest.raises(CorpusError, match="all files are text without fields"):
        count(paths=path, tokenizer=tokenizer, content_field="text")
    with pytest.raises(CorpusError, match="all files are text without fields"):
        compare(first=tokenizer, second=tokenizer, content_field="text")

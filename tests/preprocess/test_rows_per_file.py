"""Rows of each input in a file of its own: a rerun makes what is new, lost or damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from row_cases import need, read

from bpe import Tokenizer, train_bpe
from preprocess import build, verify
from preprocess.cli import run
from preprocess.rows.formats import FORMATS, RowsError
from preprocess.rows.write import write_rows
from preprocess.storage import OutputError

TEXTS = {
    "a.txt": ["first document", "second one, which is longer than the first " * 3],
    "part_000.jsonl": ["x", "some text", "words " * 30],
    "sub/part_001.jsonl": [f"number {i} " * i for i in range(1, 9)],
}


def write_text(directory: Path, name: str, texts: list[str]) -> None:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".txt":
        path.write_text("<|endoftext|>".join(texts))
    else:
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    tokenizer = train_bpe(["some text, number words"], 270, special_tokens=["<|endoftext|>"])
    tokenizer.save(tmp_path / "tokenizer.json")
    return tokenizer


@pytest.fixture
def data(tmp_path: Path, tokenizer: Tokenizer) -> Path:
    for name, texts in TEXTS.items():
        write_text(tmp_path / "text", name, texts)
    return encode(tmp_path)


def encode(tmp_path: Path, **more: Any) -> Path:
    out = tmp_path / "data"
    options = {"val_fraction": 0, "tokenizer": tmp_path, "overwrite": True} | more
    build(train=tmp_path / "text", out=out, **options)
    return out


def rewritten(directory: Path, before: dict[str, tuple[int, int]]) -> list[str]:
    """The files of rows that were written since; `before` becomes what is there now."""
    paths = [path for path in directory.iterdir() if path.suffix not in (".json", "")]
    now = {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in paths}
    found = sorted(name for name, identity in now.items() if before.get(name) != identity)
    before.clear()
    before.update(now)
    return found


OUTPUTS = ["a", "part_000", "sub_part_001"]


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_file_has_the_rows_of_its_input(
    data: Path, tmp_path: Path, tokenizer: Tokenizer, format_name: Any
) -> None:
    need(format_name)
    (result,) = write_rows(
        data, out=tmp_path / "rows", format=format_name, per_file=True, max_length=16, stride=8
    )
    suffix = FORMATS[format_name].suffix
    assert [each.name for each in result.manifest.shards] == [f"{x}{suffix}" for x in OUTPUTS]
    for output, texts in zip(OUTPUTS, map(TEXTS.__getitem__, sorted(TEXTS)), strict=True):
        expected = []
        for text in texts:
            ids = [*tokenizer.encode_ordinary(text), tokenizer.vocab_size - 1]
            n_rows = 1 + -(-max(len(ids) - 16, 0) // 8)
            expected += [ids[8 * i : 8 * i + 16] for i in range(n_rows)]
        rows = read(result.path / f"{output}{suffix}")
        found = [row["input_ids"][: len(x)] for row, x in zip(rows, expected, strict=True)]
        assert found == expected
        # Padded to the longest row of the file, not of the dataset.
        widths = {len(row["input_ids"]) for row in rows}
        assert format_name != "npz" or widths == {max(map(len, expected))}
    assert all(each.sound for each in verify(result.path, deep=True))
    (result.path / f"a{suffix}").unlink()
    assert all(each.sound for each in verify(result.path, repair=True))
    assert all(each.sound for each in verify(result.path))


@pytest.mark.parametrize("more", [{}, {"shard_tokens": 50}, {"val_fraction": 0.4}])
def test_only_what_is_new_lost_or_damaged_is_made(
    data: Path, tmp_path: Path, more: dict[str, Any], capsys: Any
) -> None:
    encode(tmp_path, **more)
    out, before = tmp_path / "rows", dict[str, tuple[int, int]]()
    command = ["rows", str(data), "--out", str(out), "--per-file", "--format", "npz"]
    command += ["--max-length", "16", "--stride", "8"]
    rows = out / ("train" if "val_fraction" in more else "")
    assert run(command) == 0
    first = rewritten(rows, before)[0]
    content = {name: (rows / name).read_bytes() for name in before}
    assert run(command) == 0
    assert "up to date (" in capsys.readouterr().out
    changed = content[first][:40] + b"\0" + content[first][41:]
    for damaged in (content[first][:-9], b"", changed, None):
        (rows / first).unlink()
        if damaged is not None:
            (rows / first).write_bytes(damaged)
        assert run(command) == 0
        assert ", 1 written and the others up to date (" in capsys.readouterr().out
        assert rewritten(rows, before) == [first]
        assert (rows / first).read_bytes() == content[first]
    # Inputs that are added, before, between and after the others, with longer rows; and changed.
    for names in (["0", "b", "z"], ["b"]):
        for name in names:
            texts = [f"{name} {len(names)} " * i for i in range(1, 20)]
            write_text(tmp_path / "text", f"{name}.txt", texts)
        encode(tmp_path, **more)
        assert run(command) == 0
        assert rewritten(rows, before) == [f"{name}.npz" for name in names]
    assert all((rows / name).read_bytes() == content[name] for name in content)
    whole = write_rows(data, out=tmp_path / "whole", format="jsonl", max_length=16, stride=8)
    total = sum(len(np.load(path)["input_ids"]) for path in rows.glob("*.npz"))
    assert total == whole[0].manifest.rows
    # Other settings are another output.
    assert run([*command[:-1], "4"]) == 1
    assert "has rows of other settings (stride)" in capsys.readouterr().err
    assert run([*command[:-1], "4", "--overwrite"]) == 0
    assert len(rewritten(rows, before)) == 6


def test_inputs_that_are_gone_or_unclear(data: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"out": tmp_path / "rows", "format": "jsonl", "per_file": True}
    (result,) = write_rows(data, **options)
    (tmp_path / "text" / "a.txt").unlink()
    encode(tmp_path)
    with pytest.raises(OutputError, match=r"a\.jsonl: has rows of an input that the data"):
        write_rows(data, **options)
    before = dict[str, tuple[int, int]]()
    names = rewritten(result.path, before)
    write_rows(data, overwrite=True, **options)
    assert rewritten(result.path, before) == []
    assert [*before] == [name for name in before if name in names and name != "a.jsonl"]
    # Nothing of an input has rows: no file.
    write_text(tmp_path / "text", "empty.jsonl", ["", ""])
    write_text(tmp_path / "text", "short.jsonl", ["x"])
    encode(tmp_path)
    names = [each.name for each in write_rows(data, **options)[0].manifest.shards]
    assert names == ["part_000.jsonl", "short.jsonl", "sub_part_001.jsonl"]
    with pytest.raises(RowsError, match="has no tokens for rows; build it from more text"):
        write_rows(data, **options | {"out": tmp_path / "x", "max_length": 999, "drop_short": True})
    foreign = result.path / "part_002.jsonl"
    foreign.write_text("mine")
    write_text(tmp_path / "text", "part_002.txt", ["y"])
    encode(tmp_path)
    with pytest.raises(OutputError, match=r"part_002\.jsonl: exists and was not written by tokenm"):
        write_rows(data, **options)
    assert foreign.read_text() == "mine"
    write_text(tmp_path / "text", "part_002.jsonl", ["z"])
    encode(tmp_path)
    with pytest.raises(RowsError, match=r"part_002\.txt would both have the output part_002"):
        write_rows(data, **options)
    encode(tmp_path, shuffle_documents=1)
    with pytest.raises(RowsError, match="its documents were selected, shuffled or imported, so"):
        write_rows(data, **options)

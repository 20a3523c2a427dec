"""Rows that are replaced, damaged or repaired; test_exchange_faults.py: kills and failures."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import faults
import numpy as np
import pytest
import written
from row_cases import need
from torture import contents

from preprocess.check.verify import verify
from preprocess.cli import run
from preprocess.report.progress import Progress
from preprocess.rows.formats import FORMATS
from preprocess.rows.manifest import MANIFEST_FILE, read_manifest, replace_shard
from preprocess.rows.write import write_rows
from preprocess.storage import OutputError

SIZES = [1, 20, 7, 30, 2, 2, 9, 1, 16]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A dataset."""
    written.dataset(tmp_path / "data", SIZES, seed=None)
    return tmp_path / "data"


def options_of(format_name: str, out: Path) -> dict[str, Any]:
    return {
        "format": format_name, "out": out, "max_length": 9, "padding": "max-length",
        "num_shards": 3, "workers": 1,
    }


def test_other_rows_replace_those_that_were_getting_their_names(data: Path, tmp_path: Path) -> None:
    before, peace = tmp_path / "before", tmp_path / "peace"
    more = {"overwrite": True, "max_length": 5}
    write_rows(data, **options_of("jsonl", before) | {"num_shards": 4})
    write_rows(data, **options_of("jsonl", peace) | more)
    out = tmp_path / "out"
    shutil.copytree(before, out)
    for _ in faults.each_cut(
        lambda: write_rows(data, **options_of("jsonl", out) | {"overwrite": True})
    ):
        write_rows(data, **options_of("jsonl", out) | more)
        assert contents(out) == contents(peace)
        shutil.rmtree(out)
        shutil.copytree(before, out)


def test_shards_that_are_complete_are_kept(data: Path, tmp_path: Path, capsys: Any) -> None:
    options, progress = options_of("jsonl", tmp_path / "out"), Progress()
    with pytest.raises(faults.CutOff):
        write_rows(data, **options, progress=faults.Stopping("writing rows of train", 2))
    with pytest.raises(OutputError, match="run with other inputs exists: max_length "):
        write_rows(data, **options | {"max_length": 8})
    assert run(["inspect", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert ".rows.partial: not finished: writing rows of train: 67 %, 10 of 15 rows, " in said
    write_rows(data, **options, progress=progress)
    assert progress.stages[0].done_before == 10


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_run_that_replaces_rows_is_resumed_without_saying_so_again(
    data: Path, tmp_path: Path, is_damaged: bool
) -> None:
    options = options_of("jsonl", tmp_path / "out")
    write_rows(data, **options)
    if is_damaged:
        manifest = tmp_path / "out" / MANIFEST_FILE
        manifest.write_bytes(manifest.read_bytes().replace(b'"rows"', b'"rowz"', 1))
    options |= {"max_length": 5}
    with pytest.raises(faults.CutOff):
        write_rows(
            data, **options, overwrite=True, progress=faults.Stopping("writing rows of train", 2)
        )
    progress = Progress()
    write_rows(data, **options, progress=progress)
    assert progress.stages[0].done_before
    assert all(each.sound for each in verify(tmp_path / "out", deep=True))


@pytest.mark.parametrize("format_name", FORMATS)
def test_flipped_bytes_are_found_and_repaired(data: Path, tmp_path: Path, format_name: str) -> None:
    need(format_name)
    write_rows(data, **options_of(format_name, tmp_path / "out"))
    directory = tmp_path / "out"
    assert all(each.sound for each in verify(tmp_path / "out"))
    for number, facts in enumerate(read_manifest(directory).shards):
        path = directory / facts.name
        sound = path.read_bytes()
        for place in np.random.default_rng(number).integers(0, len(sound), 8).tolist():
            data_of_file = bytearray(sound)
            data_of_file[place] ^= 1 + place % 255
            path.write_bytes(data_of_file)
            found = verify(directory)
            wrong = [each.path for each in found if not each.sound]
            # Some bytes of a file, such as padding, say nothing.
            assert wrong == [path] or "in other bytes" in found[number + 1].text
            repaired = verify(directory, repair=True)
            assert all(each.sound for each in repaired)
            if wrong:
                assert path.read_bytes() == sound
                assert "was damaged, and made again from the dataset" in repaired[number + 1].text
            path.write_bytes(sound)
        path.unlink()
        assert any("cannot be read" in each.text for each in verify(directory))
        assert all(each.sound for each in verify(directory, repair=True))
        assert path.read_bytes() == sound
    assert all(each.sound for each in verify(directory, deep=True))


def test_other_bytes_of_the_same_rows_are_no_damage(data: Path, tmp_path: Path) -> None:
    write_rows(data, **options_of("jsonl", tmp_path / "out"))
    directory = tmp_path / "out"
    manifest = read_manifest(directory)
    path = directory / manifest.shards[1].name
    path.write_bytes(path.read_bytes().replace(b",", b", "))
    found = verify(directory)
    assert all(each.sound for each in found)
    assert found[2].text.endswith("rows as written, in other bytes")
    with pytest.raises(OutputError, match="run tokenmill verify --repair"):
        write_rows(data, **options_of("jsonl", directory))
    assert all(each.sound for each in verify(directory, repair=True))
    (result,) = write_rows(data, **options_of("jsonl", directory))
    assert "up to date" in result.line
    # Nor are they if they cannot be made again.
    path.write_bytes(path.read_bytes().replace(b",", b", "))
    shutil.rmtree(data)
    for repair in (False, True):
        assert all(each.sound for each in verify(directory, repair=repair))


def test_rows_whose_dataset_has_changed(data: Path, tmp_path: Path) -> None:
    write_rows(data, **options_of("jsonl", tmp_path / "out"))
    directory = tmp_path / "out"
    manifest = read_manifest(directory)
    path = directory / manifest.shards[0].name
    sound = path.read_bytes()
    # The manifest says something else than the dataset.
    facts = manifest.shards[0]
    other = replace_shard(manifest, 0, type(facts)(**{
        name: getattr(facts, name) for name in facts.__struct_fields__
    } | {"content": "0" * 32}))  # fmt: skip
    (directory / MANIFEST_FILE).write_text(other.to_json())
    texts = [each.text for each in verify(directory, deep=True)]
    assert "its rows are not those of the dataset: write them again" in texts[1]
    path.write_bytes(sound[:-9])
    texts = [each.text for each in verify(directory, repair=True)]
    assert "cannot be repaired: the dataset gives other rows now; write them again" in texts[1]
    (directory / MANIFEST_FILE).write_text(manifest.to_json())
    written.write(data, [5, 6, 299], [3])
    for each in (verify(directory, deep=True)[2], verify(directory, repair=True)[1]):
        assert not each.sound
        assert "is another dataset than the rows are of; write them again" in each.text


def test_manifests_that_are_damaged(data: Path, tmp_path: Path) -> None:
    from msgspec.structs import replace

    write_rows(data, format="jsonl", seq_length=9, out=tmp_path / "out")
    directory = tmp_path / "out"
    assert read_manifest(directory).tokens == sum(SIZES)
    (directory / "metadata.json").write_text("{}")
    (text,) = [each.text for each in verify(directory) if not each.sound]
    assert text.startswith("was changed, or is missing: write the rows again")
    (directory / MANIFEST_FILE).write_text("{}")
    assert not verify(directory)[0].sound
    (directory / MANIFEST_FILE).unlink()
    assert verify(directory)[0].text == "missing: remove this directory, and write the rows again"
    shutil.rmtree(directory)
    write_rows(data, format="jsonl", max_length=9, out=tmp_path / "out", overwrite=True)
    text = (directory / MANIFEST_FILE).read_text()
    (directory / MANIFEST_FILE).write_text(text[:-30])
    write_rows(data, format="pickle", out=tmp_path / "out", overwrite=True)
    assert not [*directory.glob("*.jsonl")]
    # A manifest whose digest is right, with a name outside of the directory.
    manifest = read_manifest(directory)
    shards = (replace(manifest.shards[0], name="../x.pkl"),)
    (directory / MANIFEST_FILE).write_text(replace(manifest, shards=shards).to_json())
    assert "'../x.pkl' is no name of a file of pickle" in verify(directory)[0].text
    # Or with other totals than those of its files.
    (directory / MANIFEST_FILE).write_text(replace(manifest, rows=manifest.rows + 1).to_json())
    assert f'"rows" is {manifest.rows + 1:,}, and the files have' in verify(directory)[0].text
    (directory / MANIFEST_FILE).unlink()
    assert "missing: remove this directory" in verify(tmp_path / "out")[0].text


def test_rows_and_their_dataset_are_moved_together(data: Path, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    data.rename(tmp_path / "one" / "data")
    write_rows(tmp_path / "one" / "data", format="jsonl", out=tmp_path / "one" / "rows")
    (tmp_path / "one").rename(tmp_path / "two")
    found = verify(tmp_path / "two" / "rows", deep=True)
    assert all(each.sound for each in found)
    assert found[-1].text.endswith("equal to the dataset")


def test_rows_beside_a_dataset_are_verified(data: Path) -> None:
    write_rows(data, format="jsonl", out=data / "rows")
    found = verify(data)
    assert all(each.sound for each in found if each.path.parent.name == "rows")
    assert any(each.path.parent.name == "rows" for each in found)
    path = next((data / "rows").glob("*.jsonl"))
    path.write_text("[]")
    assert path in [each.path for each in verify(data) if not each.sound]
    # Rows may be sound without their dataset.
    write_rows(data, format="jsonl", out=data / "rows", overwrite=True)
    (data / "train.bin").rename(data / "moved")
    assert all(each.sound for each in verify(data / "rows"))


def test_rows_of_others(tmp_path: Path, capsys: Any) -> None:
    from bpe import train_bpe

    tokenizer = train_bpe(["some text some text"], 260, special_tokens=["<|endoftext|>"])
    tokenizer.save(tmp_path / "t.json")
    rows = tmp_path / "rows"
    rows.mkdir()
    (rows / "good.jsonl").write_text('{"input_ids": [1, 259]}\n')
    (rows / "ids.jsonl").write_text('{"input_ids": [1, 2]}\n{"input_ids": [260]}\n')
    (rows / "more.jsonl").write_text('{"input_ids": [1], "labels": [1]}\n')
    (rows / "names.jsonl").write_text('{"text": [1, 2]}\n')
    (rows / "other.jsonl").write_text('{"input_ids": "text"}\n')
    (rows / "uneven.jsonl").write_text('{"input_ids": [1, 2], "labels": [1]}\n')
    (rows / "under.jsonl").write_text('{"input_ids": [1, -100]}\n')
    (rows / "wide.jsonl").write_text('{"input_ids": [4294967296]}\n')
    (rows / "wider.jsonl").write_text('{"input_ids": [42949672964294967296]}\n')
    found = {each.path.name: each for each in verify(rows, tokenizer=tmp_path / "t.json")}
    for name, text in {
        "good.jsonl": "1 rows, 2 values per column, ids in the vocabulary, no attention_mask, so",
        "ids.jsonl": "has the id 260 in row 1, outside of the vocabulary of 260",
        "names.jsonl": "has no column input_ids, its columns are text; rename",
        "other.jsonl": "row 0, counted from 0, has str in column 'input_ids', expected integers, w",
        "uneven.jsonl": "has columns of different lengths; make the file again",
        "under.jsonl": "has the id -100, expected 0 or more; make the file again",
        "wide.jsonl": "numbers that are no int32 in column",
        "wider.jsonl": "numbers that are no int32 in column",
    }.items():
        assert text in found[name].text
        assert found[name].sound == (name == "good.jsonl")
    (first, *_) = verify(rows)
    assert "ids not checked without tokenizer" in first.text
    assert run(["inspect", str(rows)]) == 1
    said = capsys.readouterr().out
    assert "  files: 9\n  columns: input_ids\n  dtype: read as int32\n  rows: 3\n" in said
    for name in ("names", "other", "uneven", "wide", "wider"):
        assert f"{name}.jsonl: BAD: " in said
    assert "has the columns input_ids, labels, and files before it input_ids; keep" in said
    for path in rows.iterdir():
        if path.name != "names.jsonl":
            path.unlink()
    assert run(["inspect", str(rows)]) == 1
    assert "has no column input_ids, its columns are text; rename" in capsys.readouterr().out

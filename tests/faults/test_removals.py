"""What is removed or replaced is cut off at each call to the system, and done again."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import faults
import pytest
from msgspec.structs import replace
from row_cases import rows_in

from bpe import train_bpe
from preprocess import build, open_tokens, tokenize_and_save
from preprocess.check.verify import verify
from preprocess.export.write import export_tokens
from preprocess.rows.manifest import MANIFEST_FILE, read_manifest, replace_shard
from preprocess.rows.write import write_rows
from preprocess.storage import LocalStorage, OutputError

TEXTS = [f"Document {i} of many, " * (1 + i % 7) for i in range(9)]


def options_of(tmp_path: Path) -> dict[str, Any]:
    text, tokenizer = tmp_path / "text.jsonl", tmp_path / "tokenizer.json"
    text.write_text("".join(json.dumps({"text": each}) + "\n" for each in TEXTS))
    train_bpe(TEXTS, 290, special_tokens=["<|endoftext|>"]).save(tokenizer)
    return {"data_files": text, "tokenizer": tokenizer, "output_path": tmp_path / "out",
            "output_format": "jsonl", "workers": 1}


@pytest.mark.parametrize("by_build", [False, True])
def test_the_dataset_is_removed_after_its_rows(tmp_path: Path, by_build: bool) -> None:
    """The same call, or a build in that directory, completes the removal."""
    options, tokens = options_of(tmp_path), tmp_path / "out" / "tokens"
    tokenize_and_save(**options)
    plan = tokens / f"train.greedy-32-{'0' * 16}.plan"
    left = [tokens / f".{plan.name}.partial{number}" for number in ("", ".123")]
    n_cuts = 0
    for _ in faults.each_cut(lambda: tokenize_and_save(**options, keep_tokens=False)):
        n_cuts += 1
        if (tokens / "train.json").exists():
            open_tokens(tokens / "train.bin")  # complete
        if by_build:
            build(train=options["data_files"], tokenizer=options["tokenizer"], out=tokens,
                  val_fraction=0)
        tokenize_and_save(**options)
        for path in (plan, *left):
            path.touch()
    assert n_cuts > 7
    assert {path.name for path in tokens.iterdir()} <= {"tokenizer.json", "tokenizer_config.json"}
    rows = tokenize_and_save(**options).rows["tokens"][0]
    assert len(rows_in(rows.path)) == len(TEXTS)
    assert not rows.is_new
    # Such a list of somebody else's removes nothing outside of its directory.
    (tmp_path / "kept").touch()
    listed = tokens / ".tokenmill.removal"
    for content in ('{"../../kept": null}', "{", "[1]"):
        listed.write_text(content)
        try:
            tokenize_and_save(**options)
        except OutputError as error:
            assert "does not list the files of a removal; remove this file" in str(error)
            listed.unlink()
    assert (tmp_path / "kept").exists()


def test_a_file_that_was_written_since_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        (tmp_path / name).write_text("old")
    with monkeypatch.context() as patched:
        patched.setattr(LocalStorage, "_complete_removal", lambda self: None)  # it was killed
        with LocalStorage(tmp_path, "removal") as storage:
            storage.remove_finished(["a", "b", "none"])
    (tmp_path / "b").write_text("another")
    (tmp_path / "none").touch()
    with LocalStorage(tmp_path, "build"):
        pass
    assert [x.name for x in sorted(tmp_path.iterdir())] == ["b", "c", "none"]


def test_repaired_rows_keep_a_manifest(tmp_path: Path) -> None:
    """Also where a file is written in other bytes than before, so the manifest is replaced."""
    options = options_of(tmp_path)
    rows = tokenize_and_save(**options).rows["tokens"][0].path
    sound = rows_in(rows)
    manifest = read_manifest(rows)
    facts = manifest.shards[0]
    path = rows / facts.name
    other = replace_shard(manifest, 0, replace(facts, digest="0" * 32)).to_json()

    def damage() -> None:
        (rows / MANIFEST_FILE).write_text(other)
        path.write_bytes(b"{}")

    damage()
    for _ in faults.each_cut(lambda: verify(rows, repair=True)):
        verify(rows, repair=True)
        assert all(each.sound for each in verify(rows))
        assert rows_in(rows) == sound
        damage()


@pytest.mark.parametrize("kind", ["rows", "export"])
def test_what_is_replaced_is_never_half_described(tmp_path: Path, kind: str) -> None:
    options = options_of(tmp_path)
    tokenize_and_save(**options)
    tokens, out = tmp_path / "out" / "tokens", tmp_path / kind

    def write(number: int, overwrite: bool = True) -> None:
        if kind == "rows":
            write_rows(tokens, out=out, format="jsonl", num_shards=number, overwrite=overwrite)
        else:
            export_tokens(tokens, out=out, to="npy" if number == 1 else "llmc",
                          overwrite=overwrite)

    write(2)
    for at in faults.each_cut(lambda: write(1)):
        write(1)
        write(1, overwrite=False)  # up to date
        assert at
        write(2)


def sound_outputs(out: Path) -> tuple[set[str], dict[str, int]]:
    """The names of all files but hidden ones, and how many rows are in which directory."""
    assert all(each.sound for each in verify(out))
    files = (path for path in out.rglob("[!.]*") if path.is_file())
    names = {str(path.relative_to(out)) for path in files}
    places = [out / name.removesuffix(MANIFEST_FILE) for name in names if MANIFEST_FILE in name]
    return names, {place.name: len(rows_in(place)) for place in places}


@pytest.mark.parametrize("fractions", [(0.4, 0), (0, 0.4)])
def test_what_is_no_longer_made_is_removed(tmp_path: Path, fractions: tuple[float, float]) -> None:
    """With validation or without it, replaced by the other, which is as if it had been alone."""
    options, out = options_of(tmp_path) | {"overwrite": True}, tmp_path / "out"
    calls = [partial(tokenize_and_save, **options, val_fraction=each) for each in fractions]
    calls[1]()
    wanted = sound_outputs(out)
    assert sum(wanted[1].values()) == len(TEXTS)
    assert wanted[1].keys() == ({"out"} if fractions[0] else {"train", "val"})
    n_cuts = 0
    calls[0]()
    for _ in faults.each_cut(calls[1], step=3):
        n_cuts += 1
        calls[1]()
        assert sound_outputs(out) == wanted
        calls[0]()
    assert n_cuts > 7
    assert sound_outputs(out) == wanted

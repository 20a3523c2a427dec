"""Directories that have more than the outputs of one run: files of others, and the text itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import faults
import numpy as np
import pytest
import torture

from preprocess import CorpusError, Sampler, build, open_tokens
from preprocess.cli import run
from preprocess.pipeline import count, encode, train

TEXT = "<|endoftext|>".join(f"document {i} of many, and more words" for i in range(60))


def options_of(directory: Path) -> dict[str, Any]:
    return {"train": directory / "text", "out": directory, "vocab_size": 280, "val_fraction": 0.2}


def test_files_of_others_beside_the_outputs(tmp_path: Path, capsys: Any) -> None:
    """Links that lead nowhere, as editors make them, and JSON that does not fit in memory."""
    (tmp_path / "text").write_text(TEXT)
    (tmp_path / ".#train.json").symlink_to("me@host.1234:5678")
    (tmp_path / "loop.json").symlink_to("loop.json")
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    (tmp_path / "zero_stats.json").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "directory.json").mkdir()
    for name in ("huge.json", "my_stats.json"):
        with open(tmp_path / name, "wb") as file:
            file.truncate(1 << 43)  # no memory has room for it, and it takes none of the disk
    out = str(tmp_path)
    command = ["build", "--train", f"{out}/text", "--out", out, "--vocab-size", "280"]
    for _ in range(2):
        assert run(command) == 0
    assert "up to date" in capsys.readouterr().out
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "link").symlink_to("nowhere")
    for name in ("rows", "export"):
        how = ["--format", "jsonl"] if name == "rows" else ["--to", "npy"]
        for _ in range(2):
            assert run([name, out, "--out", f"{out}/{name}", *how]) == 0, capsys.readouterr()
    for name in ("verify", "inspect"):
        assert run([name, out]) == 0, capsys.readouterr()
    for name in ("train.json", "stats.json"):
        with open(tmp_path / "rows" / name, "wb") as file:
            file.truncate(1 << 43)
    assert run([*command[:3], "--out", f"{out}/rows"]) == 1
    assert "train.json: exists and was not written by this tokenmill" in capsys.readouterr().err


# layout -> how many changes of a name lie between ends of its runs
CUT = {"below": 5, "shards": 11, "selected": 19, "encoded": 13}
LAYOUTS: dict[str, dict[str, Any]] = {
    "below": {"train": "."},
    "pattern": {"train": "./*"},
    "recursive": {"train": "./**"},
    "shell": {"train": None},  # all files that there are, as a shell writes them
    "inside": {"train": ".", "out": "out"},
    "shards": {"train": ".", "shard_tokens": 300},
    "named": {"train": ".", "name": "one"},
    "both": {"train": "a", "val": "b"},
    "selected": {"train": ".", "deduplicate": True, "shuffle_documents": 1},
    "encoded": {"train": "./*", "is_encoded": True},
}


def build_in(directory: Path, **options: Any) -> list[str]:
    if options["train"] is None:
        options["train"] = sorted(str(x) for x in directory.iterdir() if x.name[0] != ".")
    if not options.pop("is_encoded", False):
        return build(**{"out": ".", "vocab_size": 280} | options, workers=1).lines
    tokenizer = directory.with_suffix(".json")
    if not tokenizer.exists():
        train(paths=directory / "a", out=tokenizer, vocab_size=280)
    return encode(paths=options.pop("train"), tokenizer=tokenizer, out="x.bin", **options).lines


@pytest.mark.parametrize("layout", LAYOUTS)
def test_outputs_beside_the_text(tmp_path: Path, monkeypatch: Any, layout: str) -> None:
    """A run that ends at any change of a name is finished by the same call, then up to date."""
    monkeypatch.chdir(tmp_path)
    options = LAYOUTS[layout]
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "text.txt").write_text(f"{name} {TEXT}")
        (tmp_path / f"{name}.jsonl").write_text('{"text": "one"}\n{"text": "document"}\n' * 9)
    place, text = tmp_path / options.get("out", "."), {*tmp_path.rglob("*")}
    build_in(tmp_path, **options)
    whole = torture.contents(place, "config.json")
    assert all("up to date" in line for line in build_in(tmp_path, **options))
    for overwrite in (True, False) if layout in CUT else ():

        def work(overwrite: bool = overwrite) -> None:
            build_in(tmp_path, **options, overwrite=overwrite)

        for at in faults.each_cut(work, CUT[layout]):
            build_in(tmp_path, **options, overwrite=overwrite)
            assert torture.contents(place, "config.json") == whole, at
            assert all("up to date" in line for line in build_in(tmp_path, **options)), at
            for path in [] if overwrite else sorted({*tmp_path.rglob("*")} - text, reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
        assert torture.contents(place, "config.json") == whole


def test_outputs_of_all_commands_beside_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "b.jsonl").write_text('{"text": "a good one"}\n{"text": 1}\n')
    (tmp_path / "c.jsonl").write_text('{"text": "another"}\n')
    skip = ["--on-bad-record", "skip", "--log-file", "log.txt"]
    one = "trained.json"
    commands = [
        ["train", ".", "--out", one, "--vocab-size", "270", *skip],
        ["encode", ".", "--tokenizer", one, "--out", "train.bin", *skip],
        ["encode", ".", "--tokenizer", one, "--out", "other.bin", "--shard-tokens", "300", *skip],
        ["build", "--train", ".", "--out", ".", "--name", "own", "--tokenizer", one, *skip],
        ["export", "train.bin", "--to", "npy", "--out", "."],
        ["export", "other.bin", "--to", "mds", "--out", "export"],
        *(["rows", "train.bin", "--format", x, "--padding", "longest", "--out", f"rows-{x}"]
          for x in ("jsonl", "npz", "pickle")),
        ["import", "ids.u16", "--format", "raw", "--dtype", "uint16", "--end-of-text-id", "269",
         "--tokenizer", one, "--out", "raw.bin"],
    ]  # fmt: skip
    np.array([1, 2, 269], np.uint16).tofile("ids.u16")
    for command in commands:
        assert run(command) == 0, capsys.readouterr()
    Sampler(
        open_tokens("train.bin"), global_batch_size=1, context_length=16, windows="packed"
    ).batch(0)
    assert [*Path().glob("train.*.plan")]
    capsys.readouterr()
    for command in commands[:4]:
        assert run(command) == 0, capsys.readouterr()
        assert "up to date" in capsys.readouterr().out
    for paths in (".", "[abcl]*", ["a.txt", "b.jsonl", "c.jsonl", "log.txt"]):  # without --log-file
        found = count(paths=paths, tokenizer=one, on_bad_record="skip").sources
        assert [source.name for source, _ in found] == ["a.txt", "b.jsonl", "c.jsonl"]
    # What is named alone is said to be an output.
    with pytest.raises(CorpusError, match=r"log.txt: is a log of tokenmill, which is not read as"):
        build(train="log.txt", out="new")
    with pytest.raises(CorpusError, match=r"bin files cannot be read.*is an output of tokenmill"):
        build(train="train.bin", out="new")
    Path("train.json").unlink()  # what is left of a dataset is no text either
    assert run(commands[3]) == 0

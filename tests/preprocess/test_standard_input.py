"""Standard input: the text of a file, read once, resumed without it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import faults
import format_files
import pytest
import torture
from verify_cases import damages

from bpe.errors import CorpusError
from preprocess import PipelineConfig, SettingsError, build
from preprocess.check.compare import compare
from preprocess.check.verify import verify
from preprocess.pipeline import count, train
from preprocess.run import journal
from preprocess.storage import DamagedStateError, OutputError

ROOT = Path(__file__).parents[2]
TEXT = format_files.text(format_files.DOCUMENTS[:60])


def give(monkeypatch: pytest.MonkeyPatch, data: bytes, is_terminal: bool = False) -> None:
    stream = io.TextIOWrapper(io.BytesIO(data))
    monkeypatch.setattr(stream, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stdin", stream)


@pytest.fixture
def peace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Return the outputs of a build of the same text from a file of the same name."""
    monkeypatch.setattr(journal, "SECONDS_BETWEEN_COMMITS", 0.0)
    path = tmp_path / "standard-input"
    path.write_bytes(TEXT)
    build(train=path, vocab_size=290, val_fraction=0.2, unit_size=300, out=tmp_path / "peace")
    return torture.contents(tmp_path / "peace")


@pytest.mark.parametrize("selects", [False, True])
def test_it_is_the_text_of_a_file(
    peace: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, selects: bool
) -> None:
    give(monkeypatch, TEXT)
    more: dict[str, Any] = {"deduplicate": True} if selects else {}
    build(train="-", vocab_size=290, val_fraction=0.2, out=tmp_path / "out", **more)
    found = torture.contents(tmp_path / "out")
    assert found.keys() == peace.keys()
    assert all(found[name] == peace[name] for name in ("train.bin", "val.docs", "tokenizer.json"))
    if not selects:
        assert found == peace
    assert not damages(verify(tmp_path / "out"))
    deep = damages(verify(tmp_path / "out", deep=True))
    assert "it was built from standard input, which is gone" in deep[0]
    tokenizer = (tmp_path / "out" / "tokenizer.json").read_bytes()
    (tmp_path / "out" / "tokenizer.json").write_bytes(b"")
    repaired = damages(verify(tmp_path / "out", repair=True))
    assert "standard input cannot be read here; save the text to a file" in str(repaired)
    (tmp_path / "out" / "tokenizer.json").write_bytes(tokenizer)
    give(monkeypatch, TEXT)
    with pytest.raises(Exception, match="standard input cannot be compared with that of before"):
        build(train="-", vocab_size=290, val_fraction=0.2, out=tmp_path / "out", **more)
    build(train="-", vocab_size=290, val_fraction=0.2, out=tmp_path / "out", overwrite=True, **more)
    assert torture.contents(tmp_path / "out") == found


def test_formats_and_compression(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = format_files.DOCUMENTS[:20]
    (tmp_path / "x.txt").write_bytes(format_files.text(documents))
    expected = train(paths=tmp_path / "x.txt", out=tmp_path / "x.json", vocab_size=270)[0]
    for name, kind in (("x.jsonl", "jsonl"), ("x.txt.zst", None), ("x.json.gz", "json")):
        format_files.write(tmp_path / name, documents)
        give(monkeypatch, (tmp_path / name).read_bytes())
        found, _ = train(paths=["-"], format=kind, out=tmp_path / f"{name}.json", vocab_size=270)
        assert found.fingerprint == expected.fingerprint
    give(monkeypatch, b'{"text": 1}')
    with pytest.raises(CorpusError, match=r"standard-input: line 1 \(byte 0\): .*Expected `str`"):
        train(paths="-", format="jsonl", out=tmp_path / "y.json", vocab_size=270)


@pytest.mark.parametrize(("again", "is_terminal"), [(TEXT, False), (b"", False), (b"x", True)])
def test_it_is_resumed(
    peace: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bytes,
    is_terminal: bool,
) -> None:
    options: dict[str, Any] = {"train": "-", "vocab_size": 290, "val_fraction": 0.2}
    options["out"] = tmp_path / "out"
    give(monkeypatch, TEXT)
    with pytest.raises(faults.CutOff):
        build(**options, unit_size=300, progress=faults.Stopping("encoding train and val", 5))
    give(monkeypatch, TEXT[1:])
    with pytest.raises(OutputError, match="bytes that the interrupted run has read"):
        build(**options)
    give(monkeypatch, again, is_terminal)
    build(**options, unit_size=300)
    assert torture.contents(tmp_path / "out") == peace


def test_damaged_work_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"train": "-", "vocab_size": 290, "val_fraction": 0.2}
    options["out"] = tmp_path / "out"
    give(monkeypatch, TEXT)
    with pytest.raises(faults.CutOff):
        build(**options, progress=faults.Stopping("counting", 0))
    (tmp_path / "out" / ".build.partial" / "standard-input").write_bytes(b"")
    with pytest.raises(DamagedStateError, match="standard input of the interrupted run is damaged"):
        build(**options)


def test_without_a_work_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(TEXT)
    train(paths=path, out=tmp_path / "tokenizer.json", vocab_size=270)
    tokenizer = tmp_path / "tokenizer.json"
    give(monkeypatch, TEXT)
    found = count(paths="-", tokenizer=tokenizer).total()
    assert found == count(paths=path, tokenizer=tokenizer).total()
    give(monkeypatch, TEXT)
    compared = compare(first=tokenizer, second=tokenizer, paths="-")
    assert compared["text"] == {"documents": 60, "bytes": found.bytes, "everything": True}


def test_wrong_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {"vocab_size": 270, "out": tmp_path / "out"}
    with pytest.raises(SettingsError, match="is given more than once"):
        build(train="-", val="-", **given)
    give(monkeypatch, b"")
    with pytest.raises(CorpusError, match=r"standard-input: empty \(0 bytes\)"):
        build(train="-", **given)
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(CorpusError, match="there is no standard input; give files"):
        build(train="-", **given)
    (tmp_path / "list").write_text("-")
    for files in ("-", f"@{tmp_path / 'list'}"):
        config = PipelineConfig(datasets=[{"name": "a", "data_files": files}])
        with pytest.raises(SettingsError, match=r"datasets\[0\].*: .* cannot be one of several"):
            build(config)
    assert not (tmp_path / "out").exists()


def test_the_command(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "preprocess", "--train", "-", "--out", str(tmp_path / "out"),
         "--vocab-size", "290", "--val-fraction", "0"],
        input=TEXT, cwd=ROOT, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "out" / "train.json").read_text())
    assert [source["name"] for source in manifest["sources"]] == ["standard-input"]

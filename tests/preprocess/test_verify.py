"""Verify: damage of every kind is found, and named with its block, documents and sources."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import written
from verify_cases import damages, flip
from web_server import Page, web_server

from bpe import TokenizerFileError, load_tokenizer
from preprocess import build
from preprocess.check.inspect import facts, format_lines
from preprocess.check.verify import verify
from preprocess.cli import run
from preprocess.dataset.columns import BLOCK_BYTES, TokenFileError
from preprocess.dataset.manifest import SELECTED, with_own_digest
from preprocess.dataset.reader import open_tokens
from preprocess.pipeline import train
from preprocess.storage.remote import RemoteError


def write(data: Path, ids: list[int], ends: list[int], end: int = 278) -> None:
    """A token file whose digests are right, whatever else is wrong with it."""
    from bpe import Tokenizer

    fingerprint = Tokenizer.from_file(data / "tokenizer.json").fingerprint
    fields = {"end_of_text_id": end, "tokenizer_fingerprint": fingerprint, "sources": []}
    written.write(data, ids, ends, vocab_size=280, name="odd", fields=fields)


@pytest.mark.parametrize("what", ["", "train.bin", "val.json", "train", "train.docs"])
def test_what_was_built_is_sound(data: Path, what: str) -> None:
    (data / "train.backup").mkdir()  # not a file of the dataset
    findings = verify(data / what)
    assert len(findings) == (7 if what else 14)
    assert not damages(findings)
    assert any("encode to the same ids again" in finding.text for finding in findings)


def test_a_tokenizer_that_cannot_be_read_is_no_damage(data: Path, tmp_path: Path) -> None:
    (tmp_path / "damaged.json").write_text("{")
    for name in ("none.json", "damaged.json"):
        with pytest.raises(TokenizerFileError, match=name):
            verify(data, tokenizer=tmp_path / name)


def test_a_server_that_refuses_is_no_damage(data: Path) -> None:
    files = {f"/{x.name}": x for x in data.iterdir() if x.is_file()}
    pages = {x: Page(y.read_bytes(), has_ranges=y.suffix != ".bin") for x, y in files.items()}
    with web_server(pages) as url, pytest.raises(RemoteError, match=r"whole files .* its path$"):
        verify(f"{url}/train.json")


def test_a_selection_of_an_earlier_version_is_not_damage(data: Path) -> None:
    path = data / "train.json"
    content = json.loads(path.read_bytes())
    counts = {name: content[f"n_{name}"] for name in ("bytes", "documents", "tokens")}
    del content["manifest_digest"]
    path.write_text(with_own_digest(content | {"sources": [{"name": SELECTED, **counts}]}), "utf-8")
    findings = verify(data / "train.bin", deep=True)
    assert any("not compared with its sources: an earlier" in each.text for each in findings)
    assert not [each for each in damages(findings) if "sources" in each]


@pytest.mark.parametrize(("name", "make"), [
    ("train.json", os.mkfifo), ("train.bin", os.mkdir), ("train.docs", os.mkfifo),
    ("tokenizer.json", os.mkdir), ("tokenizer.json", os.mkfifo),
])  # fmt: skip
def test_what_is_no_file_is_not_waited_for(data: Path, name: str, make: Any) -> None:
    path = data / name
    path.unlink()
    make(path)
    text = "expected a file, found something else; remove it"
    assert f"DAMAGED  {path}: {text}" in damages(verify(data))
    others = [finding for finding in verify(data, repair=True) if finding.path.stem == "val"]
    assert (len(others) == 6) == (name != "tokenizer.json")


def test_a_tokenizer_whose_bytes_are_others(data: Path) -> None:
    path = data / "tokenizer.json"
    sound = path.read_bytes()
    path.write_bytes(sound[:-1])
    assert any("bytes of its file were changed" in line for line in damages(verify(data)))
    path.write_text(json.dumps(json.loads(sound), indent=7))
    findings = verify(data / "train.bin")
    assert not damages(findings)
    assert any("saved by another program" in finding.text for finding in findings)


def test_another_tokenizer_is_found(data: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("something else " * 100)
    build(train=tmp_path / "text", val=tmp_path / "text", out=tmp_path / "other", vocab_size=270)
    found = damages(verify(data, tokenizer=tmp_path / "other" / "tokenizer.json"))
    assert len(found) == 2
    assert all("built with the tokenizer" in line for line in found)
    (data / "tokenizer.json").unlink()
    missing = "no tokenizer.json in its directory; give the tokenizer that it was built"
    assert missing in damages(verify(data))[0]


@pytest.mark.parametrize(("command", "beside"), [("encode", True), ("import", False)])
def test_a_tokenizer_that_lies_elsewhere_is_no_damage(
    data: Path, tmp_path: Path, capsys: Any, beside: bool, command: str
) -> None:
    given = ["--tokenizer", str(data / "tokenizer.json")]
    (tmp_path / "text").write_text("low lower newest" * 100)
    (tmp_path / "raw").write_bytes(b"\1\0\x17\1")
    out = str(tmp_path / "out" / "x.bin")
    end = open_tokens(data / "train.bin").manifest.end_of_text_id
    how = {"encode": [str(tmp_path / "text")],
           "import": [str(tmp_path / "raw"), "--format", "raw", "--dtype", "uint16",
                      "--end-of-text-id", str(end), "--append-end-of-text"]}  # fmt: skip
    assert run([command, *how[command], *given, "--out", out]) == 0
    if beside:
        train(paths=tmp_path / "text", out=tmp_path / "out" / "tokenizer.json", vocab_size=260)
    for more in ([], ["--repair"]):
        assert run(["verify", out, *more]) == 0
        assert "x.bin: not checked with its tokenizer, which is not bes" in capsys.readouterr().out
    assert run(["verify", out, "--deep"]) == 1
    said = capsys.readouterr().out
    if command == "encode":
        assert "NOT CHECKED  " + out + ": not checked with its tokenizer" in said
    assert "DAMAGED" not in said
    found = verify(out, tokenizer=load_tokenizer(data))  # an object, which has no file
    assert "tokenizer.json" not in {each.path.name for each in found}
    assert run(["verify", out, *given]) == 0
    assert "not checked" not in capsys.readouterr().out.splitlines()[-1]
    Path(out).write_bytes(Path(out).read_bytes()[:-2] + b"\7\0")
    assert run(["verify", out]) == 1


@pytest.mark.parametrize(("ids", "ends", "end", "message"), [
    ([97, 278, 98, 278], [4], 278, "2 end-of-text ids (278) for 1 documents"),
    ([97, 278, 98, 278], [3, 4], 278, "document 0 ends at 3 without the end-of-text id 278"),
    ([97, 97], [2], 97, "2 end-of-text ids (97) for 1 documents"),
    ([98, 97], [2], 97, "the end-of-text id 97 is no special token"),
    ([0xC3, 278], [2], 278, "document 0 is not UTF-8"),
    ([116, 104, 101, 278], [4], 278, ""),
    ([109, 97, 110, 121, 278], [5], 278, "document 0 does not encode to the same ids again"),
])  # fmt: skip
def test_contradictions_behind_right_digests_are_found(
    data: Path, ids: list[int], ends: list[int], end: int, message: str
) -> None:
    write(data, ids, ends, end)
    found = damages(verify(data / "odd.bin"))
    assert len(found) == bool(message)
    assert not message or message in found[0]


def test_ids_without_a_token_are_found(data: Path) -> None:
    from bpe import Tokenizer, Vocabulary

    tokens = {byte: bytes([byte]) for byte in range(256)}
    vocabulary = Vocabulary(tokens, [], {"<|endoftext|>": 278})
    Tokenizer.from_vocabulary(vocabulary).save(data / "tokenizer.json")
    write(data, [97, 260, 278], [3])
    (found,) = damages(verify(data / "odd.bin"))
    assert "document 0 does not decode: token id 260 is not in the vocabulary" in found


def test_text_that_is_changed_before_it_is_encoded(data: Path, tmp_path: Path) -> None:
    top = json.loads((data / "tokenizer.json").read_text())
    top["normalizer"] = {"type": "NFD"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(top))
    (tmp_path / "text").write_text("naïve<|endoftext|>e\u0301te\u0301")
    text, out = tmp_path / "text", tmp_path / "nfd"
    build(train=text, val=text, out=out, tokenizer=tmp_path / "tokenizer.json")
    findings = verify(out / "train.bin")
    assert not damages(findings)
    assert "2 documents decode, but not always to the same text" in findings[-2].text


def test_ids_beyond_the_vocabulary_and_ends_out_of_order_are_found(data: Path) -> None:
    tokens = np.fromfile(data / "train.bin", np.uint16)
    first = tokens[0]
    tokens[0] = 97
    tokens.tofile(data / "train.bin")
    begin = "document 0 does not begin with the begin-of-text id 279"
    assert begin in str(damages(verify(data / "train.bin")))
    tokens[[0, 5]] = first, 400
    tokens.tofile(data / "train.bin")
    ends = np.fromfile(data / "train.docs", np.uint64)
    ends[[3, 4]] = ends[[4, 3]]
    ends.tofile(data / "train.docs")
    found = damages(verify(data / "train.bin"))
    assert any("id of token 5 is 400, and every id is below 280" in line for line in found)
    assert any("document 4 should end after" in line for line in found)
    ends[[3, 4]] = ends[[4, 3]]
    ends[-1] -= 1
    ends.tofile(data / "train.docs")
    assert "the last document should end at" in str(damages(verify(data / "train.bin")))


def test_json_that_is_too_deep_is_no_output_of_ours(data: Path) -> None:
    for name in ("deep.json", "deep_stats.json"):
        (data / name).write_text("[" * 200_000)
    assert not damages(verify(data, deep=True))
    assert format_lines(facts(data))


def test_nothing_to_verify_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(TokenFileError, match="no finished token file in this directory"):
        verify(tmp_path)
    (tmp_path / ".rows.partial").mkdir()
    with pytest.raises(TokenFileError, match="but an unfinished run: run its command again"):
        verify(tmp_path)
    (tmp_path / "corpus.yaml").write_text("datasets: []")
    with pytest.raises(TokenFileError, match=r"one first: tokenmill build \S*/corpus\.yaml$"):
        verify(tmp_path / "corpus.yaml")
    with pytest.raises(TokenFileError, match="no such file or directory"):
        verify(tmp_path / "none.bin")


def test_a_damaged_block_is_named_with_its_documents_and_sources(copy: Path) -> None:
    file = open_tokens(copy / "train.bin")
    assert len(file.manifest.digests["bin"]) == 3
    place = BLOCK_BYTES + 12_345
    flip(copy / "train.bin", place)
    (finding,) = [f for f in verify(copy / "train.bin") if f.blocks]
    assert finding.blocks == (1,)
    first, last = np.searchsorted(file.document_ends, [BLOCK_BYTES // 2, BLOCK_BYTES - 1], "right")
    assert f"1 (from byte {BLOCK_BYTES:,}, documents {first:,} to {last:,}, of " in finding.text
    starts = np.cumsum([0, *(source["tokens"] for source in file.manifest.sources)])
    hit = [i for i in range(3) if starts[i] < BLOCK_BYTES and starts[i + 1] > BLOCK_BYTES // 2]
    assert finding.sources == tuple(f"{i}.txt" for i in hit)
    assert 0 < len(hit) < 3


def test_deep_encodes_the_sources_again(data: Path, built: Path, tmp_path: Path) -> None:
    findings = verify(data, deep=True)
    assert not damages(findings)
    assert sum("encoded again, give the same ids" in finding.text for finding in findings) == 2
    # Sound in every other respect, but not what the sources give.
    tokens = np.fromfile(data / "train.bin", np.uint16)
    ends = np.fromfile(data / "train.docs", np.int64)
    # In the second document, which is not among those that are always encoded again.
    at = int(ends[0]) + 3
    tokens[at] = ord("Z")
    manifest = open_tokens(built / "train.bin").manifest
    names = ("end_of_text_id", "begin_of_text_id", "sources", *written.FIELDS)
    fields = {name: getattr(manifest, name) for name in names}
    written.write(data, tokens, ends, vocab_size=280, fields=fields)
    assert not damages(verify(data / "train.bin"))
    (found,) = damages(verify(data / "train.bin", deep=True))
    assert f"text, encoded again: id of token {at:,} differs" in found
    (data / "stats.json").unlink()
    assert "not compared with its sources" in damages(verify(data / "train.bin", deep=True))[0]


@pytest.mark.parametrize("missing", ["tokenizer.json", "stats.json", "text", "tokens", "other"])
def test_what_cannot_be_compared_is_no_damage(tmp_path: Path, capsys: Any, missing: str) -> None:
    """The exit code of `--deep`, which asks for it, is 1 all the same."""
    (tmp_path / "text").write_text("low lower newest<|endoftext|>low" * 100)
    place, rows = tmp_path / "tokens", tmp_path / "rows"
    build(train=tmp_path / "text", out=place, val_fraction=0, vocab_size=260)
    given, out = ["--tokenizer", str(place / "tokenizer.json")], place
    if missing == "tokenizer.json":
        out = tmp_path / "encoded" / "x.bin"
        assert run(["encode", str(tmp_path / "text"), *given, "--out", str(out)]) == 0
    elif missing == "stats.json":
        (place / missing).unlink()
    elif missing == "text":
        (tmp_path / missing).unlink()
    else:
        out = rows
        made = ["rows", str(place / "train.bin"), "--out", str(rows), "--max-length", "8",
                "--format", "jsonl"]  # fmt: skip
        assert run(made) == 0
        shutil.rmtree(place)
        if missing == "other":
            (tmp_path / "text").write_text("low")
            build(train=tmp_path / "text", out=place, val_fraction=0, vocab_size=257)
    capsys.readouterr()
    assert run(["verify", str(out)]) == 0
    plain = capsys.readouterr().out
    assert run(["verify", str(out), "--deep"]) == 1
    said = capsys.readouterr().out
    assert "DAMAGED" not in said
    assert said.count("NOT CHECKED") == 1
    assert "NOT CHECKED" not in plain
    assert run(["verify", str(out), "--deep", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [x["sound"] for x in found["findings"] if not x["checked"]] == [False]


def test_json_and_exit_codes(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", str(data), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sound"] is True
    flip(data / "train.bin", 40)
    assert run(["verify", str(data), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["sound"] is False
    (damaged,) = [each for each in said["findings"] if each["blocks"]]
    assert damaged["path"] == str(data / "train.bin")
    assert damaged["blocks"] == [0]
    assert damaged["sources"] == ["text"]
    assert run(["verify", str(data), "--repair"]) == 0
    assert "1 of 1 damaged files were rebuilt from the sources" in capsys.readouterr().out
    assert run(["verify", str(data)]) == 0

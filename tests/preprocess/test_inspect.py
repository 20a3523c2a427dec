"""`inspect` and `decode`: what is in a file, in words, counted by hand here, and as text."""

from __future__ import annotations

import errno
import json
import os
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from written import write

from bpe.errors import ArgumentError
from preprocess import PipelineConfig, build, open_tokens, verify, write_rows
from preprocess.check import scan
from preprocess.check.decode import decode_range
from preprocess.check.inspect import facts, format_lines, how_far
from preprocess.cli import run
from preprocess.dataset.columns import TokenFileError
from preprocess.dataset.reader import TokenFile
from preprocess.report.progress import Stage
from preprocess.run.journal import Journal
from preprocess.storage import LocalStorage

END = "<|endoftext|>"
TEXT = END.join(f"document {i} of many: naïve 日本語" for i in range(30))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("inspect")
    (root / "text.txt").write_text(TEXT)
    build(train=root / "text.txt", val=root / "text.txt", out=root / "data", vocab_size=280)
    return root / "data"


def test_a_token_file_decodes_to_its_text(data: Path) -> None:
    assert b"".join(decode_range(data / "train.bin")).decode() == TEXT + "<|endoftext|>"


def test_a_part_is_decoded(data: Path) -> None:
    whole = b"".join(decode_range(data / "train.bin"))
    parts = [
        b"".join(decode_range(data / "train.bin", start=start, count=7))
        for start in range(0, 399, 7)
    ]
    assert whole.startswith(b"".join(parts))
    assert len(b"".join(parts)) > 399
    assert (
        b"".join(decode_range(data / "train.bin", tokenizer=data / "tokenizer.json", count=0))
        == b""
    )
    for place, found in (data, r"\S+train\.bin, \S+val\.bin"), (data.parent, "there is none"):
        with pytest.raises(TokenFileError, match=rf"is a directory, and a \.bin.*: {found}$"):
            list(decode_range(place))
    with pytest.raises(TokenFileError, match="so none begins at 999,999"):
        list(decode_range(data / "train.bin", start=999_999))


def test_decoding_needs_the_right_tokenizer(data: Path, tmp_path: Path) -> None:
    for name in ("train.bin", "train.docs", "train.json"):
        (tmp_path / name).write_bytes((data / name).read_bytes())
    with pytest.raises(TokenFileError, match=r"missing, and no tokenizer was given; give the one"):
        list(decode_range(tmp_path / "train.bin"))
    (tmp_path / "text").write_text("other " * 50)
    build(train=tmp_path / "text", val=tmp_path / "text", out=tmp_path / "other", vocab_size=260)
    with pytest.raises(TokenFileError, match="built with the tokenizer"):
        list(decode_range(data / "train.bin", tokenizer=tmp_path / "other" / "tokenizer.json"))


def test_a_configuration_can_make_it_another_tokenizer(data: Path, tmp_path: Path) -> None:
    path, config = tmp_path / "tokenizer.json", tmp_path / "tokenizer_config.json"
    path.write_bytes((data / "tokenizer.json").read_bytes())
    config.write_text('{"eos_token": "<|endoftext|>"}')
    given = pickle.loads(pickle.dumps(open_tokens(data / "train.bin", tokenizer=path)))
    assert given.decode([100]) == "d"
    config.write_text('{"eos_token": "<|endoftext|>", "pad_token": "<pad>"}')  # a token more
    with pytest.raises(TokenFileError, match="built with the tokenizer"):
        open_tokens(data / "train.bin", tokenizer=path)
    with pytest.raises(TokenFileError, match="built with the tokenizer"):
        list(decode_range(data / "train.bin", tokenizer=path))


@pytest.mark.parametrize("ids", [True, [True], [1.0], np.array([1.0]), "a", None])
def test_only_ids_are_decoded(data: Path, ids: Any) -> None:
    with pytest.raises(ArgumentError, match="ids: should be a list of whole numbers; got"):
        open_tokens(data / "train.bin").decode(ids)


def test_a_directory_is_described(data: Path) -> None:
    text = "\n".join(format_lines(facts(data)))
    assert "tokenizer.json:\n  kind: byte-level BPE\n  vocab size: 280\n  pattern: gpt2\n" in text
    assert "  special tokens: <|endoftext|> 279" in text
    assert "  documents: 30\n" in text
    assert "  sources: text.txt\n" in text
    assert "begins 'document 0 of many: naïve 日本語" in text
    assert "not finished" not in text
    for name in ("train.bin", "train.json", "val.bin"):
        said = format_lines(facts(data / name))
        assert said[0] == f"{data / name.replace('.json', '.bin')}:"
        assert "  documents: 30" in said
        assert any(re.match(r"  ids that occur: \d+$", line) for line in said)


def test_what_is_not_finished_is_named(data: Path, tmp_path: Path) -> None:
    (tmp_path / ".build.partial").mkdir()
    work = tmp_path / ".build.partial"
    assert format_lines(facts(tmp_path)) == [f"{work}: not finished: no progress yet"]
    (work / "journal.jsonl").write_bytes(b"{}\n{}\n")
    assert "journal.jsonl: line 1 is damaged" in format_lines(facts(tmp_path))[0]


def test_anything_else_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TokenFileError, match="no such file or directory"):
        format_lines(facts(tmp_path / "none.bin"))
    with pytest.raises(TokenFileError, match="no finished token file in this directory; build"):
        format_lines(facts(tmp_path))
    (tmp_path / "text.txt").write_text("text")
    with pytest.raises(TokenFileError, match="is expected"):
        format_lines(facts(tmp_path / "text.txt"))


@pytest.mark.parametrize(("name", "device"), [("x.json", None), ("x.tiktoken", "/dev/null")])
def test_a_pipe_or_device_is_not_read(tmp_path: Path, name: str, device: str | None) -> None:
    (tmp_path / name).symlink_to(device) if device else os.mkfifo(tmp_path / name)
    with pytest.raises(TokenFileError, match=f"{name}: is a pipe or a device, expected a file or"):
        facts(tmp_path / name)


def test_how_far_an_unfinished_run_is_as_json(tmp_path: Path) -> None:
    work = tmp_path / ".build.partial"
    assert how_far(tmp_path, "build") == {"path": str(work), "text": "no progress yet"}
    stage = Stage("counting", 1000, "B", 750, 3.0)
    with LocalStorage(tmp_path, "build") as storage, Journal(storage) as journal:
        journal.save("begun", {})
        journal.save("counted", {}, stage=stage)
        found = how_far(tmp_path, "build")
        assert found == {
            "path": str(work), "stage": "counting", "share": 0.75, "done": 750, "unit": "B",
            "total": 1000, "seconds": 3.0, "per_second": 250.0, "seconds_left": 1.0,
            "text": "counting: 75 %, 0.0 of 0.0 MB, 0.0 MB/s, about 1.0 s left",
        }  # fmt: skip
        stage.done, stage.seconds = 0, 0.0
        journal.save("counted", {}, stage=stage)
        found = how_far(tmp_path, "build")
        assert found["per_second"] is found["seconds_left"] is None
        journal.save("publishing", {})
        assert how_far(tmp_path, "build")["stage"] == "finishing"
    assert facts(tmp_path)["unfinished"] == [how_far(tmp_path, "build")]


@pytest.mark.parametrize("command", ["verify", "inspect"])
def test_a_directory_that_cannot_be_listed_is_not_passed_over(
    data: Path, tmp_path: Path, command: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b/c"):
        write_rows(data, out=tmp_path / "rows" / name, format="jsonl")
    assert run([command, str(tmp_path / "rows")]) == 0
    assert "b/c" in capsys.readouterr().out
    secret = tmp_path / "rows" / "b"
    for call in ("listdir", "scandir"):
        made = getattr(os, call)

        def refusing(path: Any = ".", made: Any = made) -> Any:
            if str(path).rstrip("/") == str(secret):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return made(path)

        monkeypatch.setattr(os, call, refusing)
    assert run([command, str(tmp_path / "rows")]) == 1
    assert f"Permission denied: '{secret}'" in capsys.readouterr().err


def test_a_bad_file_does_not_hide_the_others(data: Path, tmp_path: Path, capsys: Any) -> None:
    """Tokenizers, token files, rows and corpora; the exit code is that of an error."""
    copy = tmp_path / "copy"
    shutil.copytree(data, copy)
    (copy / "val.bin").write_bytes(b"short")
    (copy / "tokenizer.json").write_text("{")
    assert run(["inspect", str(copy)]) == 1
    said = capsys.readouterr().out
    assert re.search(r"copy/tokenizer\.json: BAD: ", said)
    assert re.search(r"copy/val\.json: BAD: .*val\.bin", said)
    assert "train.bin:\n  dtype: uint16\n  tokens: 440\n  documents: 30" in said
    rows = tmp_path / "rows"
    rows.mkdir()
    np.savez(rows / "a.npz", input_ids=np.arange(6).reshape(2, 3))
    (rows / "b.npz").write_bytes(b"damaged")
    np.savez(rows / "c.npz", input_ids=np.arange(3).reshape(1, 3))
    assert run(["inspect", str(rows)]) == 1
    said = capsys.readouterr().out
    assert "  files: 3\n  columns: input_ids\n  dtype: read as int32\n  rows: 3\n" in said
    assert "  padding share: none\n" in said
    assert "b.npz: BAD: cannot be read as NPZ" in said
    assert run(["verify", str(rows)]) == 1
    said = capsys.readouterr().out
    assert said.count("no attention_mask, so padding is not known") == 2
    assert said.count("DAMAGED") == 1


@pytest.mark.parametrize(
    ("content", "in_corpus"), [("junk\n", True), ("", False), ("{}", False), (None, True)]
)
def test_a_manifest_that_cannot_be_read(
    data: Path, tmp_path: Path, capsys: Any, content: str | None, in_corpus: bool
) -> None:
    """In a directory, and in one dataset of a corpus, which is inspected as it is verified."""
    root = place = tmp_path / "data"
    shutil.copytree(data, root)
    if in_corpus:
        text, root = tmp_path / "text.txt", tmp_path / "corpus"
        text.write_text(TEXT)
        datasets = [{"name": x, "data_files": text, "val_fraction": 0.2} for x in "ab"]
        build(PipelineConfig(datasets=datasets, tokenizer={"vocab_size": 280}, output_path=root))
        place = next((root / "a").rglob("train.bin")).parent
    names = ["train", "val"] if content == "junk\n" else ["train"]
    for name in names:
        (place / f"{name}.json").unlink()
        if content is not None:
            (place / f"{name}.json").write_text(content)
    bad = [str(place / f"{name}.json") for name in names]
    assert [x["path"] for x in facts(root)["bad_files"]] == bad
    assert run(["inspect", str(root)]) == 1
    said = capsys.readouterr().out
    assert all(f"{path}: BAD: " in said for path in bad)
    assert said.count("documents: ") >= (2 if in_corpus else 0)
    damaged = [str(x.path) for x in verify(root) if not x.sound]
    assert {*bad} <= {*damaged}


def test_a_damaged_manifest_is_no_tokenizer(data: Path, tmp_path: Path, capsys: Any) -> None:
    shutil.copytree(data, tmp_path / "data")
    (tmp_path / "a.txt").write_text(TEXT)
    build(train=tmp_path / "a.txt", out=tmp_path / "shards", vocab_size=270, val_fraction=0,
          shard_tokens=20)  # fmt: skip
    capsys.readouterr()
    for path in (tmp_path / "data" / "train.json", tmp_path / "shards" / "train.json"):
        for content in ("", "{", "[]"):
            path.write_text(content)
            for command in ("inspect", "view"):
                assert run([command, str(path)]) == 1
                (said,) = capsys.readouterr().err.splitlines()
                assert f"{path}: not a manifest" in said
                assert "build the files again" in said


def test_ids_and_special_tokens_are_shown_as_they_are_given(tmp_path: Path) -> None:
    written(tmp_path, [[5, 6, 1999]], 2000)
    assert "  end of text id: 1999" in format_lines(facts(tmp_path / "train.bin"))
    (tmp_path / "a.txt").write_text(TEXT)
    build(train=tmp_path / "a.txt", out=tmp_path / "a", vocab_size=270, val_fraction=0,
          special_tokens=["<|a_b|>"])  # fmt: skip
    (line,) = [x for x in format_lines(facts(tmp_path / "a")) if x.startswith("  special tokens: ")]
    assert "<|a_b|> 269" in line


def test_the_directory_of_a_corpus_that_was_moved(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    root = tmp_path / "corpus"
    datasets = [{"name": x, "data_files": tmp_path / "text.txt", "val_fraction": 0} for x in "ab"]
    build(PipelineConfig(
        datasets=datasets, tokenizer={"vocab_size": 280}, save={"format": "jsonl"}, output_path=root
    ))
    root = root.rename(tmp_path / "other")
    assert run(["verify", str(root)]) == 0
    said = capsys.readouterr().out
    for name in "ab":
        assert f"{root / name}" in said
    assert said.count(" rows as written") == 2
    assert run(["inspect", str(root)]) == 0
    assert capsys.readouterr().out.count("documents: 30") >= 2
    (bin_file,) = (root / "a").rglob("train.bin")
    bin_file.write_bytes(bin_file.read_bytes()[:-2])
    assert run(["verify", str(root)]) == 1
    assert f"{bin_file}: " in capsys.readouterr().out
    assert run(["inspect", str(root)]) == 1
    said = capsys.readouterr().out
    assert "train.json: BAD: " in said
    assert "documents: 30" in said
    shutil.rmtree(root / "b")
    bin_file.unlink()
    assert run(["verify", str(root)]) == 1
    assert "is not here, so it is not checked, though config.json has it" in capsys.readouterr().out


# --- what is counted ---

TRAIN = ["low low lower", "low low lower", "a \ufffd", "it spells <|pad|>", "", "x" * 200]
VAL = ["low low lower", "only here", "a \ufffd"]


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train and val with copies, empty documents, and text of a special token."""
    root = tmp_path_factory.mktemp("quality")
    (root / "train.txt").write_text(END.join(TRAIN))
    (root / "val.txt").write_text(END.join(VAL))
    build(
        train=root / "train.txt", val=root / "val.txt", out=root / "data", vocab_size=265,
        special_tokens=["<|pad|>"],
    )
    return root / "data"


def written(directory: Path, documents: list[list[int]], vocab_size: int, begin: Any = None) -> Any:
    """A token file of documents, whose ends are in them already."""
    ids, ends = [i for each in documents for i in each], np.cumsum([*map(len, documents)])
    fields = {"end_of_text_id": vocab_size - 1, "begin_of_text_id": begin}
    return write(directory, ids, ends, vocab_size=vocab_size, fields=fields)


def test_a_directory_is_judged_in_words_and_as_json(judged: Path, capsys: Any) -> None:
    text = "\n".join(format_lines(facts(judged)))
    assert "val in train:\n  documents: 3\n  of them in train, too: 2" in text
    assert "  empty documents: 0\n" in text
    assert "  copies of other documents: 1\n" in text
    assert "document 0, begins 'low low lower<|endoftext|>', document 2, begins" in text
    assert "document 4, begins 'xxx" in text
    assert "  tokens per document: mean " in text
    assert run(["inspect", str(judged), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tokenizer"]["vocab_size"] == 265
    train, val = found["token_files"]
    assert (train["documents"], train["copies"], val["documents"], val["copies"]) == (5, 1, 3, 0)
    assert train["bytes"] == sum(len(text.encode()) for text in TRAIN)
    assert train["bytes_per_token"] == train["bytes"] / train["tokens"]
    assert [sample["document"] for sample in train["samples"]] == [0, 2, 4]
    shared = {"val": "val", "train": "train", "documents": 3, "in_train": 2}
    assert found["val_in_train"] == [shared]
    assert found["unfinished"] == []
    assert run(["inspect", str(judged / "train.bin"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == train


def test_no_documents(tmp_path: Path) -> None:
    file = written(tmp_path, [], 4)
    found = facts(file.path)
    assert (found["tokens"], found["empty_documents"], found["tokens_per_document"]) == (0, 0, None)
    assert found["copies"] == 0
    file = written(tmp_path / "special", [[8, 9], [8, 1, 9], [8, 9]], 10, begin=8)
    found = facts(file.path)
    assert found["empty_documents"] == 2
    assert found["tokens_per_document"]["percentiles"]["100"] == 3


def test_files_of_different_tokenizers_are_not_compared(judged: Path, tmp_path: Path) -> None:
    shutil.copytree(judged, tmp_path / "data")
    (tmp_path / "text").write_text("another text " * 50)
    other = tmp_path / "other"
    build(train=tmp_path / "text", val=tmp_path / "text", out=other, vocab_size=260)
    for suffix in ("bin", "docs", "json"):
        shutil.copy(other / f"val.{suffix}", tmp_path / "data" / f"val.{suffix}")
    text = "\n".join(format_lines(facts(tmp_path / "data")))
    assert "not compared: they were built with different tokenizers or special tokens" in text
    assert "no samples, for lack of its tokenizer" in text


def damaged(judged: Path, to: Path, name: str, place: int, value: int, dtype: str) -> TokenFile:
    shutil.copytree(judged, to)
    array = np.fromfile(to / name, dtype)
    array[place] = value
    array.tofile(to / name)
    return open_tokens(to / "train.bin")


def test_an_id_that_is_not_in_the_vocabulary(judged: Path, tmp_path: Path) -> None:
    file = damaged(judged, tmp_path / "data", "train.bin", 9, 999, "<u2")
    message = (
        f"{file.path}: token 9 should be an id of 0 to 264 and is 999; the file is damaged:"
        f" 'tokenmill verify {file.path}' reports where"
    )
    with pytest.raises(TokenFileError, match=re.escape(message)):
        facts(file.path)
    (bad,) = (line for line in format_lines(facts(tmp_path / "data")) if "BAD: " in line)
    assert message in bad


@pytest.mark.parametrize("value", [0, 10**6, 2**64 - 1])
def test_an_end_that_cannot_be_one(judged: Path, tmp_path: Path, value: int) -> None:
    file = damaged(judged, tmp_path / "data", "train.docs", 1, value, "<u8")
    first = int(file.document_ends[0])
    message = (
        f"{file.path}: document 1 should end after {first} and at {len(file)} at most, and"
        f" ends at {value:,}; the file is damaged: 'tokenmill verify"
    )
    with pytest.raises(TokenFileError, match=re.escape(message)):
        facts(file.path)
    ends = np.fromfile(judged / "train.docs", "<u8")
    file = damaged(judged, tmp_path / "early", "train.docs", 4, int(ends[3]) + 1, "<u8")
    message = f"the last document should end at {len(file)}, the number of tokens, and ends at"
    with pytest.raises(TokenFileError, match=message):
        facts(file.path)


@pytest.mark.parametrize("split", [False, True])
def test_shards_are_judged_as_one_file(
    judged: Path, split: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "train.txt").write_text(END.join(TRAIN))
    build(
        train=tmp_path / "train.txt", val_fraction=0, out=tmp_path / "data",
        tokenizer=judged / "tokenizer.json", shard_tokens=16, split_documents=split,
    )
    monkeypatch.setattr(scan, "_BLOCK", 5)
    found, whole = facts(tmp_path / "data" / "train.json"), facts(judged / "train.bin")
    assert found["shards"] > 2
    assert {**found, "path": whole["path"], "shards": 0} == whole
    if not split:
        # An end may not stand behind the shard that it is in, nor where the one before it does.
        ends = np.fromfile(tmp_path / "data" / "train_00001.docs", "<u8")
        (ends + np.uint64(1)).tofile(tmp_path / "data" / "train_00001.docs")
        with pytest.raises(TokenFileError, match=r"should end after .* and at .* at most"):
            facts(tmp_path / "data" / "train.json")

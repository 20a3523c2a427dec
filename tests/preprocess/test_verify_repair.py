"""Repair: what is damaged is rebuilt from the sources, or left alone."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faults
import pytest
from torture import contents
from verify_cases import damages, flip

from preprocess import build
from preprocess.check.inspect import facts, format_lines
from preprocess.check.verify import verify
from preprocess.cli import run
from preprocess.dataset.columns import TokenFileError
from preprocess.dataset.manifest import with_own_digest
from preprocess.dataset.reader import open_tokens
from preprocess.pipeline import encode, train
from preprocess.storage import LocalStorage, OutputError


@pytest.mark.parametrize(("name", "how"), [
    ("train.bin", "flip"), ("train.bin", "cut"), ("train.docs", "remove"), ("train.docs", "flip"),
    ("val.bin", "remove"), ("val.bin", "extend"), ("val.docs", "cut"), ("val.docs", "extend"),
])  # fmt: skip
def test_damaged_files_are_made_again(copy: Path, large: Path, name: str, how: str) -> None:
    path = copy / name
    n_bytes = path.stat().st_size
    if how == "flip":
        flip(path, n_bytes // 2)
        flip(path, n_bytes - 1)
    elif how == "cut":
        os.truncate(path, n_bytes // 3)
    elif how == "extend":
        os.truncate(path, n_bytes + 7)
    else:
        path.unlink()
    assert damages(verify(copy))
    findings = verify(copy, repair=True)
    assert not damages(findings)
    assert path.read_bytes() == (large / name).read_bytes()
    assert not damages(verify(copy))


@pytest.mark.parametrize("name", ["train.docs", "tokenizer.json"])
def test_every_write_of_a_repair_fails_in_turn(built: Path, tmp_path: Path, name: str) -> None:
    """A clear error, and the next repair ends in the same bytes."""

    def repair(out: Path) -> None:
        if not out.exists():
            shutil.copytree(built, out)
            content = (out / name).read_bytes()
            (out / name).write_bytes(content[:-1] + b"\x07more")
        assert not damages(verify(out, repair=True))

    faults.fail_each_call(repair, tmp_path, contents, step=3 if name == "tokenizer.json" else 1)
    assert contents(tmp_path / "peace") == contents(built)


def test_what_cannot_be_made_again_is_left(built: Path, tmp_path: Path) -> None:
    """A file of the right size would be taken for a whole one when it is opened."""
    data, options = copied(built, tmp_path)
    text, path = options["train"], data / "train.bin"
    sound = path.read_bytes()

    def refused() -> str:
        found = damages(verify(path, repair=True))
        assert path.read_bytes() == damaged
        return str(found)

    damaged = bytes([sound[0] ^ 1]) + sound[1:] + b"more"
    path.write_bytes(damaged)
    # The same size, but another text.
    text.write_text(text.read_text().replace(" low ", " l o "))
    assert "0 of 1 damaged files were rebuilt" in refused()
    with pytest.raises(TokenFileError):
        open_tokens(path)
    text.write_text("short")
    assert re.search(r"its source text had \d+ bytes, and now it is text with 5", refused())
    text.unlink()
    assert re.search(r"cannot be repaired: .*text: no such file", refused())
    text.mkdir()
    for name in ("text", "two"):
        (text / name).write_bytes((built.parent / "text").read_bytes())
    assert "it was built from 1 sources, and 2 exist" in refused()
    manifest = json.loads((data / "train.json").read_text())
    del manifest["sources"][0]["tokens"], manifest["manifest_digest"]
    (data / "train.json").write_text(with_own_digest(manifest))
    assert "its manifest has no counts of each source" in refused()
    (data / "stats.json").unlink()
    assert "cannot be repaired: no stats.json in its directory describes it" in refused()


def test_shards_are_made_again_from_their_own_sources(built: Path, tmp_path: Path) -> None:
    """What other shards are made of may have changed; nothing is left of an attempt."""
    (tmp_path / "text").mkdir()
    for number in range(3):
        (tmp_path / "text" / f"{number}.txt").write_text(f"low {number} " * 200)
    build(
        train=tmp_path / "text", val_fraction=0, out=tmp_path / "data", shard_tokens=700,
        tokenizer=built / "tokenizer.json",
    )
    data = tmp_path / "data"
    before = contents(data)
    assert sum(name.endswith(".bin") for name in before) == 3
    for name in ("train_00000.bin", "train_00001.docs", "train_00002.bin"):
        flip(data / name, 4)
    changed = (data / "train_00000.bin").read_bytes()
    text = tmp_path / "text" / "0.txt"
    text.write_text(text.read_text().replace("low", "new"))
    last = damages(verify(data, repair=True))[-1]
    assert "2 of 3 damaged files were rebuilt from the sources; train_00000.bin: the sou" in last
    assert contents(data) == before | {"train_00000.bin": changed}
    # Killed before each change of a name, it goes on where files are still damaged.
    text.write_text(text.read_text().replace("new", "low"))
    flip(data / "train_00002.docs", 4)
    sound = before.keys() - {"train_00000.bin", "train_00002.docs"}
    for _ in faults.each_cut(lambda: verify(data, repair=True)):
        assert all((data / name).read_bytes() == before[name] for name in sound)
    assert all((data / name).read_bytes() == before[name] for name in before)


MANIFEST_DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "flip": lambda content: content.replace(b"gpt2", b"gpt3", 1),
    "carriage return": lambda content: content.replace(b"\n", b"\r", 1),
    "not UTF-8": lambda content: content.replace(b'"text"', b'"te\xfft"', 1),
    "without its last byte": lambda content: content[:-1],
    "cut": lambda content: content[:-40],
    "empty": lambda content: b"",
    "remove": lambda content: None,
    "another number": lambda content: json.dumps(
        json.loads(content) | {"n_tokens": json.loads(content)["n_tokens"] - 5}
    ).encode(),
}


def damage(path: Path, how: Callable[[bytes], bytes | None]) -> None:
    content = how(path.read_bytes())
    path.unlink() if content is None else path.write_bytes(content)


@pytest.mark.parametrize(
    ("how", "lost"),
    [*((how, "") for how in MANIFEST_DAMAGES), ("empty", "train.bin"), ("remove", "train.docs")],
)
def test_a_damaged_manifest_is_made_again(data: Path, built: Path, how: str, lost: str) -> None:
    """Then the blocks of its token file can be, too, or all of a file that is lost as well."""
    damage(data / "train.json", MANIFEST_DAMAGES[how])
    if lost:
        (data / lost).unlink()
    else:
        flip(data / "train.bin", 40)
    found = damages(verify(data))
    assert any("train" in line for line in found)
    if how in ("flip", "carriage return", "not UTF-8", "without its last byte"):
        assert any("the manifest was changed: its own digest differs" in line for line in found)
    findings = verify(data, repair=True)
    assert not damages(findings)
    lines = [f"{each.path}: {each.text}" for each in findings]
    assert any("train.json: was rebuilt, and has the digest in stats.json" in x for x in lines)
    assert any("1 of 1 damaged files were rebuilt" in line for line in lines)
    assert contents(data) == contents(built)
    assert not damages(verify(data, deep=True))


def test_manifests_of_every_kind_of_run_are_made_again(built: Path, tmp_path: Path) -> None:
    given = {"tokenizer": built / "tokenizer.json"}
    text = built.parent / "text"
    build(train=text, out=tmp_path / "a", val_fraction=0.3, **given)
    build(train=text, out=tmp_path / "b", val_fraction=0, name="x", shard_tokens=99, **given)
    encode(paths=text, out=tmp_path / "c" / "y.bin", **given)
    for path in (
        tmp_path / "a" / "val.json", tmp_path / "b" / "x_train.json", tmp_path / "c" / "y.json",
    ):
        before = path.read_bytes()
        path.write_bytes(before[:-1])
        assert not damages(verify(path, tokenizer=built / "tokenizer.json", repair=True))
        assert path.read_bytes() == before


def copied(built: Path, root: Path, **more: Any) -> tuple[Path, dict[str, Any]]:
    """A build of its own, whose text may be changed: where it is, and its options."""
    text = root / "text"
    text.write_bytes((built.parent / "text").read_bytes())
    options = {"train": text, "val": text, "out": root / "data", "vocab_size": 280, **more}
    build(**options)
    return root / "data", options


AGAIN = "rerun the command that wrote it (overwrite=True)"


@pytest.mark.parametrize("how", ["reads as another", "cut"])
def test_a_tokenizer_that_cannot_be_proven_is_not_made_up(
    built: Path, tmp_path: Path, how: str
) -> None:
    data, options = copied(built, tmp_path)
    damage(data / "tokenizer.json", TOKENIZER_DAMAGES[how])
    before = (data / "tokenizer.json").read_bytes()
    options["train"].write_text(options["train"].read_text().replace(" low ", " l o "))
    found = damages(verify(data / "train.bin", repair=True))
    assert re.search(
        r"tokenizer\.json: cannot be repaired: its inputs give another one now"
        rf" \([0-9a-f]{{16}}\.\.\.\); restore a copy of it, or {re.escape(AGAIN)}",
        "\n".join(found),
    )
    assert (data / "tokenizer.json").read_bytes() == before
    (data / "train.json").unlink()
    (data / "tokenizer.json").unlink()
    found = damages(verify(data / "train.bin", repair=True))
    assert "json: cannot be repaired: tokenizer.json is damaged or missing, too" in str(found)
    encode(paths=built.parent / "text", out=data / "x.bin", tokenizer=built / "tokenizer.json")
    (data / "tokenizer.json").write_bytes(before[:-40])
    found = damages(verify(data / "x.bin", repair=True))
    assert "json: cannot be repaired: it was not trained here, but given (" in str(found)


@pytest.mark.parametrize(("how", "why"), [("flip", "another text"), ("empty", "no stats")])
def test_a_manifest_that_cannot_be_proven_is_not_made_up(
    built: Path, tmp_path: Path, how: str, why: str
) -> None:
    data, options = copied(built, tmp_path)
    damage(data / "train.json", MANIFEST_DAMAGES[how])
    before = (data / "train.json").read_bytes()
    if why == "another text":
        options["train"].write_text(options["train"].read_text().replace(" low ", " l o "))
        message = "the manifest rebuilt from the sources does not match the digest in stats.json"
    else:
        (data / "stats.json").unlink()
        message = "no stats.json in its directory describes it, or it cannot be read"
    found = damages(verify(data / "train.bin", repair=True))
    advice = f"; restore a copy of it, or remove train.json and {AGAIN}"
    expected = f"train.json: cannot be repaired: {message}{advice}"
    assert any(line.endswith(expected) for line in found)
    assert (data / "train.json").read_bytes() == before
    # What it says to do helps.
    (data / "train.json").unlink()
    build(**options, overwrite=True)
    assert not damages(verify(data, deep=True))


TOKENIZER_DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "reads the same": lambda content: content[:-1],
    "reads as another": lambda content: content.replace(
        b'"ignore_merges": false', b'"ignore_merges": true'
    ),
    "cut": lambda content: content[:-40],
    "remove": lambda content: None,
}


@pytest.mark.parametrize(
    ("how", "given"), [*zip(TOKENIZER_DAMAGES, [False, True, True, False], strict=True)]
)
def test_a_damaged_tokenizer_is_made_again(
    built: Path, tmp_path: Path, how: str, given: bool
) -> None:
    """It is trained, or taken from where it was given."""
    more = {"tokenizer": built / "tokenizer.json", "vocab_size": 32_000} if given else {}
    data, _ = copied(built, tmp_path, **more)
    before = contents(data)
    damage(data / "tokenizer.json", TOKENIZER_DAMAGES[how])
    assert damages(verify(data))
    findings = verify(data, repair=True)
    assert not damages(findings)
    (line,) = [f"{x.path}: {x.text}" for x in findings if "was rebuilt" in x.text]
    assert line.endswith("tokenizer.json: was rebuilt, and has the fingerprint in the manifest")
    assert contents(data) == before


def test_the_tokenizer_of_another_token_file_is_left_alone(built: Path, tmp_path: Path) -> None:
    data, options = copied(built, tmp_path, name="a")
    build(**options | {"name": "b", "vocab_size": 270}, overwrite=True)
    before = (data / "tokenizer.json").read_bytes()
    found = damages(verify(data / "a_train.bin", repair=True))
    assert "built with the tokenizer" in found[0]
    assert (data / "tokenizer.json").read_bytes() == before
    assert not damages(verify(data / "b_train.bin", repair=True))


def test_a_repair_waits_for_nobody_and_meets_nobody(data: Path) -> None:
    flip(data / "train.bin", 40)
    before = (data / "train.bin").read_bytes()
    with (
        LocalStorage(data, "build"),
        pytest.raises(OutputError, match="data: this process is writing in this directory"),
    ):
        verify(data / "train.bin", repair=True)
    assert (data / "train.bin").read_bytes() == before


@pytest.mark.parametrize("damaged", ["train.bin", "tokenizer.json"])
def test_what_a_build_replaced_before_a_repair_began_stays(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: str
) -> None:
    """The repair looks at the files of the build: blocks of those before would destroy them."""
    data, options = copied(built, tmp_path)
    flip(data / damaged, 40)
    other = tmp_path / "other"
    other.write_text("another text, and more of it " * 200)
    enter, began = LocalStorage.__enter__, list[LocalStorage]()

    def enter_late(storage: LocalStorage) -> LocalStorage:
        began.append(storage)
        if len(began) == 1:
            build(**options | {"train": other, "val": other}, overwrite=True)
        return enter(storage)

    monkeypatch.setattr(LocalStorage, "__enter__", enter_late)
    found = verify(data, repair=True)
    assert len(began) > 1
    assert not damages(found)
    assert not [each for each in found if "rebuilt" in each.text]
    assert not damages(verify(data, deep=True))


def test_what_a_killed_repair_left_is_said_and_cleared_away(data: Path, monkeypatch: Any) -> None:
    class KilledError(Exception):
        """Stands for the end of the process."""

    def killed(*_: object) -> None:
        raise KilledError

    before = contents(data)
    (data / "tokenizer.json").unlink()
    with monkeypatch.context() as patched:
        # At its beginning there is nothing to clear yet.
        patched.setattr(LocalStorage, "publish", killed)
        patched.setattr(LocalStorage, "clear", lambda self: None)
        with pytest.raises(KilledError):
            verify(data, repair=True)
    work = data / "..repair.partial"
    assert {"journal.jsonl", "tokenizer.json"} <= {path.name for path in work.iterdir()}
    said = f"{work}: not finished: a repair; the next one removes it (verify --repair)"
    (data / "tokenizer.json").write_bytes(before["tokenizer.json"])
    assert said in format_lines(facts(data))
    assert not damages(verify(data, repair=True))
    assert contents(data) == before
    assert not work.exists()


def test_validation_of_an_earlier_build_is_not_taken_for_that_of_a_later_one(
    built: Path, tmp_path: Path
) -> None:
    given = {"train": built.parent / "text", "out": tmp_path, "tokenizer": built / "tokenizer.json"}
    build(**given, val_fraction=0.3)
    earlier = {name: (tmp_path / name).read_bytes() for name in ("val.bin", "val.docs", "val.json")}
    build(**given, val_fraction=0, overwrite=True)
    assert not earlier.keys() & contents(tmp_path).keys()
    for name, content in earlier.items():  # as earlier versions left them
        (tmp_path / name).write_bytes(content)
    assert not damages(verify(tmp_path))
    (found,) = damages(verify(tmp_path, deep=True))
    assert "val.bin: not compared with its sources: no stats.json in its directory" in found


def test_what_another_command_wrote_over_a_file_is_not_undone(data: Path, tmp_path: Path) -> None:
    """Two stats.json tell of it then; the manifest says which is right."""
    text = tmp_path / "text"
    text.write_text("another text, newer and lower")
    tokenizer = data / "tokenizer.json"
    encode(paths=text, out=data / "train.bin", tokenizer=tokenizer, overwrite=True)
    before = contents(data)
    flip(data / "train.bin", 4)
    assert not damages(verify(data, repair=True, deep=True))
    assert contents(data) == before
    (data / "train.json").unlink()
    found = damages(verify(data, repair=True))
    both = "stats.json and train_stats.json both describe it, and neither has its manifest's digest"
    assert f"train.json: cannot be repaired: {both}; restore a copy of it" in str(found)
    assert contents(data) == {name: before[name] for name in before if name != "train.json"}


def test_a_file_that_cannot_be_read_does_not_hide_the_others(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (data / "stats.json").unlink()
    (data / "stats.json").mkdir()
    (data / "a_stats.json").write_text(
        '{"format": "tokenmill-stats", "settings": {"x": 1}, "made_from": {"command": "build"}}'
    )
    opened = open

    def failing(path: Path, mode: str) -> Any:
        if path == data / "train.json":
            raise OSError(errno.EIO, "Input/output error", str(path))
        return opened(path, mode)

    monkeypatch.setattr("preprocess.storage.files.open", failing, raising=False)
    findings = verify(data)
    (found,) = damages(findings)
    assert f"{data / 'train.json'}: could not be read: Input/output error; check the" in found
    assert sum(finding.path.stem == "val" for finding in findings) == 6
    unread = "no stats.json in its directory describes it, or it cannot be read"
    assert any(unread in finding.text for finding in findings)
    assert run(["verify", str(data)]) == 1
    assert "val.bin: its size and all 1 blocks are as written" in capsys.readouterr().out


@pytest.mark.parametrize("others", [[], ["<|endoftext|>"]])
def test_a_tokenizer_without_its_configuration_gives_the_same_ids(
    tmp_path: Path, others: list[str]
) -> None:
    text, whole, alone = (tmp_path / name for name in ("text", "whole", "alone"))
    text.write_text("low lower lowest " * 99)
    train(text, out=whole / "tokenizer.json", vocab_size=265, end_of_text="<|x|>",
          special_tokens=others)  # fmt: skip
    encode(text, tokenizer=whole / "tokenizer.json", out=tmp_path / "a.bin")
    alone.mkdir()
    (alone / "tokenizer.json").write_bytes((whole / "tokenizer.json").read_bytes())
    found = verify(tmp_path / "a.bin", tokenizer=alone, deep=True)
    assert found[-1].text == "its 1 sources, encoded again, give the same ids"
    flip(tmp_path / "a.bin", 9)
    assert all(each.sound for each in verify(tmp_path / "a.bin", tokenizer=alone, repair=True))

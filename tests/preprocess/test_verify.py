"""`verify` calls sound what is sound, and names what is not."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faults
import numpy as np
import pytest
import written
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torture import contents

from preprocess import build
from preprocess.check.inspect import facts, lines
from preprocess.check.verify import Finding, verify
from preprocess.cli import run
from preprocess.dataset.columns import BLOCK_BYTES, TokenFileError
from preprocess.dataset.reader import open_tokens
from preprocess.pipeline import encode
from preprocess.report.progress import Progress
from preprocess.storage import LocalStorage, OutputError


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("verify")
    documents = [f"document {i} of many, and many more words: low lower newest" for i in range(50)]
    (root / "text").write_text("<|endoftext|>".join(documents))
    build(
        train=root / "text",
        val=root / "text",
        out=root / "data",
        vocab_size=280,
        begin_of_text="<|begin|>",
    )
    return root / "data"


@pytest.fixture
def data(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "data"))


def damages(findings: list[Finding]) -> list[str]:
    return [f"DAMAGED  {each.path}: {each.text}" for each in findings if not each.sound]


def write(data: Path, ids: list[int], ends: list[int], end: int = 278) -> None:
    """A token file whose digests are right, whatever else is wrong with it."""
    from bpe import Tokenizer

    fingerprint = Tokenizer.from_file(data / "tokenizer.json").fingerprint
    with written.token_file(data, "odd", vocab_size=280) as writer:
        writer.append(np.array(ids, np.uint32), np.array(ends))
        writer.finish(
            end_of_text_id=end,
            n_bytes=1,
            tokenizer_fingerprint=fingerprint,
            pattern="gpt2",
            unicode_version="16.0.0",
            sources=[],
        )


@pytest.mark.parametrize("what", ["", "train.bin", "val.json"])
def test_what_was_built_is_sound(data: Path, what: str) -> None:
    findings = verify(data / what)
    assert len(findings) == (9 if what else 18)
    assert not damages(findings)
    assert any("encode to the same ids again" in finding.text for finding in findings)


@pytest.mark.parametrize("name", ["train.bin", "train.docs"])
def test_a_flipped_bit_is_found(data: Path, name: str) -> None:
    content = bytearray((data / name).read_bytes())
    content[17] ^= 4
    (data / name).write_bytes(content)
    found = damages(verify(data / "train.bin"))
    assert any(f"{name}: 1 of 1 blocks are damaged: 0 (from byte 0" in line for line in found)


@pytest.mark.parametrize("how", ["carriage return", "cut", "not UTF-8"])
def test_every_byte_of_a_manifest_counts(data: Path, how: str) -> None:
    path = data / "train.json"
    content = path.read_bytes()
    if how == "carriage return":
        path.write_bytes(content.replace(b"\n", b"\r", 1))
    elif how == "cut":
        path.write_bytes(content[:-1])
    else:
        path.write_bytes(content.replace(b'"text"', b'"te\xfft"', 1))
    assert any("the manifest is not as it was written" in line for line in damages(verify(data)))


def test_a_tokenizer_without_its_last_byte_is_found(data: Path) -> None:
    path = data / "tokenizer.json"
    path.write_bytes(path.read_bytes()[:-1])
    assert any("bytes of its file were changed" in line for line in damages(verify(data)))


def test_a_manifest_with_more_documents_than_there_are(data: Path) -> None:
    path = data / "train.json"
    n_documents = json.loads(path.read_text())["n_documents"]
    said = f'"n_documents": {n_documents}'
    assert said in path.read_text()
    path.write_text(path.read_text().replace(said, f'"n_documents": {n_documents + 1}'))
    assert re.search(
        r"train\.docs: [\d,]+ bytes are expected and [\d,]+ were found",
        str(damages(verify(data))),
    )


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("name", ["train.json", "train.bin", "train.docs", "tokenizer.json"])
@pytest.mark.parametrize(
    "make", [lambda path: os.mkfifo(path), os.mkdir], ids=["pipe", "directory"]
)
def test_what_is_no_file_is_not_waited_for(data: Path, name: str, make: Any) -> None:
    path = data / name
    path.unlink()
    make(path)
    text = "expected a file, found something else; remove it"
    assert f"DAMAGED  {path}: {text}" in damages(verify(data))
    others = [finding for finding in verify(data, repair=True) if finding.path.stem == "val"]
    assert (len(others) == 8) == (name != "tokenizer.json")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_instead_of_stats_is_not_waited_for(data: Path) -> None:
    (data / "stats.json").unlink()
    os.mkfifo(data / "stats.json")
    assert not damages(verify(data))
    flip(data / "train.bin", 4)
    assert "cannot be repaired" in str(damages(verify(data, repair=True)))


def test_a_wrong_size_is_found(data: Path) -> None:
    with open(data / "train.bin", "ab") as file:
        file.write(b"\0\0")
    found = damages(verify(data / "train.json"))
    assert len(found) == 1
    assert "were found; it was damaged or replaced" in found[0]


def test_another_tokenizer_is_found(data: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("something else " * 100)
    build(train=tmp_path / "text", val=tmp_path / "text", out=tmp_path / "other", vocab_size=270)
    found = damages(verify(data, tokenizer=tmp_path / "other" / "tokenizer.json"))
    assert len(found) == 2
    assert all("built with the tokenizer" in line for line in found)
    (data / "tokenizer.json").unlink()
    assert "there is no tokenizer.json beside it" in damages(verify(data))[0]


@pytest.mark.parametrize(
    ("ids", "ends", "end", "message"),
    [
        ([97, 278, 98, 278], [4], 278, "2 end-of-text ids (278) for 1 documents"),
        ([97, 278, 98, 278], [3, 4], 278, "document 0 ends at 3 without the end-of-text id 278"),
        ([97, 97], [2], 97, "2 end-of-text ids (97) for 1 documents"),
        ([98, 97], [2], 97, "the end-of-text id 97 is no special token"),
        ([0xC3, 278], [2], 278, "document 0 is not UTF-8"),
        ([116, 104, 101, 278], [4], 278, ""),
        ([109, 97, 110, 121, 278], [5], 278, "document 0 does not encode to its own ids again"),
    ],
)
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
    assert "2 documents decode, but not always to the very text" in findings[-2].text


def test_ids_beyond_the_vocabulary_and_ends_out_of_order_are_found(data: Path) -> None:
    tokens = np.fromfile(data / "train.bin", np.uint16)
    tokens[5] = 400
    tokens.tofile(data / "train.bin")
    ends = np.fromfile(data / "train.docs", np.uint64)
    ends[[3, 4]] = ends[[4, 3]]
    ends.tofile(data / "train.docs")
    found = damages(verify(data / "train.bin"))
    assert any("id of token 5 is 400, and every id is below 280" in line for line in found)
    assert any("document 4 ends at" in line and "not past its start" in line for line in found)
    ends[[3, 4]] = ends[[4, 3]]
    ends[-1] -= 1
    ends.tofile(data / "train.docs")
    assert any("the last document ends at" in line for line in damages(verify(data / "train.bin")))


def test_begin_of_text_ids_are_looked_at(data: Path) -> None:
    tokens = np.fromfile(data / "train.bin", np.uint16)
    tokens[0] = 97
    tokens.tofile(data / "train.bin")
    found = damages(verify(data / "train.bin"))
    assert any("document 0 does not begin with the begin-of-text id 279" in line for line in found)


def test_json_that_is_too_deep_is_no_output_of_ours(data: Path) -> None:
    for name in ("deep.json", "deep_stats.json"):
        (data / name).write_text("[" * 200_000)
    assert not damages(verify(data, deep=True))
    assert lines(facts(data))


def test_nothing_to_verify_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(TokenFileError, match="no finished token file in this directory"):
        verify(tmp_path)
    with pytest.raises(TokenFileError, match="no such file or directory"):
        verify(tmp_path / "none.bin")


# Which block, which documents, which source; deep; repair.


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of three files whose train.bin has three blocks; one block's text is validation."""
    root = tmp_path_factory.mktemp("large")
    (root / "text").mkdir()
    for number in range(3):
        documents = [f"{number} and {i} are {number + i}. " * 40 for i in range(2800)]
        (root / "text" / f"{number}.txt").write_text("<|endoftext|>".join(documents))
    build(train=root / "text", val_fraction=0.01, out=root / "data", vocab_size=258)
    return root / "data"


@pytest.fixture
def copy(large: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(large, tmp_path / "data"))


def flip(path: Path, place: int) -> None:
    with open(path, "r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))


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


@pytest.mark.parametrize("name", ["train.bin", "train.docs", "val.bin", "val.docs"])
@pytest.mark.parametrize("how", ["flip", "cut", "extend", "remove"])
def test_damaged_blocks_are_made_again(copy: Path, large: Path, name: str, how: str) -> None:
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


@pytest.mark.parametrize("how", ["flip", "extend", "remove"])
def test_every_write_of_a_repair_fails_in_turn(
    data: Path, built: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clear error, and the next repair ends in the same bytes."""
    path, sound = data / "train.docs", (built / "train.docs").read_bytes()
    messages = set[str]()
    for number in range(1, 100):
        path.write_bytes(sound[:-1] + b"\x07" + (b"more" if how == "extend" else b""))
        if how == "remove":
            path.unlink()
        system = faults.System(number, faults.fail(faults.ERRORS[number % len(faults.ERRORS)]))
        with monkeypatch.context() as patch:
            patch.setattr("preprocess.storage.local.os", system)
            try:
                assert not damages(verify(data, repair=True))
            except OutputError as error:
                assert "could not be written" in str(error)
                messages.add(str(error))
        if len(system.calls) < number:
            break
        assert not damages(verify(data, repair=True))
        assert path.read_bytes() == sound
    assert number > 5
    assert any("what was rebuilt before is kept" in message for message in messages)


def test_what_cannot_be_made_again_is_left(copy: Path, tmp_path: Path) -> None:
    sources = copy.parent / "elsewhere"
    stats = json.loads((copy / "stats.json").read_text())
    text = Path(stats["settings"]["train"][0])
    shutil.copytree(text, sources)
    stats["settings"]["train"] = [str(sources)]
    (copy / "stats.json").write_text(json.dumps(stats))
    flip(copy / "train.bin", 1000)
    # The same size, but another text.
    other = sources / "0.txt"
    other.write_text(other.read_text().replace("are", "ARE", 1))
    found = damages(verify(copy / "train.bin", repair=True))
    assert any("0 of 1 damaged blocks were made again" in line for line in found)
    (sources / "0.txt").write_text("short")
    found = damages(verify(copy / "train.bin", repair=True))
    assert any("cannot be repaired: its source 0.txt had" in line for line in found)
    (sources / "0.txt").unlink()
    found = damages(verify(copy / "train.bin", repair=True))
    assert any("cannot be repaired: its source 0.txt had" in line for line in found)
    (copy / "stats.json").unlink()
    found = damages(verify(copy / "train.bin", repair=True))
    assert any("cannot be repaired: no stats.json beside it" in line for line in found)


def test_an_empty_name_of_a_tokenizer_is_not_taken_for_none(built: Path) -> None:
    assert damages(verify(built, tokenizer=""))


def test_a_source_that_is_gone_is_a_finding(built: Path, tmp_path: Path) -> None:
    text, path = tmp_path / "text", tmp_path / "data" / "train.bin"
    text.write_bytes((built.parent / "text").read_bytes())
    build(train=text, val=text, out=tmp_path / "data", vocab_size=280)
    text.unlink()
    assert not damages(verify(path))
    assert any("text: no such file" in finding.text for finding in verify(path))
    assert any("text: no such file" in line for line in damages(verify(path, deep=True)))
    flip(path, 100)
    found = damages(verify(path, repair=True))
    assert any("cannot be repaired" in line and "text: no such file" in line for line in found)


@pytest.mark.parametrize("name", ["train.bin", "train.docs"])
@pytest.mark.parametrize("how", ["cut", "remove", "extend"])
def test_a_repair_that_fails_makes_nothing_up(
    built: Path, tmp_path: Path, name: str, how: str
) -> None:
    """A file of the right size would be taken for a whole one when it is opened."""
    text = tmp_path / "text"
    text.write_bytes((built.parent / "text").read_bytes())
    build(train=text, val=text, out=tmp_path / "data", vocab_size=280)
    path = tmp_path / "data" / name
    content = path.read_bytes()
    if how == "cut":
        path.write_bytes(content[:100])
    elif how == "extend":
        path.write_bytes(bytes([content[0] ^ 1]) + content[1:] + b"more")
    else:
        path.unlink()
    before = path.read_bytes() if path.exists() else None
    text.write_text(text.read_text().replace(" low ", " l o "))
    found = damages(verify(tmp_path / "data" / "train.bin", repair=True))
    assert any("0 of 1 damaged blocks were made again" in line for line in found)
    assert (path.read_bytes() if path.exists() else None) == before
    with pytest.raises(TokenFileError):
        open_tokens(tmp_path / "data" / "train.bin")


MANIFEST_DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "flip": lambda content: content.replace(b"gpt2", b"gpt3", 1),
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


@pytest.mark.parametrize("how", MANIFEST_DAMAGES)
def test_a_damaged_manifest_is_made_again(data: Path, built: Path, how: str) -> None:
    """Then the blocks of its token file can be, too."""
    damage(data / "train.json", MANIFEST_DAMAGES[how])
    flip(data / "train.bin", 40)
    findings = verify(data, repair=True)
    assert not damages(findings)
    lines = [f"{each.path}: {each.text}" for each in findings]
    assert any("train.json: was made again, and has the digest in stats.json" in x for x in lines)
    assert any("1 of 1 damaged blocks were made again" in line for line in lines)
    for name in ("train.json", "train.bin"):
        assert (data / name).read_bytes() == (built / name).read_bytes()
    assert {path.name for path in data.iterdir()} == {path.name for path in built.iterdir()}
    assert not damages(verify(data, deep=True))


def test_manifests_of_every_kind_of_run_are_made_again(built: Path, tmp_path: Path) -> None:
    given = {"tokenizer": built / "tokenizer.json"}
    text = built.parent / "text"
    build(train=text, out=tmp_path / "a", val_fraction=0.3, **given)
    build(train=text, out=tmp_path / "b", val_fraction=0, name="x", shard_tokens=99, **given)
    encode(paths=text, out=tmp_path / "c" / "y.bin", **given)
    for path in (
        tmp_path / "a" / "val.json",
        tmp_path / "b" / "x_train.json",
        tmp_path / "c" / "y.json",
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


AGAIN = "run the command that made it again, with --overwrite"


@pytest.mark.parametrize("how", ["flip", "empty"])
@pytest.mark.parametrize("why", ["another text", "no stats"])
def test_a_manifest_that_cannot_be_proven_is_not_made_up(
    built: Path, tmp_path: Path, how: str, why: str
) -> None:
    data, options = copied(built, tmp_path)
    damage(data / "train.json", MANIFEST_DAMAGES[how])
    before = (data / "train.json").read_bytes()
    if why == "another text":
        options["train"].write_text(options["train"].read_text().replace(" low ", " l o "))
        message = "the sources and the tokenizer give another one now than stats.json tells of"
    else:
        (data / "stats.json").unlink()
        message = "no stats.json beside it says how it was made"
    found = damages(verify(data / "train.bin", repair=True))
    advice = f"; put a copy of it in its place, or remove train.json and {AGAIN}"
    assert found[0].endswith(f"train.json: cannot be repaired: {message}{advice}")
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


@pytest.mark.parametrize("how", TOKENIZER_DAMAGES)
@pytest.mark.parametrize("given", [False, True])
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
    (line,) = [f"{x.path}: {x.text}" for x in findings if "was made again" in x.text]
    assert line.endswith("tokenizer.json: was made again, and has the fingerprint in the manifest")
    assert contents(data) == before


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
        r"tokenizer\.json: cannot be repaired: what it was made from gives another one now"
        rf" \([0-9a-f]{{16}}\.\.\.\); put a copy of it in its place, or {AGAIN}",
        found[0],
    )
    assert (data / "tokenizer.json").read_bytes() == before
    build(**options, overwrite=True)
    assert not damages(verify(data, deep=True))


def test_a_tokenizer_that_was_given_to_encode_is_not_ours_to_make(
    built: Path, tmp_path: Path
) -> None:
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_bytes((built / "tokenizer.json").read_bytes()[:-40])
    encode(paths=built.parent / "text", out=tmp_path / "x.bin", tokenizer=built / "tokenizer.json")
    found = damages(verify(tmp_path, repair=True))
    assert "tokenizer.json: cannot be repaired: it was not made here, but given (" in found[0]


def test_without_tokenizer_and_manifest_nothing_is_proven(data: Path) -> None:
    (data / "train.json").unlink()
    (data / "tokenizer.json").unlink()
    found = damages(verify(data / "train.bin", repair=True))
    assert "train.json: cannot be repaired: tokenizer.json is damaged or gone, too; put" in found[0]


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
        pytest.raises(OutputError, match=r"data: process \d+ on .* is writing in this directory"),
    ):
        verify(data / "train.bin", repair=True)
    assert (data / "train.bin").read_bytes() == before


@pytest.mark.parametrize("lost", [".bin", ".docs"])
@pytest.mark.parametrize("how", ["empty", "remove"])
def test_a_token_file_that_lost_two_of_its_files_is_not_passed_over(
    data: Path, built: Path, lost: str, how: str
) -> None:
    damage(data / "train.json", MANIFEST_DAMAGES[how])
    (data / f"train{lost}").unlink()
    assert any("train" in line for line in damages(verify(data)))
    assert not damages(verify(data, repair=True))
    assert contents(data) == contents(built)


def test_a_full_disk_is_no_damage(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (data / "tokenizer.json").unlink()
    before = contents(data)
    monkeypatch.setattr("bpe.Tokenizer.save", full)
    with pytest.raises(OutputError, match=r"tokenizer\.json: could not be written: No space left"):
        verify(data, repair=True)
    assert contents(data) == before


def test_what_a_killed_repair_left_is_said_and_cleared_away(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    said = f"{work}: not finished: a repair; the next one clears it away (verify --repair)"
    (data / "tokenizer.json").write_bytes(before["tokenizer.json"])
    assert said in lines(facts(data))
    assert not damages(verify(data, repair=True))
    assert contents(data) == before
    assert not work.exists()


def test_validation_of_an_earlier_build_is_not_taken_for_that_of_a_later_one(
    built: Path, tmp_path: Path
) -> None:
    given = {"train": built.parent / "text", "out": tmp_path, "tokenizer": built / "tokenizer.json"}
    build(**given, val_fraction=0.3)
    build(**given, val_fraction=0, overwrite=True)
    assert not damages(verify(tmp_path))
    (found,) = damages(verify(tmp_path, deep=True))
    assert "val.bin: not compared with its sources: no stats.json beside it" in found


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
    both = "stats.json and train_stats.json both tell how it was made, and which came last is not"
    assert f"train.json: cannot be repaired: {both} known; put a copy of it" in found[0]
    assert contents(data) == {name: before[name] for name in before if name != "train.json"}


def test_a_file_that_cannot_be_read_does_not_hide_the_others(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (data / "stats.json").unlink()
    (data / "stats.json").mkdir()
    (data / "a_stats.json").write_text(
        '{"format": "tokenbin-stats", "settings": {"x": 1}, "made_from": {"command": "build"}}'
    )
    read_bytes = Path.read_bytes

    def failing(path: Path) -> bytes:
        if path == data / "train.json":
            raise OSError(errno.EIO, "Input/output error", str(path))
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", failing)
    findings = verify(data)
    assert damages(findings) == [
        f"DAMAGED  {data / 'train.json'}: cannot be read: Input/output error; see to the disk and"
        " its permissions"
    ]
    assert sum(finding.path.stem == "val" for finding in findings) == 8
    unread = (
        "no stats.json beside it says how it was made (a_stats.json, stats.json: cannot be read"
    )
    assert any(unread in finding.text for finding in findings)
    assert run(["verify", str(data)]) == 1
    assert "val.bin: sizes agree with the manifest" in capsys.readouterr().out


def test_an_odd_stats_file_does_not_hide_the_one_that_tells(data: Path) -> None:
    odd = {"format": "tokenbin-stats", "settings": {"x": 1}, "made_from": {"command": "encode"}}
    for name, content in (("a_stats.json", odd), ("b_stats.json", odd | {"settings": 3})):
        (data / name).write_text(json.dumps(content))
    assert not damages(verify(data, deep=True))


def test_ends_are_not_copied_to_look_for_two_of_them(tmp_path: Path) -> None:
    from preprocess.check import verify
    from preprocess.dataset.manifest import Manifest

    n = 1 << 20
    digests = {"bin": ("",), "docs": ("", "")}
    manifest = Manifest(
        dtype="uint16",
        vocab_size=300,
        n_tokens=2 * n,
        n_documents=n,
        n_bytes=0,
        end_of_text_id=0,
        begin_of_text_id=None,
        tokenizer_fingerprint="",
        pattern="",
        unicode_version="",
        sources=(),
        digests=digests,
    )
    ends = np.arange(2, 2 * n + 2, 2, dtype=np.uint64)
    stage = Progress().stage("x", 0)
    scan = verify._Scan(tmp_path / "x.bin", manifest.files("x")[0], manifest, stage)
    tracemalloc.start()
    try:
        finding = verify._check_blocks(scan, manifest, ends)
        assert tracemalloc.get_traced_memory()[1] < ends.nbytes / 8
    finally:
        tracemalloc.stop()
    assert f"documents 0 to {n - 1:,}" in finding.text


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
    with written.token_file(data, "train", vocab_size=280) as writer:
        writer.append(tokens, ends)
        fields = ("end_of_text_id", "begin_of_text_id", "n_bytes", "tokenizer_fingerprint")
        fields += ("pattern", "unicode_version", "sources")
        writer.finish(**{field: getattr(manifest, field) for field in fields})
    assert not damages(verify(data / "train.bin"))
    (found,) = damages(verify(data / "train.bin", deep=True))
    assert f"text, encoded again: id of token {at:,} differs" in found
    (data / "stats.json").unlink()
    assert "not compared with its sources" in damages(verify(data / "train.bin", deep=True))[0]


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
    assert "1 of 1 damaged blocks were made again from the sources" in capsys.readouterr().out
    assert run(["verify", str(data)]) == 0


def test_a_tokenizer_in_another_layout_is_said_to_be_one(data: Path, tmp_path: Path) -> None:
    path = data / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()), indent=7))
    findings = verify(data / "train.bin")
    assert not damages(findings)
    assert any("in the layout of another program" in finding.text for finding in findings)


_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from([[], {}, [[]], [{}], [None], "uint32", 10**4000, [{"name": 1, "bytes": "x"}]]),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_value_anywhere_in_a_manifest_is_reported(
    built: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    copy = tmp_path_factory.getbasetemp() / "any value"
    if not copy.exists():
        shutil.copytree(built, copy)
    content = json.loads((built / "train.json").read_text())
    where = data.draw(st.sampled_from([content, content["sources"][0]]))
    key = data.draw(st.sampled_from([*where, "new"]))
    if data.draw(st.booleans()):
        where[key] = data.draw(_values)
    else:
        where.pop(key, None)
    (copy / "train.json").write_text(json.dumps(content))
    for options in ({}, {"deep": True}):
        findings = verify(copy / "train.bin", **options)
        # Its text is not laid out as it was, if nothing else.
        assert damages(findings)

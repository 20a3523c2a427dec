"""`verify` calls sound what is sound, and names what is not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import written

from preprocess import build
from preprocess.token_file import TokenFileError
from preprocess.verify import Finding, verified


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
    return [finding.line() for finding in findings if not finding.sound]


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
    findings = verified(data / what)
    assert len(findings) == (6 if what else 12)
    assert not damages(findings)
    assert any("encode to the same ids again" in finding.text for finding in findings)


@pytest.mark.parametrize("name", ["train.bin", "train.docs"])
def test_a_flipped_bit_is_found(data: Path, name: str) -> None:
    content = bytearray((data / name).read_bytes())
    content[17] ^= 4
    (data / name).write_bytes(content)
    found = damages(verified(data / "train.bin"))
    assert any(f"{name}: 1 of 1 blocks are damaged: 0 (from byte 0)" in line for line in found)


def test_a_wrong_size_is_found(data: Path) -> None:
    with open(data / "train.bin", "ab") as file:
        file.write(b"\0\0")
    (found,) = damages(verified(data / "train.json"))
    assert "were found; it was damaged or replaced" in found


def test_another_tokenizer_is_found(data: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("something else " * 100)
    build(train=tmp_path / "text", val=tmp_path / "text", out=tmp_path / "other", vocab_size=270)
    found = damages(verified(data, tmp_path / "other" / "tokenizer.json"))
    assert len(found) == 2
    assert all("built with the tokenizer" in line for line in found)
    (data / "tokenizer.json").unlink()
    assert "there is no tokenizer.json beside it" in damages(verified(data))[0]


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
    found = damages(verified(data / "odd.bin"))
    assert len(found) == bool(message)
    assert not message or message in found[0]


def test_ids_without_a_token_are_found(data: Path) -> None:
    from bpe import Tokenizer, Vocabulary

    tokens = {byte: bytes([byte]) for byte in range(256)}
    vocabulary = Vocabulary(tokens, [], {"<|endoftext|>": 278})
    Tokenizer.from_vocabulary(vocabulary).save(data / "tokenizer.json")
    write(data, [97, 260, 278], [3])
    (found,) = damages(verified(data / "odd.bin"))
    assert "document 0 does not decode: token id 260 is not in the vocabulary" in found


def test_text_that_is_changed_before_it_is_encoded(data: Path, tmp_path: Path) -> None:
    top = json.loads((data / "tokenizer.json").read_text())
    top["normalizer"] = {"type": "NFD"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(top))
    (tmp_path / "text").write_text("naïve<|endoftext|>e\u0301te\u0301")
    text, out = tmp_path / "text", tmp_path / "nfd"
    build(train=text, val=text, out=out, tokenizer=tmp_path / "tokenizer.json")
    findings = verified(out / "train.bin")
    assert not damages(findings)
    assert "2 documents decode, but not always to the very text" in findings[-1].text


def test_ids_beyond_the_vocabulary_and_ends_out_of_order_are_found(data: Path) -> None:
    tokens = np.fromfile(data / "train.bin", np.uint16)
    tokens[5] = 400
    tokens.tofile(data / "train.bin")
    ends = np.fromfile(data / "train.docs", np.uint64)
    ends[[3, 4]] = ends[[4, 3]]
    ends.tofile(data / "train.docs")
    found = damages(verified(data / "train.bin"))
    assert any("token 5 is 400, and the vocabulary has 280 ids" in line for line in found)
    assert any("document 4 ends at" in line and "not past its start" in line for line in found)
    ends[[3, 4]] = ends[[4, 3]]
    ends[-1] -= 1
    ends.tofile(data / "train.docs")
    assert any(
        "the last document ends at" in line for line in damages(verified(data / "train.bin"))
    )


def test_begin_of_text_ids_are_looked_at(data: Path) -> None:
    tokens = np.fromfile(data / "train.bin", np.uint16)
    tokens[0] = 97
    tokens.tofile(data / "train.bin")
    found = damages(verified(data / "train.bin"))
    assert any("document 0 does not begin with the begin-of-text id 279" in line for line in found)


def test_nothing_to_verify_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(TokenFileError, match="no finished token file in this directory"):
        verified(tmp_path)
    with pytest.raises(TokenFileError, match="no such file or directory"):
        verified(tmp_path / "none.bin")

"""Imports: ids of others become a dataset, or one clear sentence."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from export_cases import content_of
from hypothesis import given, settings
from hypothesis import strategies as st
from verify_cases import flip
from written import END, dataset

from bpe import train_bpe
from preprocess import (
    CorpusError,
    SettingsError,
    TokenFileError,
    export_tokens,
    import_tokens,
    open_tokens,
)
from preprocess.check.verify import verify
from preprocess.cli import run
from preprocess.imports import write


def write_megatron(
    directory: Path, documents: list[list[list[int]]], dtype: str = "int32", **changes: Any
) -> Path:
    """Write documents, each some sequences, as Megatron does; `changes` are of the index."""
    codes = {"uint8": 1, "int8": 2, "int32": 4, "int64": 5, "float32": 7, "uint16": 8}
    sequences = [sequence for document in documents for sequence in document]
    lengths = np.array([len(each) for each in sequences], "<i4")
    pointers = (np.cumsum(lengths, dtype=np.int64) - lengths) * np.dtype(dtype).itemsize
    bounds = np.cumsum([0, *map(len, documents)])
    index = {
        "magic": b"MMIDIDX\0\0", "version": 1, "code": codes[dtype], "n": len(lengths),
        "n_bounds": len(bounds), "lengths": lengths, "pointers": pointers, "bounds": bounds,
        "more": b"",
    } | changes
    directory.mkdir(exist_ok=True, parents=True)
    (directory / "x.idx").write_bytes(
        index["magic"]
        + struct.pack("<QBQQ", index["version"], index["code"], index["n"], index["n_bounds"])
        + np.asarray(index["lengths"], "<i4").tobytes()
        + np.asarray(index["pointers"], "<i8").tobytes()
        + np.asarray(index["bounds"], "<i8").tobytes() + index["more"]
    )
    ids = np.array([each for sequence in sequences for each in sequence], dtype)
    ids.tofile(directory / "x.bin")
    return directory / "x"


def import_megatron(path: Path, out: Path, **options: Any) -> Any:
    given = {"format": "megatron", "end_of_text_id": END, "vocab_size": 301} | options
    return import_tokens(path, out=out / "train.bin", **given)


def import_raw(path: Path, out: Path, **options: Any) -> Any:
    given = {"format": "raw", "dtype": "uint16", "end_of_text_id": END, "vocab_size": 301}
    return import_tokens(path, out=out / "train.bin", **given | options)


@given(
    sizes=st.lists(st.sampled_from([1, 1, 2, 9, 40]), min_size=1, max_size=30),
    piece=st.sampled_from([1, 3, 40, 1000]), wide=st.booleans(),
    shard_tokens=st.sampled_from([None, 40]),
)
@settings(max_examples=20)
def test_megatron_and_back_is_the_same_dataset(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], piece: int, wide: bool,
    shard_tokens: int | None,
) -> None:
    root, vocab_size = tmp_path_factory.mktemp("import"), 70_000 if wide else 301
    dataset(root / "data", sizes, vocab_size=vocab_size, shard_tokens=shard_tokens)
    export_tokens(root / "data", to="megatron", out=root / "out")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write, "PIECE_TOKENS", piece)
        import_megatron(
            root / "out" / "train", root / "back", vocab_size=vocab_size, shard_tokens=shard_tokens,
        )
        import_raw(
            root / "out" / "train.bin", root / "raw", vocab_size=vocab_size,
            shard_tokens=shard_tokens, dtype="int32" if wide else "uint16",
        )
    files = sorted([*(root / "data").glob("*.bin"), *(root / "data").glob("*.docs")])
    for place in ("back", "raw"):
        for path in files:
            assert (root / place / path.name).read_bytes() == path.read_bytes()
        assert all(each.sound for each in verify(root / place))
    shutil.rmtree(root)


@pytest.mark.parametrize(("piece", "dtype"), [(1, "int32"), (2, "int64"), (3, "uint16")])
def test_documents_of_several_sequences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int, dtype: str
) -> None:
    monkeypatch.setattr(write, "PIECE_TOKENS", piece)
    documents = [[[1, 2], [3], [4, END]], [[END]], [[5], [], [6, END]]]
    path = write_megatron(tmp_path / "in", documents, dtype)
    result = import_megatron(path, tmp_path / "out")
    file = open_tokens(tmp_path / "out" / "train.bin")
    assert content_of(file).documents == [[1, 2, 3, 4, END], [END], [5, 6, END]]
    assert result.manifest.vocab_size == 301
    assert [each["imported"] for each in result.manifest.sources] == ["megatron", "megatron"]
    for suffix in (".bin", ".idx"):
        again = import_megatron(path.with_suffix(suffix), tmp_path / "out")
        assert ": up to date (9 tokens, 3 documents, uint16)" in again.line


@pytest.mark.parametrize("piece", [1, 2, 1000])
def test_the_end_of_text_is_appended(tmp_path: Path, monkeypatch: Any, piece: int) -> None:
    monkeypatch.setattr(write, "PIECE_TOKENS", piece)
    documents = [[], [[]], [[1, 2], [3]], [], [[END]], [[5, 6]], [[]]]
    path = write_megatron(tmp_path / "in", documents)
    with pytest.raises(CorpusError, match="document 0 ends at token 0 without the end-of-text id"):
        import_megatron(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    import_megatron(path, tmp_path / "out", append_end_of_text=True)
    file = open_tokens(tmp_path / "out" / "train.bin")
    assert content_of(file).documents == [
        [END], [END], [1, 2, 3, END], [END], [END], [5, 6, END], [END],
    ]  # fmt: skip
    np.array([END, 4, END, 7], np.uint16).tofile(tmp_path / "raw.bin")
    with pytest.raises(CorpusError, match="document 2 ends at token 4 without the end-of-text id"):
        import_raw(tmp_path / "raw.bin", tmp_path / "raw")
    import_raw(tmp_path / "raw.bin", tmp_path / "raw", append_end_of_text=True)
    file = open_tokens(tmp_path / "raw" / "train.bin")
    assert content_of(file).documents == [[END], [4, END], [7, END]]
    assert all(each.sound for each in verify(tmp_path / "raw"))


def test_end_of_text_inside_a_document(tmp_path: Path) -> None:
    path = write_megatron(tmp_path / "in", [[[1, END]], [[2, END, 3, END]]])
    with pytest.raises(CorpusError, match=f"document 1 has the end-of-text id {END} at token 3"):
        import_megatron(path, tmp_path / "out")
    import_raw(path.with_suffix(".bin"), tmp_path / "out", dtype="int32")
    file = open_tokens(tmp_path / "out" / "train.bin")
    assert content_of(file).documents == [[1, END], [2, END], [3, END]]


@pytest.mark.parametrize(("ids", "dtype", "place", "found"), [
    ([1, 2, 301, END], "uint16", 2, "301"), ([1, -2, END], "int32", 1, "-2"),
    ([1, 1 << 40, END], "int64", 1, "1,099,511,627,776"),
])  # fmt: skip
def test_ids_out_of_the_vocabulary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ids: list[int], dtype: str, place: int,
    found: str,
) -> None:
    monkeypatch.setattr(write, "PIECE_TOKENS", 2)
    np.array(ids, dtype).tofile(tmp_path / "x.bin")
    text = rf"x\.bin: token {place} is {found}, and the vocabulary has the ids 0 to 300; check"
    with pytest.raises(CorpusError, match=text):
        import_raw(tmp_path / "x.bin", tmp_path / "out", dtype=dtype)
    assert not (tmp_path / "out").exists()


TWO = [[[1, END]], [[2, 3], [END]]]


@pytest.mark.parametrize(("changes", "text"), [
    ({"magic": b"MMIDIDY\0\0"}, "does not begin with Megatron's MMIDIDX, so it is no .idx"),
    ({"version": 2}, "is of version 2 of the format, expected 1; convert it with"),
    ({"code": 7}, "says that ids are float32, expected integers"),
    ({"code": 99}, "says that ids are number 99, expected integers"),
    ({"n": 4}, "has 94 bytes, and 106 are expected for 4 sequences and 3 document bounds"),
    ({"n": 1 << 60}, "are expected for 1,152,921,504,606,846,976 sequences"),
    ({"n_bounds": 2}, "has 94 bytes, and 86 are expected for 3 sequences and 2 document"),
    ({"more": b"\0\0\0"}, "has a mode for each sequence, as of multimodal data, which"),
    ({"more": b"\0"}, "has 95 bytes, and 94 are expected"),
    ({"lengths": [2, -2, 1]}, "sequence 1 has a length below zero"),
    ({"lengths": [2, 1, 1]}, "sequence 2 should begin at byte 12 of the .bin, after those"),
    ({"pointers": [0, 16, 8]}, "sequence 1 should begin at byte 8 of the .bin, after those"),
    ({"bounds": [0, 3, 1]}, "document 2 begins before the one before it"),
    ({"bounds": [0, 2**63 - 1, -2]}, "document 2 begins before the one before it"),
    ({"bounds": [1, 2, 3]}, "document 0 begins before the one before it"),
    ({"bounds": [0, 1, 2]}, "2 documents have 2 sequences, and there are 3"),
    ({"n_bounds": 0, "bounds": []}, "0 documents have 0 sequences, and there are 3"),
    ({"lengths": [2, 2, 2]}, "has 5 ids of int32, and its .idx says 6"),
])  # fmt: skip
def test_a_damaged_index(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    path = write_megatron(tmp_path / "in", TWO, **changes)
    with pytest.raises(CorpusError) as caught:
        import_megatron(path, tmp_path / "out")
    assert text in str(caught.value)
    assert str(path) in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_an_index_that_was_cut_off(tmp_path: Path) -> None:
    path = write_megatron(tmp_path / "in", TWO)
    index = path.with_suffix(".idx")
    content = index.read_bytes()
    for n in range(len(content)):
        index.write_bytes(content[:n])
        message = f"has {n} bytes, and 94 are expected for 3 sequences"
        if n < 34:
            message = rf"has {n} bytes, and the header of an \.idx has 34; copy it again, or"
        with pytest.raises(CorpusError, match=message if n else "does not begin with Megatron's"):
            import_megatron(path, tmp_path / "out")
    index.unlink()
    with pytest.raises(CorpusError, match=r"x\.idx: no such file or directory"):
        import_megatron(path, tmp_path / "out")


def test_files_of_ids_that_cannot_be(tmp_path: Path) -> None:
    path = write_megatron(tmp_path / "in", TWO).with_suffix(".bin")
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(CorpusError, match=r"has 17 bytes, which is no whole number of ids of 4"):
        import_megatron(path, tmp_path / "out")
    with pytest.raises(CorpusError, match=r"no whole number of ids of 2 bytes \(uint16\); check"):
        import_raw(path, tmp_path / "out")
    path.write_bytes(b"")
    with pytest.raises(CorpusError, match="is empty; there are no ids to import"):
        import_raw(path, tmp_path / "out")
    with pytest.raises(CorpusError, match="is a directory; give the file of ids"):
        import_raw(tmp_path, tmp_path / "out")
    with pytest.raises(CorpusError, match="no such file or directory"):
        import_raw(tmp_path / "other.bin", tmp_path / "out")


def test_options_that_are_asked_for(tmp_path: Path) -> None:
    path = write_megatron(tmp_path / "in", TWO)
    out = {"out": tmp_path / "out" / "train.bin"}
    options: dict[str, Any] = {"format": "raw", "end_of_text_id": END, "vocab_size": 301}
    with pytest.raises(SettingsError, match="dtype is required for raw ids, which do not say it"):
        import_tokens(path.with_suffix(".bin"), **options, **out)
    with pytest.raises(SettingsError, match=r"the \.idx of Megatron says the dtype of its ids"):
        import_megatron(path, tmp_path / "out", dtype="int32")
    with pytest.raises(SettingsError, match=r"give either its tokenizer .* or its size"):
        import_megatron(path, tmp_path / "out", vocab_size=None)
    with pytest.raises(SettingsError, match="ids are checked against a vocabulary; give either"):
        import_megatron(path, tmp_path / "out", tokenizer="t.json")
    with pytest.raises(SettingsError, match="vocabulary of 299 ids; correct one of them"):
        import_megatron(path, tmp_path / "out", vocab_size=299)
    with pytest.raises(SettingsError, match=r"written over .*x\.bin, the file that is read"):
        import_tokens(path, **options | {"format": "megatron"}, out=path.with_suffix(".bin"))
    shard = path.with_name("y_00000.bin")
    shard.write_bytes(b"\1\0")
    with pytest.raises(SettingsError, match=r"written over .*y_00000\.bin, the file that is read"):
        import_tokens(shard, **options, dtype="uint16", out=path.with_name("y.bin"), shard_tokens=2)
    with pytest.raises(SettingsError, match="split_documents has no effect without shard_tokens"):
        import_megatron(path, tmp_path / "out", split_documents=True)
    assert run(["import", str(path), "--format", "megatron"]) == 2


def test_a_dataset_that_is_there(tmp_path: Path, capsys: Any) -> None:
    path = write_megatron(tmp_path / "in", TWO)
    import_megatron(path, tmp_path / "out")
    with pytest.raises(TokenFileError, match=r"inputs were different \(vocab_size was 301 and is"):
        import_megatron(path, tmp_path / "out", vocab_size=302)
    import_megatron(path, tmp_path / "out", vocab_size=302, overwrite=True)
    command = ["import", str(path), "--format", "megatron", "--end-of-text-id", str(END),
               "--vocab-size", "302", "--out", str(tmp_path / "out" / "train.bin")]
    assert run(command) == 0
    assert "train.bin: up to date (5 tokens, 2 documents, uint16)" in capsys.readouterr().out
    write_megatron(tmp_path / "in", TWO[:1])
    with pytest.raises(TokenFileError, match=r"x\.bin shrank from 20 to 8 bytes"):
        import_megatron(path, tmp_path / "out", vocab_size=302)


def test_with_a_tokenizer(tmp_path: Path) -> None:
    tokenizer = train_bpe(["some text some text"] * 3, 262, special_tokens=["<|end|>", "<|x|>"])
    (tmp_path / "out").mkdir()
    tokenizer.save(tmp_path / "out" / "tokenizer.json")
    end, other = tokenizer.special_tokens.values()
    texts = ["some text", "", "more text é", "x"]
    ids = [each for text in texts for each in (*tokenizer.encode_ordinary(text), end)]
    # Half of a character, and another special token: no build makes these.
    ids += [0xC3, other, end]
    np.array(ids, np.int64).tofile(tmp_path / "x.bin")
    options: dict[str, Any] = {
        "dtype": "int64", "vocab_size": None, "tokenizer": tmp_path / "out" / "tokenizer.json",
    }
    with pytest.raises(SettingsError, match=r"end_of_text_id 5 is no special token of .*end"):
        import_raw(tmp_path / "x.bin", tmp_path / "out", end_of_text_id=5, **options)
    result = import_raw(tmp_path / "x.bin", tmp_path / "out", end_of_text_id=end, **options)
    assert result.manifest.n_bytes == sum(len(text.encode()) for text in texts) + 1
    assert result.manifest.tokenizer_fingerprint == tokenizer.fingerprint
    file = open_tokens(tmp_path / "out" / "train.bin", tokenizer=tokenizer)
    assert file.decode(file.doc(2)) == "more text é<|end|>"
    found = verify(tmp_path / "out", deep=True)
    assert all(each.sound for each in found)
    texts = [each.text for each in found]
    assert "5 documents decode, which another program made, so they were not encoded" in texts[-2]
    assert texts[-1] == "its ids were imported from x.bin, not made of text"
    flip(tmp_path / "out" / "train.bin", 0)
    wrong = [each.text for each in verify(tmp_path / "out", repair=True) if not each.sound]
    text = "cannot be repaired: its ids were imported; run the import again"
    assert any(text in each for each in wrong)


def test_without_a_tokenizer(tmp_path: Path, capsys: Any) -> None:
    path = write_megatron(tmp_path / "in", TWO)
    import_megatron(path, tmp_path / "out")
    assert [each.text for each in verify(tmp_path / "out") if not each.sound] == []
    text = "imported without a tokenizer, so there is no text to check or repair the ids by"
    assert text in [each.text for each in verify(tmp_path / "out", repair=True)]
    assert run(["inspect", str(tmp_path / "out")]) == 0
    tokenizer = train_bpe(["some text"], 257, special_tokens=["<|end|>"])
    with pytest.raises(TokenFileError, match="its ids were imported without a tokenizer, so none"):
        open_tokens(tmp_path / "out" / "train.bin", tokenizer=tokenizer)
    stats = json.loads((tmp_path / "out" / "train_stats.json").read_text())
    assert stats["made_from"]["command"] == "import"
    flip(tmp_path / "out" / "train.bin", 0)
    assert not all(each.sound for each in verify(tmp_path / "out"))

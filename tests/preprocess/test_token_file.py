"""The bytes of the token files, and every refusal of their writer and reader."""

import copy
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import processes
import pytest
import written
import xxhash
from written import FIELDS, GOLDEN_ENDS, GOLDEN_IDS, edit, write

from preprocess.dataset.columns import BLOCK_BYTES, TokenFileError, token_dtype
from preprocess.dataset.manifest import Manifest
from preprocess.dataset.reader import open_tokens
from preprocess.dataset.writer import TokenFileWriter, read_saved_manifest
from preprocess.storage import DamagedStateError, LocalFiles, LocalStorage, OutputError

# The format, committed: two documents and an empty one. These bytes are read for ever.
GOLDEN_BIN = bytes.fromhex("0500 2c01 0000 2b01 2b01 0700 2b01")


GOLDEN_DOCS = bytes.fromhex("0400000000000000 0500000000000000 0700000000000000")


GOLDEN_MANIFEST = """\
{
  "format": "tokenmill",
  "format_version": 1,
  "dtype": "uint16",
  "vocab_size": 301,
  "n_tokens": 7,
  "n_documents": 3,
  "n_bytes": 12,
  "end_of_text_id": 299,
  "begin_of_text_id": null,
  "tokenizer_fingerprint": "abababababababababababababababababababababababababababababababab",
  "pattern": "gpt2",
  "unicode_version": "16.0.0",
  "sources": [
    {
      "name": "train.txt",
      "bytes": 14,
      "digest": "00000000000000000000000000000000"
    }
  ],
  "bin_digests": [
    "90b37e9629abeceb61610d39d5c9e834"
  ],
  "docs_digests": [
    "52737290d207a27ac3b4a90320f103b7"
  ],
  "digest": "xxh3_128",
  "digest_block_bytes": 4194304,
  "manifest_digest": "554e7be31093e861bc43d962ad7bcae1"
}
"""

# The same as it was written before the product was renamed.
FORMER_MANIFEST = GOLDEN_MANIFEST.replace('"tokenmill"', '"tokenbin"').replace(
    "554e7be31093e861bc43d962ad7bcae1", "6f8ba84e6d54d039c5df0f41b04e0e4f"
)


ROOT = Path(__file__).parents[2]


def column(**stated: str) -> dict[str, Any]:
    """A column that a manifest states."""
    return {"columns": [{"name": "x", "dtype": "uint8", "per": "token"} | stated]}


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """The `.bin` of the golden files."""
    write(tmp_path, GOLDEN_IDS, GOLDEN_ENDS)
    return tmp_path / "train.bin"


# The format.


def test_writer_makes_the_golden_bytes(built: Path) -> None:
    assert built.read_bytes() == GOLDEN_BIN
    assert built.with_suffix(".docs").read_bytes() == GOLDEN_DOCS
    assert built.with_suffix(".json").read_text() == GOLDEN_MANIFEST
    assert sorted(os.listdir(built.parent)) == ["train.bin", "train.docs", "train.json"]


@pytest.mark.parametrize("manifest", [GOLDEN_MANIFEST, FORMER_MANIFEST])
def test_reader_reads_the_golden_bytes(tmp_path: Path, manifest: str) -> None:
    (tmp_path / "train.bin").write_bytes(GOLDEN_BIN)
    (tmp_path / "train.docs").write_bytes(GOLDEN_DOCS)
    (tmp_path / "train.json").write_text(manifest)
    file = open_tokens(tmp_path / "train.bin")
    assert file.manifest.to_json() == manifest  # so plans, states and rows of it stay valid
    assert file.tokens.tolist() == GOLDEN_IDS
    assert file.document_ends.tolist() == GOLDEN_ENDS
    assert (file.n_tokens, len(file), file.n_documents, file.vocab_size) == (7, 7, 3, 301)
    assert file.manifest.n_bytes == 12
    assert file.manifest.sources[0]["name"] == "train.txt"


@pytest.mark.parametrize("shards", [{}, {"shard_tokens": 3}])
def test_unknown_keys_of_a_manifest_are_ignored(tmp_path: Path, shards: dict[str, int]) -> None:
    text = written.dataset(tmp_path, [3, 3], **shards).manifest.to_json()
    content = json.loads(text) | {"text_digests": {"a": 1}, "digests": 3}
    for each in content.get("shards", []):
        each["digests"] = 5
    assert Manifest.from_json(json.dumps(content), "x").to_json() == text


def test_an_open_file_is_pickled_as_its_path(tmp_path: Path, monkeypatch: Any) -> None:
    """Another process, which may work elsewhere, maps the same files."""
    ids = np.random.default_rng(0).integers(301, size=400_000)
    write(tmp_path, ids, [ids.size])
    monkeypatch.chdir(tmp_path)
    file = open_tokens("train.bin")
    pickled = pickle.dumps(file)
    assert len(pickled) < 500
    monkeypatch.chdir("/")
    for other in (pickle.loads(pickled), copy.copy(file), copy.deepcopy(file)):
        assert other.path == tmp_path / "train.bin"
        assert other.manifest == file.manifest
        assert np.array_equal(other.tokens, ids)
        assert other.document_ends.tolist() == [ids.size]
    code = "import sys, pickle; print(pickle.load(sys.stdin.buffer)[-1])"
    run = subprocess.run([sys.executable, "-c", code], input=pickled, capture_output=True, cwd=ROOT)
    assert (run.stdout, run.stderr) == (f"{ids[-1]}\n".encode(), b"")


def test_a_pickled_file_that_changed_is_refused(built: Path) -> None:
    pickled = pickle.dumps(open_tokens(built))
    wanted = open_tokens(built).manifest.digest
    write(built.parent, [5, 299], [2])
    found = open_tokens(built).manifest.digest
    message = rf"train\.bin: was rebuilt .*: expected .*{wanted}, found {found}; open it again"
    with pytest.raises(TokenFileError, match=message):
        pickle.loads(pickled)
    write(built.parent, GOLDEN_IDS, GOLDEN_ENDS)
    assert pickle.loads(pickled).tokens.tolist() == GOLDEN_IDS
    built.write_bytes(GOLDEN_BIN[:-2])
    with pytest.raises(TokenFileError, match=r"train\.bin: expected 14 bytes .*, found 12"):
        pickle.loads(pickled)
    built.with_suffix(".json").unlink()
    built.unlink()
    with pytest.raises(TokenFileError, match=r"train\.bin: there is no such file; build it"):
        pickle.loads(pickled)


@pytest.mark.parametrize(
    ("vocab_size", "name"),
    [(1, "uint16"), (65_535, "uint16"), (65_536, "uint16"), (65_537, "uint32"), (2**32, "uint32")],
)
def test_dtype_is_decided_by_the_vocabulary(tmp_path: Path, vocab_size: int, name: str) -> None:
    dtype = token_dtype(vocab_size)
    assert dtype.name == name
    assert dtype.newbyteorder("<") == dtype
    ids = [vocab_size - 1, 0]
    file = write(tmp_path, ids, [2], vocab_size=vocab_size, fields={"end_of_text_id": 0})
    assert (file.dtype, file.tokens.tolist()) == (dtype, ids)
    assert (tmp_path / "train.bin").read_bytes() == np.array(ids, dtype).tobytes()
    for wrong in (0, -1, 2**32 + 1):
        with pytest.raises(TokenFileError, match=rf"size is {wrong:,}, expected 1 to 2\*\*32"):
            token_dtype(wrong)


def test_digests_are_by_block(tmp_path: Path) -> None:
    n_tokens = 5 * BLOCK_BYTES // 4 + 3  # two and a half blocks
    ids = np.arange(n_tokens, dtype=np.uint32) % 299
    with written.token_file(tmp_path, "train", vocab_size=301) as writer:
        for piece in np.split(ids, [1, 1000, n_tokens // 2]):
            writer.append(piece, np.array([len(piece)]))
        manifest = writer.finish(end_of_text_id=299, **FIELDS)
    data = (tmp_path / "train.bin").read_bytes()
    blocks = [data[at : at + BLOCK_BYTES] for at in range(0, len(data), BLOCK_BYTES)]
    assert len(blocks) == 3
    assert manifest.digests["bin"] == tuple(xxhash.xxh3_128_hexdigest(block) for block in blocks)
    docs = (tmp_path / "train.docs").read_bytes()
    assert manifest.digests["docs"] == (xxhash.xxh3_128_hexdigest(docs),)


# Reading.


def test_arrays_of_the_file_are_read_only_and_slices_are_copies(built: Path) -> None:
    file = open_tokens(built.with_suffix(".json"))
    assert not file.tokens.flags.writeable
    assert not file.document_ends.flags.writeable
    part = file[1:4]
    assert part.tolist() == [300, 0, 299]
    assert not np.shares_memory(part, file.tokens)
    part[0] = 1
    assert file[1] == 300
    assert isinstance(file[-1], int)
    assert repr(file) == f"TokenFile('{built}': 7 uint16 tokens)"


def test_views_outlive_the_file_object_and_its_replacement(built: Path) -> None:
    tokens = open_tokens(built).tokens
    write(built.parent, [1, 299], [2])
    assert tokens.tolist() == GOLDEN_IDS
    assert open_tokens(built).tokens.tolist() == [1, 299]


def test_what_is_compared_and_what_is_ignored(built: Path) -> None:
    edit(built.with_suffix(".json"), later="version")
    assert len(open_tokens(built, tokenizer="ab" * 32)) == 7
    message = r"train\.bin: built with the tokenizer abab.*, and the one given is cdcd.*; use the"
    with pytest.raises(TokenFileError, match=message):
        open_tokens(built, tokenizer="cd" * 32)
    with pytest.raises(TokenFileError, match=r"tokens\.npy: the \.bin of a built corpus or its"):
        open_tokens(built.parent / "tokens.npy")


@pytest.mark.parametrize(("changes", "message"), [
    ({"format": "other"}, r'a JSON object with "format": "tokenmill" is expected'),
    ({"format_version": 2}, r"format version 2; this tokenmill reads version 1: upgrade it"),
    ({"digest": "md5"}, r"digests should be xxh3_128 of 4194304 bytes; build the files again"),
    ({"dtype": "int8"}, r"dtype int8 does not fit a vocabulary of 301 ids, .* are uint16"),
    ({"dtype": 3}, r"not a manifest: Expected `str`.* - at `\$\.dtype`, found '3'; build the"),
    ({"vocab_size": 65_537}, r"dtype uint16 does not fit a vocabulary of 65,537 ids"),
    ({"vocab_size": 0}, r"Expected `int` >= 1 - at `\$\.vocab_size`, found '0'"),
    ({"n_tokens": -1}, r"Expected `int` >= 0 - at `\$\.n_tokens`, found '-1'"),
    ({"n_tokens": True}, r"Expected `int`, got `bool` - at `\$\.n_tokens`"),
    ({"n_tokens": 10**4000}, r"- at `\$\.n_tokens`"),
    ({"begin_of_text_id": "no"}, r"Expected `int \| null`, got `str`"),
    ({"shards": [[1]]}, r"Expected `object`, got `array` - at `\$\.shards\[0\]`"),
    ({"sources": [1]}, r"Expected `object`, got `int` - at `\$\.sources\[0\]`"),
    ({"bin_digests": [1]}, r"Expected `str`, got `int` - at `\$\.digests"),
    ({"bin_digests": []}, r"\"bin_digests\" should have 1 entries and has 0"),
    ({"docs_digests": ["", ""]}, r"\"docs_digests\" should have 1 entries and has 2"),
    ({"n_tokens": 8}, r"train\.bin: expected 16 bytes \(8 tokens of uint16 .*, found 14"),
    ({"n_documents": 1}, r"train\.docs: expected 8 bytes \(1 documents of uint64 .* 24"),
    (column(name="../x"), r"matching regex .* - at `\$\.columns\[0\]\.name`, found '../x'"),
    (column(name="bin"), r"Expected `str` matching regex .* - at `\$\.columns\[0\]\.name`"),
    (column(dtype="O"), r"Invalid enum value 'O' - at `\$\.columns\[0\]\.dtype`"),
    (column(per="word"), r"Invalid enum value 'word' - at `\$\.columns\[0\]\.per`"),
    (column(), r'"x_digests" should have 1 entries and has 0'),
])  # fmt: skip
def test_manifest_that_is_not_right(built: Path, changes: dict[str, Any], message: str) -> None:
    edit(built.with_suffix(".json"), **changes)
    with pytest.raises(TokenFileError, match=message):
        open_tokens(built)


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b"\xff", b"[]", b'{"vocab": {}}'])
def test_manifest_that_is_none(built: Path, content: bytes) -> None:
    path = built.with_suffix(".json")
    data = json.loads(path.read_text())
    del data["n_bytes"]
    for each, message in (
        (content, "not JSON|JSON object"), (json.dumps(data).encode(), "required field `n_bytes`")
    ):
        path.write_bytes(each)
        with pytest.raises(TokenFileError, match=rf"train\.json: not a manifest.*({message})"):
            open_tokens(built)


def test_files_that_are_missing(built: Path) -> None:
    built.with_suffix(".docs").unlink()
    with pytest.raises(TokenFileError, match=r"train\.docs: missing, though its manifest .*json"):
        open_tokens(built)
    built.with_suffix(".json").unlink()
    with pytest.raises(TokenFileError, match=r"has no manifest \(train\.json\).*np\.memmap\(path"):
        open_tokens(built)
    (built.parent / ".build.partial").mkdir()
    built.rename(built.parent / ".build.partial" / "train.bin")
    with pytest.raises(TokenFileError, match=r"train\.bin: is not finished; run the command"):
        open_tokens(built)
    (built.parent / ".build.partial" / "train.bin").unlink()
    with pytest.raises(TokenFileError, match=r"train\.bin: there is no such file; build it first"):
        open_tokens(built)


@pytest.mark.parametrize("device", [None, "/dev/zero", "/dev/null"])
def test_what_is_no_file_is_not_read(tmp_path: Path, device: str | None) -> None:
    for name in ("stats.json", "train.json"):
        (tmp_path / name).symlink_to(device) if device else os.mkfifo(tmp_path / name)
    with pytest.raises(OutputError, match="is a pipe or a device, expected a file; remove it"):
        LocalFiles(tmp_path).get("stats.json")
    message = "is a pipe or a device, expected a manifest; remove it"
    with pytest.raises(TokenFileError, match=message):
        open_tokens(tmp_path / "train.bin")


@pytest.mark.parametrize("suffix", [".bin", ".docs"])
def test_a_pipe_in_the_place_of_data_is_not_waited_for(built: Path, suffix: str) -> None:
    path = built.with_suffix(suffix)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(TokenFileError, match=f"{path.name}: expected .* in its manifest.*found 0;"):
        open_tokens(built)


# Writing.


@pytest.mark.parametrize(("ids", "ends", "message"), [
    ([1.0], [1], r"1 integers are expected, one for each token; got float64 of shape \(1,\)"),
    ([[1]], [1], r"got int64 of shape \(1, 1\)"),
    ([3, 301], [2], r"ids are from 0 to 300, and that of token 8 is 301"),
    ([3, 2, -1], [3], r"that of token 9 is -1"),
    ([65_536 + 3], [1], r"that of token 7 is 65539"),
    ([3, 4], [1.5, 2.0], r"2 integers are expected, one for each document; got float64"),
    ([3, 4], [0], r"ends should ascend strictly from at least 1 to at most 2"),
    ([3, 4], [3], r"ends should ascend strictly from at least 1 to at most 2"),
    ([3, 4], [2, 1], r"that at 1 is 1, after 2"),
    ([], [1], r"ends should ascend strictly from at least 1 to at most 0"),
])  # fmt: skip
def test_ids_and_ends_are_checked_before_anything_is_written(
    tmp_path: Path, ids: Any, ends: Any, message: str
) -> None:
    with written.token_file(tmp_path, "train", vocab_size=301) as writer:
        writer.append(np.array(GOLDEN_IDS, np.uint32), np.array(GOLDEN_ENDS))
        with pytest.raises(TokenFileError, match=message):
            writer.append(np.array(ids) if ids else np.array([], np.uint32), np.array(ends))
        writer.finish(end_of_text_id=299, **FIELDS)
    assert (tmp_path / "train.bin").read_bytes() == GOLDEN_BIN
    assert (tmp_path / "train.docs").read_bytes() == GOLDEN_DOCS


def test_last_document_needs_an_end(tmp_path: Path) -> None:
    with written.token_file(tmp_path, "train", vocab_size=301) as writer:
        writer.append(np.array([1, 299, 2], np.uint32), np.array([2]))
        with pytest.raises(TokenFileError, match=r"train\.bin: 1 ids follow the last document end"):
            writer.finish(end_of_text_id=299, **FIELDS)
        writer.append(np.array([299]), np.array([1]))
        writer.finish(end_of_text_id=299, **FIELDS)


# Resuming.


def test_a_saved_manifest_whose_shards_are_inside_a_document(tmp_path: Path) -> None:
    """No document ends in the first ones, so their .docs are empty."""
    with LocalStorage(tmp_path, "x") as storage:
        writer = TokenFileWriter(
            storage, "train", vocab_size=301, shard_tokens=2, split_documents=True
        )
        writer.append(np.array([1, 2, 3, 4, 299]), np.array([5]))
        made = writer.finish(end_of_text_id=299, **FIELDS)
        assert read_saved_manifest(storage, "train") == made
        path = storage.path("train_00001.bin")
        for content in (b"", b"1234", path.read_bytes() + b"1"):
            path.write_bytes(content)
            with pytest.raises(DamagedStateError, match=r"train_00001\.bin: damaged or missing"):
                read_saved_manifest(storage, "train")


def test_a_dataset_that_outlives_its_module_ends_in_silence(built: Path) -> None:
    """At the end of a process, what modules have is set to None while others are still there."""
    code = """if True:
        import sys, typing
        from preprocess import open_tokens
        from preprocess.dataset import file_map
        typing.kept = open_tokens(sys.argv[1]), file_map
    """
    assert processes.run("-c", code, built).stderr == ""


def test_numbers_of_documents_of_few_bits(tmp_path: Path) -> None:
    file = written.dataset(tmp_path, [2] * 300)
    for number in (np.uint8(200), np.int8(-100), np.array(200, np.uint8)):
        assert file.doc(number).tolist() == file.doc(200).tolist()  # type: ignore[arg-type]


@pytest.mark.parametrize("shard_tokens", [None, 5])
def test_positions_that_no_array_has(tmp_path: Path, shard_tokens: int | None) -> None:
    more: dict[str, Any] = {"shard_tokens": shard_tokens, "split_documents": True}
    file = written.dataset(tmp_path, [3, 4, 6], **more if shard_tokens else {})
    for place in (None, [0], [0, 1]):
        with pytest.raises(IndexError, match="a whole number below 13, the number of ids; got"):
            file[place]  # type: ignore[call-overload]
    for place in (2**63, 2**70, -(2**63) - 1):
        with pytest.raises(IndexError, match="should be a slice, or a whole number below 13"):
            file[place]
        with pytest.raises(IndexError, match="there is no document"):
            file.doc(place)
    assert file[np.uint64(3)] == file[3]  # type: ignore[call-overload]
    assert file[-(2**70) : 2**70].tolist() == file[:].tolist()

"""Exports: what a plain reader of each format finds in them, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import written
from export_cases import FORMATS, WITH_SHARDS, content_of, read
from hypothesis import given, settings
from hypothesis import strategies as st
from written import dataset

from preprocess import ExportError, OutputError, SettingsError, TokenFileError, export_tokens
from preprocess.cli import run
from preprocess.export import formats
from preprocess.storage import open_storage

SIZES = [1, 20, 7, 300, 2, 2, 70, 1, 16]
SIZES_OF_DOCUMENTS = st.lists(
    st.sampled_from([1, 1, 2, 5, 30, 255, 256, 300]), min_size=1, max_size=12
)


def times_of(out: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}


@given(
    sizes=SIZES_OF_DOCUMENTS, piece=st.sampled_from([1, 3, 64, 1000]),
    wide=st.booleans(), mask=st.booleans(), shard_tokens=st.sampled_from([None, 40, 300]),
    split=st.booleans(), of_file=st.sampled_from([None, 100, 256, 10_000]),
)
@settings(max_examples=15)
def test_an_export_has_the_content_of_the_dataset(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], piece: int, wide: bool, mask: bool,
    shard_tokens: int | None, split: bool, of_file: int | None,
) -> None:
    root = tmp_path_factory.mktemp("export")
    file = dataset(
        root / "data", sizes, vocab_size=70_000 if wide else 301, mask=mask,
        shard_tokens=shard_tokens, split_documents=split and shard_tokens is not None,
    )
    expected = content_of(file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formats, "PIECE_VALUES", piece)
        for to in FORMATS:
            of_format = of_file if to in WITH_SHARDS else None
            (result,) = export_tokens(root / "data", to=to, out=root / to, shard_tokens=of_format)
            found = read(to, root / to, wide=wide)
            assert found.ids == expected.ids
            assert found.documents in (None, expected.documents)
            assert found.mask in (None, expected.mask)
            # What a format does not carry is in its table, and is said.
            about = formats.FORMATS[to]
            assert about.has_documents == (found.documents is not None)
            assert about.has_mask >= (found.mask is not None)
            assert (found.mask is None) == (not mask or not about.has_mask)
            text = "\n".join(result.lines)
            assert ("has no document boundaries" in text) == (found.documents is None)
            assert ("has no loss mask" in text) == (mask and not about.has_mask)
    shutil.rmtree(root)


@pytest.mark.parametrize("to", WITH_SHARDS)
def test_files_have_as_many_tokens_as_asked_for(tmp_path: Path, to: str) -> None:
    dataset(tmp_path / "data", SIZES)
    export_tokens(tmp_path / "data", to=to, out=tmp_path / "out", shard_tokens=100)
    if to == "mds":
        index = json.loads((tmp_path / "out" / "train" / "index.json").read_text())
        # Documents are not divided; one that is larger has a shard of its own.
        assert [each["samples"] for each in index["shards"]] == [3, 1, 5]
    else:
        assert read(to, tmp_path / "out").ids == content_of(
            written.open_tokens(tmp_path / "data" / "train.bin")
        ).ids
        pattern = "train/chunk*" if to == "litdata" else "train_*.bin"
        header = 12 if to == "litdata" else 1024
        sizes = [path.stat().st_size - header for path in sorted((tmp_path / "out").glob(pattern))]
        assert sizes == [200, 200, 200, 200, 38]


@pytest.mark.parametrize("to", FORMATS)
def test_the_same_command_again(tmp_path: Path, to: str, capsys: Any) -> None:
    data, out = str(tmp_path / "data"), str(tmp_path / "out")
    dataset(tmp_path / "data", SIZES)
    assert run(["export", data, "--to", to, "--out", out]) == 0
    first = capsys.readouterr().out.splitlines()
    assert "419 tokens, 9 documents" in first[0]
    before = times_of(Path(out))
    assert run(["export", data, "--to", to, "--out", out]) == 0
    again = capsys.readouterr().out.splitlines()
    assert ": up to date (" in again[0]
    assert again[1:] == first[1:]
    assert before == times_of(Path(out))
    # A dataset that was changed.
    dataset(tmp_path / "data", SIZES[:4])
    with pytest.raises(OutputError, match=": is an export of another dataset, or of what this"):
        export_tokens(data, to=to, out=out)
    export_tokens(data, to=to, out=out, overwrite=True)
    assert read(to, Path(out)).ids == content_of(
        written.open_tokens(tmp_path / "data" / "train.bin")
    ).ids
    (manifest,) = Path(out).rglob("*export.json")
    facts = json.loads(manifest.read_text())
    there = {path.name for path in manifest.parent.iterdir()} - {manifest.name}
    assert there == {each["name"] for each in facts["files"]}  # files of before are gone
    (manifest.parent / facts["files"][0]["name"]).unlink()
    with pytest.raises(OutputError, match=r"is missing, expected \S+ bytes as they were written;"):
        export_tokens(data, to=to, out=out)
    (manifest.parent / facts["files"][0]["name"]).write_bytes(b"x")
    with pytest.raises(OutputError, match=r"has 1 bytes, expected .*; export again"):
        export_tokens(data, to=to, out=out)


def test_other_settings_are_another_export(tmp_path: Path) -> None:
    dataset(tmp_path / "data", SIZES)
    options: dict[str, Any] = {"path": tmp_path / "data", "out": tmp_path / "out"}
    export_tokens(to="llmc", shard_tokens=50, **options)
    assert len([*(tmp_path / "out").glob("train_*.bin")]) == 9
    with pytest.raises(OutputError, match=r"an export with other settings \(shard_tokens 50\)"):
        export_tokens(to="llmc", **options)
    with pytest.raises(OutputError, match=r"settings \(to llmc, shard_tokens 50\); choose another"):
        export_tokens(to="npy", **options)
    export_tokens(to="npy", overwrite=True, **options)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "train.export.json", "train.npy", "train_document_ends.npy",
    ]  # fmt: skip


def test_several_datasets_and_names(tmp_path: Path) -> None:
    train = dataset(tmp_path / "data", SIZES)
    val = dataset(tmp_path / "data", [3, 4], name="val")
    for to in FORMATS:
        export_tokens(tmp_path / "data", to=to, out=tmp_path / to)
        assert read(to, tmp_path / to).ids == content_of(train).ids
        assert read(to, tmp_path / to, "val").ids == content_of(val).ids
    with pytest.raises(SettingsError, match=r"name is for one dataset, and .* has train, val"):
        export_tokens(tmp_path / "data", to="npy", out=tmp_path / "one", name="own")
    export_tokens(tmp_path / "data" / "val.bin", to="npy", out=tmp_path / "one", name="own")
    assert read("npy", tmp_path / "one", "own").ids == content_of(val).ids


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    file = dataset(tmp_path / "data", SIZES)
    before = content_of(file)
    with pytest.raises(OutputError, match=r"train\.bin: exists and was not written by tokenmill"):
        export_tokens(tmp_path / "data", to="megatron", out=tmp_path / "data")
    assert content_of(file) == before
    export_tokens(tmp_path / "data", to="npy", out=tmp_path / "data")  # other names
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "train.export.json").write_text("{}")
    with pytest.raises(ExportError, match=r"not a manifest: a JSON object .*; export again"):
        export_tokens(tmp_path / "data", to="npy", out=tmp_path / "out")
    with pytest.raises(OutputError, match="exists and was not written by tokenmill export, so it"):
        export_tokens(tmp_path / "data", to="npy", out=tmp_path / "out", overwrite=True)


def test_a_damaged_manifest(tmp_path: Path) -> None:
    dataset(tmp_path / "data", SIZES)
    options: dict[str, Any] = {"path": tmp_path / "data", "to": "npy", "out": tmp_path / "out"}
    export_tokens(**options)
    path = tmp_path / "out" / "train.export.json"
    text = path.read_text()
    path.write_text(text.replace('"documents": 9', '"documents": 8'))
    with pytest.raises(ExportError, match=r"was changed since it was written; export again \(ove"):
        export_tokens(**options)
    export_tokens(overwrite=True, **options)
    assert path.read_text() == text
    path.write_text(text.replace('"format_version": 1', '"format_version": 2'))
    with pytest.raises(ExportError, match="format version 2; this tokenmill reads version 1: upg"):
        export_tokens(**options)
    path.write_text("[" * 10)
    with pytest.raises(ExportError, match="not a manifest"):
        export_tokens(**options)
    from msgspec.structs import replace

    from preprocess.export.write import read_manifest

    path.write_text(text)
    manifest = read_manifest(open_storage(tmp_path / "out").final, path.name)
    wrong = replace(manifest.files[0], name="../x")
    path.write_text(replace(manifest, files=(wrong,)).to_json())
    with pytest.raises(ExportError, match=r"'\.\./x' is no name of a file in its directory"):
        export_tokens(**options)


def test_options_that_do_not_fit(tmp_path: Path) -> None:
    dataset(tmp_path / "data", SIZES)
    with pytest.raises(SettingsError, match=r"shard_tokens is for .* npy are not divided, so lea"):
        export_tokens(tmp_path / "data", to="npy", out=tmp_path / "out", shard_tokens=9)
    with pytest.raises(SettingsError, match="to: should be 'megatron', 'llmc'"):
        export_tokens(tmp_path / "data", to="other", out=tmp_path / "out")  # type: ignore[arg-type]
    with pytest.raises(ExportError, match=r"a file of llm\.c has 2,147,483,647 tokens at most"):
        export_tokens(tmp_path / "data", to="llmc", out=tmp_path / "out", shard_tokens=1 << 31)
    with pytest.raises(ExportError, match="a chunk of litdata has 2,147,483,641 tokens at most"):
        export_tokens(tmp_path / "data", to="litdata", out=tmp_path / "out", shard_tokens=1 << 31)
    with pytest.raises(TokenFileError, match="no such file or directory; check the path"):
        export_tokens(tmp_path / "other", to="npy", out=tmp_path / "out")
    dataset(tmp_path / "empty", [])
    with pytest.raises(ExportError, match="has no documents, so there is nothing to export"):
        export_tokens(tmp_path / "empty", to="npy", out=tmp_path / "out")
    assert not [*(tmp_path / "out").rglob("*.partial")]
    assert tuple(formats.FORMATS) == FORMATS


def test_what_a_format_cannot_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset(tmp_path / "data", SIZES)
    dataset(tmp_path / "wide", SIZES, vocab_size=(1 << 31) + 1)
    out = tmp_path / "out"
    for to in ("megatron", "litdata"):
        with pytest.raises(ExportError, match="the vocabulary of 2,147,483,649 ids is larger than"):
            export_tokens(tmp_path / "wide", to=to, out=out)
    for to in ("llmc", "mds", "datatrove", "npy"):
        export_tokens(tmp_path / "wide", to=to, out=tmp_path / to)
        assert max(read(to, tmp_path / to, wide=True).ids) > 1 << 29
    monkeypatch.setattr(formats, "_LONGEST", 299)
    with pytest.raises(ExportError, match="document 3 has 300 tokens, and a document of Megatron"):
        export_tokens(tmp_path / "data", to="megatron", out=out)
    monkeypatch.setattr(formats, "_MDS_LARGEST", 900)
    with pytest.raises(ExportError, match="lower the size"):
        export_tokens(tmp_path / "data", to="mds", out=out, shard_tokens=400)
    monkeypatch.setattr(formats, "_MDS_LARGEST", 500)
    with pytest.raises(ExportError, match=r"documents 3 to 4 would have a shard of .* choose"):
        export_tokens(tmp_path / "data", to="mds", out=out, shard_tokens=30)
    assert not out.exists()


@pytest.mark.parametrize("to", FORMATS)
def test_a_damaged_dataset(tmp_path: Path, to: str) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    dataset(data, SIZES)
    ids = np.fromfile(data / "train.bin", np.uint16)
    wrong = ids.copy()
    wrong[50] = 301
    wrong.tofile(data / "train.bin")
    with pytest.raises(TokenFileError, match="token 50 should be an id of 0 to 300 and is 301"):
        export_tokens(data, to=to, out=out)
    ids.tofile(data / "train.bin")
    ends = np.fromfile(data / "train.docs", np.uint64)
    for place, end in ((3, 5), (8, 400)):
        wrong = ends.copy()
        wrong[place] = end
        wrong.tofile(data / "train.docs")
        if not formats.FORMATS[to].has_documents:
            continue
        with pytest.raises(TokenFileError, match=r"document [38] should end after .* at 419 at mo"):
            export_tokens(data, to=to, out=out)
    assert not out.exists()


def test_numbers_for_people() -> None:
    numbers = (0, 9, 99.5, 999, 999.6, 12_345, 10**18)
    assert [formats.rounded(n) for n in numbers] == [  # type: ignore[arg-type]
        "0.00 T", "9.00 T", "99.5 T", "999 T", "1.00 kT", "12.3 kT", "1.00 ET",
    ]  # fmt: skip

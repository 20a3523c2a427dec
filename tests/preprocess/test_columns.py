"""A column of a dataset is one entry: it is written, sharded, verified, repaired and resumed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import written
from run_cases import assert_goes_on

from preprocess import build, import_tokens, open_tokens
from preprocess.check.verify import verify
from preprocess.dataset import columns
from preprocess.dataset.columns import COLUMNS, Column, TokenFileError

# 1 for the tokens of documents of at least 16 tokens.
FLAG = Column(
    "flag",
    "token",
    np.dtype("u1"),
    make=lambda encoded: np.repeat(np.diff(encoded.offsets) >= 16, np.diff(encoded.offsets)),
    limit=2,
    noun="flag",
)


@pytest.mark.parametrize("shard_tokens", [None, 300])
def test_a_column_is_one_entry(
    shard_tokens: int | None, tmp_path: Path, often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = [f"document {i} of many{' and more' * (i % 5)}" for i in range(99)]
    (tmp_path / "text").write_text("<|endoftext|>".join(documents))
    options: dict[str, Any] = {"train": tmp_path / "text", "vocab_size": 270, "unit_size": 300}
    options |= {"val_fraction": 0.2, "shard_tokens": shard_tokens, "workers": 1}
    build(**options, out=tmp_path / "plain")
    monkeypatch.setattr(columns, "COLUMNS", (*COLUMNS, FLAG))
    assert_goes_on(options, tmp_path, ["encoding train and val"])
    file = open_tokens(tmp_path / "whole" / "train.json")
    lengths = np.diff(file.document_ends.astype(np.int64), prepend=0)
    assert np.array_equal(file.column("flag"), np.repeat(lengths >= 16, lengths))
    with pytest.raises(TokenFileError, match=r"no column 'x'; its columns are bin, docs, flag"):
        file.column("x")
    for path in (tmp_path / "plain").glob("*.bin"):
        assert path.read_bytes() == (tmp_path / "whole" / path.name).read_bytes()
    assert all(finding.sound for finding in verify(tmp_path / "whole", deep=True))
    path = sorted((tmp_path / "whole").glob("train*.flag"))[-1]
    sound = path.read_bytes()
    path.write_bytes(sound[:-1] + b"\x07")
    texts = [f"{x.path}: {x.text}" for x in verify(tmp_path / "whole") if not x.sound]
    assert any(f"{path.name}: 1 of 1 blocks are damaged" in text for text in texts)
    assert any("is 7, and every flag is below 2" in text for text in texts)
    assert any("were rebuilt" in each.text for each in verify(path.parent, repair=True))
    assert path.read_bytes() == sound


def test_a_column_that_is_no_longer_computed(tmp_path: Path, monkeypatch: Any) -> None:
    """It is digested and read all the same; it can be neither compared nor rebuilt."""
    (tmp_path / "text").write_text("<|endoftext|>".join(["some text " * 9, "more"] * 9))
    monkeypatch.setattr(columns, "COLUMNS", (*COLUMNS, FLAG))
    build(train=tmp_path / "text", val_fraction=0, vocab_size=260, out=tmp_path / "out")
    shutil.copytree(tmp_path / "out", tmp_path / "damaged")
    monkeypatch.undo()
    assert open_tokens(tmp_path / "out" / "train.bin").column("flag")[0] == 1
    assert all(finding.sound for finding in verify(tmp_path / "out"))
    (found,) = (each for each in verify(tmp_path / "out", deep=True) if not each.sound)
    assert "not compared with its sources: the column flag is not computed any more" in found.text
    flag = tmp_path / "damaged" / "train.flag"
    flag.write_bytes(bytes(len(flag.read_bytes())))
    found = verify(tmp_path / "damaged", repair=True)[-1]
    assert "cannot be repaired: the column flag is not computed any more" in found.text


@pytest.mark.parametrize(("values", "message"), [
    ({"flag": np.zeros(2)}, r"3 integers are expected, one for each token; got float64"),
    ({"flag": np.array([0, 1, 257])}, "x.flag: .*: flags are from 0 to 1, .* token 2 is 257"),
    ({"flag": np.array([0, -1, 1])}, "x.flag: .*: flags are from 0 to 1, .* token 1 is -1"),
])  # fmt: skip
def test_values_that_do_not_fit(values: Any, message: str, tmp_path: Path) -> None:
    of_file = (*COLUMNS[:2], FLAG)
    with (
        pytest.raises(TokenFileError, match=message),
        written.token_file(tmp_path, "x", vocab_size=300, columns=of_file) as writer,
    ):
        writer.append(np.array([1, 2, 299]), np.array([3]), **values)


def test_outputs_without_a_new_column_are_out_of_date(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "text").write_text("some text")
    options: dict[str, Any] = {"train": tmp_path / "text", "vocab_size": 260, "val_fraction": 0}
    build(**options, out=tmp_path / "out")
    monkeypatch.setattr(columns, "COLUMNS", (*COLUMNS, FLAG))
    with pytest.raises(Exception, match="the added columns were none and are flag"):
        build(**options, out=tmp_path / "out")
    build(**options, out=tmp_path / "out", overwrite=True)
    assert open_tokens(tmp_path / "out" / "train.bin").column("flag").size


def test_imported_ids_have_no_column_of_text(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(columns, "COLUMNS", (*COLUMNS, FLAG))
    np.array([5, 6, 299], "<u2").tofile(tmp_path / "ids")
    import_tokens(
        tmp_path / "ids", format="raw", dtype="uint16", end_of_text_id=299, vocab_size=300,
        out=tmp_path / "x.bin",
    )
    assert open_tokens(tmp_path / "x.bin").tokens.tolist() == [5, 6, 299]
    assert all(finding.sound for finding in verify(tmp_path / "x.bin"))

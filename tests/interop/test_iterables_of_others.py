"""Columns, tables and datasets of other libraries are documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from preprocess import SettingsError, build, open_tokens

TEXTS = [f"document {i} of many, and some more words: {i * i}" for i in range(3000)]


def check(root: Path, documents: Any, name: str, **options: Any) -> None:
    given: dict[str, Any] = {"vocab_size": 280, "val_fraction": 0, **options}
    if not (root / "expected").exists():
        build(train=lambda: TEXTS, out=root / "expected", **given)
    build(train=documents, out=root / name, **given)
    found, expected = (open_tokens(root / x / "train.bin") for x in (name, "expected"))
    assert found.tokens[:].tolist() == expected.tokens[:].tolist()


def test_arrow(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs the extra formats")
    table = pa.table({"text": pa.chunked_array([TEXTS[:1500], TEXTS[1500:]]), "x": [1] * 3000})
    check(tmp_path, table, "table")
    check(tmp_path, table["text"], "column")
    check(tmp_path, table.rename_columns(["body", "x"]), "renamed", content_field="body")
    check(tmp_path, pa.array(TEXTS), "array")
    check(tmp_path, lambda: iter(pa.array(TEXTS)), "scalars")


def test_pandas_and_polars(tmp_path: Path) -> None:
    for library in ("pandas", "polars"):
        module = pytest.importorskip(library)
        frame = module.DataFrame({"text": TEXTS})
        check(tmp_path, frame["text"], library)
        with pytest.raises(SettingsError, match="should be one column of the table"):
            build(train=frame, out=tmp_path / "frame")


def test_datasets(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset.from_dict({"text": TEXTS, "x": [1] * 3000})
    check(tmp_path, dataset, "dataset")
    check(tmp_path, dataset["text"], "column of a dataset")
    check(tmp_path, dataset.to_iterable_dataset(), "iterable dataset")


def test_conversations_of_a_dataset(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    messages = [[{"role": "user", "content": "a"}, {"role": "assistant", "content": f"b {i}"}]
                for i in range(20)]  # fmt: skip
    build(train=lambda: TEXTS, vocab_size=280, out=tmp_path, val_fraction=0,
          special_tokens=["<|im_start|>", "<|im_end|>"])  # fmt: skip
    dataset = datasets.Dataset.from_dict({"messages": messages})
    build(
        train=dataset, tokenizer=tmp_path / "tokenizer.json", chat_template="chatml",
        val_fraction=0, out=tmp_path / "chats",
    )
    file = open_tokens(tmp_path / "chats" / "train.bin")
    assert file.n_documents == 20
    assert 0 < file.column("mask").mean() < 1

"""Calls as users write them, for mypy, which checks that exactly the marked ones are errors.

Editors know options from the same types. The functions are not called.
"""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

import preprocess
from preprocess import BuildResult, DatasetConfig
from preprocess.pipeline import count, encode, train


def calls() -> None:
    result = preprocess.build(train="a", val=[Path("b"), "c"], workers=None, unit_size="1MiB")
    assert_type(result, BuildResult)
    preprocess.build("corpus.yaml", vocab_size=8_000, special_tokens=["<s>"], progress=False)
    train(paths="a", memory_limit="1GB")
    encode(paths=["a"], tokenizer="t.json", shard_tokens=5)
    count(paths="a", tokenizer=Path("t"))
    preprocess.tokenize_and_save(
        data_files="a", tokenizer={"vocab_size": 300}, output_path="b", content_field="c",
        padding=True,
    )
    preprocess.write_rows("a", max_length=5, num_shards=2, progress=False)
    assert_type(DatasetConfig(data_files="a", strip=True).data_files, tuple[str, ...])


def wrong_calls() -> None:
    preprocess.build(vocab_sise=8)  # type: ignore[call-arg]
    preprocess.build(workers="2")  # type: ignore[arg-type]
    preprocess.build(tie_break="coin")  # type: ignore[arg-type]
    preprocess.build(train=3)  # type: ignore[arg-type]
    encode(paths="a")  # type: ignore[call-arg]
    preprocess.write_rows("a", num_shard=3)  # type: ignore[call-arg]
    preprocess.tokenize_and_save(
        data_files="a", tokenizer="b", output_path="c", strip=3  # type: ignore[arg-type]
    )
    DatasetConfig(name="a")  # type: ignore[call-arg]
    DatasetConfig(data_files="a", content_field=3)  # type: ignore[arg-type]

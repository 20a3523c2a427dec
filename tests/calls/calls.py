"""Calls as people bring them, each with what it must give: `calls.py DIRECTORY BUCKET`.

They import the package that is installed, and run in a directory with the inputs.
"""

from __future__ import annotations

import glob
import json
import os
import subprocess
import sys
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import tokenizers
import transformers

from preprocess import (
    DatasetConfig,
    ParquetShardedSource,
    Pipeline,
    PipelineConfig,
    SaveStageConfig,
    TokenizeStageConfig,
    tokenize_and_save,
)

TEXTS = [text for _, text in sorted(topics.items())][:60]
BEGIN, END, PAD = "<s>", "</s>", "<pad>"
POSTS = [
    *({"title": text[:20], "text": text} for text in TEXTS[:8]), {"title": "only a title"},
    {"text": "only a text"}, {"other": "none of both"},
]  # fmt: skip


def make_inputs() -> None:
    """Make a tokenizer, as transformers saves it, that puts BEGIN and END around a text; text."""
    engine = tokenizers.ByteLevelBPETokenizer()
    engine.train_from_iterator(
        TEXTS, vocab_size=1200, special_tokens=[BEGIN, END, PAD], show_progress=False
    )
    engine._tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{BEGIN} $A {END}", special_tokens=[(BEGIN, 0), (END, 1)]
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=engine._tokenizer, bos_token=BEGIN, eos_token=END, pad_token=PAD
    ).save_pretrained("tok")
    code = [{"code": Path(module.__file__).read_text()} for module in (json, json.decoder)]
    for name, records in {
        "data/part-0": [{"text": text} for text in TEXTS[:30]],
        "data/part-1": [{"text": text} for text in TEXTS[30:]],
        "code/all": code, "posts/first": POSTS[:6], "posts/second": POSTS[6:],
    }.items():  # fmt: skip
        path = Path(f"{name}.jsonl")
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps(each) + "\n" for each in records))


def ids_of(text: str) -> list[int]:
    """Return the ids that transformers gives a text and the end of a text."""
    found: list[int] = transformers.AutoTokenizer.from_pretrained("tok")(
        text + END, add_special_tokens=False
    )["input_ids"]
    return found


def windows(texts: list[str], length: int, stride: int | None = None) -> list[list[int]]:
    """Return the rows of texts: ids with the end of text, cut every `stride`, up to the end."""
    rows = []
    for ids in map(ids_of, texts):
        last = max(len(ids) - length, 0) if stride else len(ids) - 1
        step = stride or length
        rows += [ids[at : at + length] for at in range(0, last + step, step) if at < len(ids)]
    return rows


def same(found: Any, expected: Any) -> None:
    """Check that two lists of arrays are equal."""
    for one, other in zip(found, expected, strict=True):
        assert np.array_equal(one, other), (one, other)


def several_datasets() -> None:
    config = PipelineConfig(
        datasets=[
            DatasetConfig(
                data_files="data/*.jsonl", tokenizer="tok", content_field="text",
                save_path="tokenized/a",
            ),
            DatasetConfig(
                name="code", data_files="code/*.jsonl", tokenizer="tok",
                tokenizer_kwargs={"use_fast": True}, content_field="code", save_path="tokenized/b",
            ),
        ],
        tokenize=TokenizeStageConfig(max_length=2048, batch_size=1000),
        save=SaveStageConfig(
            enabled=True, format="parquet", compression="zstd", num_shards=100,
            max_shard_size="500MB",
        ),
    )
    before = sorted(Path("data").iterdir())
    for _ in range(2):
        Pipeline.from_config(config).source().tokenize().save().build()
    assert sorted(Path("data").iterdir()) == before
    files = sorted(glob.glob("tokenized/a/*.parquet"))
    assert 1 < len(files) <= 100
    tables = [pq.read_table(file) for file in files]
    same([row for table in tables for row in table["input_ids"].to_pylist()], windows(TEXTS, 2048))
    types = {x.name: str(x.type).replace("element", "item") for x in tables[0].schema}
    assert types["input_ids"] == types["attention_mask"] == "list<item: int32>", types
    assert pq.ParquetFile(files[0]).metadata.row_group(0).column(0).compression == "ZSTD"
    assert 0 < len(ParquetShardedSource("tokenized/b")) < 100
    assert not glob.glob("tokenized/*/val*")


def a_bucket_as_output(url: str) -> None:
    tokenize_and_save(
        data_files="data/*.jsonl", tokenizer="tok", output_path=f"{url}/out", max_length=2048,
        num_shards=3,
    )
    assert not glob.glob("[a-z][a-z0-9]:*")
    expected = windows(TEXTS, 2048)
    source = ParquetShardedSource(f"{url}/out/*.parquet")
    assert len(source.shard_names) == 3
    same([each["input_ids"] for each in source], expected)
    same([source[n]["input_ids"] for n in (0, 7)], [expected[0], expected[7]])


def rows_of_the_command() -> None:
    commands = (
        "tokenmill build --train posts --text-preset title-text --tokenizer tok --val-fraction 0"
        " --out dataset --batch-size 500 --workers 4 --max-minutes 10",
        "tokenmill rows --input dataset --output out --format npz --max-length 1024 --stride 512"
        " --workers 4 --max-minutes 10",
    )
    for command in (*commands, commands[1]):
        said = subprocess.run(command.split(), check=True, capture_output=True, text=True).stdout
    assert "up to date" in said
    tokens = np.load("out/part_000.npz")
    assert tokens["input_ids"].shape == tokens["attention_mask"].shape
    pairs = zip(tokens["input_ids"], tokens["attention_mask"], strict=True)
    texts = [[x.get("title", "").strip(), x.get("text", "").strip()] for x in POSTS[:-1]]
    documents = ["\n".join(filter(None, each)) for each in texts]
    same([row[mask.astype(bool)] for row, mask in pairs], windows(documents, 1024, 512))


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    make_inputs()
    several_datasets()
    a_bucket_as_output(sys.argv[2])
    rows_of_the_command()

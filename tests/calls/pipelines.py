"""Calls in the spelling of Levanter- and EasyDeL-style pipelines, each with what it must give."""

from __future__ import annotations

import glob
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from inputs import END, TEXTS, ids_of, same

from bpe import TokenmillError
from preprocess import (
    ChatTemplateTransform,
    DatasetConfig,
    JsonShardedSource,
    PackStageConfig,
    ParquetShardedSource,
    Pipeline,
    PipelineConfig,
    SaveStageConfig,
    TokenizerConfig,
    TokenizeStageConfig,
    TransformedShardedSource,
    tokenize_and_save,
)


def windows(texts: list[str], max_length: int) -> list[list[int]]:
    """Return the rows of texts: ids with the end of text, cut every `max_length`."""
    end = ids_of(END, special=False)
    rows = []
    for text in texts:
        ids = ids_of(text, False) + end
        rows += [ids[at : at + max_length] for at in range(0, len(ids), max_length)]
    return rows


def rows_of(pattern: str) -> list[list[int]]:
    """Return the input_ids of Parquet files."""
    files = sorted(glob.glob(pattern))
    assert files, pattern
    return [row for file in files for row in pq.read_table(file)["input_ids"].to_pylist()]


def tokenizers_of_all_kinds() -> None:
    import tiktoken
    import tokenizers
    import transformers

    import bpe

    ours = bpe.load_tokenizer("tok")
    theirs = transformers.AutoTokenizer.from_pretrained("tok")
    kinds = {
        "path": "tok",
        "file": Path("tok/tokenizer.json"),
        "dict": {"name_or_path": "tok"},
        "config": TokenizerConfig(name_or_path="tok"),
        "ours": ours,
        "tokenizers": tokenizers.Tokenizer.from_file("tok/tokenizer.json"),
        "transformers": theirs,
        "tiktoken": ours.to_tiktoken(),
    }
    assert isinstance(kinds["tiktoken"], tiktoken.Encoding)
    expected = windows(TEXTS, 2048)
    for name, tokenizer in kinds.items():
        tokenize_and_save(
            data_files="data/*.jsonl", tokenizer=tokenizer, output_path=f"out_{name}",
            max_length=2048,
        )
        same(rows_of(f"out_{name}/*.parquet"), expected)


def all_output_formats() -> None:
    readers = {
        "parquet": lambda path: pq.read_table(path)["input_ids"].to_pylist(),
        "arrow": lambda path: pa.ipc.open_file(path).read_all()["input_ids"].to_pylist(),
        "jsonl": lambda path: [
            json.loads(line)["input_ids"] for line in Path(path).read_text().splitlines()
        ],
    }
    for output_format, read in readers.items():
        tokenize_and_save(
            data_files="data/*.jsonl", tokenizer="tok", output_path="out",
            output_format=output_format, max_length=2048, overwrite=True,
        )
        files = sorted(glob.glob(f"out/*.{output_format}"))
        same([row for file in files for row in read(file)], windows(TEXTS, 2048))


def rows_lie_where_they_were_asked_for() -> None:
    tokenize_and_save(
        data_files="data/*.jsonl", tokenizer="tok", output_path="out", max_length=2048
    )
    expected = windows(TEXTS, 2048)
    (one,) = glob.glob("out/*.parquet")
    for place in ("out/*.parquet", "out", one):
        same([each["input_ids"] for each in ParquetShardedSource(place)], expected)
    tokenize_and_save(
        data_files="data/part-0.jsonl", val_files="data/part-1.jsonl", tokenizer="tok",
        output_path="both", max_length=2048,
    )
    for name, texts in (("train", TEXTS[:30]), ("val", TEXTS[30:])):
        same(rows_of(f"both/{name}/*.parquet"), windows(texts, 2048))
    try:
        found = ParquetShardedSource("both")
    except TokenmillError as error:
        assert all(name in str(error) for name in ("train", "val"))
    else:
        assert len(found) == len(expected)


def every_option_of_the_text() -> None:
    tokenize_and_save(
        data_files="posts/*.jsonl", tokenizer="tok", output_path="posts_out", max_length=2048,
        text_preset="title-text",
    )
    assert len({*map(tuple, rows_of("posts_out/*.parquet"))}) > 8
    tokenize_and_save(
        data_files="code", tokenizer="tok", output_path="code_out", content_field="code",
        max_length=512,
    )
    texts = [json.loads(x)["code"] for x in Path("code/all.jsonl").read_text().splitlines()]
    same(rows_of("code_out/*.parquet"), windows(texts, 512))


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
    same([source[n]["input_ids"] for n in (0, 7, len(source) - 1)],
         [expected[0], expected[7], expected[-1]])  # fmt: skip
    config = PipelineConfig(
        datasets=[DatasetConfig(
            data_files="data/*.jsonl", tokenizer="tok", save_path=f"{url}/tokenized"
        )],
        tokenize=TokenizeStageConfig(max_length=2048), save=SaveStageConfig(),
    )  # fmt: skip
    Pipeline.from_config(config).source().tokenize().save().build()
    same([each["input_ids"] for each in ParquetShardedSource(f"{url}/tokenized")], expected)


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
    expected = windows(TEXTS, 2048)
    files = glob.glob("tokenized/a/*.parquet")
    assert 1 < len(files) <= 100
    same(rows_of("tokenized/a/*.parquet"), expected)
    assert pq.ParquetFile(files[0]).metadata.row_group(0).column(0).compression == "ZSTD"
    assert len(rows_of("tokenized/b/*.parquet")) < 100
    assert not glob.glob("tokenized/*/val*")


def tokenizer_config_of_a_dataset() -> None:
    import transformers

    theirs = transformers.AutoTokenizer.from_pretrained("tok")
    for padding in (False, "longest", "max_length"):
        for trust in (False, True):
            config = PipelineConfig(
                datasets=[DatasetConfig(
                    data_files="data/*.jsonl", save_path=f"made-{padding}-{trust}",
                    tokenizer=TokenizerConfig(
                        name_or_path="tok", max_length=300, truncation=True, padding=padding,
                        add_special_tokens=True, return_attention_mask=True,
                        trust_remote_code=trust,
                    ),
                )],
                save=SaveStageConfig(),
            )  # fmt: skip
            Pipeline.from_config(config).source().tokenize().save().build()
            expected = theirs(
                TEXTS, max_length=300, truncation=True, padding=padding, add_special_tokens=True
            )
            place = f"made-{padding}-{trust}/*.parquet"
            same(rows_of(place), expected["input_ids"])
            masks = [
                mask for file in sorted(glob.glob(place))
                for mask in pq.read_table(file)["attention_mask"].to_pylist()
            ]  # fmt: skip
            same(masks, expected["attention_mask"])


def packed_rows() -> None:
    documents = [[*ids_of(text, special=False), 2] for text in TEXTS]
    for strategy in ("greedy", "pool", "first_fit"):
        config = PipelineConfig(
            datasets=[DatasetConfig(data_files="data/*.jsonl", tokenizer="tok")],
            pack=PackStageConfig(
                enabled=True, seq_length=2048, eos_token_id=2, pad_token_id=0, strategy=strategy,
                include_segment_ids=True,
            ),
            save=SaveStageConfig(enabled=True, output_dir=f"packed-{strategy}", format="parquet"),
        )  # fmt: skip
        Pipeline.from_config(config).source().tokenize().pack().save().build()
        table = pq.read_table(glob.glob(f"packed-{strategy}/*.parquet")[0]).to_pydict()
        rows = [np.array(row) for row in table["input_ids"]]
        assert {len(row) for row in rows} == {2048}
        segments = [np.array(row) for row in table["segment_ids"]]
        # Each document, with its end, is in the rows, cut where it is longer than a row.
        found = []
        for row, of in zip(rows, segments, strict=True):
            assert {*row[of == 0].tolist()} <= {0}
            bounds = [0, *(np.flatnonzero(np.diff(of)) + 1), len(row)]
            found += [row[a:b].tolist() for a, b in pairwise(bounds) if of[a]]
        assert sum(map(len, found)) == sum(map(len, documents))
        assert all(each in found for each in documents if len(each) < 300)


def chats() -> None:
    import transformers

    theirs = transformers.AutoTokenizer.from_pretrained("tok")
    for tokenizer in ("tok", theirs):
        source = TransformedShardedSource(
            JsonShardedSource("chats/*.jsonl"), transform=ChatTemplateTransform(tokenizer)
        )
        expected = [
            theirs.apply_chat_template(json.loads(line)["messages"], return_dict=True)["input_ids"]
            for line in Path("chats/all.jsonl").read_text().splitlines()
        ]
        found = []
        for shard in source.shard_names:
            for example in source.open_shard(shard):
                found.append(example["input_ids"])
                assert example["attention_mask"].shape == example["input_ids"].shape
        same(found, expected)
        assert len(source) == len(expected)
        assert np.array_equal(source[3]["input_ids"], expected[3])


def trained_on() -> None:
    import transformers

    tokenize_and_save(
        data_files="data/*.jsonl", tokenizer="tok", output_path="out", max_length=64, num_shards=2,
    )
    source = ParquetShardedSource("out/*.parquet")
    assert len(source) == len(windows(TEXTS, 64))
    assert np.array_equal(source[-1]["input_ids"], windows(TEXTS, 64)[-1])
    tokenizer = transformers.AutoTokenizer.from_pretrained("tok")
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=1200, n_positions=64, n_embd=16, n_layer=1, n_head=2)
    )
    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(
            "trained", max_steps=3, per_device_train_batch_size=4, report_to=[], use_cpu=True,
            disable_tqdm=True, save_strategy="no",
        ),
        train_dataset=source, processing_class=tokenizer,
        data_collator=transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False),
    )  # fmt: skip
    assert trainer.train().global_step == 3


def names_and_types_in_the_files() -> None:
    tokenize_and_save(
        data_files="data/*.jsonl", tokenizer="tok", output_path="out", max_length=2048,
        keep_tokens=False,
    )
    schema = pq.ParquetFile(glob.glob("out/*.parquet")[0]).schema_arrow
    types = {field.name: str(field.type).replace("element", "item") for field in schema}
    assert types["input_ids"] == types["attention_mask"] == "list<item: int32>", types
    config = json.loads(Path("out/config.json").read_text())
    metadata = json.loads(Path("out/metadata.json").read_text())
    for about in (config, metadata):
        found = about["tokenizer"], about["max_length"], about["truncation"]
        assert found == ("tok", 2048, False)
    assert metadata["num_examples"] == len(windows(TEXTS, 2048))
    assert metadata["created_at"]
    before = {path: Path(path).read_bytes() for path in glob.glob("out/*.parquet")}
    tokenize_and_save(
        data_files="data/*.jsonl", tokenizer="tok", output_path="out2", max_length=2048
    )
    again = json.loads(Path("out2/metadata.json").read_text())
    assert again["created_at"] == metadata["created_at"]
    assert [*before.values()] == [Path(p).read_bytes() for p in sorted(glob.glob("out2/*.parquet"))]

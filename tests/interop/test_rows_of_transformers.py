"""Rows as transformers' tokenizers make them, and as other libraries read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_cases import DIALOGUES, make_model
from row_cases import rows_in

from bpe import TokenizerFileError, TokenmillError, load_tokenizer
from bpe.split.patterns import to_tiktoken
from preprocess import (
    AsyncDataLoader,
    ChatTemplateTransform,
    DatasetConfig,
    JsonShardedSource,
    ParquetShardedSource,
    Pipeline,
    PipelineConfig,
    SaveStageConfig,
    TokenFileError,
    TokenizerConfig,
    TokenizeStageConfig,
    TransformedShardedSource,
    build,
    open_tokens,
    tokenize_and_save,
    verify,
)
from preprocess.cli import run
from preprocess.documents.chat_template import CHATML
from preprocess.documents.tokenizer_files import read_special_ids
from preprocess.rows.formats import FORMATS, RowsError
from preprocess.rows.write import write_rows
from preprocess.settings import SettingsError

transformers = pytest.importorskip("transformers", reason="needs the extra `dev`")
tokenizers = pytest.importorskip("tokenizers", reason="needs the extra `hf`")
pytest.importorskip("pyarrow", reason="needs the extra `formats`")

TEXTS = [m["content"] for each in DIALOGUES for m in each if m["content"]]
BEGIN, END = "<|begin_of_text|>", "<|endoftext|>"


def post_processor(ids: dict[str, int]) -> Any:
    return {
        "type": "Sequence",
        "processors": [
            {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False,
             "use_regex": True},
            {
                "type": "TemplateProcessing",
                "single": [
                    {"SpecialToken": {"id": BEGIN, "type_id": 0}},
                    {"Sequence": {"id": "A", "type_id": 0}},
                    {"SpecialToken": {"id": END, "type_id": 0}},
                ],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}},
                         {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {
                    name: {"id": name, "ids": [ids[name]], "tokens": [name]}
                    for name in (BEGIN, END)
                },
            },
        ],
    }  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer whose post-processor adds begin and end tokens."""
    path = make_model(tmp_path_factory.mktemp("model")) / "tokenizer.json"
    content = json.loads(path.read_text())
    ids = {each["content"]: each["id"] for each in content["added_tokens"]}
    path.write_text(json.dumps(content | {"post_processor": post_processor(ids)}))
    return path


@pytest.fixture(scope="module")
def data(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("data")
    lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)
    (directory / "text.jsonl").write_text(lines)
    build(train=directory / "text.jsonl", val_fraction=0, tokenizer=model, out=directory / "out")
    return directory / "out"


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize(
    ("padding", "side", "truncation"),
    [(False, "right", False), (False, "right", True), ("longest", "left", False),
     ("longest", "right", True), ("max_length", "left", True), ("max_length", "right", False)],
)
def test_rows_are_those_of_the_tokenizer(
    model: Path, data: Path, tmp_path: Path, adds: bool, side: Any, padding: Any, truncation: bool
) -> None:
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(model), eos_token=END, pad_token="<|im_end|>", padding_side=side
    )
    max_length = 12 if truncation else 40
    expected = tokenizer(
        TEXTS, padding=padding, truncation=truncation, max_length=max_length,
        add_special_tokens=adds,
    )
    (result,) = write_rows(
        data, out=tmp_path, truncation=truncation,
        padding_side=side if padding else "right", pad_token="<|im_end|>" if padding else None,
        padding={False: "none", "longest": "longest", "max_length": "max-length"}[padding],
        max_length=max_length if truncation or padding == "max_length" else None,
        add_special_tokens=adds, drop_end_of_text=True,
    )
    found = rows_in(result.path)
    assert [row["input_ids"] for row in found] == expected["input_ids"]
    assert [row["attention_mask"] for row in found] == expected["attention_mask"]


@pytest.mark.parametrize(
    ("kind", "adds", "padding"),
    [("path", False, False), ("path", True, "longest"), ("object", True, "max_length"),
     ("object", False, True), ("options", True, False), ("options", False, "max_length")],
)
def test_pipelines_in_the_spelling_of_transformers(
    model: Path, data: Path, tmp_path: Path, adds: bool, padding: Any, kind: str
) -> None:
    """With special tokens, rows are those of transformers' default; else documents end."""
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(model), eos_token=END, pad_token="<|im_end|>"
    )
    theirs.save_pretrained(tmp_path / "model")
    given: dict[str, Any] = {
        "name_or_path": theirs if kind == "object" else str(tmp_path / "model"), "max_length": 12,
        "truncation": True, "padding": padding, "add_special_tokens": adds,
        "return_attention_mask": True, "trust_remote_code": True,
    }
    dataset = DatasetConfig(
        data_files=data.parent / "text.jsonl", tokenizer_kwargs={"use_fast": True},
        tokenizer=given if kind == "options" else TokenizerConfig(**given),
        content_field="text", save_path=tmp_path / "out",
    )
    config = PipelineConfig(
        datasets=[dataset], tokenize=TokenizeStageConfig(max_length=2048, batch_size=1000),
        save=SaveStageConfig(enabled=True, format="parquet", compression="zstd", num_shards=2),
    )
    Pipeline.from_config(config).source().tokenize().save().build()
    expected = theirs(
        [text + END * (not adds) for text in TEXTS], padding=padding, truncation=True,
        max_length=12, add_special_tokens=adds,
    )
    source = ParquetShardedSource(str(tmp_path / "out" / "*.parquet"))
    found = [example for shard in source.shard_names for example in source.open_shard(shard)]
    for name in ("input_ids", "attention_mask"):
        assert [each[name].tolist() for each in found] == expected[name]
    for batch in AsyncDataLoader(source=source, batch_size=len(TEXTS), prefetch_buffer_size=4):
        padded = theirs.pad({"input_ids": expected["input_ids"]}, return_tensors="np")
        assert np.array_equal(batch["input_ids"], padded["input_ids"])
        masks = theirs.pad({name: expected[name] for name in expected}, return_tensors="np")
        assert np.array_equal(batch["attention_mask"], masks["attention_mask"])


def test_the_trainer_takes_conversations(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs the extra `torch`")
    pytest.importorskip("accelerate", reason="the Trainer needs accelerate")
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(model), eos_token=END, pad_token="<|im_end|>", chat_template=CHATML
    )
    lines = (json.dumps({"messages": each}) + "\n" for each in DIALOGUES)
    (tmp_path / "chats.jsonl").write_text("".join(lines))
    records = JsonShardedSource(tmp_path / "chats.jsonl")
    source = TransformedShardedSource(records, transform=ChatTemplateTransform(theirs))
    expected = [theirs.apply_chat_template(x, return_dict=False) for x in DIALOGUES]
    assert [source[i]["input_ids"].tolist() for i in range(len(source))] == expected
    shape = transformers.GPT2Config(
        vocab_size=len(theirs), n_positions=2048, n_embd=8, n_layer=1, n_head=1,
        bos_token_id=None, eos_token_id=None,
    )
    trainer = transformers.Trainer(
        transformers.GPT2LMHeadModel(shape),
        transformers.TrainingArguments(
            str(tmp_path / "trained"), max_steps=2, report_to=[], use_cpu=True, disable_tqdm=True
        ),
        train_dataset=source,
        data_collator=transformers.DataCollatorForLanguageModeling(theirs, mlm=False),
    )
    batch = next(iter(trainer.get_train_dataloader()))
    for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
        assert ids[mask == 1].tolist() in expected
    assert trainer.train().global_step == 2


@pytest.mark.parametrize("adds", [False, True])
def test_windows_are_those_of_the_tokenizer(
    model: Path, data: Path, tmp_path: Path, adds: bool
) -> None:
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(model))
    expected = tokenizer(
        TEXTS, truncation=True, max_length=12, stride=12 - 5, add_special_tokens=adds,
        return_overflowing_tokens=True,
    )["input_ids"]
    (result,) = write_rows(
        data, out=tmp_path, max_length=12, stride=5, add_special_tokens=adds, drop_end_of_text=True,
        tokenizer=model if adds else None,
    )
    assert [row["input_ids"] for row in rows_in(result.path)] == expected


def test_other_libraries_read_rows(data: Path, tmp_path: Path) -> None:
    from pyarrow import feather, parquet

    kinds: dict[str, Any] = {"max_length": 9, "padding": "max-length", "num_shards": 1}
    paths = {}
    for name in FORMATS:
        (result,) = write_rows(data, out=tmp_path / name, format=name, **kinds)  # type: ignore[arg-type]
        paths[name] = result.path / result.manifest.shards[0].name
    expected = [row["input_ids"] for row in rows_in(tmp_path / "jsonl")]
    assert parquet.read_table(paths["parquet"])["input_ids"].to_pylist() == expected
    assert feather.read_table(paths["arrow"])["input_ids"].to_pylist() == expected
    with np.load(paths["npz"]) as arrays:
        assert arrays["input_ids"].tolist() == expected
        assert arrays["input_ids"].dtype == np.int32
    import pickle

    assert pickle.loads(paths["pickle"].read_bytes()) == expected
    pd = pytest.importorskip("pandas", reason="needs the extra `interop`")
    for frame in (
        pd.read_parquet(paths["parquet"]), pd.read_feather(paths["arrow"]),
        pd.read_json(paths["jsonl"], lines=True),
    ):
        assert [[*row] for row in frame["input_ids"]] == expected
    datasets = pytest.importorskip("datasets", reason="needs the extra `interop`")
    for kind, name in (("parquet", "parquet"), ("arrow", "arrow"), ("json", "jsonl")):
        found = datasets.load_dataset(
            kind, data_files=str(paths[name]), split="train", cache_dir=str(tmp_path / "cache")
        )
        assert [*found["input_ids"]] == expected
    pl = pytest.importorskip("polars", reason="needs the extra `interop`")
    for frame in (
        pl.read_parquet(paths["parquet"]), pl.read_ipc(paths["arrow"]),
        pl.read_ndjson(paths["jsonl"]),
    ):
        assert frame["input_ids"].to_list() == expected
    duckdb = pytest.importorskip("duckdb", reason="needs the extra `interop`")
    for reader, name in (("read_parquet", "parquet"), ("read_json", "jsonl")):
        query = f"select input_ids from {reader}('{paths[name]}')"
        assert [row[0] for row in duckdb.sql(query).fetchall()] == expected


def test_post_processors(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    for given, expected in [
        (None, ((), ())),
        ({"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0]}, ((0,), (2,))),
        ({"type": "BertProcessing", "sep": ["[SEP]", 7], "cls": ["[CLS]", 5]}, ((5,), (7,))),
        (post_processor({BEGIN: 3, END: 4}), ((3,), (4,))),
    ]:
        path.write_text(json.dumps({"post_processor": given}))
        assert read_special_ids(path) == expected
    for given, message in [
        ({"type": "Other"}, r"post_processor is not known \(Other\)"),
        ([], r"post_processor cannot be read"),
        ({"type": "BertProcessing", "sep": ["a", True], "cls": ["a", 1]}, "Expected `int`"),
        ({"type": "TemplateProcessing", "single": "ab"}, "Expected `array"),
        ("abc", r"post_processor cannot be read \(Expected"),
        ({"type": "Sequence", "processors": None}, r"is not known \(Sequence\): expected what"),
        ({"type": "TemplateProcessing"}, r"is not known \(TemplateProcessing\)"),
        ({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": ["x"]}}]}, "Expected `"),
        ({"type": "BertProcessing"}, r"is not known \(BertProcessing\)"),
        ({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}]},
         r"post_processor is not known \('x'\)"),
    ]:  # fmt: skip
        path.write_text(json.dumps({"post_processor": given}))
        with pytest.raises(TokenizerFileError, match=message):
            read_special_ids(path)


def test_special_tokens_that_cannot_be(model: Path, data: Path, tmp_path: Path) -> None:
    with pytest.raises(RowsError, match="max_length 2 has no room for the 2 special tokens aroun"):
        write_rows(data, out=tmp_path, add_special_tokens=True, tokenizer=model, max_length=2)
    with pytest.raises(RowsError, match="stride 2 is not above the 2 special tokens around each"):
        write_rows(data, out=tmp_path, add_special_tokens=True, max_length=9, stride=2)
    with pytest.raises(SettingsError, match="pad_token '<pad>' is no special token of"):
        write_rows(data, out=tmp_path, padding="longest", pad_token="<pad>")
    other = tmp_path / "tokenizer.json"
    make_model(tmp_path)
    (tmp_path / "text.txt").write_text("some text")
    build(train=tmp_path / "text.txt", val_fraction=0, tokenizer=other, out=tmp_path / "plain")
    (result,) = write_rows(tmp_path / "plain", out=tmp_path / "none", add_special_tokens=True)
    plain = transformers.PreTrainedTokenizerFast(tokenizer_file=str(other))
    assert [row["input_ids"] for row in rows_in(result.path)] == [plain("some text")["input_ids"]]
    content = json.loads(other.read_text())
    wide = content | {"post_processor": post_processor({BEGIN: 3, END: 999_999})}
    (tmp_path / "wide.json").write_text(json.dumps(wide))
    build(train=tmp_path / "text.txt", val_fraction=0, tokenizer=tmp_path / "wide.json",
          out=tmp_path / "wide")
    with pytest.raises(RowsError, match="the post-processor has ids outside of the vocabulary of"):
        write_rows(tmp_path / "wide", out=tmp_path / "x", add_special_tokens=True)
    content["added_tokens"] = content["added_tokens"][:-1]
    other.write_text(json.dumps(content))
    for options in ({"add_special_tokens": True}, {"padding": "longest", "pad_token": END}):
        with pytest.raises(TokenFileError, match="tokenizer"):
            write_rows(data, out=tmp_path / "y", tokenizer=other, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("special", "begin", "padding"),
    [([], None, END), (["<x>", "<pad>"], "<s>", "<pad>"), (["[PAD]", "<|pad|>"], None, "<|pad|>")],
)
def test_the_tokenizer_of_a_build_pads_for_the_trainer(
    tmp_path: Path, special: list[str], begin: str | None, padding: str
) -> None:
    """Rows of several lengths, with the tokenizer as the processing class."""
    torch = pytest.importorskip("torch", reason="needs the extra `torch`")
    pytest.importorskip("accelerate", reason="the Trainer needs accelerate")
    from preprocess import TokenizedDataset

    torch.set_num_threads(1)
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": x}) + "\n" for x in TEXTS))
    build(train=tmp_path / "text.jsonl", val_fraction=0, vocab_size=300, out=tmp_path / "out",
          special_tokens=special, begin_of_text=begin)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    names = tokenizer.eos_token, tokenizer.bos_token, tokenizer.pad_token
    assert names == (END, begin, padding)
    assert load_tokenizer(tmp_path / "out").bos_token == begin
    (result,) = write_rows(
        tmp_path / "out", out=tmp_path / "rows", columns=["input_ids", "attention_mask"]
    )
    (padded,) = write_rows(tmp_path / "out", out=tmp_path / "padded", padding="longest")
    assert padded.manifest.pad_id == tokenizer.pad_token_id
    config = transformers.GPT2Config(vocab_size=300, n_positions=99, n_embd=8, n_layer=1, n_head=1)
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "trained"), max_steps=2, per_device_train_batch_size=4,
        logging_steps=1, report_to=[], use_cpu=True, disable_tqdm=True,
    )
    trainer = transformers.Trainer(
        transformers.GPT2LMHeadModel(config), arguments, processing_class=tokenizer,
        train_dataset=TokenizedDataset(result.path),
        data_collator=transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False),
    )
    trainer.train()
    losses = [each["loss"] for each in trainer.state.log_history if "loss" in each]
    assert len(losses) == 2
    assert all(loss > 0 for loss in losses)


@pytest.mark.parametrize("kind", ["BPE", "WordPiece", "Unigram"])
def test_a_tokenizer_without_special_tokens_can_be_given_some(
    tmp_path: Path, kind: str, capsys: Any
) -> None:
    """Their ids follow the others; texts have the same ids as before, in Hugging Face's engine."""
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    models = {
        "BPE": tokenizers.models.BPE({letter: i for i, letter in enumerate(letters)}, []),
        "WordPiece": tokenizers.models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}),
        "Unigram": tokenizers.models.Unigram([("<unk>", 0.0), ("a", -1.0), ("b", -2.0)], 0),
    }
    engine = tokenizers.Tokenizer(models[kind])
    engine.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    if kind == "BPE":
        engine.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    (tmp_path / "given").mkdir()
    engine.save(str(tmp_path / "given" / "tokenizer.json"))
    (tmp_path / "a.txt").write_text("ab<|endoftext|>a b")
    command = ["build", "--train", str(tmp_path / "a.txt"), "--val-fraction", "0", "--out"]
    command += [str(tmp_path / "out"), "--tokenizer", str(tmp_path / "given")]
    assert run(command) == 1
    assert "the tokenizer has no special tokens; add one: --end-of-text" in capsys.readouterr().err
    assert run([*command, "--end-of-text", END, "--begin-of-text", "<s>"]) == 0
    assert run([*command, "--end-of-text", END, "--begin-of-text", "<s>"]) == 0  # up to date
    n = engine.get_vocab_size()
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    assert (theirs.token_to_id("<s>"), theirs.token_to_id(END)) == (n, n + 1)
    expected = [[n, *engine.encode(text).ids, n + 1] for text in ("ab", "a b")]
    file = open_tokens(tmp_path / "out" / "train.bin")
    assert [file.doc(i).tolist() for i in range(2)] == expected
    assert all(each.sound for each in verify(tmp_path / "out", deep=True))
    # In its own directory it would be changed.
    command[command.index("--out") + 1] = str(tmp_path / "given")
    assert run([*command, "--end-of-text", END]) == 1
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert (auto.eos_token, auto.pad_token, auto.bos_token) == (END, END, "<s>")


def byte_level(kind: str, names: tuple[str, ...]) -> Any:
    """A tokenizer of bytes with special tokens, of which it does not say what they are for."""
    if kind == "tiktoken":
        tiktoken = pytest.importorskip("tiktoken", reason="needs the extra `core`")
        return tiktoken.Encoding(
            "bytes", pat_str=to_tiktoken("gpt2"),
            mergeable_ranks={bytes([i]): i for i in range(256)},
            special_tokens={name: 256 + i for i, name in enumerate(names)},
        )
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    engine = tokenizers.Tokenizer(
        tokenizers.models.BPE({letter: i for i, letter in enumerate(letters)}, [])
    )
    engine.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.add_special_tokens([*names])
    ids = [(name, 256 + i) for i, name in enumerate(names)]
    engine.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{names[0]} $A {names[1]}", special_tokens=ids
    )
    return engine


@pytest.mark.parametrize("kind", ["tokenizers", "tiktoken"])
@pytest.mark.parametrize("end", ["</s>", "<eos>", "<|endoftext|>"])
def test_the_end_of_text_of_a_tokenizer_that_names_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, end: str
) -> None:
    """The only one with a usual name; rows that have none of ours need none."""
    monkeypatch.chdir(tmp_path)
    texts = ["a text", "and another"]
    Path("data.jsonl").write_text("".join(json.dumps({"text": x}) + "\n" for x in texts))

    def rows(tokenizer: Any, **options: Any) -> list[list[int]]:
        tokenize_and_save(
            data_files="data.jsonl", tokenizer=tokenizer, output_path="out", output_format="jsonl",
            overwrite=True, **options,
        )
        return [row["input_ids"].tolist() for row in JsonShardedSource("out")]

    known = byte_level(kind, ("<s>", end, "<other>"))
    if kind == "tiktoken":
        encoded = [known.encode(x) for x in texts]
    else:
        encoded = [known.encode(x, add_special_tokens=False).ids for x in texts]
    assert rows(known) == [[*ids, 257] for ids in encoded]
    for names in (("<s>", "<x>"), ("</s>", "<eos>", "[EOS]")):
        other = byte_level(kind, names)
        with pytest.raises(TokenmillError, match=r"choose one that it has \(end_of_text\): '<"):
            rows(other)
        assert rows(other, end_of_text=names[1]) == [[*ids, 257] for ids in encoded]
        assert rows(other, drop_end_of_text=True) == encoded
        around = encoded if kind == "tiktoken" else [[256, *ids, 257] for ids in encoded]
        assert rows(other, add_special_tokens=True) == around

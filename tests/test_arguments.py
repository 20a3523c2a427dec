"""Every public function and method names an argument that it has not, or whose type is wrong.

The message is one line with the argument, what is expected and what was given.
"""

from __future__ import annotations

import importlib.util
import inspect
import types
from collections import UserList, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bpe
import preprocess
from bpe import ArgumentError, TokenmillError, train_bpe
from bpe.arguments import MISSING
from preprocess import (
    DatasetConfig,
    JsonShardedSource,
    Mixture,
    PipelineConfig,
    Sampler,
    build,
    merge_parts,
    open_tokens,
    tokenize_and_save,
    verify,
    write_rows,
)

TEXT = "A text of some words and of some more words.\n" * 40
# What none takes, and what some take.
WRONG = [
    object(), None, True, 2.5, -1, "300", "<a>", "\ud800", b"<a>", [None], [b"<a>"], ["\ud800"],
    ["a", 1], {"a": None}, {1: 2}, np.zeros((2, 2)), np.array(3), lambda: None,
    2**63, 2**70, -(2**63) - 1, np.uint64(3),
]  # fmt: skip
# Results, which users do not make; and what other parts of the package call at each batch.
RESULTS = {"BuildResult", "ExportResult", "ImportResult", "RowsResult", "TokenFile"}
INTERNAL = {
    "arrays_of", "fields_of", "describe_fields", "count_reads", "to_device", "read", "as_json",
    "restore",
    "from_files", "advice", "check", "replace", "check_state", "continue_after", "reached",
}  # fmt: skip


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Arguments by name that work, or `FUNCTION.NAME` where a name has two meanings."""
    out = tmp_path_factory.mktemp("data")
    (out / "text.txt").write_text(TEXT)
    build(train=[out / "text.txt"], val_fraction=0, out=out, vocab_size=270)
    write_rows(out, out=out / "rows", format="jsonl", max_length=8)
    tokenizer = bpe.Tokenizer.from_file(out / "tokenizer.json")
    tokenizer.save_gpt2_files(out / "vocab.json", out / "merges.txt")
    file = open_tokens(out / "train.bin")
    sampler = Sampler(file, 2, 4)
    text, rows = np.frombuffer(b"a text", np.uint8), JsonShardedSource(out / "rows")
    pipeline = PipelineConfig(datasets=[{"data_files": "missing.txt"}], tokenizer="x")
    has_tokenizers = importlib.util.find_spec("tokenizers") is not None
    return {
        "text": "a text", "texts": ["a", "text"], "chunks": ["a"], "ids": [65], "id": 3,
        "path": out / "train.bin", "vocab_size": 260, "input": ["a text"], "data": b"a text",
        "buffer": text, "offsets": np.array([0, 6]), "position": 1, "stop": 6, "other": None,
        "vocab": dict(tokenizer.vocabulary.tokens), "tokens": dict(tokenizer.vocabulary.tokens),
        "merges": tokenizer.vocabulary.merges, "special_tokens": (), "vocabulary": ["a"],
        "Tokenizer.from_vocabulary.vocabulary": tokenizer.vocabulary,
        "vocab_path": out / "vocab.json", "merges_path": out / "merges.txt",
        "source": sampler, "Tokenizer.from_huggingface.source": "none", "samplers": {"a": sampler},
        "Tokenizer.from_tiktoken.source": "gpt2-none", "dataset": file, "batch_size": 2,
        "context_length": 4, "global_batch_size": 2, "step": 0, "weights": {"a": 1.0},
        "counts": bpe.PretokenCounts(), "name": "ids", "number": 0, "paths": out / "rows",
        "state": {}, "tokenizer": tokenizer, "transform": lambda record: record,
        "data_files": "missing.txt", "build.train": "missing.txt", "output_path": "rows",
        "to": "npy", "format": "jsonl",
        "end_of_text_id": 0, "directory": out / "rows", "folders": out / "rows",
        "datasets": [{"data_files": "missing.txt"}], "seq_length": 8,
        "ranks": {b"a": 0},
        "merge_ids": np.zeros((0, 2), np.int32), "sampler": sampler, "epoch": 0,
        "load_tokenizer.name": out / "tokenizer.json", "name_or_path": "none",
        "HuggingFaceTokenizer.path": out / "tokenizer.json", "from_file.path": out / "missing",
        "Pipeline.config": pipeline, "TransformedShardedSource.source": rows,
        "AsyncDataLoader.source": rows, "AsyncDataLoader.batch_size": 2,
        "WindowDataset.source": TEXT, "WindowDataset.tokenizer": tokenizer,
        "WindowDataset.max_length": 4, "window_loader.data": TEXT,
        "window_loader.tokenizer": tokenizer, "window_loader.max_length": 4, "max_minutes": 1,
        "open_shard.name": rows.shard_names[0], "from_config.config": pipeline,
        "seconds": 0.0, "done": 0, "unit": "B", "total": 1, "token_id": 0, "token": b"a",
        "expected": "0" * 64,
        "DatasetWriter.out": "new/train.bin", "encode.paths": "missing.txt",
        "train.paths": "missing.txt", "count.paths": "missing.txt",
        "search.texts": "a text",
        "append.train": "missing.txt", "drop.out": "new/train.bin",
        "diff.old": out / "train.bin", "diff.new": out / "train.bin",
        "import_tokens.path": "missing.bin", "import_tokens.format": "raw",
        "objects": {
            "Tokenizer": tokenizer, "WordLevelTokenizer": bpe.WordLevelTokenizer(["a", "<unk>"]),
            "HuggingFaceTokenizer": has_tokenizers and bpe.HuggingFaceTokenizer(
                out / "tokenizer.json"
            ),
            "DatasetWriter": preprocess.DatasetWriter(out / "written.bin", tokenizer=tokenizer),
            "TokenFile": file, "Sampler": sampler, "Progress": preprocess.Progress(),
            "Pipeline": preprocess.Pipeline(pipeline), "TransformedShardedSource": rows,
            # All have the same methods.
            "JsonShardedSource": rows, "ParquetShardedSource": rows, "ArrowShardedSource": rows,
            "Mixture": Mixture({"a": sampler}, {"a": 1.0}), "PretokenCounts": bpe.PretokenCounts(),
            "Vocabulary": tokenizer.vocabulary,
        },
    }  # fmt: skip


def functions(names: Iterable[tuple[Any, str]]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Functions and methods of some public names; of classes, the class that makes objects."""
    for package, name in names:
        found = getattr(package, name)
        if not callable(found) or (isinstance(found, type) and issubclass(found, Exception)):
            continue
        if name not in RESULTS:
            yield name, found
        for inner, member in inspect.getmembers(found) if isinstance(found, type) else ():
            is_own = isinstance(member, types.FunctionType | types.MethodType)
            if inner[0] != "_" and is_own and inner not in INTERNAL:
                yield f"{name}.{inner}", member


PUBLIC = {name: package for package in (bpe, preprocess) for name in package.__all__}
OF_TORCH = sorted(preprocess._MODULE_OF.keys() - PUBLIC.keys())
FUNCTIONS = dict(functions((package, name) for name, package in PUBLIC.items()))


def parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    found = inspect.signature(function).parameters.values()
    return [x for x in found if x.name not in ("self", "_unknown", "options")]


def arguments_of(name: str, function: Callable[..., Any], valid: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for each in parameters(function):
        keys = [f"{name}.{each.name}", f"{name.rpartition('.')[2]}.{each.name}", each.name]
        if each.default is each.empty or keys[0] in valid:
            found[each.name] = next(valid[key] for key in keys if key in valid)
    return found


def problems_of(
    name: str, member: Callable[..., Any], objects: dict[str, Any], valid: dict[str, Any]
) -> Iterator[str]:
    """Call a function with each argument misspelt, and with each wrong value.

    The first argument is given by its place, too, where short calls have a check of their own.
    """
    function, given = member, arguments_of(name, member, valid)
    owner, _, method = name.partition(".")
    if method and "self" in inspect.signature(function).parameters:
        if objects[owner] is False:
            pytest.skip("needs the extra `hf`")
        function = getattr(objects[owner], method)
    for each in parameters(member):
        misspelt = each.name[:-2] + each.name[-1] if len(each.name) > 2 else each.name + "s"
        is_first = each == parameters(member)[0] and each.kind is each.POSITIONAL_OR_KEYWORD
        for wrong, values, n_places in (
            (misspelt, {misspelt: 1}, 0), (misspelt, {misspelt: 1, each.name: MISSING}, 0),
            *((each.name, {each.name: x}, n) for x in WRONG for n in range(1 + is_first))
        ):
            shown, is_none = f"{wrong}={values[wrong]!r}", values[wrong] is WRONG[0]
            try:
                called = {x: y for x, y in {**given, **values}.items() if y is not MISSING}
                by_place = [called.pop(wrong) for _ in range(n_places)]
                result = function(*by_place, **called)
                if inspect.isgenerator(result):
                    next(result, None)
                if isinstance(result, AbstractContextManager):
                    with result:
                        pass
            except TokenmillError as error:
                says = [wrong, each.name]
                if is_none:  # what is expected, and what was given
                    says += ["object", "expected" if "expected" in str(error) else "should "]
                if "\n" in str(error):
                    yield f"{shown}: is not one line: {error}"
                elif (wrong == misspelt or is_none) and not all(x in str(error) for x in says):
                    yield f"{shown}: {type(error).__name__}: {error}"
            except FileNotFoundError as error:
                assert repr(values[wrong]) in str(error)
            except IndexError as error:
                assert "there is no document" in str(error)
            except ModuleNotFoundError as error:
                assert (wrong, error.name) == ("device", "torch")
            except Exception as error:  # noqa: BLE001 (this is what must not be)
                yield f"{shown}: {type(error).__name__}: {error}"
            else:
                # `buffer` is unused there.
                if (wrong == misspelt or is_none) and (name[-8:], wrong) != ("safe_cut", "buffer"):
                    yield f"{shown} is taken"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_wrong_arguments(
    name: str, valid: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    problems = [*problems_of(name, FUNCTIONS[name], valid["objects"], valid)]
    assert not problems, "\n" + "\n".join(problems)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more than processors
@pytest.mark.parametrize("name", OF_TORCH)
def test_wrong_arguments_of_what_needs_torch(
    name: str, valid: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="needs the extra `torch`")
    monkeypatch.chdir(tmp_path)
    rows, sampler = valid["paths"], valid["sampler"]
    streaming = preprocess.StreamingTokenizedDataset(rows)
    objects = {
        "StreamingTokenizedDataset": streaming, "BatchDataset": preprocess.BatchDataset(sampler),
    }
    problems = [
        problem for inner, member in functions([(preprocess, name)])
        for problem in problems_of(inner, member, objects, valid)
    ]
    if name == "StreamingTokenizedDataset":
        order, objects["Order"] = streaming.shuffled(), streaming.shuffled()
        problems += problems_of("Order.set_epoch", type(order).set_epoch, objects, valid)
    assert not problems, "\n" + "\n".join(problems)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"special_tokens": "<a>"}, "special_tokens: should be a list of texts; got '<a>'"),
        ({"special_tokens": [b"<a>"]}, "special_tokens: should be a list of texts; got [b'<a>']"),
        ({"vocab_size": 300.5}, "vocab_size: should be a whole number; got 300.5"),
        ({"vocab_size": "300"}, "vocab_size: should be a whole number; got '300'"),
        ({"vocab_size": True}, "vocab_size: should be a whole number; got True"),
        ({"min_frequency": "2"}, "min_frequency: should be a whole number; got '2'"),
        ({"input": [None]}, "input: should be a path or a list of texts or a list of paths; got"),
        ({"max_token_lenght": 3}, "there is no such argument; did you mean max_token_length?"),
        ({}, "vocab_size: is required"),
    ],
)
def test_messages(values: dict[str, Any], message: str) -> None:
    if "vocab_size" not in values and values:
        values = values | {"vocab_size": 260}
    with pytest.raises(ArgumentError) as caught:
        train_bpe(**{"input": ["a text"], **values})
    assert message in str(caught.value)
    assert isinstance(caught.value, TypeError)


def test_sets_have_no_order(valid: dict[str, Any]) -> None:
    """Ids and documents that were made of a set would be others in each process."""
    tokenizer, some = valid["tokenizer"], {"<a>", "<b>"}
    for call in (
        lambda: train_bpe([TEXT], 300, special_tokens=some),  # type: ignore[arg-type]
        lambda: bpe.load_tokenizer(tokenizer, special_tokens=frozenset(some)),  # type: ignore[arg-type]
        lambda: bpe.WordLevelTokenizer(some),
        lambda: build(train="missing.txt", special_tokens=some),
        lambda: build(train=some),
        lambda: DatasetConfig(data_files=some),
        lambda: JsonShardedSource(some),
        lambda: Sampler(np.arange(9), 2, 4, fields=some),  # type: ignore[arg-type]
    ):
        with pytest.raises(ArgumentError, match=r": should be .*; got .*\{"):
            call()  # type: ignore[no-untyped-call]
    assert tokenizer.encode("a text", allowed_special={"<|endoftext|>"})
    ordered = dict.fromkeys(["<b>", "<a>"]).keys()
    assert [*train_bpe([TEXT], 300, special_tokens=ordered).special_tokens] == ["<b>", "<a>"]  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [deque, UserList])
def test_all_sequences_are_looked_into(kind: Any, valid: dict[str, Any]) -> None:
    tokenizer, wrong = valid["tokenizer"], kind(["a", None])
    for call in (
        lambda: train_bpe(wrong, 260),
        lambda: train_bpe([TEXT], 300, special_tokens=wrong),
        lambda: tokenizer.encode_batch(wrong),
        lambda: bpe.load_tokenizer(valid["load_tokenizer.name"], special_tokens=wrong),
        lambda: bpe.WordLevelTokenizer(wrong),
        lambda: JsonShardedSource(wrong),
    ):
        with pytest.raises(ArgumentError, match=r": should be .* list of .*; got .*None"):
            call()  # type: ignore[no-untyped-call]
    assert train_bpe(kind([TEXT]), 260) == train_bpe([TEXT], 260)


@pytest.mark.parametrize("text", ["one two three " * 600, "a/b\n" + "日" * 86, "<p>a</p>\n" * 500])
def test_a_text_for_a_path(valid: dict[str, Any], text: str, tmp_path: Path) -> None:
    data = valid["path"].parent
    for call in (
        lambda: build(train=text),
        lambda: build(train=["x", text]),
        lambda: train_bpe(text, 260),
        lambda: valid["tokenizer"].save(text),
        lambda: bpe.Tokenizer.from_file(text),
        lambda: build(text + ".yaml"),
        lambda: verify(text),
        lambda: write_rows(data, out=text),
        lambda: write_rows(text, out=tmp_path),
        lambda: open_tokens(text),
        lambda: JsonShardedSource(text),
        lambda: merge_parts(text),
    ):
        with pytest.raises(TokenmillError, match="for names have at most 255 bytes, and"):
            call()  # type: ignore[no-untyped-call]


def test_unusual_values(valid: dict[str, Any], tmp_path: Path) -> None:
    tokenizer = valid["tokenizer"]
    rows = partial(tokenize_and_save, data_files="missing.txt", output_path=tmp_path / "rows")
    out, texts = valid["path"].parent, (x for x in ["a", None])
    for call, message in [
        (lambda: write_rows(out, out=tmp_path, max_length=2**70), "max_length: should be a number"),
        (lambda: build(train="x", workers=10**20), "workers: should be a number that is not as la"),
        (lambda: train_bpe(["a"], 260, workers=2**70), "expected at most 65,536"),
        (lambda: train_bpe(texts, 260), "input: should have texts or paths; got None as number 2"),  # type: ignore[arg-type]
        (lambda: build(train="a\0b"), "train: should be a name that files can have"),
        (lambda: build(train="x", name="\ud800"), "name: should be a name that files can hav"),
        (lambda: tokenizer.decode([65, 255], errors="ignored"),
         "errors: unknown error handler name 'ignored'"),
        (lambda: tokenizer.encode_separated_to_numpy(5),  # type: ignore[arg-type]
         "data: should be bytes in memory, contiguous; got 5"),
        (lambda: bpe.Tokenizer({b"a": 0}, []), "a mapping of whole numbers to bytes; got"),  # type: ignore[dict-item]
        *((partial(Sampler, np.arange(9), 1, **{name: 4}),
           f"{name}: there is no such argument; did you mean context_length?")
          for name in ("max_length", "block_size")),
        (lambda: open_tokens(Path("a\0b")), "path: should be a path; got"),
        (lambda: bpe.load_tokenizer("x" * 5000), "x: No such file or directory"),
        (lambda: tokenizer.save(tmp_path), ": is a directory; give a file in it, such as"),
        (lambda: tokenizer.save(tmp_path / "no" / "t.json"), ": there is no directory"),
        (lambda: JsonShardedSource(out / "rows")[0:3], "index: should be a whole number; got s"),
        (lambda: JsonShardedSource(out / "rows")["a"], "index: should be a whole number; got 'a'"),
        (lambda: bpe.load_tokenizer("a\0b"), "name: should be a path; got"),
        (lambda: PipelineConfig(datasets=3), "datasets: should be a list of at least one; got 3"),
        (lambda: PipelineConfig(datasets={"data_files": "x"}), "should be a list of at least one"),
        (lambda: DatasetConfig(data_files="x", tokenizer_kwargs=["a"]), "should be names with val"),
        (lambda: rows(tokenizer=3), "tokenizer: should be a path, a name or a tokenizer; got 3"),
        (lambda: rows(tokenizer=tokenizer, seq_length=3), "seq_length: there is no such setting;"),
        (lambda: rows(tokenizer=tokenizer, batch_size=3), "missing.txt"),
        (lambda: tokenizer.save(""), "'' should not be an empty path"),
        (lambda: tokenizer.save("a", "b"), "Tokenizer.save: takes 1 arguments without names; name"),
        (lambda: bpe.Tokenizer.from_file("a", "b"), "Tokenizer.from_file: takes 1 arguments"),
        (lambda: bpe.WordLevelTokenizer("a", "b"), "WordLevelTokenizer: takes 1 arguments"),
        (lambda: build("a.yaml", "b"), "build: takes 1 arguments without names; name the others"),
        (lambda: DatasetConfig("x"), "DatasetConfig: takes 0 arguments without names; name them"),
        (lambda: verify("a", path="b"), "path: was given by its place and by its name"),
        *((call, "should not be an empty path") for call in (
            lambda: bpe.load_tokenizer(""), lambda: train_bpe("", 300), lambda: verify(""),
            lambda: build(train=["x", ""]), lambda: build("x.yaml", out=""),
            lambda: PipelineConfig(datasets=[{"data_files": ""}]),
            lambda: PipelineConfig(datasets=[{"data_files": "x"}], output_path=""),
        )),
    ]:  # fmt: skip
        with pytest.raises(TokenmillError) as caught:
            call()  # type: ignore[no-untyped-call]
        assert message in str(caught.value)
    assert not [*tmp_path.iterdir(), *tmp_path.parent.glob(f"{tmp_path.name}*_config.json")]
    with pytest.raises(FileNotFoundError, match="to train on a text, put it into a list: 'hello'"):
        train_bpe("hello", 260)
    size: Any = np.int64(260)
    assert train_bpe([TEXT], size, workers=np.int64(1)) == train_bpe([TEXT], 260)  # type: ignore[arg-type]
    assert tokenizer.encode_batch([np.str_("abc")]) == tokenizer.encode_batch(["abc"])
    source, end = np.str_(out / "text.txt"), np.str_("\n")
    build(train=source, separator=end, vocab_size=262, out=np.str_(tmp_path), val_fraction=0)

"""Documents that a program gives in place of paths give the dataset of a file with them."""

from __future__ import annotations

import json
from collections import UserDict, deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import faults
import pytest
import torture
from hypothesis import given, settings
from hypothesis import strategies as st

from preprocess import (
    CorpusError,
    SettingsError,
    TokenFileError,
    append,
    build,
    count,
    drop,
    encode,
    open_tokens,
    train,
    verify,
)
from preprocess.storage import DamagedStateError, OutputError

END = "<|endoftext|>"
DOCUMENTS = [f"document {i} of many, and some more words: {i * i}" for i in range(60)]
OPTIONS: dict[str, Any] = {"vocab_size": 290, "val_fraction": 0.2}

KINDS: dict[str, Callable[[list[str]], Any]] = {
    "function": lambda texts: lambda: iter(texts),
    "function of pairs": lambda texts: lambda: enumerate(texts),
    "function of records": lambda texts: lambda: ({"id": 1, "text": x} for x in texts),
    "iterator": iter,
    "iterator of records": lambda texts: iter([{"content": x} for x in texts]),
    "list of pairs": lambda texts: [*enumerate(texts)],
    "list of functions": lambda texts: [lambda: texts[:3], lambda: texts[3:]],
    "keys": lambda texts: {f"{i:03d} {x}": 0 for i, x in enumerate(texts)}.keys(),
}


def ids_of(directory: Path) -> dict[str, list[list[int]]]:
    files = {name: open_tokens(directory / f"{name}.bin") for name in ("train", "val")}
    return {x: [y.tokens[:].tolist(), y.document_ends[:].tolist()] for x, y in files.items()}


@given(
    texts=st.lists(st.text(max_size=30), max_size=20), kind=st.sampled_from(sorted(KINDS)),
    unit_size=st.sampled_from([1, 50, 100_000]), workers=st.sampled_from([1, 2]),
    more=st.sampled_from([{}, {"deduplicate": True}, {"strip": True, "shuffle_documents": 1}]),
)
@settings(max_examples=10)
def test_the_dataset_is_that_of_a_file(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], kind: str, unit_size: int,
    workers: int, more: dict[str, Any],
) -> None:
    root = tmp_path_factory.mktemp("x")
    texts = [*DOCUMENTS, *(text.replace(END, "") for text in texts)]
    if kind == "keys":
        texts = [f"{i:03d} {x}" for i, x in enumerate(texts)]
        given_texts: Any = dict.fromkeys(texts).keys()
    else:
        given_texts = KINDS[kind](texts)
    (root / "x.txt").write_bytes(END.join(texts).encode())
    options: dict[str, Any] = OPTIONS | more | {"workers": workers, "unit_size": unit_size}
    build(train=root / "x.txt", out=root / "of file", **options)
    build(train=given_texts, out=root / "out", **options)
    assert ids_of(root / "out") == ids_of(root / "of file")
    tokenizers = [(root / x / "tokenizer.json").read_bytes() for x in ("out", "of file")]
    assert tokenizers[0] == tokenizers[1]
    assert all(each.sound for each in verify(root / "out"))
    deep = [each.text for each in verify(root / "out", deep=True) if not each.sound]
    assert all("it was built from documents of a program, which has them" in x for x in deep)
    assert deep


def test_train_encode_and_count(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text(END.join(DOCUMENTS))
    expected, _ = train(tmp_path / "x.txt", out=tmp_path / "t.json", vocab_size=290)
    found, _ = train(lambda: DOCUMENTS, out=tmp_path / "u.json", vocab_size=290)
    assert found.fingerprint == expected.fingerprint
    of_file = encode(tmp_path / "x.txt", tokenizer=found, out=tmp_path / "a.bin").manifests["a"]
    made = encode(iter(DOCUMENTS), tokenizer=found, out=tmp_path / "b.bin").manifests["b"]
    assert made.n_tokens == of_file.n_tokens
    total = count(tmp_path / "x.txt", tokenizer=found).total()
    for documents in (iter(DOCUMENTS), lambda: DOCUMENTS):
        assert count(documents, tokenizer=found).total() == total


def test_paths_stay_paths(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(END.join(DOCUMENTS))
    paths = sorted(tmp_path.glob("*.txt"))
    counts = set()
    train(paths, out=tmp_path / "t.json", vocab_size=280)
    for given_paths in (paths, iter(paths), deque(map(str, paths)), (*paths,)):
        counts.add(count(given_paths, tokenizer=tmp_path / "t.json").total().documents)
    assert counts == {2 * len(DOCUMENTS)}


def stories(documents: list[str]) -> Iterator[str]:
    yield from documents


@pytest.mark.parametrize("stage", ["counting", "encoding train and val", "reading documents"])
@pytest.mark.parametrize("is_one_shot", [False, True])
def test_a_run_is_resumed(
    often: None, tmp_path: Path, stage: str, is_one_shot: bool
) -> None:
    def begin(documents: list[str]) -> Any:
        return iter(documents) if is_one_shot else partial(stories, documents)

    options = OPTIONS | {"unit_size": 200, "deduplicate": stage == "reading documents"}
    build(train=begin(DOCUMENTS), out=tmp_path / "peace", **options)
    options["out"] = tmp_path / "out"
    with pytest.raises(faults.CutOff):
        build(train=begin(DOCUMENTS), progress=faults.Stopping(stage, 8), **options)
    others = ["another text", *DOCUMENTS[1:]]
    if is_one_shot:
        with pytest.raises(OutputError, match="bytes that the interrupted run has read"):
            build(train=begin(others), **options)
    else:
        with pytest.raises(DamagedStateError, match="gives other documents than before the interr"):
            build(train=begin(others), **options)
        # Also where texts end elsewhere, or the documents end.
        moved = [DOCUMENTS[0] + DOCUMENTS[1][:5], DOCUMENTS[1][5:], *DOCUMENTS[2:]]
        for others in (moved, DOCUMENTS[:3]):
            with pytest.raises(DamagedStateError, match="gives other documents than before"):
                build(train=begin(others), **options)
    build(train=begin(DOCUMENTS), **options)
    assert torture.contents(tmp_path / "out") == torture.contents(tmp_path / "peace")


def test_what_is_finished_is_compared(tmp_path: Path) -> None:
    documents = [*DOCUMENTS]
    options = OPTIONS | {"train": lambda: documents, "out": tmp_path / "out"}
    build(**options)
    before = torture.contents(tmp_path / "out")
    assert "up to date" in build(**options).lines[0]
    documents.append("another")
    with pytest.raises(TokenFileError, match="the documents of the program are others, or cannot"):
        build(**options)
    with pytest.raises(TokenFileError, match="cannot be compared with that of before"):
        build(**options | {"train": iter(DOCUMENTS)})
    assert torture.contents(tmp_path / "out") == before
    build(**options, overwrite=True)
    assert torture.contents(tmp_path / "out") != before
    stats = json.loads((tmp_path / "out" / "stats.json").read_text())
    assert stats["settings"]["train"] == ["<documents of <lambda>>"]


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        (lambda: ["a", 5], "document 2: expected text, or (id, text); got 5"),
        (lambda: ["a", None], "document 2: expected text, or (id, text); got None"),
        (lambda: [{"text": "a"}, "b"], "document 2: expected a record, as the first"),
        (lambda: [{"text": "a", "x": object()}], "give records with the fields that are read"),
        (lambda: [{"text": "a"}, {"text": 5}], "document 2 (byte 13): lacks the field that"),
        (lambda: 7, "expected a function that returns documents, one after another; it returned 7"),
        (lambda: "a text", "one after another; it returned 'a text'"),
        (lambda: {"text": "a"}, "one after another; it returned {'text': 'a'}"),
        (partial(iter, [None, "a"]), "list_iterator: document 1: expected text, or (id, text); go"),
        (lambda: ["a", "b\ud800"], "<lambda>: document 2: not valid UTF-8"),
        (lambda: ["ab"] * 9 + ["b\ud800"], "<lambda>: document 10: not valid UTF-8"),
        (lambda: [{"text": "b\ud800"}], "which may be the escape of a lone surrogate"),
        (lambda: [], "no document for train"),
        (lambda: [""], "no document for train"),
        (partial(iter, ["a.txt"]), "'a.txt', may be either; give a list of paths, or documents"),
        (partial(iter, ["s3://b/a"]), "may be either"),
        (partial(iter, []), "train: should not be empty"),
        ([lambda: "ab", 5], "train: should be a path or URL, a list of them, or documents"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("unit_size", [5, 10_000])
def test_wrong_documents(
    tmp_path: Path, documents: Any, message: str, unit_size: int
) -> None:
    if isinstance(documents, partial):
        documents = documents()
    with pytest.raises((CorpusError, SettingsError)) as caught:
        build(train=documents, out=tmp_path, unit_size=unit_size, val_fraction=0, vocab_size=270)
    assert message in str(caught.value)


class Shared:
    """An iterable whose iterators are one."""

    def __init__(self, texts: list[str]) -> None:
        self._texts = iter(texts)

    def __iter__(self) -> Iterator[str]:
        return self._texts


@pytest.mark.parametrize("kind", ["one iterator", "generators of one", "one object", "others"])
def test_documents_are_the_same_each_time(tmp_path: Path, kind: str) -> None:
    """Else the first one, or all of a pass, would be missing."""
    one, times = iter(DOCUMENTS), iter(range(9))
    documents = {
        "one iterator": lambda: one,
        "generators of one": lambda: (text for text in one),
        "one object": Shared(DOCUMENTS),
        "others": lambda: DOCUMENTS[: -(next(times) // 2) or None],
    }[kind]
    found = r"59, not the 60 of before" if kind == "others" else "another first one"
    match = rf"gives other documents each time that it is read \({found}\); return the same"
    with pytest.raises(CorpusError, match=match):
        build(train=documents, out=tmp_path, **OPTIONS)
    with pytest.raises(TokenFileError):
        open_tokens(tmp_path / "train.bin")


def test_records_are_any_mappings(tmp_path: Path) -> None:
    tokenizer, _ = train(lambda: DOCUMENTS, out=tmp_path / "t.json", vocab_size=280)
    found = count(lambda: [UserDict(text="a b"), {"text": "c"}], tokenizer=tokenizer)
    assert found.total().documents == 2


def test_a_lone_surrogate_of_an_iterator(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="list_iterator: document 7: not valid UTF-8"):
        build(train=iter([*"abcdef", "\ud800"]), out=tmp_path, unit_size=3, vocab_size=270)
    options: dict[str, Any] = {"vocab_size": 270, "val_fraction": 0, "on_invalid_utf8": "replace"}
    build(train=iter(["a b\ud800", "c"]), out=tmp_path / "x", **options)
    build(train=lambda: ["a b\ufffd\ufffd\ufffd", "c"], out=tmp_path / "y", **options)
    found = [open_tokens(tmp_path / x / "train.bin").tokens.tolist() for x in "xy"]
    assert found[0] == found[1]


def test_documents_are_one_run(tmp_path: Path) -> None:
    options = OPTIONS | {"out": tmp_path}
    with pytest.raises(SettingsError, match="<documents of list_iterator> is given more than once"):
        build(**options | {"train": iter(DOCUMENTS), "val": iter(DOCUMENTS), "val_fraction": None})
    tokenizer, _ = train(lambda: DOCUMENTS, out=tmp_path / "t.json", vocab_size=280)
    with pytest.raises(SettingsError, match="documents of a program are not divided among tasks"):
        build(train=lambda: DOCUMENTS, tokenizer=tokenizer, task_index=0, task_count=2)


@pytest.mark.parametrize("kind", ["function", "iterator", "function of records"])
def test_records_are_numbered(tmp_path: Path, kind: str) -> None:
    """Also those that are appended, and after some are dropped."""
    documents = ["", *DOCUMENTS[:9], "", *DOCUMENTS[9:20]]
    options: dict[str, Any] = {"vocab_size": 280, "val_fraction": 0, "provenance": True}
    build(train=KINDS[kind](documents), unit_size=100, out=tmp_path, **options)
    append(tmp_path, train=lambda: documents, unit_size=100)
    file = open_tokens(tmp_path / "train.json")
    numbers = [number for number, text in enumerate(documents, start=1) if text]
    assert file.column("rec")[:].tolist() == numbers * 2
    assert file.column("src")[:].tolist() == [0] * 20 + [1] * 20
    drop(tmp_path, documents=[1, 25], out=tmp_path / "x.bin")
    left = open_tokens(tmp_path / "x.json")
    assert left.column("rec")[:].tolist() == [
        x for i, x in enumerate(numbers * 2) if i not in (1, 25)
    ]


def test_tables_are_no_columns(tmp_path: Path) -> None:
    class Table:
        columns = ("text",)

    with pytest.raises(SettingsError, match=r"train: should be one column of the table, such as"):
        build(train=Table(), out=tmp_path)  # type: ignore[arg-type]

"""Copies, slices and random order: what the definitions below give, wherever units end."""

from __future__ import annotations

import json
import re
import tracemalloc
from pathlib import Path
from typing import Any

import faults
import numpy as np
import pytest
import torture
from hypothesis import given, settings
from hypothesis import strategies as st
from verify_cases import damages, flip

from bpe import Tokenizer
from preprocess import CorpusError, SettingsError, build, merge_parts, open_tokens
from preprocess.check.verify import verify
from preprocess.dataset.writer import TokenFileWriter
from preprocess.pipeline import encode, train
from preprocess.report.progress import Progress
from preprocess.run import journal, selection, shuffle
from preprocess.storage import DamagedStateError, open_storage

END = "<|endoftext|>"
texts = st.text(st.sampled_from("ab é日\n"), min_size=0, max_size=6)


def chosen(
    documents: list[str], *, deduplicate: bool = False, start_character: int = 0,
    max_characters: int | None = None, max_documents: int | None = None,
    cut_documents: bool = False, shuffle_documents: int | None = None,
    seen: set[str] | None = None,
) -> list[str]:  # fmt: skip
    """The definition; equal documents in `seen`, which gets the new ones, are copies."""
    seen = set() if seen is None else seen
    stop = np.inf if max_characters is None else start_character + max_characters
    found: list[str] = []
    begin = 0
    for document in filter(None, documents):
        if deduplicate and document in seen:
            continue
        if begin >= stop or len(found) == max_documents:
            break
        seen.add(document)
        if cut_documents:
            kept = document[max(start_character - begin, 0) :]
            found += [kept[: int(min(stop - max(begin, start_character), len(kept)))]] * bool(kept)
        elif begin >= start_character:
            found.append(document)
        begin += len(document)
    return found if shuffle_documents is None else shuffled(found, shuffle_documents)


def shuffled(documents: list[str], seed: int) -> list[str]:
    return [documents[i] for i in np.argsort(shuffle.random_keys(seed, 0, len(documents)))]


def documents_of(path: Path, tokenizer: Tokenizer) -> list[str]:
    file = open_tokens(path)
    ends = file.document_ends.tolist()
    ids = [file[a : b - 1].tolist() for a, b in zip([0, *ends], ends, strict=False)]
    return [tokenizer.decode(x) for x in ids]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tokenizer")
    (directory / "x.txt").write_text("some text")
    train(paths=directory / "x.txt", vocab_size=257, out=directory / "tokenizer.json")
    return directory / "tokenizer.json"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks, pieces and parts of a few documents, and an entry in the journal after each unit."""
    monkeypatch.setattr(selection, "_BLOCK", 8)
    monkeypatch.setattr(selection, "_COMPARED_BYTES", 1 << 18)
    monkeypatch.setattr(shuffle, "_PIECE_DOCUMENTS", 4)
    monkeypatch.setattr(shuffle, "_PIECE_TOKENS", 12)
    monkeypatch.setattr(selection, "_FIRST_LOOK", 2)
    monkeypatch.setattr(selection, "_COMPARED", 1 << 20)
    monkeypatch.setattr(journal, "SECONDS_BETWEEN_COMMITS", 0.0)


options_of_selection = st.fixed_dictionaries({
    "deduplicate": st.booleans(), "start_character": st.integers(0, 30),
    "max_characters": st.none() | st.integers(1, 40),
    "max_documents": st.none() | st.integers(1, 12), "cut_documents": st.booleans(),
    "shuffle_documents": st.none() | st.integers(0, 2**70),
})


@pytest.mark.usefixtures("small")
@settings(max_examples=30)
@given(st.lists(texts, max_size=25), st.lists(texts, max_size=9), st.data())
def test_documents_are_those_of_the_definition(
    tmp_path_factory: pytest.TempPathFactory, tokenizer: Path, train_texts: list[str],
    val_texts: list[str], data: st.DataObject,
) -> None:
    given = data.draw(options_of_selection)
    if not (given["start_character"] or given["max_characters"]):
        given["cut_documents"] = False
    seen: set[str] = set()
    expected = {"train": chosen(train_texts, seen=seen, **given)}
    expected["val"] = chosen(val_texts, seen=seen, **given)
    directory = tmp_path_factory.mktemp("x")
    (directory / "train.txt").write_text(END.join(train_texts), newline="")
    lines = "".join(json.dumps({"text": text}) + "\n" for text in [*val_texts, ""])
    (directory / "val.jsonl").write_text(lines)

    def run() -> None:
        build(
            train=directory / "train.txt", val=directory / "val.jsonl", tokenizer=tokenizer,
            out=directory / "out", unit_size=data.draw(st.integers(1, 60)),
            workers=data.draw(st.sampled_from([1, 2])), **given,
        )

    if not (expected["train"] and expected["val"]):
        with pytest.raises(CorpusError, match=r"no document for|empty"):
            run()
        return
    run()
    loaded = Tokenizer.from_file(tokenizer)
    for name, documents in expected.items():
        assert documents_of(directory / "out" / f"{name}.bin", loaded) == documents
    assert not [path for path in (directory / "out").iterdir() if path.name.startswith(".")]


@pytest.fixture
def corpus(tmp_path: Path, small: None) -> dict[str, Any]:
    """Options of a build that uses everything, and has bad records."""
    documents = [f"document {i % 70}, naïve 日本 {'word ' * (i % 5)}" for i in range(120)]
    records = [json.dumps({"text": text}) for text in documents]
    (tmp_path / "a.jsonl").write_text("\n".join([*records[:50], "{}", *records[50:]]))
    (tmp_path / "b.txt").write_text(END.join(["one more", *documents[:3], "the last"]))
    of_val = [f"document {i} of val" for i in range(30)]
    (tmp_path / "c.txt").write_text(END.join(["one more", *documents[:4], *of_val]))
    return {
        "train": [tmp_path / "a.jsonl", tmp_path / "b.txt"], "val": tmp_path / "c.txt",
        "on_bad_record": "skip", "deduplicate": True, "start_character": 100,
        "shuffle_documents": 5, "vocab_size": 280, "unit_size": 300, "min_length": 3,
    }


def test_all_of_it_is_counted(corpus: dict[str, Any], tmp_path: Path) -> None:
    corpus |= {"start_character": 10, "shuffle_documents": None}
    result = build(out=tmp_path / "out", **corpus)
    assert result.manifests["train"].n_documents == 70 + 2 - 1
    assert result.manifests["val"].n_documents == 30 - 1
    assert result.stats["bad_records"] == 1
    assert result.stats["outside_documents"] == 2
    assert result.stats["duplicate_documents"] == 50 + 3 + 5
    assert result.stats["files"] == 3


def test_bad_records_are_listed_as_without_a_selection(tmp_path: Path, small: None) -> None:
    for name in "abc":
        lines = ['{"text": "one two"}', "{}", '{"text": "three"}', '{"text": 1}'] * 20
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    given: dict[str, Any] = {"train": str(tmp_path / "*.jsonl"), "on_bad_record": "skip"}
    given |= {"vocab_size": 260, "val_fraction": 0, "unit_size": 150}
    build(out=tmp_path / "plain", **given)
    stopping = faults.Stopping("reading documents", 12)
    with pytest.raises(faults.CutOff):
        build(out=tmp_path / "out", max_characters=10**6, progress=stopping, **given)
    build(out=tmp_path / "out", max_characters=10**6, **given)
    found, expected = (tmp_path / x / "rejects.jsonl" for x in ("out", "plain"))
    assert found.read_text() == expected.read_text()
    assert len(expected.read_text().splitlines()) == 120
    with pytest.raises(CorpusError, match="This is bad record 2, and 1 are allowed"):
        build(out=tmp_path / "x", max_bad_records=1, shuffle_documents=1, **given)


def test_validation_is_chosen_among_what_is_left(tmp_path: Path) -> None:
    documents = [f"document {i % 100}" for i in range(400)]
    (tmp_path / "x.txt").write_text(END.join(documents))
    fraction = {"train": tmp_path / "x.txt", "vocab_size": 260, "val_fraction": 0.3}
    result = build(**fraction, deduplicate=True, out=tmp_path / "out")
    (tmp_path / "y.txt").write_text(END.join(documents[:100]))
    alone = build(**fraction | {"train": tmp_path / "y.txt"}, out=tmp_path / "alone")
    for name in ("train", "val"):
        n = alone.manifests[name].n_documents
        assert 10 < n == result.manifests[name].n_documents
        for suffix in ("bin", "docs"):
            found = (tmp_path / "out" / f"{name}.{suffix}").read_bytes()
            assert found == (tmp_path / "alone" / f"{name}.{suffix}").read_bytes()


def test_positions_are_uniform() -> None:
    """Chi-squared of the position of each document over many seeds, and of its next one."""
    n, n_seeds = 8, 4000
    positions, following = np.zeros((n, n)), np.zeros((n, n))
    for seed in range(n_seeds):
        order = np.argsort(shuffle.random_keys(seed, 0, n))
        positions[np.arange(n), order] += 1
        following[order[:-1], order[1:]] += 1
    expected = n_seeds / n
    # 49 degrees of freedom: 95 is passed once in 10,000 times.
    assert ((positions - expected) ** 2 / expected).sum() < 95
    off_diagonal = following[~np.eye(n, dtype=bool)]
    expected = n_seeds * (n - 1) / (n * (n - 1))
    assert ((off_diagonal - expected) ** 2 / expected).sum() < 105  # about 55


def test_tasks_select_the_documents_of_one_build(
    corpus: dict[str, Any], tokenizer: Path, tmp_path: Path
) -> None:
    del corpus["shuffle_documents"]
    corpus |= {"tokenizer": tokenizer, "max_documents": 50, "start_character": 500}
    build(out=tmp_path / "whole", **corpus)
    for index in range(3):
        build(out=tmp_path / "parts", task_index=index, task_count=3, **corpus)
    merge_parts(tmp_path / "parts")
    kinds = ("duplicate_documents", "outside_documents", "bad_records")
    one, sums = (
        [json.loads((tmp_path / x / "stats.json").read_text())[kind] for kind in kinds]
        for x in ("whole", "parts")
    )
    assert one == sums
    assert min(one) > 0
    # The last of these has no document of train.
    for index in range(3):
        build(out=tmp_path / "mixed", task_index=index, task_count=3, shuffle_documents=1, **corpus)
    merged, whole = merge_parts(tmp_path / "mixed"), open_tokens(tmp_path / "whole" / "train.bin")
    assert merged["train"].n_tokens == len(whole)
    mixed = open_tokens(tmp_path / "mixed" / "train.json")
    assert sorted(mixed[:].tolist()) == sorted(whole[:].tolist()) != mixed[:].tolist()
    for name in ("train", "val"):
        whole, parts = (open_tokens(tmp_path / x / f"{name}.bin") for x in ("whole", "parts"))
        assert np.array_equal(whole[:], parts[:])
        assert np.array_equal(whole.document_ends, parts.document_ends)


def test_it_is_killed_and_resumed(corpus: dict[str, Any], tmp_path: Path) -> None:
    build(out=tmp_path / "peace", **corpus)
    n_kills = faults.end_and_resume(
        lambda progress: build(out=tmp_path / "out", progress=progress, **corpus),
        range(2, 400, 19),
    )
    build(out=tmp_path / "out", **corpus)
    assert n_kills > 3
    assert torture.contents(tmp_path / "out") == torture.contents(tmp_path / "peace")


@pytest.mark.parametrize("shuffles", [False, True])
def test_it_is_verified_and_repaired(
    corpus: dict[str, Any], tmp_path: Path, shuffles: bool
) -> None:
    out = tmp_path / "out"
    corpus |= {"shuffle_documents": 5 if shuffles else None, "max_documents": 60}
    build(out=out, **corpus)
    peace = torture.contents(out)
    assert not damages(verify(out, deep=True))
    for name in ("train.bin", "val.docs", "tokenizer.json", "train.json"):
        flip(out / name, 20)
        assert damages(verify(out))
        verify(out, repair=True)
        assert not damages(verify(out))
        assert torture.contents(out) == peace
    lines = (tmp_path / "a.jsonl").read_text()
    (tmp_path / "a.jsonl").write_text(lines.replace("document 44,", "document 55,"))
    wrong = damages(verify(out, deep=True))[0]
    assert re.search(r"its text has changed|differs from what|of token [\d,]+ differs", wrong)
    (tmp_path / "a.jsonl").write_text(lines + "\n{}")
    assert any("not compared with its sources" in each.text for each in verify(out))


@pytest.mark.parametrize(
    ("name", "stage", "units"),
    [("rows-0", "counting", 1), ("rows-0", "reading documents", 9),
     ("train-in-order.bin", "shuffling train", 0)],
)  # fmt: skip
@pytest.mark.parametrize("is_there", [True, False])
def test_damaged_work_files_are_refused(
    corpus: dict[str, Any], tmp_path: Path, name: str, stage: str, units: int, is_there: bool
) -> None:
    with pytest.raises(faults.CutOff):
        build(out=tmp_path / "out", progress=faults.Stopping(stage, units), **corpus)
    path = tmp_path / "out" / ".build.partial" / name
    flip(path, 5) if is_there else path.unlink()
    with pytest.raises(DamagedStateError, match=r"damaged|shorter"):
        build(out=tmp_path / "out", **corpus)


def test_memory_does_not_grow_with_short_or_equal_documents(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shuffle, "_PIECE_DOCUMENTS", 1 << 11)
    monkeypatch.setattr(selection, "_BLOCK", 1 << 11)
    given: dict[str, Any] = {"paths": tmp_path / "x.txt", "tokenizer": tokenizer}
    given |= {"separator": "line", "unit_size": 20_000, "workers": 1, "overwrite": True}
    for more in ({"shuffle_documents": 1}, {"deduplicate": True}):
        most = []
        for n_documents in (7_000, 28_000):
            text = "".join(f"{i % 100:03}\n" for i in range(n_documents))
            (tmp_path / "x.txt").write_text(text)
            tracemalloc.start()
            encode(**given, out=tmp_path / "x.bin", **more)
            most.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        # Digests are compared in memory up to a limit; pieces that are shuffled are of one size.
        assert most[1] - most[0] < 21_000 * 20, most


def test_only_what_is_needed_is_read_to_verify(tmp_path: Path) -> None:
    for name in ("t", "v"):
        (tmp_path / f"{name}.txt").write_text(END.join(f"{name} document {i}" for i in range(50)))
    for name, more in (("a", {}), ("b", {"shuffle_documents": 1}), ("c", {"deduplicate": True})):
        given: dict[str, Any] = {"train": tmp_path / "t.txt", "val": tmp_path / "v.txt"}
        build(**given, **more, vocab_size=280, out=tmp_path / name)
    (tmp_path / "v.txt").unlink()
    for name in "abc":
        flip(tmp_path / name / "train.bin", 9)
        verify(tmp_path / name / "train.bin", repair=True)
        assert not damages(verify(tmp_path / name / "train.bin", deep=True))


def test_the_time_limit_ends_the_reading_of_documents(
    corpus: dict[str, Any], tmp_path: Path
) -> None:
    class Late(Progress):
        def out_of_time(self) -> bool:
            return True

    build(out=tmp_path / "peace", **corpus)
    with pytest.raises(Exception, match="reading documents resumes from there if you rerun"):
        build(out=tmp_path / "out", progress=Late(), **corpus)
    build(out=tmp_path / "out", **corpus)
    assert torture.contents(tmp_path / "out") == torture.contents(tmp_path / "peace")


def test_a_slice_ends_the_reading(tmp_path: Path, tokenizer: Path) -> None:
    path, other = tmp_path / "x.jsonl", tmp_path / "y.jsonl"
    path.write_text('{"text": "some text"}\n' * 1000 + "no JSON")
    other.write_text("no JSON")
    for more in ({"max_documents": 3}, {"max_characters": 27}):
        result = encode(paths=[path, other], tokenizer=tokenizer, out=tmp_path / "x.bin",
                        unit_size=100, overwrite=True, format="jsonl", content_field="text",
                        workers=2, **more)  # fmt: skip
        assert result.stats["documents"] == 3
        sources = result.manifests["x"].sources
        assert [(x["documents"], x["digest"]) for x in sources] == [(3, ""), (0, "")]


def test_training_and_reading_choose_the_same(tmp_path: Path) -> None:
    """`train` with a slice is `train` on its documents."""
    documents = [f"document {i}, {'ab' * i}" for i in range(50)]
    (tmp_path / "x.txt").write_text(END.join(documents))
    (tmp_path / "y.txt").write_text(END.join(documents[:20]))
    made, lines = train(paths=tmp_path / "x.txt", max_documents=20, out=tmp_path / "a.json",
                        vocab_size=280)  # fmt: skip
    alone, _ = train(paths=tmp_path / "y.txt", out=tmp_path / "b.json", vocab_size=280)
    assert made.fingerprint == alone.fingerprint
    _, lines = train(paths=[tmp_path / "x.txt", tmp_path / "y.txt"], deduplicate=True,
                     out=tmp_path / "c.json", vocab_size=280)  # fmt: skip
    assert "left out, for being equal to an earlier one: 20 documents" in lines


def test_wrong_values(tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "x.txt").write_text("text")
    given: dict[str, Any] = {"paths": tmp_path / "x.txt", "tokenizer": tokenizer}
    given["out"] = tmp_path / "x.bin"
    with pytest.raises(SettingsError, match="cut_documents has no effect without start_char"):
        encode(**given, cut_documents=True)
    with pytest.raises(CorpusError, match="1 are outside of start_character"):
        encode(**given, start_character=9)
    with pytest.raises(SettingsError, match="both given: Ray divides the text"):
        encode(**given, max_documents=9, executor="ray")


def test_a_token_file_that_changes_before_it_is_shuffled_is_refused(tmp_path: Path) -> None:
    with open_storage(str(tmp_path), "x") as storage:
        writer, other = (TokenFileWriter(storage, x, vocab_size=300) for x in "xy")
        writer.append(np.arange(9), np.array([9]))
        about: dict[str, Any] = {"tokenizer_fingerprint": "", "pattern": "", "unicode_version": ""}
        manifest = writer.finish(end_of_text_id=8, n_bytes=8, sources=[], **about)
        flip(storage.path("x.bin"), 3)
        with pytest.raises(DamagedStateError, match="block 0 is damaged since it was written"):
            shuffle.shuffle_token_file(storage, "x", manifest, other, 1, Progress())

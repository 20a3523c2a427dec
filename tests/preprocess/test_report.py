"""`report`: every number beside one that is computed in another way, on small corpora."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import written
from hypothesis import given
from hypothesis import strategies as st
from processes import printed_by
from processes import run as python
from web_server import web_server
from written import dataset, write

from bpe import Tokenizer
from preprocess import PipelineConfig, build, open_tokens
from preprocess.check import report_numbers
from preprocess.check.report_numbers import ROW_LENGTHS, divergence, report, script_of
from preprocess.dataset.columns import TokenFileError

END = "<|endoftext|>"
ENGLISH = [f"The document {i} of {i * i} words, again.\n" * (i % 7 + 1) for i in range(60)]
RUSSIAN = [f"Документ {i}: ещё несколько слов и чисел {i * 3}.\n" * (i % 3 + 1) for i in range(25)]
BROKEN = ["cafÃ© and â€œquotesâ€\x9d", "lost \ufffd characters", "<script>alert(1)</script>"]
VAL = [ENGLISH[3], "A text that train has not.", ENGLISH[5], "Another one, 12345 67890."]


def tokenizer_of(place: Path) -> Tokenizer:
    return Tokenizer.from_file(place / "tokenizer.json")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("report")
    (root / "english.txt").write_text(END.join([*ENGLISH, ENGLISH[0], ENGLISH[1], ENGLISH[0]]))
    (root / "russian.txt").write_text(END.join([*RUSSIAN, *BROKEN]))
    (root / "val.txt").write_text(END.join(VAL))
    build(
        train=[root / "english.txt", root / "russian.txt"], val=root / "val.txt",
        out=root / "data", vocab_size=400,
    )
    build(train=root / "russian.txt", val_fraction=0, out=root / "other", vocab_size=700)
    return root / "data"


@pytest.fixture(scope="module")
def found(data: Path) -> dict[str, Any]:
    return report(data, beside=data.parent / "other" / "tokenizer.json")


def of(found: dict[str, Any], name: str) -> dict[str, Any]:
    (one,) = [each for each in found["datasets"] if each["name"] == name]
    return one


TRAIN = [*ENGLISH, ENGLISH[0], ENGLISH[1], ENGLISH[0], *RUSSIAN, *BROKEN]


@pytest.mark.parametrize("name", ["train", "val"])
def test_counts_and_lengths_equal_those_of_numpy(
    data: Path, found: dict[str, Any], name: str
) -> None:
    one, file = of(found, name), open_tokens(data / f"{name}.bin")
    ids, ends = np.array(file.tokens), np.array(file.document_ends).astype(int)
    lengths, counts = np.diff([0, *ends]), np.bincount(ids, minlength=400)
    assert (one["tokens"], one["documents"]) == (len(ids), len(ends))
    assert one["ids_that_occur"] == len(set(ids.tolist()))
    edges, documents = one["lengths"]["edges"], one["lengths"]["documents"]
    assert documents == np.histogram(lengths, edges)[0].tolist()
    assert sum(documents) == len(ends)
    for share, length in one["tokens_per_document"]["percentiles"].items():
        assert length == np.percentile(lengths, int(share), method="nearest")
    ranked = sorted(counts.tolist(), reverse=True)
    frequencies = one["frequencies"]
    assert frequencies["counts"] == [ranked[rank - 1] for rank in frequencies["ranks"]]
    assert frequencies["ranks"][0] == 1
    assert frequencies["ranks"][-1] == np.count_nonzero(counts)
    tokenizer = tokenizer_of(data)
    texts = [tokenizer.vocab[i] for i in ids.tolist()]
    assert one["single_bytes"] == {
        "tokens": (n := sum(len(x) == 1 for x in texts)), "share": n / len(ids),
        "parts_of_characters": (m := sum(len(x) == 1 and x[0] >= 128 for x in texts)),
        "parts_share": m / len(ids),
    }
    assert one["unused_tokens"] == 400 - np.count_nonzero(counts)
    assert all(counts[each["id"]] == 0 for each in one["unused"])
    for each, count in zip(one["frequent"], ranked, strict=False):
        assert each["count"] == count == counts[each["id"]]
        assert each["text"].encode() in (tokenizer.vocab[each["id"]], each["text"].encode())


@pytest.mark.parametrize("name", ["train", "val"])
def test_rows_lose_what_they_lose_one_by_one(data: Path, found: dict[str, Any], name: str) -> None:
    file = open_tokens(data / f"{name}.bin")
    lengths = np.diff([0, *np.array(file.document_ends).astype(int)]).tolist()
    for one in of(found, name)["rows"]:
        check_rows(one, lengths)
    assert [one["length"] for one in of(found, name)["rows"]] == list(ROW_LENGTHS)


def check_rows(one: dict[str, Any], lengths: list[int]) -> None:
    size = one["length"]
    assert one["longer_documents"] == sum(x > size for x in lengths)
    assert one["cut_off_tokens"] == sum(len(range(size, x)) for x in lengths)
    assert one["cut_off_share"] == one["cut_off_tokens"] / sum(lengths)
    padding = sum(size - min(x, size) for x in lengths)
    assert one["padding_of_documents"] == padding
    assert one["padding_of_documents_share"] == padding / (size * len(lengths))
    rows = best_fit(lengths, size)
    assert one["packed_rows"] == rows
    assert one["packed_padding"] == rows * size - sum(lengths)
    assert one["packed_padding_share"] == one["packed_padding"] / (rows * size)


def best_fit(lengths: list[int], size: int) -> int:
    """The largest pieces first, each into the row with the least room for it."""
    pieces = [min(size, x - i) for x in lengths for i in range(0, x, size)]
    rooms: list[int] = []
    for piece in sorted(pieces, reverse=True):
        fitting = [room for room in rooms if room >= piece]
        if fitting:
            rooms.remove(min(fitting))
        rooms.append((min(fitting) if fitting else size) - piece)
    return len(rooms)


def test_rows_of_documents_that_are_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_numbers, "ROW_LENGTHS", (8, 16))
    sizes = [3, 40, 8, 9, 1, 17, 16, 5, 5, 12]
    dataset(tmp_path, sizes)
    rows = report(tmp_path)["datasets"][0]["rows"]
    assert len(rows) == 2
    for one in rows:
        assert one["cut_off_tokens"] > 0
        check_rows(one, sizes)


def test_bytes_per_token_by_source_and_script(data: Path, found: dict[str, Any]) -> None:
    sample, tokenizer = of(found, "train")["sample"], tokenizer_of(data)
    other = tokenizer_of(data.parent / "other")
    assert sample["everything"]
    assert sample["documents"] == len(TRAIN)
    sources = {
        "english.txt": [*ENGLISH, ENGLISH[0], ENGLISH[1], ENGLISH[0]],
        "russian.txt": [*RUSSIAN, *BROKEN],
    }
    scripts = {"Latin": [*sources["english.txt"], *BROKEN], "Cyrillic": RUSSIAN}
    for key, groups in ("source", sources), ("script", scripts):
        assert {each[key] for each in sample[f"by_{key}"]} == set(groups)
        for each in sample[f"by_{key}"]:
            texts = groups[each[key]]
            n_bytes = sum(len(text.encode()) for text in texts)
            n_tokens = sum(len(tokenizer.encode_ordinary(text)) for text in texts)
            n_beside = sum(len(other.encode_ordinary(text)) for text in texts)
            assert (each["documents"], each["bytes"]) == (len(texts), n_bytes)
            assert (each["tokens"], each["beside_tokens"]) == (n_tokens, n_beside)
            assert each["bytes_per_token"] == n_bytes / n_tokens
            assert each["beside_bytes_per_token"] == n_bytes / n_beside
    counted = [(x["name"], x["documents"]) for x in of(found, "train")["sources"]]
    assert counted == [("english.txt", 63), ("russian.txt", 28)]
    assert sample["broken"] == {"not_utf8": 0, "replaced": 1, "mojibake": 1, "documents": 2}


def test_a_sample_is_of_some_documents(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_numbers, "_SAMPLE_DOCUMENTS", 10)
    sample = of(report(data), "train")["sample"]
    assert (sample["documents"], sample["everything"]) == (10, False)
    monkeypatch.setattr(report_numbers, "_SAMPLE_DOCUMENTS", 1000)
    monkeypatch.setattr(report_numbers, "_MOST_OF_DOCUMENT", 5)  # cuts characters
    sample = of(report(data), "train")["sample"]
    assert (sample["documents"], sample["everything"]) == (len(TRAIN), False)
    assert sample["broken"]["not_utf8"] == 0


def test_validation_is_compared_with_train(data: Path, found: dict[str, Any]) -> None:
    (pair,) = found["val_in_train"]
    assert (pair["val"], pair["documents"], pair["in_train"]) == ("val", 4, 2)
    shares, end = [], tokenizer_of(data).special_tokens[END]
    for name in ("train", "val"):
        ids = np.array(open_tokens(data / f"{name}.bin").tokens)
        shares.append(np.bincount(ids[ids != end], minlength=400) / np.count_nonzero(ids != end))
    assert pair["divergence"] == pytest.approx(by_entropies(*shares), abs=1e-12)
    for each in pair["tokens"]:
        assert each["train_share"] == shares[0][each["id"]]
        assert each["val_share"] == shares[1][each["id"]]
    parts = [each["part"] for each in pair["tokens"]]
    assert parts == sorted(parts, reverse=True)
    assert 0 < pair["divergence_of_draw"] < pair["divergence"]


def by_entropies(first: Any, second: Any) -> float:
    """The divergence by its other definition, from entropies."""
    def entropy(shares: Any) -> float:
        return float(-sum(x * np.log2(x) for x in shares[shares > 0]))

    return entropy((first + second) / 2) - (entropy(first) + entropy(second)) / 2


COUNTS = st.lists(st.integers(0, 1000), min_size=5, max_size=5).filter(any)


@given(COUNTS, COUNTS)
def test_divergence(first: list[int], second: list[int]) -> None:
    one, two = np.array(first), np.array(second)
    value, parts = divergence(one, two)
    assert value == pytest.approx(by_entropies(one / one.sum(), two / two.sum()), abs=1e-9)
    assert -1e-12 < value <= 1 + 1e-12
    assert value == pytest.approx(parts.sum())
    assert divergence(one, one)[0] == 0
    assert divergence(one, one * 8)[0] == pytest.approx(0, abs=1e-12)
    apart = np.append(one, np.zeros(5, int)), np.append(np.zeros(5, int), two)
    assert divergence(*apart)[0] == pytest.approx(1)


@pytest.mark.parametrize(("text", "expected"), [("same", 0.0), ("other", 1.0)])
def test_divergence_of_equal_and_of_disjoint_text(
    tmp_path: Path, text: str, expected: float
) -> None:
    (tmp_path / "train.txt").write_text(END.join(["abc abd", "bcd"] * 9))
    val = ["abc abd", "bcd"] if text == "same" else ["XYZ123", "456"]
    (tmp_path / "val.txt").write_text(END.join(val))
    build(train=tmp_path / "train.txt", val=tmp_path / "val.txt", out=tmp_path, vocab_size=260)
    (pair,) = report(tmp_path)["val_in_train"]
    assert pair["divergence"] == pytest.approx(expected, abs=1e-12)


def test_vocabularies_of_two_sizes_are_compared(tmp_path: Path) -> None:
    written.write(tmp_path, [5, 299, 7, 299], [2, 4])
    written.write(tmp_path, [5, 299, 305, 299], [2, 4], name="val", vocab_size=310)
    (pair,) = report(tmp_path)["val_in_train"]
    assert pair["divergence"] == pytest.approx(0.5)


def test_shards_are_one_dataset(data: Path, found: dict[str, Any], tmp_path: Path) -> None:
    root = data.parent
    build(
        train=[root / "english.txt", root / "russian.txt"], val_fraction=0, out=tmp_path,
        tokenizer=data / "tokenizer.json", shard_tokens=200, split_documents=True,
    )
    beside = root / "other" / "tokenizer.json"
    one, whole = report(tmp_path, beside=beside)["datasets"][0], of(found, "train")
    assert one["shards"] > 3
    different = {"path", "shards", "digest"}
    assert {x: y for x, y in one.items() if x not in different} == {
        x: y for x, y in whole.items() if x not in different
    }


def test_masks(tmp_path: Path) -> None:
    file = dataset(tmp_path, [5, 30, 8], mask=True)
    one = report(file.path)["datasets"][0]
    assert one["trained_share"] == np.mean(np.array(file.loss_mask))


def test_masks_are_in_decoded_documents(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs the extra `chat`")
    records = [{"messages": [
        {"role": "user", "content": "a question"}, {"role": "assistant", "content": "an answer"},
    ]}] * 3  # fmt: skip
    (tmp_path / "chat.jsonl").write_text("\n".join(map(json.dumps, records)))
    (tmp_path / "text.txt").write_text("a question, an answer")
    build(
        train=tmp_path / "text.txt", val_fraction=0, out=tmp_path, vocab_size=260,
        special_tokens=["<|im_start|>", "<|im_end|>"],
    )
    build(
        train=tmp_path / "chat.jsonl", val_fraction=0, out=tmp_path / "chat",
        tokenizer=tmp_path / "tokenizer.json", chat_template="chatml",
    )
    one = report(tmp_path / "chat")["datasets"][0]
    shown = one["decoded"][0]
    trained = [x for x, is_trained in zip(shown["texts"], shown["trained"], strict=True)
               if is_trained]  # fmt: skip
    assert "".join(trained).startswith("an answer")
    assert one["copies"] == 2


def test_a_run_is_described_by_what_it_recorded(data: Path, found: dict[str, Any]) -> None:
    (run,) = found["runs"]
    stats = json.loads((data / "stats.json").read_text())
    assert run["file"] == "stats.json"
    for key in ("stages", "seconds", "peak_memory_bytes", "megabytes_per_second", "sources"):
        assert run[key] == stats[key]
    (data.parent / "copy").mkdir()
    for name in ("train.bin", "train.docs", "train.json", "tokenizer.json"):
        shutil.copy(data / name, data.parent / "copy")
    assert report(data.parent / "copy")["runs"] == []


def checks(found: dict[str, Any]) -> dict[str, Any]:
    return {each["about"]: each["ok"] for each in found["verdict"]["checks"]}


def test_the_verdict(data: Path, found: dict[str, Any], tmp_path: Path) -> None:
    assert not found["verdict"]["ok"]
    assert "2 of 4 documents of val are in train, too" in found["verdict"]["line"]
    assert "2 of 95 documents that were decoded have broken" in found["verdict"]["line"]
    assert checks(found) == {
        "damage": True, "leaks": False, "copies": False, "unused": False, "broken": False,
    }
    for each in data.iterdir():
        shutil.copy(each, tmp_path)
    ids = bytearray((tmp_path / "val.bin").read_bytes())
    ids[1] ^= 1
    (tmp_path / "val.bin").write_bytes(ids)
    damaged = report(tmp_path)
    assert checks(damaged)["damage"] is False
    (tmp_path / "val.json").write_text("{}")
    damaged = report(tmp_path)
    assert [each["name"] for each in damaged["datasets"]] == ["train"]
    assert checks(damaged)["damage"] is False
    assert checks(damaged)["leaks"] is None


def test_without_a_tokenizer_and_without_validation(tmp_path: Path) -> None:
    dataset(tmp_path, [5, 30, 8])
    found = report(tmp_path)
    (one,) = found["datasets"]
    assert "missing, and no tokenizer was given; give the one" in one["no_text"]
    assert "sample" not in one
    assert checks(found) | {"damage": None} == {
        "damage": None, "leaks": None, "copies": True, "text": None,
    }
    line = found["verdict"]["line"]
    assert "there is no train with its validation, so leaks are not known" in line


def test_a_given_tokenizer(data: Path, tmp_path: Path) -> None:
    for name in ("train.bin", "train.docs", "train.json"):
        shutil.copy(data / name, tmp_path)
    one = report(tmp_path, tokenizer=data / "tokenizer.json")["datasets"][0]
    assert one["decoded"][0]["texts"][0] == "The"
    one = report(tmp_path, tokenizer=data.parent / "other" / "tokenizer.json")["datasets"][0]
    assert "built with the tokenizer" in one["no_text"]


def test_what_is_no_dataset_is_one_error(data: Path, tmp_path: Path) -> None:
    with web_server({}) as url:
        for arguments, message in [
            ([data / "tokenizer.json"], "tokenizer.json: not a manifest: a JSON object with"),
            ([f"{url}/none.bin"], "/none.json: there is no such manifest; check the URL"),
            ([f"{url}/"], "web servers have no lists of files; give the URL of a manifest"),
            ([data, "--tokenizer", tmp_path / "x.json"], "x.json: No such file or directory: exp"),
            ([data, "--beside", tmp_path / "x.json"], "x.json: No such file or directory: expect"),
        ]:
            done = python("-m", "preprocess", "report", *arguments, cwd=tmp_path, expected_exit=1)
            (said,) = done.stderr.splitlines()
            assert said.startswith("tokenmill: error: ")
            assert message in said
            assert done.stdout == ""
    assert not [*tmp_path.iterdir()]


def test_the_datasets_of_a_corpus_are_named(data: Path, tmp_path: Path) -> None:
    datasets = [{"name": x, "data_files": data.parent / "val.txt", "val_fraction": 0} for x in "ab"]
    tokenizer = {"vocab_size": 280}
    build(PipelineConfig(datasets=datasets, tokenizer=tokenizer, output_path=tmp_path / "out"))
    message = rf"has several datasets; give one of them: {tmp_path}/out/a, {tmp_path}/out/b$"
    with pytest.raises(TokenFileError, match=message):
        report(tmp_path / "out")
    assert report(tmp_path / "out" / "a")["datasets"][0]["documents"] == len(VAL)


def test_an_empty_dataset(tmp_path: Path) -> None:
    for name in ("train", "val"):
        write(tmp_path, [], [], name=name)
    found = report(tmp_path)
    for one in found["datasets"]:
        assert (one["tokens"], one["documents"], one["copies"]) == (0, 0, 0)
        assert one["frequencies"] == {"ranks": [], "counts": []}
        assert one["rows"][0]["packed_rows"] == 0
    assert found["val_in_train"][0]["divergence"] is None
    (tmp_path / "none").mkdir()
    with pytest.raises(TokenFileError, match="no finished token file"):
        report(tmp_path / "none")


def test_scripts() -> None:
    assert script_of("中文字很多 and") == "Han"
    assert script_of("ελληνικά a") == "Greek"
    assert script_of("42 + 7!") == "no letters"


def test_json_needs_no_matplotlib(data: Path, found: dict[str, Any]) -> None:
    beside = data.parent / "other" / "tokenizer.json"
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from preprocess.cli import run\n"
        "run(sys.argv[1:])"
    )
    printed = printed_by(code, "report", data, "--json", "--beside", beside)
    assert json.loads(printed) == json.loads(json.dumps(found))
    for place in (data / "missing", data.parent / "damaged"):
        (data.parent / "damaged").mkdir(exist_ok=True)
        shutil.copy(data / "train.json", data.parent / "damaged")  # without its files
        assert python("-m", "preprocess", "report", place, "--json", expected_exit=1)

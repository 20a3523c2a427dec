"""Answers of `view` equal what Python gives, and plain computations in a loop."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import view_cases
import written
from hypothesis import given
from hypothesis import strategies as st

from bpe import Tokenizer, Vocabulary, WordLevelTokenizer, reference
from bpe.errors import EncodingError, TokenmillError
from preprocess import Sampler, TokenFile, build, open_tokens
from preprocess.check import scan
from preprocess.check.report_numbers import report, script_of
from preprocess.check.report_page import draw_sections
from preprocess.check.scan import MIN_TOKENS
from preprocess.dataset.reader import read_ids
from preprocess.view import documents, library, numbers, steps, vocabulary
from preprocess.view.documents import document, document_with, search
from preprocess.view.library import Library, ViewedDataset, ViewedTokenizer, ViewError, contents
from preprocess.view.server import answer, headers_of, page
from preprocess.view.vocabulary import compare, encode, merges

TOKENIZER = view_cases.make_tokenizers()[0]
VIEWED = ViewedTokenizer("t", "t.json", TOKENIZER)


@pytest.fixture(params=["masked", "sharded"])
def viewed(request: Any, view_root: Path) -> ViewedDataset:
    library = Library()
    library.add(str(view_root / request.param))
    return library.dataset("train")


def run(code: str) -> dict[str, Any]:
    """The names that code of an answer defines."""
    names: dict[str, Any] = {}
    exec(code, names)
    return names


def as_shown(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer as the page gets it."""
    found: dict[str, Any] = json.loads(json.dumps(answer))
    assert found == answer
    return found


# --- documents ---


def test_pages_of_a_document_are_its_tokens(
    viewed: ViewedDataset, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(documents, "TOKENS", 100)
    file, position = viewed.file, 0
    for number, text in enumerate(view_cases.texts()):
        ids, mask, shown, n_pages = list[int](), list[int](), "", 1
        for place in range(1000):
            if place == n_pages:
                break
            answer = as_shown(document(viewed, number, place))
            n_pages = answer["n_pages"]
            assert answer["first"] == position + 100 * place
            code = run(answer["python"])
            assert code["ids"].tolist() == answer["ids"]
            assert capsys.readouterr().out == file.decode(answer["ids"]) + "\n"
            if file.has_mask:
                assert code["mask"].tolist() == answer["mask"]
            ids, mask = ids + answer["ids"], mask + answer.get("mask", [])
            shown += "".join(answer["texts"])
        assert ids == file.doc(number).tolist()
        assert n_pages == -(-len(ids) // 100)
        assert shown == text + view_cases.END
        if file.has_mask:
            assert mask == file.loss_mask[position : position + len(ids)].tolist()
        assert (answer["start"], answer["stop"]) == (position, position + len(ids))
        where = {"name": "a.txt", "document": number}
        where = where if number < 5 else {"name": "b.txt", "document": number - 5}
        assert answer["source"] == where
        assert answer["special"] == [len(answer["ids"]) - 1]
        position += len(ids)


def test_the_document_of_every_token(
    viewed: ViewedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "TOKENS", 64)
    token = 0
    for number, ids in enumerate(map(viewed.file.doc, range(viewed.file.n_documents))):
        for place in range(len(ids)):
            if place in (0, 63, 64, len(ids) - 1):
                answer = document_with(viewed, token + place)
                assert (answer["number"], answer["page"]) == (number, place // 64)
                assert answer["ids"][place % 64] == ids[place]
        token += len(ids)
    assert token == viewed.file.n_tokens


def test_no_more_is_read_than_is_shown(
    view_root: Path, viewed: ViewedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = list[int]()

    def noted(file: TokenFile, start: int, stop: int) -> Any:
        read.append(stop - start)
        return read_ids(file, start, stop)

    monkeypatch.setattr(documents, "read_ids", noted)
    monkeypatch.setattr(documents, "TOKENS", 10)
    document(viewed, 43, 1)
    document_with(viewed, viewed.file.n_tokens - 1)
    assert max(read) == 10
    assert "document_ends" not in vars(viewed.file)  # those of shards would be joined


@given(st.lists(st.integers(0, TOKENIZER.vocab_size - 1)))
def test_texts_of_tokens_are_the_text_of_all(ids: list[int]) -> None:
    answer = vocabulary.describe_tokens(ids, VIEWED)
    assert "".join(answer["texts"]) == TOKENIZER.decode(ids)
    for place, token_id in enumerate(ids):
        token = TOKENIZER.vocab[token_id]
        if str(place) in answer["parts"]:
            assert bytes.fromhex(answer["parts"][str(place)]) == token
        else:
            assert answer["texts"][place].encode().startswith(token)
    assert answer["special"] == [i for i, x in enumerate(ids) if x == TOKENIZER.vocab_size - 1]


def test_ids_without_a_token_are_marked() -> None:
    answer = vocabulary.describe_tokens([65, 10_000, 66], VIEWED)
    assert (answer["texts"], answer["unknown"]) == (["A", "", "B"], [1])


def test_a_dataset_at_a_url(files: list[TokenFile], bucket: str) -> None:
    local, library = ViewedDataset("train", files[0], None), Library()
    library.add(f"{bucket}/data")
    remote = library.dataset("train")
    assert remote.no_tokenizer
    for number in (0, 100, local.file.n_documents - 1):
        mine, other = document(local, number), document(remote, number)
        assert mine.pop("python").split("\n")[3:] == other.pop("python").split("\n")[3:]
        assert mine == other
        assert document_with(remote, mine["stop"] - 1)["number"] == number
    query = " ".join(map(str, local.file[9_000:9_002].tolist()))
    mine, other = (search(each, query, by_ids=True) for each in (local, remote))
    assert mine["hits"] == other["hits"] != []
    for each in (local, remote):
        each.scanning.wait()
    assert numbers.statistics(local) == numbers.statistics(remote)


# --- search ---


def hits_by_hand(file: TokenFile, wanted: bytes) -> list[tuple[int, int]]:
    """The tokens [first, last) of hits, a document at a time, without the special token."""
    found, start, vocab = list[tuple[int, int]](), 0, TOKENIZER.vocab
    if file.vocab_size != TOKENIZER.vocab_size:
        vocab = view_cases.make_tokenizers()[1].vocab
    for number in range(file.n_documents):
        owners = [(i, b) for i, x in enumerate(file.doc(number).tolist()[:-1]) for b in vocab[x]]
        content = bytes(b for _, b in owners)
        for match in re.finditer(b"(?=" + re.escape(wanted) + b")", content):
            last = owners[match.start() + len(wanted) - 1][0] + 1
            found.append((start + owners[match.start()][0], start + last))
        start += len(file.doc(number))
    return found


def search_all(viewed: ViewedDataset, query: str, **how: Any) -> list[dict[str, Any]]:
    """All hits, from one answer to the next."""
    found, start = list[dict[str, Any]](), 0
    while start is not None:
        answer = as_shown(search(viewed, query, start=start, **how))
        firsts = [hit["token"] for hit in answer["hits"]]
        assert len({*firsts[documents.HITS :]} - {*firsts[-1:]}) == 0
        found, start = found + answer["hits"], answer["next"]
    return found


@pytest.mark.parametrize("limit", [1, 7, 50])
@pytest.mark.parametrize(
    "query", ["e", "naïve", "日本語", " 🙂 words.\n", "aaa", "<script>", view_cases.END, "absent"]
)
def test_texts_are_found(
    viewed: ViewedDataset, query: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "_FIRST", 37)
    monkeypatch.setattr(documents, "SEARCHED", 500)
    monkeypatch.setattr(documents, "HITS", limit)
    found = search_all(viewed, query)
    assert [(x["token"], x["stop"]) for x in found] == hits_by_hand(viewed.file, query.encode())
    for each in found:
        assert query in each["match"]
        assert query in viewed.file.decode(viewed.file.doc(each["document"]))
    code = run(search(viewed, query)["python"])["found"]["searched"][0]
    assert (code["text"], code["count"]) == (query, len(found))
    assert code["places"] == found[:10]


@pytest.mark.parametrize("n", [1, 2, 5])
def test_ids_are_found(viewed: ViewedDataset, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_FIRST", 37)
    wanted = viewed.file[3 : 3 + n].tolist()
    found = search_all(viewed, ", ".join(map(str, wanted)), by_ids=True)
    ids, ends = viewed.file[:].tolist(), viewed.file.document_ends.tolist()
    places = [
        i for i in range(len(ids)) if ids[i : i + n] == wanted
        and not any(i < end < i + n for end in ends)
    ]  # fmt: skip
    assert [x["token"] for x in found] == places
    code = run(search(viewed, " ".join(map(str, wanted)), by_ids=True)["python"])["found"]
    assert code["searched"][0]["places"] == found[:10]


def test_ids_are_not_found_across_documents(tmp_path: Path) -> None:
    file = written.write(tmp_path, [5, 6, 7, 5, 6], [2, 5])
    viewed = ViewedDataset("train", file, None, "missing")
    assert [x["token"] for x in search(viewed, "6 7", by_ids=True)["hits"]] == []
    hits = search(viewed, "5 6", by_ids=True)["hits"]
    assert [(x["token"], x["match"]) for x in hits] == [(0, "5 6"), (3, "5 6")]
    assert document(viewed, 1)["ids"] == [7, 5, 6]
    assert "texts" not in document(viewed, 1)
    with pytest.raises(ViewError, match="its tokenizer is missing, so text cannot be"):
        search(viewed, "a")


# --- statistics ---


def repeats_of(ids: list[int]) -> int:
    """The number of windows of 4 ids that occurred before in the same 8,192 ids."""
    parts = [ids[i : i + 8192] for i in range(0, len(ids), 8192)]
    windows = [[*zip(x, x[1:], x[2:], x[3:], strict=False)] for x in parts]
    return sum(len(each) - len({*each}) for each in windows)


def test_numbers_of_a_dataset(viewed: ViewedDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "_BLOCK", 61)
    monkeypatch.setattr(scan, "KEPT", 9)
    monkeypatch.setattr(library, "KEPT", 9)
    file = viewed.file
    assert numbers.statistics(viewed)["over"] is False
    viewed.scanning.wait()
    counts = Counter(file[:].tolist())
    assert {i: n for i, n in enumerate(viewed.scanned.counts.tolist()) if n} == counts
    sizes = [
        {"document": i, "tokens": len(file.doc(i)) - 1, "bytes": len(text.encode()),
         "repeats": repeats_of(file.doc(i).tolist())}
        for i, text in enumerate(view_cases.texts())
    ]  # fmt: skip
    answer = as_shown(numbers.statistics(viewed))
    assert answer["longest"] == sorted(sizes, key=lambda x: (-x["tokens"], x["document"]))[:9]
    long = [x for x in sizes if x["tokens"] >= MIN_TOKENS]
    by_ratio = sorted(long, key=lambda x: (x["bytes"] / x["tokens"], x["document"]))
    assert answer["worst"] == by_ratio[:9]
    again = [x for x in long if x["repeats"]]
    assert answer["repetitive"] == sorted(
        again, key=lambda x: (-x["repeats"] / x["tokens"], x["document"])
    )[:9]
    assert answer["copies"] == [
        {"document": i, "tokens": len(file.doc(i)), "copies": 1, "others": [45 + i]}
        for i in range(3)
    ]
    assert (answer["done"], answer["over"], answer["error"]) == (file.n_tokens, True, "")


def test_documents_of_a_length(viewed: ViewedDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_BLOCK", 5)
    monkeypatch.setattr(documents, "_DOCUMENTS", 17)
    file = viewed.file
    sizes = [len(file.doc(i)) for i in range(file.n_documents)]
    least, most = sorted(sizes)[5], sorted(sizes)[30]
    for limit in (1, 7, 50):
        monkeypatch.setattr(documents, "HITS", limit)
        found, start = list[dict[str, Any]](), 0
        while start is not None:
            answer = as_shown(documents.of_length(viewed, least, most, start))
            assert len(answer["hits"]) <= limit
            found, start = found + answer["hits"], answer["next"]
        expected = [i for i, size in enumerate(sizes) if least <= size <= most]
        assert [each["document"] for each in found] == expected
        assert run(answer["python"])["documents"].tolist() == expected
        for each in found:
            ids = file.doc(each["document"])
            assert (each["tokens"], each["begins"]) == (len(ids), file.decode(ids[:32]))


def test_numbers_are_those_of_a_report(tmp_path: Path) -> None:
    texts = [text for text in view_cases.texts() if view_cases.END not in text]
    (tmp_path / "text").write_text(view_cases.END.join(texts))
    build(
        train=tmp_path / "text", val=tmp_path / "text", out=tmp_path, vocab_size=300,
        separator=view_cases.END,
    )
    library = Library()
    library.add(str(tmp_path))
    begun = answer(library, "numbers", {"dataset": "val"})
    assert begun["total"] == 2 * len(open_tokens(tmp_path / "val.bin"))
    for each in library.datasets.values():
        each.scanning.wait()
    found = as_shown(answer(library, "numbers", {"dataset": "val"}))
    assert (found["over"], found["error"], found["done"]) == (True, "", found["total"])
    expected = report(tmp_path)
    assert found["lengths"] == expected["datasets"][1]["lengths"]
    del expected["datasets"][0]["decoded"], expected["datasets"][1]["decoded"]
    expected["datasets"].reverse()
    assert found["html"].replace(" data-style=", " style=") == draw_sections(expected)
    assert f"{len(texts)} of {len(texts)} documents of val are in train, too" in found["html"]


def test_numbers_are_drawn_once(view_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library, both, n_drawn = Library(), threading.Barrier(2), list[int]()
    library.add(str(view_root / "masked"))
    library.dataset("train").scanning.wait()
    measure = numbers.measure

    def measure_together(*given: Any) -> Any:
        n_drawn.append(1)
        with suppress(threading.BrokenBarrierError):
            both.wait(0.5)  # for another thread that draws, too
        return measure(*given)

    monkeypatch.setattr(numbers, "measure", measure_together)
    with ThreadPoolExecutor(2) as pool:
        ask = (pool.submit(answer, library, "numbers", {"dataset": "train"}) for _ in range(2))
        first, second = (each.result() for each in [*ask])
    assert first == second
    assert first["html"]
    assert len(n_drawn) == 1


def test_numbers_of_ids_alone_and_of_damage(view_root: Path, tmp_path: Path) -> None:
    library = Library()
    library.add(str(view_root / "bare"))
    library.dataset("train").scanning.wait()
    found = answer(library, "numbers", {"dataset": "train"})
    assert "train was not decoded, so what needs its text" in found["html"]
    shutil.copytree(view_root / "bare", tmp_path / "data")
    size = (view_root / "bare" / "train.bin").stat().st_size
    (tmp_path / "data" / "train.bin").write_bytes(b"\xff" * size)
    library.add(str(tmp_path / "data"))
    library.dataset("data/train").scanning.wait()
    found = answer(library, "numbers", {"dataset": "data/train"})
    assert "the file is damaged" in found["error"]
    assert "html" not in found


def test_damage_ends_the_pass(view_root: Path, tmp_path: Path) -> None:
    shutil.copytree(view_root / "masked", tmp_path / "data")
    content = bytearray((tmp_path / "data" / "train.bin").read_bytes())
    content[200:202] = b"\xff\xff"
    (tmp_path / "data" / "train.bin").write_bytes(content)
    library = Library()
    library.add(str(tmp_path / "data" / "train.bin"))
    library.dataset("train").scanning.wait()
    assert "the file is damaged" in numbers.statistics(library.dataset("train"))["error"]


# --- tokenizers ---


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_text_is_encoded(text: str) -> None:
    answer = as_shown(encode(VIEWED, text))
    assert answer["ids"] == TOKENIZER.encode(text)
    assert "".join(answer["texts"]) == text
    assert answer["n_bytes"] == len(text.encode())


def test_only_the_first_tokens_of_a_text_are_shown(view_root: Path) -> None:
    viewed = ViewedTokenizer("t", str(view_root / "masked" / "tokenizer.json"), TOKENIZER)
    text = "a1" * 5000 + view_cases.END
    for with_special in (True, False):
        answer = encode(viewed, text, with_special)
        ids = TOKENIZER.encode(text, "all" if with_special else ())
        assert (answer["ids"], answer["n_tokens"]) == (ids[:2000], len(ids))
        assert answer["bytes_per_token"] == len(text) / len(ids)
        assert run(answer["python"])["ids"] == ids


@given(st.text(st.sampled_from("the and of 12é日\n"), max_size=60))
def test_where_two_tokenizers_differ(text: str) -> None:
    both = view_cases.make_tokenizers()
    answer = as_shown(compare(*(ViewedTokenizer("", "", each) for each in both), text))
    spans = []
    for tokenizer in both:
        ends = np.cumsum([len(tokenizer.vocab[i]) for i in tokenizer.encode(text)]).tolist()
        spans.append([*zip([0, *ends], ends, strict=False)])
    for side, own, others in zip(("first", "second"), spans, reversed(spans), strict=True):
        differ = [place for place, span in enumerate(own) if span not in others]
        assert (answer[side]["differ"], answer[side]["n_differ"]) == (differ, len(differ))


def test_merges_make_the_token_of_its_bytes() -> None:
    for token_id, token in TOKENIZER.vocab.items():
        answer = as_shown(merges(VIEWED, token_id))
        assert bytes.fromhex(answer["token"]["bytes"]) == token
        word = [bytes([byte]) for byte in token]
        for each in answer["steps"]:
            pair = TOKENIZER.merges[each["rank"]]
            sides = (bytes.fromhex(each[side]["bytes"]) for side in ("left", "right"))
            assert pair == (*sides,)
            assert TOKENIZER.vocab[each["made"]["id"]] == b"".join(pair)
            word = reference.merge(word, pair)
        is_special = token_id == TOKENIZER.vocab_size - 1
        assert word == [token] or is_special
        assert bool(answer["why"]) == (not answer["steps"])
    assert "a special token" in merges(VIEWED, TOKENIZER.vocab_size - 1)["why"]
    assert merges(VIEWED, 97)["why"] == "it is one byte"


def test_tokens_that_no_merge_makes() -> None:
    tokens = {i: bytes([i]) for i in range(256)} | {256: b"abc"}
    whole = Vocabulary(tokens, [], {}, ignore_merges=True)
    viewed = ViewedTokenizer("", "", Tokenizer.from_vocabulary(whole))
    assert merges(viewed, 256)["why"] == "it is found only as a whole pre-token"


def test_a_tokenizer_of_words(tmp_path: Path) -> None:
    words = WordLevelTokenizer(["a", "bee", "<unk>"])
    words.save(tmp_path / "tokenizer.json")
    library = Library()
    library.add(str(tmp_path))
    (viewed,) = library.tokenizers.values()
    answer = encode(viewed, "bee a bee")
    assert answer["ids"] == words.encode("bee a bee")
    assert answer["texts"] == ["bee", "a", "bee"]
    assert "does not merge bytes" in merges(viewed, 0)["why"]
    file = written.write(tmp_path, [1, 0, 1], [2, 3], vocab_size=3, fields={"end_of_text_id": 2})
    dataset = ViewedDataset("train", file, viewed)
    assert [hit["token"] for hit in search(dataset, "bee")["hits"]] == [0, 2]


@pytest.mark.parametrize("order", vocabulary.ORDERS)
@pytest.mark.parametrize("query", ["", "e", "日", "#97", "#9999", "absent"])
@pytest.mark.parametrize("unused", [False, True])
def test_the_vocabulary(view_root: Path, order: str, query: str, unused: bool) -> None:
    dataset = ViewedDataset("train", open_tokens(view_root / "masked" / "train.bin"), VIEWED)
    dataset.scanning.wait()
    dataset.scanned.counts = counts = np.arange(TOKENIZER.vocab_size) % 5
    vocab, expected = TOKENIZER.vocab, list[int]()
    for token_id, token in vocab.items():
        chosen = query == f"#{token_id}" if query[:1] == "#" else query.encode() in token
        if chosen and not (unused and counts[token_id]):
            expected.append(token_id)
    keys: dict[str, Any] = {
        "id": int, "longest": lambda i: -len(vocab[i]), "shortest": lambda i: len(vocab[i]),
        "most frequent": lambda i: -counts[i], "least frequent": lambda i: counts[i],
    }
    expected.sort(key=keys[order])
    found = list[int]()
    for start in range(0, len(expected) + 1, vocabulary.ROWS):
        answer = as_shown(vocabulary.vocabulary(VIEWED, query, order, start, dataset, unused))
        assert answer["n_tokens"] == len(expected)
        for row in answer["tokens"]:
            assert bytes.fromhex(row["bytes"]) == vocab[row["id"]]
            assert row["count"] == counts[row["id"]]
            found.append(row["id"])
    assert found == expected


def test_tokens_of_a_script() -> None:
    scripts = dict(vocabulary.vocabulary(VIEWED)["scripts"])
    assert sum(scripts.values()) == len(TOKENIZER.vocab)
    for script, n in scripts.items():
        answer, found = as_shown(vocabulary.vocabulary(VIEWED, script=script)), list[int]()
        assert answer["n_tokens"] == n
        for start in range(0, n, vocabulary.ROWS):
            rows = vocabulary.vocabulary(VIEWED, start=start, script=script)["tokens"]
            found += [row["id"] for row in rows]
        texts = {i: token.decode(errors="ignore") for i, token in TOKENIZER.vocab.items()}
        assert found == [i for i, text in texts.items() if script_of(text) == script]
    assert {"Latin", "no letters"} <= scripts.keys()


def test_code_for_the_vocabulary(view_root: Path) -> None:
    viewed = ViewedTokenizer("t", str(view_root / "masked" / "tokenizer.json"), TOKENIZER)
    answer = vocabulary.vocabulary(viewed, "日")
    assert [*run(answer["python"])["tokens"]] == [row["id"] for row in answer["tokens"]]
    assert run(merges(viewed, 300)["python"])["token"] == TOKENIZER.vocab[300]


# --- training steps ---


def test_plans_of_packed_windows_are_not_kept(viewed: ViewedDataset) -> None:
    for plan in Path(viewed.file.path).parent.glob("*.plan"):
        plan.unlink()
    answer = steps.step(viewed, 1, 4, 61, windows="packed")
    assert not [*Path(viewed.file.path).parent.glob("*.plan")]
    batch = Sampler(viewed.file, 4, 61, windows="packed", order="epoch").batch(1)
    assert [each["ids"] for each in answer["rows"]] == batch["inputs"].tolist()


@pytest.mark.parametrize("windows", ["stride", "documents", "packed"])
@pytest.mark.parametrize("order", ["epoch", "random", "sequential"])
def test_rows_of_a_step(
    viewed: ViewedDataset, windows: str, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "COLUMNS", 20)
    names = ("inputs", "segment_ids", "loss_mask")
    how: Any = {"windows": windows, "order": order, "seed": 3}
    sampler = Sampler(viewed.file, 6, 50, fields=names, **how)
    for number in (0, 2):
        batch = sampler.batch(number)
        for row in (0, 4):
            for column in (0, 20, 40):
                given = {"row": row, "column": column}
                answer = as_shown(steps.step(viewed, number, 6, 50, **how, **given))
                shown = slice(row, row + 4), slice(column, column + 20)
                for name, key in zip(names, ("ids", "segments", "mask"), strict=True):
                    assert [x[key] for x in answer["rows"]] == batch[name][shown].tolist()
                assert (answer["n_rows"], answer["context_length"]) == (6, 50)
                check_documents(viewed.file, answer, batch)
        code = run(answer["python"])["batch"]
        assert all((code[name] == batch[name]).all() for name in names)
    assert answer["n_steps"] == (None if order == "random" else len(sampler))


@pytest.mark.parametrize("windows", ["stride", "documents"])
@pytest.mark.parametrize("order", ["epoch", "sequential"])
def test_the_first_step_of_a_token(viewed: ViewedDataset, windows: str, order: str) -> None:
    how: Any = {"windows": windows, "order": order, "seed": 5}
    sampler, first = Sampler(viewed.file, 7, 90, **how), dict[int, tuple[int, int]]()
    for number in range(len(sampler) * (3 if order == "epoch" else 1)):
        for row in sampler.describe(number):
            for each in row["documents"]:
                for place in range(each["stop"] - each["start"]):
                    first.setdefault(each["token"] + place, (number, row["row"]))
    for token in range(0, viewed.file.n_tokens, 37):
        if token not in first:
            with pytest.raises(ViewError, match="is an input of no row"):
                steps.step_with(viewed, token, 7, 90, **how)
            continue
        answer = as_shown(steps.step_with(viewed, token, 7, 90, **how))
        assert (answer["step"], answer["row"]) == first[token]
        assert viewed.file[token] in answer["rows"][0]["ids"]


def check_documents(file: TokenFile, answer: dict[str, Any], batch: dict[str, Any]) -> None:
    """The documents of each row have its tokens, and are those of its segments that are shown."""
    ends = file.document_ends
    for row in answer["rows"]:
        inputs, segments = (batch[name][row["row"]] for name in ("inputs", "segment_ids"))
        for each in row["documents"]:
            inside, token = slice(each["start"], each["stop"]), each["token"]
            assert (inputs[inside] == file[token : token + len(inputs[inside])]).all()
            (number,) = {*segments[inside].tolist()}
            assert int((segments == number).sum()) == each["stop"] - each["start"]
            assert each["document"] == int(np.searchsorted(ends, np.uint64(token), "right"))
        numbers = [int(segments[each["start"]]) for each in row["documents"]]
        assert numbers == [*dict.fromkeys(x for x in row["segments"] if x)]


# --- what is given ---


def test_datasets_and_tokenizers_have_names(view_root: Path) -> None:
    library = Library()
    for name in ("masked", "sharded", "masked/train.bin"):
        library.add(str(view_root / name))
    library.add(str(view_root / "bare" / "train.json"))
    names = [*library.datasets]
    assert names[:2] == ["train", "sharded/train"]
    assert len({*names}) == 4
    assert [*library.tokenizers] == ["masked/tokenizer.json", "sharded/tokenizer.json"]
    facts = contents(library)["datasets"]
    assert [each["shards"] > 0 for each in facts] == [False, True, False, False]
    # It is the tokenizer of the first, though it is not beside the dataset.
    assert facts[3]["tokenizer"] == "masked/tokenizer.json"
    code = document(library.dataset(names[3]), 0)["python"]
    expected = open_tokens(view_root / "bare" / "train.bin").doc(0)
    assert run(code)["ids"].tolist() == expected.tolist()


def test_a_dataset_without_its_tokenizer(view_root: Path, tmp_path: Path) -> None:
    library = Library()
    library.add(str(view_root / "bare"))
    assert "there is no tokenizer.json beside it" in library.dataset("train").no_tokenizer
    assert document(library.dataset("train"), 0)["ids"]
    shutil.copytree(view_root / "bare", tmp_path / "wrong")
    shutil.copy(view_root / "sharded" / "tokenizer.json", tmp_path / "wrong")
    library = Library()
    library.add(str(tmp_path / "wrong"))
    assert "built with the tokenizer" in library.dataset("train").no_tokenizer
    assert "texts" not in document(library.dataset("train"), 0)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("document", {"dataset": "none"}, "there is no dataset 'none'; there are train"),
        ("document", {"dataset": "train"}, "number: should be a whole number of at least 0; got"),
        ("document", {"dataset": "train", "number": "-1"}, "should be a whole number"),
        ("document", {"dataset": "train", "number": "999"},
         "there is no document 999; its 49 documents are numbered from 0"),
        ("document", {"dataset": "train", "number": "1", "page": "1"}, "there is no page 1 of doc"),
        ("document_with", {"dataset": "train", "token": "999999"}, "there is no token 999,999;"),
        ("search", {"dataset": "train", "query": ""}, "query: is empty; give a text, or ids"),
        ("search", {"dataset": "train", "query": " ", "by_ids": "1"}, "query: is empty; give"),
        ("search", {"dataset": "train", "query": "7 a", "by_ids": "1"}, "query: should be ids of"),
        ("search", {"dataset": "train", "query": "99999", "by_ids": "1"}, "query: should be ids"),
        ("search", {"dataset": "train", "query": "\ud800"}, "lone surrogate"),
        ("statistics", {}, "there is no dataset ''"),
        ("encode", {"tokenizer": "t"}, "there is no tokenizer 't'; there are masked/tok"),
        ("encode", {"tokenizer": "masked/tokenizer.json", "text": "\udc00"}, "surrogate"),
        ("merges", {"tokenizer": "masked/tokenizer.json", "id": "9999"},
         "there is no token with the id 9999; ids are below 857"),
        ("vocabulary", {"tokenizer": "masked/tokenizer.json", "order": "x"}, "order: should be o"),
        ("vocabulary", {"tokenizer": "masked/tokenizer.json", "unused": "1"}, "how often tokens"),
        ("step", {"dataset": "train", "step": "1", "batch_size": "0", "context_length": "1"},
         "global_batch_size should be at least 1"),
        ("step", {"dataset": "train", "step": "1", "batch_size": "9", "context_length": "9",
                  "windows": "x"}, "windows"),
        ("step_with",
         {"dataset": "train", "token": "1", "batch_size": "9", "context_length": "9",
          "windows": "packed"}, "the step of a token is not known with order 'epoch' and"),
        ("step_with",
         {"dataset": "train", "token": "99999", "batch_size": "9", "context_length": "9"},
         "token 99,999 is an input of no row: the last window and"),
        ("step", {"dataset": "train", "step": "1", "batch_size": "9", "context_length": "9",
                  "row": "9"}, "row 9 and column 0 are not among them"),
        ("step", {"dataset": "train", "step": "1", "batch_size": "99999", "context_length": "9999"},
         "tokens is too large to be shown"),
        ("step", {"dataset": "train", "step": "1", "batch_size": "16777216", "context_length": "1"},
         "choose at most 16,384 rows and 16,777,216 tokens"),
        ("search", {"dataset": "train", "query": "a" * 10_001},
         "query: is longer than 10,000 characters; search for a part"),
        ("step", {"dataset": "train", "step": "1", "batch_size": "9", "context_length": "9",
                  "order": "x"}, "order should be one of random, epoch, sequential"),
    ],
)  # fmt: skip
def test_wrong_requests(view_root: Path, name: str, values: dict[str, str], message: str) -> None:
    library = Library()
    library.add(str(view_root / "masked"))
    with pytest.raises(TokenmillError) as caught:
        answer(library, name, values)
    assert message in str(caught.value)


def test_places_without_anything_to_show(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a")
    for location, message in [
        (tmp_path, "no finished token file in this"), (tmp_path / "x.bin", "no such file"),
        (tmp_path / "x.json", "No such file"), (tmp_path / "text.txt", "is not a dataset; build"),
    ]:  # fmt: skip
        with pytest.raises(TokenmillError, match=message):
            Library().add(str(location))


def test_a_damaged_dataset_of_a_directory_is_not_left_out(view_root: Path, tmp_path: Path) -> None:
    shutil.copytree(view_root / "masked", tmp_path / "data")
    for suffix in ("bin", "docs", "mask", "json"):
        shutil.copy(view_root / "masked" / f"train.{suffix}", tmp_path / "data" / f"val.{suffix}")
    (tmp_path / "data" / "train.json").write_text("{")
    with pytest.raises(TokenmillError, match=r"train.json: not a manifest, for it is not JSON"):
        Library().add(str(tmp_path / "data"))
    library = Library()
    library.add(str(tmp_path / "data" / "val.bin"))
    assert [*library.datasets] == ["val"]


def test_the_page_runs_nothing_but_its_own() -> None:
    html = page()
    assert not re.search(r"https?://|innerHTML|outerHTML|insertAdjacent|\bon\w+=|style=|eval", html)
    policy = headers_of(html)["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy


def test_lone_surrogates_are_refused() -> None:
    with pytest.raises(EncodingError):
        encode(VIEWED, "\ud800")

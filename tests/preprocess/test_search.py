"""`search` finds what a search of each document's bytes in plain Python finds."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import written
from hypothesis import given, settings
from hypothesis import strategies as st
from remote_cases import upload

from bpe import Tokenizer, TokenmillError, Vocabulary, WordLevelTokenizer
from preprocess import TokenFile, build, search
from preprocess.find import byte_search, occurrences

END, TURN = "<|endoftext|>", "<|turn|>"
LETTERS = ["a", "b", "A", "é", " ", ",", "\n", "1"]


@pytest.fixture(autouse=True, scope="module")
def _small() -> Iterator[None]:
    """Chunks and blocks are a few tokens, so that texts cross their ends."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(occurrences, "CHUNK", 37)
        patch.setattr(occurrences, "ROOM", 2)
        patch.setattr(occurrences, "MOST", 9)
        patch.setattr(byte_search, "BLOCK_BYTES", 24)
        yield


def make(directory: Path, seed: int, **more: Any) -> tuple[TokenFile, Tokenizer]:
    """A dataset of a random vocabulary, whose text is divided into tokens at random."""
    rng = random.Random(seed)
    pool = sorted({bytes([x]) for letter in LETTERS for x in letter.encode()})
    merges: list[tuple[bytes, bytes]] = []
    for _ in range(rng.randrange(40)):
        pair = rng.choice(pool), rng.choice(pool)
        if pair[0] + pair[1] not in pool and len(pair[0] + pair[1]) < 80:
            merges.append(pair)
            pool.append(pair[0] + pair[1])
    vocabulary = Vocabulary.from_merges(merges, [END, TURN])
    tokenizer = Tokenizer.from_vocabulary(vocabulary)
    ids = {token: i for i, token in vocabulary.bytes_of_id.items()}
    end, turn = (tokenizer.special_tokens[x] for x in (END, TURN))
    found, ends = list[int](), list[int]()
    for _ in range(rng.randrange(1, 12)):
        size = rng.choice([0, 1, 5, 40, 150])
        found += [
            turn if rng.random() < 0.03 else ids[rng.choice(pool)] for _ in range(size)
        ]
        found.append(end)
        ends.append(len(found))
    fields = {"end_of_text_id": end, "tokenizer_fingerprint": tokenizer.fingerprint}
    directory.mkdir(exist_ok=True)
    size = rng.choice([tokenizer.vocab_size, 70_000])
    sources = [{"name": "a", "bytes": 1, "digest": "00" * 16, "documents": 1, "tokens": 1},
               {"name": "b", "bytes": 1, "digest": "00" * 16, "documents": len(ends) - 1,
                "tokens": 1}]  # fmt: skip
    file = written.write(
        directory, found, ends, vocab_size=size, fields=fields | {"sources": sources}, **more
    )
    tokenizer.save(directory / "tokenizer.json")
    return file, tokenizer


def segments(file: TokenFile, tokenizer: Tokenizer) -> Iterator[tuple[int, int, bytes, list[int]]]:
    """(document, first token, bytes, end of each token) of ids between special tokens."""
    special = {*tokenizer.special_tokens.values()}
    place = 0
    for number in range(file.n_documents):
        run: list[int] = []
        for token in file.doc(number).tolist():
            if token in special:
                contents = [tokenizer.decode_bytes([i]) for i in run]
                ends = np.cumsum([0, *map(len, contents)]).tolist()
                yield number, place - len(run), b"".join(contents), ends[1:]
                run = []
            else:
                run.append(token)
            place += 1


def places_of(file: TokenFile, tokenizer: Tokenizer, text: bytes) -> list[tuple[int, int, int]]:
    """(first token, token after the last, document) of each occurrence."""
    found = []
    for number, first, content, ends in segments(file, tokenizer):
        for at in (m.start() for m in re.finditer(b"(?=%b)" % re.escape(text), content)):
            begin = next(i for i, end in enumerate(ends) if end > at)
            last = next(i for i, end in enumerate(ends) if end >= at + len(text))
            found.append((first + begin, first + last + 1, number))
    return found


def texts_in(file: TokenFile, tokenizer: Tokenizer, seed: int) -> list[str]:
    """Texts that occur, at any bytes that are whole characters, and some that do not."""
    rng = random.Random(seed)
    texts = ["a", "aa", "".join(rng.choices(LETTERS, k=4)), "b" * 70]
    for _, _, content, _ in segments(file, tokenizer):
        at, size = rng.randrange(len(content) + 1), rng.choice([1, 2, 3, 6, 7, 14, 15, 20, 90])
        texts.append(content[at : at + size].decode("utf-8", "ignore"))
    return [*dict.fromkeys(filter(None, texts))]


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), workers=st.integers(1, 3))
def test_every_place_is_found_once(
    tmp_path_factory: pytest.TempPathFactory, seed: int, workers: int
) -> None:
    directory = tmp_path_factory.mktemp("found")
    more = {"shard_tokens": 50, "split_documents": True} if seed % 2 else {}
    file, tokenizer = make(directory, seed, **more)
    texts = texts_in(file, tokenizer, seed)
    found = search(directory / "train.bin", texts, limit=10**6, workers=workers, progress=False)
    assert [x["text"] for x in found["searched"]] == texts
    for text, each in zip(texts, found["searched"], strict=True):
        expected = places_of(file, tokenizer, text.encode())
        places = [(x["token"], x["stop"], x["document"]) for x in each["places"]]
        assert places == sorted(expected), text
        assert each["count"] == len(expected)
        assert each["documents"] == len({x[2] for x in expected})
        n_first = sum(x[2] == 0 for x in expected)
        counts = [("a", n_first), ("b", len(expected) - n_first)]
        assert [(x["name"], x["count"]) for x in each["sources"]] == [x for x in counts if x[1]]
        for place in each["places"]:
            assert place["match"] == file.decode(file[place["token"] : place["stop"]])


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000))
def test_ids_are_found_across_special_tokens(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    directory, rng = tmp_path_factory.mktemp("ids"), random.Random(seed)
    file, _ = make(directory, seed)
    first = rng.randrange(len(file))
    wanted = file[first : first + rng.choice([1, 2, 5, 50])].tolist()
    found = search(directory / "train.bin", ids=wanted, limit=10**6, progress=False)["searched"]
    expected = []
    for number, (start, stop) in enumerate(pairwise([0, *file.document_ends.tolist()])):
        for at in range(start, stop - len(wanted) + 1):
            if file[at : at + len(wanted)].tolist() == wanted:
                expected.append((at, at + len(wanted), number))
    assert [(x["token"], x["stop"], x["document"]) for x in found[0]["places"]] == expected


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), n=st.integers(1, 3))
def test_contamination_is_the_share_of_ngrams_of_words(
    tmp_path_factory: pytest.TempPathFactory, seed: int, n: int
) -> None:
    directory = tmp_path_factory.mktemp("items")
    file, tokenizer = make(directory, seed)
    items = [x for x in texts_in(file, tokenizer, seed) if re.search("[^\\s,]", x)]
    path = directory / "items.jsonl"
    path.write_text("".join(json.dumps({"text": item}) + "\n" for item in items))
    found = search(
        directory / "train.bin", contamination=path, ngram=n, limit=10**6, progress=False
    )
    in_documents: dict[int, list[list[bytes]]] = {}
    for number, _, content, _ in segments(file, tokenizer):
        in_documents.setdefault(number, []).append(words(content))
    for item, each in zip(items, found["items"], strict=True):
        of_item = words(item.encode())
        ngrams = {tuple(of_item[i : i + n]) for i in range(max(len(of_item) - n + 1, 1))}
        there = {
            number: sum(any(has(run, x) for run in runs) for x in ngrams)
            for number, runs in in_documents.items()
        }
        assert {x["document"]: x["ngrams"] for x in each["places"]} == {
            number: count for number, count in there.items() if count
        }
        n_found = sum(any(has(run, x) for runs in in_documents.values() for run in runs)
                      for x in ngrams)  # fmt: skip
        assert (each["ngrams"], each["found"]) == (len(ngrams), n_found)
        assert each["share"] == n_found / len(ngrams)
    assert found["contaminated"] == sum(x["found"] > 0 for x in found["items"])


@pytest.mark.parametrize("chunk", range(1, 10))
def test_the_first_words_of_documents_are_found_where_a_chunk_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(occurrences, "CHUNK", chunk)
    texts = ["a b", "c d.", " e f ", "g"]
    (tmp_path / "text.txt").write_text(END.join(texts))
    (tmp_path / "items.jsonl").write_text("".join(json.dumps({"text": x}) + "\n" for x in texts))
    build(train=tmp_path / "text.txt", out=tmp_path / "out", vocab_size=257, val_fraction=0)
    found = search(
        tmp_path / "out", contamination=tmp_path / "items.jsonl", ngram=2, progress=False
    )["items"]
    assert [[x["document"] for x in each["places"]] for each in found] == [[0], [1], [2], [3]]


def words(text: bytes) -> list[bytes]:
    return re.findall(rb"[a-z0-9\x80-\xff]+", text.lower())


def has(words_of_text: list[bytes], ngram: tuple[bytes, ...]) -> bool:
    n = len(ngram)
    return any(
        tuple(words_of_text[i : i + n]) == ngram for i in range(len(words_of_text) - n + 1)
    )


def test_many_patterns_with_equal_words_are_found(tmp_path: Path) -> None:
    file, tokenizer = make(tmp_path, 5)
    content = b"".join(x[2] for x in segments(file, tokenizer)).decode("utf-8", "replace")
    texts = {content[i : i + k] for i in range(0, len(content) - 30, 3) for k in range(1, 30)}
    texts = {x for x in texts if "\ufffd" not in x}
    assert len(texts) > 150
    found = search(tmp_path / "train.bin", sorted(texts), limit=0, progress=False)["searched"]
    for each in found:
        assert each["count"] == len(places_of(file, tokenizer, each["text"].encode()))


def test_memory_is_bounded_where_many_patterns_begin_one_another(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a" * 3000)
    build(train=tmp_path / "text.txt", out=tmp_path / "out", vocab_size=257, val_fraction=0)
    texts = ["a" * n for n in range(1, 400)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(occurrences, "CHUNK", 1 << 20)
        patch.setattr(occurrences, "MOST", 4096)
        patch.setattr(byte_search, "BLOCK_BYTES", 1 << 16)
        search(tmp_path / "out", texts[:2], workers=1, progress=False)  # compiles
        tracemalloc.start()
        found = search(tmp_path / "out", texts, limit=0, workers=1, progress=False)["searched"]
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert [each["count"] for each in found] == [*range(3000, 3000 - 399, -1)]
    assert peak < 8 << 20  # all places would take 50 MB


def test_a_dataset_at_a_url_is_searched(bucket: str, tmp_path: Path) -> None:
    file, tokenizer = make(tmp_path / "local", 7, shard_tokens=100)
    url = f"{upload(tmp_path / 'local', bucket)}/train.json"
    texts = texts_in(file, tokenizer, 7)
    here, there = (
        search(place, texts, progress=False) for place in (tmp_path / "local/train.bin", url)
    )
    assert here["searched"] == there["searched"]


def test_tokens_that_are_no_bytes_are_found_by_the_ids_of_the_text(tmp_path: Path) -> None:
    tokenizer = WordLevelTokenizer(["one", "two", "<unk>"])
    one, two, end = (tokenizer.encode(x)[0] for x in ("one", "two", "<unk>"))
    fields = {"end_of_text_id": end, "tokenizer_fingerprint": tokenizer.fingerprint}
    ids = [one, two, one, two, end, two, one, end]
    written.write(tmp_path, ids, [5, 8], vocab_size=tokenizer.vocab_size, fields=fields)
    tokenizer.save(tmp_path / "tokenizer.json")
    found = search(tmp_path / "train.bin", "two one", progress=False)["searched"][0]
    assert (found["count"], found["documents"]) == (2, 2)
    (tmp_path / "items.jsonl").write_text('{"text": "two one"}\n')
    with pytest.raises(TokenmillError, match=r"its tokenizer makes no token of ' \\n'"):
        search(tmp_path / "train.bin", " \n", progress=False)
    with pytest.raises(TokenmillError, match="tokenizer is not byte-level, so n-grams of words"):
        search(tmp_path / "train.bin", contamination=tmp_path / "items.jsonl", progress=False)


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "preprocess", "search", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True)


def test_the_command_prints_lines_or_json(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("one two three<|endoftext|>a One, two. Three b")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "two"}\n{"prompt": "TWO"}\n')
    build(train=tmp_path / "text.txt", out=tmp_path / "out", vocab_size=257, val_fraction=0)
    lines = command(tmp_path / "out", "one two", "none").stdout.splitlines()
    assert lines[0] == "'one two': 1 time in 1 document"
    assert lines[1] == "  1 in text.txt"
    assert lines[2] == "  token 0 of document 0: [one two] three<|endoftext|>"
    assert lines[3] == "'none': 0 times in 0 documents"
    found = json.loads(command(
        tmp_path / "out/train.bin", "--file", tmp_path / "prompts.jsonl", "--content-field",
        "prompt", "--json", "--limit", "1",
    ).stdout)  # fmt: skip
    assert [(x["text"], x["count"]) for x in found["searched"]] == [("two", 2), ("TWO", 0)]
    assert found["searched"][0]["places"][0]["source"] == {"name": "text.txt", "document": 0}
    lines = command(
        tmp_path / "out", "--contamination", tmp_path / "prompts.jsonl", "--content-field",
        "prompt", "--ngram", 3, "--limit", 1,
    ).stdout.splitlines()  # fmt: skip
    assert lines == [
        f"item {i}: 100.0% of its 3-grams (1 of 1) in documents 0 and others (--limit): {text!r}"
        for i, text in enumerate(("two", "TWO"))
    ] + [f"2 of 2 items have a 3-gram in {tmp_path / 'out/train.bin'}, and 2 at least half of them"]
    lines = command(
        tmp_path / "out", "--contamination", tmp_path / "prompts.jsonl", "--content-field",
        "prompt", "--ngram", 3, "--limit", 0,
    ).stdout.splitlines()  # fmt: skip
    assert lines[0] == "item 0: 100.0% of its 3-grams (1 of 1) in 2 documents: 'two'"
    lines = command(tmp_path / "out", "--limit", 0, "--", "--json", "-x", "two").stdout.splitlines()
    assert lines[::2] == ["'--json': 0 times in 0 documents", "'two': 2 times in 2 documents"]
    lines = command(tmp_path / "out", "--ids", "256", "--limit", "1").stdout.splitlines()
    assert lines[0] == "[256]: 2 times in 2 documents"
    assert lines[-1] == "  and 1 more (--limit)"


def test_wrong_use_is_answered_with_a_line(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("one two three")
    (tmp_path / "marks.jsonl").write_text('{"text": "..."}\n')
    (tmp_path / "empty.jsonl").write_text('{"text": ""}\n')
    build(train=tmp_path / "text.txt", val=tmp_path / "text.txt", out=tmp_path / "out",
          vocab_size=257)  # fmt: skip
    path = tmp_path / "out" / "train.bin"
    for arguments, expected in [
        ([path], "there is nothing to search for; give a text, ids (--ids), a file of texts"),
        ([path, ""], "should be a text, or a list of texts, none of them empty"),
        ([path, "--ids", "1,x"], "--ids: should be ids such as 464,318; got"),
        ([path, "--ids", "257"], "one id of its vocabulary, from 0 to 256 (--ids); got [257]"),
        ([path, "a", "--ids", "1"], "one thing is searched for at a time"),
        ([path, "a", "--ngram", "3"], "--ngram has no effect without --contamination"),
        ([path, "a", "--content-field", "x"], "--content-field has no effect without --file or"),
        ([path, "--ids", "1", "--unit-size", "9"], "--unit-size has no effect without --file or"),
        ([tmp_path / "out", "a"], "has several datasets; give one of them"),
        ([path, "--file", tmp_path / "empty.jsonl"], "has no text to search for; give a file"),
        ([path, "--contamination", tmp_path / "marks.jsonl"], "no item has a word; give a file"),
    ]:
        done = command(*arguments)
        assert done.returncode in (1, 2)
        assert len(done.stderr.splitlines()) == 1
        assert expected in done.stderr
    with pytest.raises(TokenmillError, match=r"from 0 to 256 \(ids\); got \[257, 3\]$"):
        search(path, ids=[257, 3], progress=False)

"""Counting and training: against the reference and ffbpe, every kind of input, every refusal."""

from __future__ import annotations

import logging
import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise, product
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpe import EncodingError, PretokenCounts, TrainingError, reference, train_bpe
from bpe.errors import ChangedError
from bpe.special import SpecialTokenMatcher
from bpe.train import trainer as train
from bpe.train.counts import FrozenCounts, sum_counts
from bpe.train.trainer import train_from_counts

pytestmark = pytest.mark.usefixtures("few_ranges")

END = "<|endoftext|>"


def counted(documents: list[str], special_tokens: list[str] | None = None) -> PretokenCounts:
    counts = PretokenCounts(special_tokens=special_tokens or [])
    encoded = [document.encode() for document in documents]
    offsets = np.cumsum([0, *map(len, encoded)]).astype(np.int64)
    counts.add(np.frombuffer(b"".join(encoded), np.uint8), offsets)
    return counts


corpora = st.sampled_from(["ab", "abc ", "aab  é", "abcde \n'", "日本a ", "\0\1a"]).flatmap(
    lambda alphabet: st.lists(st.text(alphabet, max_size=120), min_size=1, max_size=5)
)


def options(least: st.SearchStrategy[int]) -> st.SearchStrategy[dict[str, Any]]:
    """Options of training, with `least` as min_frequency."""
    return st.fixed_dictionaries({
        "tie_break": st.sampled_from(reference.TIE_BREAKS),
        "min_frequency": least,
        "max_token_length": st.none() | st.integers(1, 6),
    })


def frozen(counts: dict[bytes, int]) -> FrozenCounts:
    """Counts that were summed up."""
    buffer = np.frombuffer(b"".join(counts), np.uint8)
    offsets = np.cumsum([0, *map(len, counts)])
    return FrozenCounts("gpt2", [], buffer, offsets, np.array([*counts.values()]))


@settings(max_examples=200)
@given(corpora, st.integers(0, 40), options(st.integers(0, 3)), st.integers(0, 100))
def test_merges_equal_the_reference(
    documents: list[str], n_merges: int, chosen: dict[str, Any], run: int
) -> None:
    documents = [*documents, "x" + "a" * run]
    tokenizer = train_from_counts(counted(documents), 256 + n_merges, **chosen)
    assert tokenizer.merges == reference.train(documents, 256 + n_merges, **chosen)


# Around what fits beside a symbol in the merge loop: 20 or 21 bits where there are few symbols.
_COUNTS = st.sampled_from(
    [1, 2, 3, 7, 2**20 - 1, 2**20, 2**20 + 1, 2**21 - 1, 2**21, 2**21 + 1, 2**50]
)


@settings(max_examples=200)
@given(
    st.dictionaries(st.text("ab c", min_size=1, max_size=7), _COUNTS, min_size=1, max_size=40),
    st.integers(0, 60),
    options(st.sampled_from([0, 2, 3, 2**22])),
)
def test_counts_of_every_size(words: dict[str, int], n_merges: int, chosen: dict[str, Any]) -> None:
    counts = {word.encode(): count for word, count in words.items()}
    for n in (n_merges, 400):
        expected = reference.train_from_counts(Counter(counts), 256 + n, **chosen)
        assert train_from_counts(frozen(counts), 256 + n, **chosen).merges == expected


@settings(max_examples=100)
@given(
    documents=st.lists(
        st.tuples(st.integers(0, 4), st.text("ab é", max_size=40)), min_size=1, max_size=12
    ),
    n=st.integers(1, 5),
    run=st.integers(0, 40),
)
def test_counts_of_several_are_added_up(documents: list[tuple[int, str]], n: int, run: int) -> None:
    texts: list[list[str]] = [[] for _ in range(n)]
    for number, text in documents:
        # Long ones, too; one that nobody counts in the end, because it is a special token.
        texts[number % n] += [text, "b" * run, "aé"]
    of_threads = [counted(some, ["aé"]) for some in texts]
    total = sum_counts(of_threads)
    assert not of_threads
    buffer, offsets, counts = total.arrays()
    words = [buffer[i:j].tobytes() for i, j in pairwise(offsets.tolist())]
    expected = reference.count([text for some in texts for text in some], ["aé"])
    assert sorted(zip(words, counts.tolist(), strict=True)) == sorted(expected.items())
    assert total.total == expected.total()
    letters = [word.removeprefix(b" ").ljust(2, b"\0")[:2] for word in words]
    assert letters == sorted(letters)


def test_counts_that_were_not_counted_alike_are_not_added_up() -> None:
    with pytest.raises(ValueError, match="cannot be added to counts of"):
        sum_counts([PretokenCounts(), PretokenCounts(special_tokens=[END])])
    with pytest.raises(ValueError, match="cannot be added"):
        PretokenCounts().merge(PretokenCounts(special_tokens=[END]))


@pytest.mark.parametrize("tie_break", reference.TIE_BREAKS)
def test_many_threads_lay_out_what_one_does(
    tie_break: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "_PART_OF_ROWS", 1)
    for documents in ([topics["assert"], topics["with"]], ["a" * 90 + " aaa aa bb"], ["ab"]):
        expected = reference.train(documents, 256 + 50, tie_break=tie_break)
        for workers in (1, 2, 3, 7, 99):
            ours = train_from_counts(
                counted(documents), 256 + 50, tie_break=tie_break, workers=workers
            )
            assert ours.merges == expected


def test_frequent_words_that_are_too_long_to_be_one_token() -> None:
    words = {bytes(letters): 100 for letters in product(b"abcd", repeat=3)} | {b"xy": 5}
    # Fewer pairs of letters than there are words: the rare one is merged, too.
    tokenizer = train_from_counts(frozen(words), 256 + 30, max_token_length=2)
    assert tokenizer.merges[-1] == (b"x", b"y")
    assert tokenizer.merges == reference.train_from_counts(words, 256 + 30, max_token_length=2)
    # Those of one byte need no merge.
    words = {b"a": 100, b"b": 90, b"xy": 5}
    for n in (1, 2):
        assert train_from_counts(frozen(words), 256 + n).merges == [(b"x", b"y")]


@settings(max_examples=200)
@given(
    documents=corpora,
    special_tokens=st.sampled_from(
        [["ab"], ["ab", "b"], ["a\0"], ["\0", "b\0\0"], ["aa", "aaa"], ["a a", END], ["日本"]]
    ),
    large=st.sampled_from([0, 1 << 16]),
)
def test_special_tokens_are_cut_out(
    documents: list[str], special_tokens: list[str], large: int
) -> None:
    """Also where a kernel has first asked which there are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bpe.special._LARGE", large)
        counts = counted(documents, special_tokens)
    expected = reference.count(documents, special_tokens)
    assert dict(counts.items()) == dict(expected)
    assert counts.total == sum(expected.values())
    assert len(counts) == len(expected)


def test_a_run_of_140_000_letters() -> None:
    tokenizer = train_from_counts(counted(["a" * 140_000]), 256 + 30)
    assert tokenizer.merges == reference.train(["a" * 140_000], 256 + 30)
    assert len(tokenizer.merges[-1][0] + tokenizer.merges[-1][1]) == 2**16


@pytest.mark.parametrize(
    ("tie_break", "theirs"),
    [
        ("greatest-bytes", {"tie_break": "largest_content", "initial_alphabet": "raw"}),
        ("huggingface", {"tie_break": "smallest_pair_id", "initial_alphabet": "byte_level"}),
    ],
)
def test_merges_equal_ffbpe(tie_break: str, theirs: dict[str, str]) -> None:
    ffbpe = pytest.importorskip("ffbpe", reason="ffbpe, an independent trainer, is not installed")
    documents = [text for _, text in sorted(topics.items())]
    trainer = ffbpe.BpeTrainer([], bigram_cutoff_freq=2, **theirs)
    counts = counted(documents)
    trainer.add_words([(word.decode(), count) for word, count in counts.items()])
    trainer.train(256 + 1500)
    # Token -> id; the bytes come first, in an order of their own.
    theirs_by_id = sorted(trainer.validate_model().vocab, key=trainer.validate_model().vocab.get)
    ours = train_from_counts(counts, 256 + 1500, tie_break=tie_break)
    assert [left + right for left, right in ours.merges] == theirs_by_id[256:]


def test_counts_merge_and_grow() -> None:
    # More unique pre-tokens, short and long, than the tables and the arena begin with.
    words = [
        f" {'x' * (i % 40)}{chr(0x4E00 + i % 20000)}{chr(0x4E00 + i // 7)}" for i in range(40_000)
    ]
    first, second = counted(["".join(words[:25_000])]), counted(["".join(words[15_000:])])
    first.merge(second)
    expected = reference.count(["".join(words[:25_000]), "".join(words[15_000:])])
    assert dict(first.items()) == dict(expected)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Return a file of documents, larger than one part in these tests."""
    path = tmp_path / "corpus.txt"
    path.write_text(END.join(text for _, text in sorted(topics.items())), encoding="utf-8")
    return path


def test_every_kind_of_input_gives_the_same(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "_PART_BYTES", 2**16)
    documents = corpus.read_text(encoding="utf-8").split(END)
    expected = train_bpe(iter(documents), 600, [END])
    assert expected.special_tokens == {END: 599}
    for same in (str(corpus), corpus, [corpus]):
        assert train_bpe(same, 600, [END]) == expected
    for workers in (1, 2, 7):
        assert train_bpe(corpus, 600, [END], workers=workers) == expected


def test_what_is_no_text_is_located(tmp_path: Path, corpus: Path) -> None:
    with pytest.raises(TrainingError, match=r"the name of an existing file.*pathlib\.Path"):
        train_bpe([str(corpus)], 300)
    assert train_bpe([str(corpus), "text text"], 257).merges
    path = tmp_path / "corpus.bin"
    path.write_bytes(b"abc def\n" * 1_000_000 + b"ab\xffc")
    with pytest.raises(EncodingError, match=r"corpus\.bin: not UTF-8 at byte 8,000,002 .*0xff"):
        train_bpe(path, 300)
    with pytest.raises(EncodingError, match=r"character 2 of the text is .*ud800.* surrogate"):
        train_bpe(["ab\ud800", "c"], 300)
    with pytest.raises(FileNotFoundError, match=r"missing\.txt"):
        train_bpe(tmp_path / "missing.txt", 300)
    (tmp_path / "empty.txt").touch()
    for nothing in (tmp_path / "empty.txt", [], [""], [END]):
        with pytest.raises(TrainingError, match="no text to train on"):
            train_bpe(nothing, 300, [END])


@pytest.mark.parametrize("change", ["truncated", "longer", "of another time"])
def test_a_file_that_changes_meanwhile_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("low lower lowest\n" * 5_000)
    monkeypatch.setattr(train, "_PART_BYTES", 2**14)
    last_cut = SpecialTokenMatcher.last_cut

    def changed(*arguments: Any) -> int:
        size = corpus.stat().st_size
        if change == "of another time":
            os.utime(corpus, ns=(1, 1))
        else:
            os.truncate(corpus, size // 2 if change == "truncated" else size + 2)
        monkeypatch.setattr(SpecialTokenMatcher, "last_cut", last_cut)
        return last_cut(*arguments)

    monkeypatch.setattr(SpecialTokenMatcher, "last_cut", changed)
    wanted = r"corpus\.txt: was changed while it was being read \(expected 85,000 bytes as they"
    with pytest.raises(ChangedError, match=wanted):
        train_bpe(corpus, 300)


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    text = b"low lower lowest\n" * 2_000
    with ThreadPoolExecutor(1) as pool:
        pool.submit((tmp_path / "pipe").write_bytes, text)
        assert train_bpe(tmp_path / "pipe", 262).merges == train_bpe([text.decode()], 262).merges


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vocab_size": 256, "special_tokens": [END]}, "vocab_size 256 is too small.*at least 257"),
        ({"vocab_size": 2**30 + 1}, "vocab_size .* is too large: choose at most 1,073,741,824"),
        ({"vocab_size": 300, "special_tokens": [END, END]}, r"special token .* is given twice"),
        ({"vocab_size": 300, "special_tokens": [""]}, "is empty"),
        ({"vocab_size": 300, "tie_break": "coin"}, "'coin'; expected one of 'greatest-bytes', 'h"),
        ({"vocab_size": 300, "min_frequency": -1}, "min_frequency is -1"),
        ({"vocab_size": 300, "max_token_length": 0}, "max_token_length is 0"),
        ({"vocab_size": 300, "workers": 0}, "workers is 0; expected at least 1"),
    ],
)
def test_arguments_that_make_no_sense(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        train_bpe(["some text", "more"], **arguments)


def test_more_text_than_positions_can_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "_MAX_POSITIONS", 256 + 5)
    assert train_bpe(["abcde"], 300).merges == []
    message = r"pre-tokens hold 6 bytes, .* about \d+ GiB; at most 261 bytes are possible: train on"
    with pytest.raises(TrainingError, match=message):
        train_bpe(["abcdef"], 300)


def test_early_stop_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "bpe"):
        tokenizer = train_bpe(["ab ab", "x"], 1000, [END])
    assert tokenizer.merges == [(b"a", b"b")]
    assert tokenizer.vocab_size == 258
    assert "training stopped early: no pair occurs 2 times after 1 merges" in caplog.text
    assert "has 258 tokens, of 1000 at most; a larger one needs more text" in caplog.text

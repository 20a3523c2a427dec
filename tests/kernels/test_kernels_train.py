"""The kernels of training: counts and merges are those of `bpe.reference`."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from kernel_cases import as_batch, documents

from bpe import reference
from bpe.train import trainer as train
from bpe.train.counts import PretokenCounts, sum_counts
from bpe.train.trainer import train_from_counts


def test_counts_are_those_of_the_reference() -> None:
    texts = documents()
    counts = PretokenCounts()
    for some in (texts[:5], texts[5:]):
        counts.add(*as_batch(some))
    assert dict(counts.items()) == dict(reference.count(texts))
    assert counts.total == sum(reference.count(texts).values())


def test_counts_of_two_threads_are_those_of_one() -> None:
    texts = documents()
    of_threads = [PretokenCounts(), PretokenCounts()]
    for counts, some in zip(of_threads, (texts[:5], texts[2:]), strict=True):
        counts.add(*as_batch(some))
    buffer, offsets, found = sum_counts(of_threads).arrays()
    words = [buffer[i:j].tobytes() for i, j in pairwise(offsets.tolist())]
    assert len(set(words)) == len(words)
    assert dict(zip(words, found.tolist(), strict=True)) == dict(
        reference.count(texts[:5] + texts[2:])
    )


@pytest.mark.parametrize("tie_break", reference.TIE_BREAKS)
def test_merges_are_those_of_the_reference(tie_break: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "_PART_OF_ROWS", 2**12)
    texts = documents()
    counts = PretokenCounts()
    counts.add(*as_batch(texts))
    tokenizer = train_from_counts(counts, 256 + 40, tie_break=tie_break, workers=3)
    assert tokenizer.merges == reference.train(texts, 256 + 40, tie_break=tie_break)


@pytest.mark.parametrize("tie_break", reference.TIE_BREAKS)
def test_more_pairs_than_there_was_room_for(
    tie_break: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "_PAIRS", 1)
    # Few pairs of bytes, and many of what they make.
    chosen = random.Random(3)
    texts = ["".join(chosen.choices("abc", k=60)) for _ in range(30)]
    grown = []
    larger = train._grow
    monkeypatch.setattr(train, "_grow", lambda pairs: grown.append(1) or larger(pairs))
    counts = PretokenCounts()
    counts.add(*as_batch(texts))
    tokenizer = train_from_counts(counts, 256 + 200, tie_break=tie_break, min_frequency=1)
    assert tokenizer.vocabulary.merges == reference.train(
        texts, 256 + 200, tie_break=tie_break, min_frequency=1
    )
    assert len(grown) > 2

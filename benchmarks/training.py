"""From a file to a tokenizer, everything but imports.

    train                 the whole way
    first use and train   our compiled kernels are loaded at their first use, and a peer's when it
                          is imported: this counts the former, and leaves out the latter

Law: all sides read the same file, cut it at the same separators and learn as many merges. Where a
side breaks ties as Hugging Face does, its merges are compared with ours; else only time is.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from benchmarks.job import (
    END_OF_TEXT,
    OURS,
    Clock,
    Job,
    Result,
    digest_of,
    documents,
    import_ours,
    side,
)

if TYPE_CHECKING:
    from bpe import Tokenizer

T = TypeVar("T")

# The slow ones get no more than this.
_SLOW = 128_000_000


def _timed(clock: Clock, work: Callable[[], T]) -> T:
    trained = clock.time("train", work)
    clock.add_up("first use and train", ["train"])
    return trained


def _digest(merges: list[tuple[bytes, bytes]]) -> str:
    lines = [left.hex() + " " + right.hex() for left, right in merges]
    return digest_of("\n".join(lines).encode())


def _from_byte_level(merges: list[list[str]]) -> list[tuple[bytes, bytes]]:
    from bpe.reference import BYTE_LEVEL_ALPHABET

    byte_of = {character: byte for byte, character in enumerate(BYTE_LEVEL_ALPHABET)}
    as_bytes = [[bytes(byte_of[c] for c in token) for token in merge] for merge in merges]
    return [(left, right) for left, right in as_bytes]


@side("train", OURS)
def train_tokenmill(job: Job, clock: Clock) -> Result:
    """Ours, with the tie-break of Hugging Face."""
    from bpe import train_bpe

    import_ours()

    def work() -> Tokenizer:
        return train_bpe(
            job.corpus,
            job.vocab_size,
            [END_OF_TEXT],
            pattern=job.pattern,
            tie_break="huggingface",
            min_frequency=1,
            workers=job.threads,
        )

    def first() -> None:
        train_bpe(iter(["text text", "more"]), 257, pattern=job.pattern)

    clock.time("first use", first)
    trained = clock.time("train", work)
    clock.add_up("first use and train", ["first use", "train"])
    return Result(job.corpus.stat().st_size, _digest(trained.merges))


@side("train", "gigatoken", patterns=("gpt2",))
def train_gigatoken(job: Job, clock: Clock) -> Result:
    """gigatoken, from the file."""
    import gigatoken

    def work() -> list[tuple[bytes, bytes]]:
        source = gigatoken.TextFileSource([str(job.corpus)], separator=END_OF_TEXT)
        _, merges = gigatoken.train_bpe(
            source, job.vocab_size, [END_OF_TEXT], tie_breaking="huggingface"
        )
        return merges

    return Result(job.corpus.stat().st_size, _digest(_timed(clock, work)))


@side("train", "gigabpe", patterns=("gpt2",))
def train_gigabpe(job: Job, clock: Clock) -> Result:
    """gigabpe, from the file, where pre-tokens end at line ends: merges are others than ours."""
    import gigabpe

    def work() -> None:
        gigabpe.train_bpe(
            [str(job.corpus)],
            job.vocab_size,
            special_tokens=[END_OF_TEXT],
            min_frequency=1,
            pretokenizer="bytelevel",
            threads=job.threads,
        )

    _timed(clock, work)
    return Result(job.corpus.stat().st_size, None)


@side("train", "tokenizers", at_most=_SLOW)
def train_tokenizers(job: Job, clock: Clock) -> Result:
    """Hugging Face's trainer, from an iterator: from files it would cut at line ends."""
    import tokenizers
    from tokenizers import models, pre_tokenizers, trainers

    from bpe.split.patterns import PATTERNS

    def work() -> tokenizers.Tokenizer:
        tokenizer = tokenizers.Tokenizer(models.BPE())
        if job.pattern == "gpt2":
            splitter: Any = pre_tokenizers.ByteLevel(add_prefix_space=False)
        else:
            pattern = tokenizers.Regex(PATTERNS[job.pattern])
            splitter = pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Split(pattern, "isolated"),
                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
                ]
            )
        tokenizer.pre_tokenizer = splitter
        trainer = trainers.BpeTrainer(
            vocab_size=job.vocab_size,
            min_frequency=1,
            special_tokens=[END_OF_TEXT],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(documents(job.corpus), trainer)
        return tokenizer

    trained = json.loads(_timed(clock, work).to_str())
    return Result(job.corpus.stat().st_size, _digest(_from_byte_level(trained["model"]["merges"])))


@side("train", "ffbpe", at_most=_SLOW, patterns=("gpt2",))
def train_ffbpe(job: Job, clock: Clock) -> Result:
    """ffbpe, with the tie-break of Hugging Face."""
    import ffbpe

    def work() -> ffbpe.BpeTrainer:
        counter = ffbpe.PreTokenizer([]).word_counter()
        counter.add_source(documents(job.corpus))
        trainer = ffbpe.BpeTrainer(
            [],
            tie_break="smallest_pair_id",
            initial_alphabet="byte_level",
            bigram_cutoff_freq=1,
        )
        trainer.add_word_counter(counter)
        trainer.train(job.vocab_size - 1)
        return trainer

    trainer = _timed(clock, work)
    path = job.directory / "ffbpe-merges.txt"
    trainer.validate_model().save_merges_txt(path, format="gpt2")
    lines = path.read_text(encoding="utf-8").splitlines()
    # "left right => count"
    merges = [line.split(" ")[:2] for line in lines]
    return Result(job.corpus.stat().st_size, _digest(_from_byte_level(merges)))


@side("train", "rustbpe", at_most=_SLOW)
def train_rustbpe(job: Job, clock: Clock) -> Result:
    """rustbpe; its ties fall otherwise."""
    import rustbpe

    from bpe.split.patterns import PATTERNS

    def work() -> None:
        rustbpe.Tokenizer().train_from_iterator(
            iter(documents(job.corpus)), job.vocab_size - 1, pattern=PATTERNS[job.pattern]
        )

    _timed(clock, work)
    return Result(job.corpus.stat().st_size, None)


@side("train", "bpeasy", at_most=_SLOW)
def train_bpeasy(job: Job, clock: Clock) -> Result:
    """Bpeasy; its ties fall otherwise."""
    import bpeasy

    from bpe.split.patterns import PATTERNS

    def work() -> None:
        texts = iter(documents(job.corpus))
        # It wants a greatest length of tokens; this one is hardly ever reached.
        bpeasy.train_bpe(texts, PATTERNS[job.pattern], 256, job.vocab_size - 1)

    _timed(clock, work)
    return Result(job.corpus.stat().st_size, None)

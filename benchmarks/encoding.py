"""Text in memory -> ids in memory.

    load        the tokenizer, from its file
    first use   of a few words: what a side puts off until then (compiled code, tables, threads)
    cold        the whole text, the cache empty but for those words
    warm        the same text again

Law: both sides hold the text before the clock runs. The ids of all documents must be equal, one
after the other.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

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

T = TypeVar("T")
Ids = NDArray[np.uint32]

# Peers on one thread, and those that make lists of lists.
_SLOW = 100_000_000
_SLOWEST = 8_000_000
_FEW_WORDS = "a few words"


def _timed(clock: Clock, first: Callable[[], object], work: Callable[[], T]) -> T:
    clock.time("first use", first)
    ids = clock.time("cold", work)
    clock.add_up("first use and cold", ["first use", "cold"])
    clock.add_up("load to cold", ["load", "first use", "cold"])
    del ids
    return clock.time("warm", work)


@side("encode", OURS)
def encode_tokenmill(job: Job, clock: Clock) -> Result:
    """Ours, from bytes with separators to one array."""
    from bpe import Tokenizer

    import_ours()
    data = job.corpus.read_bytes()
    tokenizer = clock.time("load", lambda: Tokenizer.from_file(job.tokenizer))

    def encode(some: bytes) -> Ids:
        return tokenizer.encode_separated_to_numpy(some, END_OF_TEXT)[0]

    ids = _timed(clock, lambda: encode(_FEW_WORDS.encode()), lambda: encode(data))
    return Result(len(data), digest_of(ids))


@side("encode", "gigatoken")
def encode_gigatoken(job: Job, clock: Clock) -> Result:
    """gigatoken, from bytes with separators: the way that it recommends."""
    import awkward
    import gigatoken

    data = job.corpus.read_bytes()
    tokenizer = clock.time("load", lambda: gigatoken.Tokenizer(str(job.tokenizer)))
    source = gigatoken.BytesSource(data, END_OF_TEXT)
    few = gigatoken.BytesSource(_FEW_WORDS.encode(), END_OF_TEXT)
    ids = _timed(clock, lambda: tokenizer.encode_batch(few), lambda: tokenizer.encode_batch(source))
    return Result(len(data), digest_of(np.asarray(awkward.flatten(ids))))


@side("encode-texts", OURS)
@side("encode-one-thread", OURS, threads=1)
def encode_texts_tokenmill(job: Job, clock: Clock) -> Result:
    """Ours, from a list of strings."""
    from bpe import Tokenizer

    import_ours()
    texts = documents(job.corpus)
    tokenizer = clock.time("load", lambda: Tokenizer.from_file(job.tokenizer))

    def encode(some: list[str]) -> tuple[Ids, NDArray[np.int64]]:
        return tokenizer.encode_batch_to_numpy(some, allowed_special=())

    ids, _ = _timed(clock, lambda: encode([_FEW_WORDS]), lambda: encode(texts))
    return Result(job.corpus.stat().st_size, digest_of(ids))


@side("encode-texts", "gigatoken")
@side("encode-one-thread", "gigatoken", threads=1)
def encode_texts_gigatoken(job: Job, clock: Clock) -> Result:
    """gigatoken, from a list of strings; one thread is the calling one."""
    import awkward
    import gigatoken

    texts = documents(job.corpus)
    tokenizer = clock.time("load", lambda: gigatoken.Tokenizer(str(job.tokenizer)))

    def encode(some: list[str]) -> Any:
        return tokenizer.encode_batch(some, parallel=job.threads > 1)

    ids = _timed(clock, lambda: encode([_FEW_WORDS]), lambda: encode(texts))
    return Result(job.corpus.stat().st_size, digest_of(np.asarray(awkward.flatten(ids))))


def _encode_texts_flat(job: Job, clock: Clock, package: str) -> Result:
    """Encode with fastokens, or with snaptokens, which began as a copy of it."""
    texts = documents(job.corpus)
    kind = importlib.import_module(package).Tokenizer
    tokenizer = clock.time("load", lambda: kind.from_file(str(job.tokenizer)))

    def encode(some: list[str]) -> Ids:
        ids, _ = tokenizer.encode_batch_flat(some)
        return np.frombuffer(ids, np.uint32)

    ids = _timed(clock, lambda: encode([_FEW_WORDS]), lambda: encode(texts))
    return Result(job.corpus.stat().st_size, digest_of(ids))


@side("encode-texts", "fastokens")
@side("encode-one-thread", "fastokens", threads=1)
def encode_texts_fastokens(job: Job, clock: Clock) -> Result:
    """fastokens, from a list of strings, to one array."""
    return _encode_texts_flat(job, clock, "fastokens")


@side("encode-texts", "snaptokens")
@side("encode-one-thread", "snaptokens", threads=1)
def encode_texts_snaptokens(job: Job, clock: Clock) -> Result:
    """snaptokens, from a list of strings, to one array."""
    return _encode_texts_flat(job, clock, "snaptokens")


@side("encode-texts", "tokenizers", at_most=_SLOWEST)
def encode_texts_tokenizers(job: Job, clock: Clock) -> Result:
    """Hugging Face, from a list of strings."""
    import tokenizers

    texts = documents(job.corpus)
    tokenizer = clock.time("load", lambda: tokenizers.Tokenizer.from_file(str(job.tokenizer)))

    def encode(some: list[str]) -> Any:
        return tokenizer.encode_batch_fast(some, add_special_tokens=False)

    encoded = _timed(clock, lambda: encode([_FEW_WORDS]), lambda: encode(texts))
    ids = np.concatenate([np.array(some.ids, np.uint32) for some in encoded])
    return Result(job.corpus.stat().st_size, digest_of(ids))


@side("encode-one-thread", "tiktoken", threads=1, at_most=_SLOW)
def encode_one_thread_tiktoken(job: Job, clock: Clock) -> Result:
    """tiktoken, to NumPy, which is faster than to lists."""
    from bpe import Tokenizer

    texts = documents(job.corpus)
    encoding = clock.time("load", lambda: Tokenizer.from_file(job.tokenizer).to_tiktoken())

    def encode(text: str) -> Ids:
        return encoding.encode_to_numpy(text, allowed_special=set(), disallowed_special=())

    ids = _timed(clock, lambda: encode(_FEW_WORDS), lambda: [encode(text) for text in texts])
    return Result(job.corpus.stat().st_size, digest_of(*ids))


@side("encode-one-thread", "ffbpe", threads=1, at_most=_SLOW, patterns=("gpt2",))
def encode_one_thread_ffbpe(job: Job, clock: Clock) -> Result:
    """ffbpe, from tokens and merges in memory, to NumPy."""
    import ffbpe

    from bpe import Tokenizer

    texts = documents(job.corpus)
    vocabulary = Tokenizer.from_file(job.tokenizer).vocabulary
    ids_of = {token: token_id for token_id, token in vocabulary.tokens.items()}
    encoder = clock.time(
        "load",
        lambda: ffbpe.BpeEncoder(special_tokens=[], merges=vocabulary.merges, vocab=ids_of),
    )
    encode = encoder.encode_to_numpy
    ids = _timed(clock, lambda: encode(_FEW_WORDS), lambda: [encode(text) for text in texts])
    return Result(job.corpus.stat().st_size, digest_of(*(some.astype(np.uint32) for some in ids)))

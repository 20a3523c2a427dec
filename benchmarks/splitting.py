"""Text in memory -> boundaries of pre-tokens on one thread; or their counts on all threads.

Law: both sides begin with the whole text in memory, as the bytes or the strings that each likes
best, and end with everything found.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from benchmarks.job import END_OF_TEXT, OURS, Clock, Job, Result, digest_of, documents, side


@side("split", OURS, threads=1)
def split_tokenmill(job: Job, clock: Clock) -> Result:
    """Ours: a set of bits, one for each byte. In parts of some megabytes, as training does."""
    from bpe.split.pretokenizer import Pretokenizer

    pretokenizer = Pretokenizer(job.pattern)
    pretokenizer.boundaries(np.frombuffer(b"text", np.uint8), np.array([0, 4]))
    texts = [text.encode() for text in documents(job.corpus)]
    parts: list[list[bytes]] = [[]]
    n_bytes = 0
    for text in texts:
        if n_bytes >= 1 << 22:
            parts.append([])
            n_bytes = 0
        parts[-1].append(text)
        n_bytes += len(text)
    inputs = [
        (np.frombuffer(b"".join(part), np.uint8), np.cumsum([0, *map(len, part)])) for part in parts
    ]

    def work() -> list[NDArray[np.uint64]]:
        return [pretokenizer.boundaries(buffer, offsets) for buffer, offsets in inputs]

    found = clock.time("split", work)
    places, before = [np.zeros(1, np.int64)], 0
    for starts, (buffer, _) in zip(found, inputs, strict=True):
        bits = np.unpackbits(starts.view(np.uint8), bitorder="little")
        places.append(np.flatnonzero(bits)[1:] + before)
        before += len(buffer)
    return Result(before, digest_of(np.concatenate(places)))


@side("split", "regex", threads=1, at_most=32_000_000)
def split_regex(job: Job, clock: Clock) -> Result:
    """The package `regex`: a list of strings for each document."""
    import regex

    from bpe.split.patterns import PATTERNS

    pattern = regex.compile(PATTERNS[job.pattern])
    texts = documents(job.corpus)
    pretokens = clock.time("split", lambda: [pattern.findall(text) for text in texts])
    lengths = [len(pretoken.encode()) for some in pretokens for pretoken in some]
    places = np.cumsum([0, *lengths])
    return Result(int(places[-1]), digest_of(places))


@side("count", OURS)
def count_tokenmill(job: Job, clock: Clock) -> Result:
    """Ours: parts are counted on threads, then added up."""
    from bpe import PretokenCounts
    from bpe.split.pretokenizer import Pretokenizer, stands_across
    from bpe.train.counts import sum_counts

    buffer = np.fromfile(job.corpus, np.uint8)
    separator = END_OF_TEXT.encode()

    def edges() -> list[int]:
        pretokenizer, places = Pretokenizer(job.pattern), [0]
        while places[-1] < len(buffer):
            stop = min(places[-1] + (1 << 22), len(buffer))
            while stop < len(buffer):
                stop = pretokenizer.safe_cut(buffer, stop, len(buffer))
                if not stands_across(buffer, stop, separator):
                    break
                stop += 1
            places.append(stop)
        return places

    def work() -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
        idle = [PretokenCounts(job.pattern, [END_OF_TEXT]) for _ in range(job.threads)]

        def count(edge: tuple[int, int]) -> None:
            counts = idle.pop()
            counts.add(buffer[slice(*edge)], np.array([0, edge[1] - edge[0]]))
            idle.append(counts)

        with ThreadPoolExecutor(job.threads) as pool:
            list(pool.map(count, pairwise(edges())))
        return sum_counts(idle).arrays()

    warm = [PretokenCounts(job.pattern, [END_OF_TEXT]) for _ in range(2)]
    for counts in warm:
        counts.add(np.frombuffer(b"text", np.uint8), np.array([0, 4]))
    sum_counts(warm)
    buffer_of_words, offsets, of_words = clock.time("count", work)
    words = [buffer_of_words[i:j].tobytes() for i, j in pairwise(offsets.tolist())]
    counted = sorted(zip(words, of_words.tolist(), strict=True))
    return Result(len(buffer), _digest_of_counts(counted))


@side("count", "gigatoken", patterns=("gpt2",))
def count_gigatoken(job: Job, clock: Clock) -> Result:
    """What gigatoken counts with before it trains."""
    from gigatoken import gigatoken_rs

    data = job.corpus.read_bytes()
    counts = clock.time(
        "count", lambda: gigatoken_rs.pretokenized_counts(data, END_OF_TEXT.encode())
    )
    return Result(len(data), _digest_of_counts(sorted(counts)))


def _digest_of_counts(items: list[tuple[bytes, int]]) -> str:
    return digest_of(*(b"%b %d\n" % (word.hex().encode(), count) for word, count in items))

"""Train a tokenizer: the merges of `reference.train`, for both tie-breaks and any threads."""

from __future__ import annotations

import errno
import logging
import operator
import os
import stat
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bpe.arguments import checked
from bpe.encode.parallel_encoder import join_texts
from bpe.errors import ArgumentError, ChangedError, EncodingError, TrainingError
from bpe.files.locations import local_path
from bpe.parallel import available_workers, for_each, run_in_order
from bpe.reference import BYTE_LEVEL_ALPHABET, TIE_BREAKS, longest_token
from bpe.runtime.arrays import zeros
from bpe.special import SpecialTokenMatcher
from bpe.split.patterns import pattern_name
from bpe.split.pretokenizer import Pretokenizer
from bpe.text.utf8 import invalid_utf8, is_utf8
from bpe.tokenizer import Tokenizer
from bpe.train import learn_merges as kernels
from bpe.train.counts import FrozenCounts, PretokenCounts, sum_counts
from bpe.train.extend import (
    TokenizedCounts,
    added_texts,
    check_extension,
    extended_tokenizer,
    new_special_tokens,
    unmade_tokens,
)
from bpe.vocabulary import Vocabulary

_logger = logging.getLogger("bpe")

_PART_BYTES = 1 << 22  # size of a part of a file, which one thread counts
_PLACES_PER_CALL = 1 << 21  # some tens of milliseconds; then the kernel returns, to see Ctrl-C
_PAIRS = 2**17  # initial capacity
_MAX_POSITIONS = 2**31 - 1  # 32 bits; the first 256 are the bytes themselves
# Least bytes of pre-tokens for a thread to lay out, and most threads.
_PART_OF_ROWS, _MOST_PARTS = 2**20, 8
_MOST_TOLD_APART = 2**16  # greatest count in the histogram of `_least_merged`


@checked
def train_from_counts(
    counts: PretokenCounts | FrozenCounts, vocab_size: int, *, special_tokens: Sequence[str] = (),
    tie_break: str = "greatest-bytes", min_frequency: int = 2, max_token_length: int | None = None,
    workers: int | None = None, progress: Callable[[int, int], None] | None = None,
    extend: Tokenizer | None = None,
) -> Tokenizer:
    """Learn merges until the vocabulary is full, or no pair occurs `min_frequency` times.

    Args:
        counts: Counts of pre-tokens, not modified.
        vocab_size: Number of ids: 256 bytes, merges, special tokens.
        special_tokens: Have the last ids, in this order.
        tie_break: Order of pairs of equal count, "greatest-bytes" or "huggingface".
        min_frequency: Minimum count of a merged pair.
        max_token_length: Maximum bytes of a token, None for no limit; with "huggingface" see
            `bpe.reference.longest_token`.
        workers: Number of threads, one per processor if None; does not change the result.
        progress: Called with (merges made, merges wanted) repeatedly.
        extend: Tokenizer whose ids are kept, and whose tokens are merged instead of bytes; see
            `bpe.train.extend`. New tokens, then new special tokens, follow its last id. A merge may
            make a token that it has and that its merges do not make.

    Returns:
        The tokenizer; if training stopped early, which is logged, with a smaller vocabulary.

    Raises:
        TrainingError: Invalid arguments, no text, or too many unique pre-tokens; or the counts are
            not of the split pattern of `extend`.
        VocabularyError: No list of merges is equivalent to the ranks of `extend`.
        PatternError: The pattern of `extend` was written for tiktoken alone.
    """
    special_tokens = list(special_tokens)
    vocab_size, min_frequency, max_token_length, workers = _check(
        vocab_size, special_tokens, tie_break, min_frequency, max_token_length, workers
    )
    if extend is not None:
        special_tokens = new_special_tokens(extend, special_tokens)
        check_extension(extend, counts.pattern, vocab_size, special_tokens)
    if not counts.total:
        raise TrainingError(
            "there is no text to train on: every document is empty or consists of special tokens;"
            " give at least one file with text"
        )
    n_known = 256 if extend is None else extend.vocab_size
    n_wanted = vocab_size - n_known - len(special_tokens)
    by_bytes, least = tie_break == "greatest-bytes", max(min_frequency, 1)
    longest = longest_token(max_token_length, tie_break)
    longest = 2**31 - 1 if longest is None else longest
    workers = workers or available_workers()
    known = None if extend is None else TokenizedCounts.of(extend, counts.arrays(), workers)
    n_more = 0 if extend is None else len(unmade_tokens(extend.vocabulary))
    merge_ids = _learn(
        counts, known, n_wanted + n_more, by_bytes, least, longest, workers, progress
    )
    if extend is None:
        vocabulary = Vocabulary.from_merges(merge_ids, special_tokens)
        found = Tokenizer.from_vocabulary(vocabulary, pattern=counts.pattern, tie_break=tie_break)
    else:
        found = extended_tokenizer(extend, merge_ids.tolist(), n_wanted, special_tokens)
    if found.vocab_size < vocab_size:
        _logger.warning(
            "training stopped early: no pair occurs %d times after %d merges, so the"
            " vocabulary has %d tokens, of %d at most; a larger one needs more text",
            least, len(merge_ids), found.vocab_size, vocab_size,
        )
    return found


def memory_of_merging(n_bytes: int, n_pretokens: int) -> int:
    """Estimate the bytes of memory to merge `n_pretokens` unique pre-tokens of `n_bytes` in all."""
    # In `_learn`: the text twice, rows, places; offsets twice, counts; pairs.
    return (2 + 8 + 12) * n_bytes + 40 * n_pretokens + 50_000_000


def _check(
    vocab_size: int, special_tokens: Sequence[str], tie_break: str, min_frequency: int,
    max_token_length: int | None, workers: int | None,
) -> tuple[int, int, int | None, int | None]:
    """Return the numbers as int; raise TrainingError if arguments are invalid."""
    vocab_size, min_frequency = map(operator.index, (vocab_size, min_frequency))
    max_token_length, workers = (
        None if each is None else operator.index(each) for each in (max_token_length, workers)
    )
    if tie_break not in TIE_BREAKS:
        known = ", ".join(map(repr, TIE_BREAKS))
        raise TrainingError(f"unknown tie_break {tie_break!r}; expected one of {known}")
    if twice := sorted(token for token, n in Counter(special_tokens).items() if n > 1):
        raise TrainingError(f"special token {twice[0]!r} is given twice; give each one once")
    if "" in special_tokens:
        raise TrainingError("a special token is empty; it would be found everywhere: leave it out")
    if vocab_size > kernels.BEGINS:
        raise TrainingError(
            f"vocab_size {vocab_size:,} is too large: choose at most {kernels.BEGINS:,}"
        )
    if vocab_size < (least := 256 + len(special_tokens)):
        raise TrainingError(
            f"vocab_size {vocab_size:,} is too small: 256 bytes and {len(special_tokens)} special"
            f" tokens need at least {least:,}"
        )
    for name, value, lowest, highest in (
        ("min_frequency", min_frequency, 0, 2**62), ("workers", workers, 1, 2**16),
        ("max_token_length", max_token_length, 1, 2**31 - 1),
    ):
        if value is not None and value < lowest:
            raise TrainingError(f"{name} is {value}; expected at least {lowest}")
        if value is not None and value > highest:
            raise TrainingError(f"{name} is {value:,}; expected at most {highest:,}")
    return vocab_size, min_frequency, max_token_length, workers


def _learn(
    counts: PretokenCounts | FrozenCounts, known: TokenizedCounts | None, n_wanted: int,
    by_bytes: bool, least: int, longest: int, workers: int,
    progress: Callable[[int, int], None] | None,
) -> NDArray[np.int32]:
    """Learn merges: int32[n, 2], the symbols of their parts; see `kernels.merge_steps`.

    The first symbols are bytes, or ids if `known` has those of the pre-tokens.
    """
    buffer, offsets, counts_of = counts.arrays()
    first_text, first_offsets = np.arange(256, dtype=np.uint8), np.arange(257)
    if known is not None:
        first_text, first_offsets = known.data, known.offsets
    n_first, n_before = len(first_offsets) - 1, len(first_text)
    if n_before + len(buffer) > _MAX_POSITIONS:
        raise TrainingError(
            f"the unique pre-tokens hold {len(buffer):,} bytes, and merging would need about"
            f" {memory_of_merging(len(buffer), len(counts_of)) / 2**30:,.0f} GiB; at most"
            f" {_MAX_POSITIONS:,} bytes are possible: train on a sample of the text"
        )
    text = zeros(n_before + len(buffer), np.uint8)
    text[:n_before], text[n_before:] = first_text, buffer
    # Position 0 is that of no pre-token, for the row before one is looked at.
    offsets, starts = offsets + n_before, np.empty(0, np.uint32)
    n_bytes_of = np.ones(256, np.int32) if known is None else np.diff(known.offsets)
    incomplete = np.diff(offsets) <= longest
    if known is not None:
        offsets = known.ends + 1
        starts = np.zeros(len(known.ids) + 1, np.uint32)
        np.cumsum(n_bytes_of[known.ids[:-1]], out=starts[2:])
        starts[1:] += np.uint32(n_before)
    incomplete &= np.diff(offsets) >= 2
    n_positions = int(offsets[-1])
    # Each merge removes at least one symbol.
    n_symbols = n_first + min(n_wanted, n_positions)
    symbol_bits = (n_symbols - 1).bit_length()
    frequent = np.flatnonzero(counts_of >= kernels.BEGINS >> symbol_bits)
    most = offsets[frequent], counts_of[frequent]
    pretokens = kernels.Pretokens(text, offsets, counts_of, *most, starts)
    del buffer, offsets
    least = max(least, _least_merged(counts_of[incomplete], n_wanted))
    places, none = np.full(n_symbols, -1, np.int64), np.full((2, n_symbols), -1, np.int32)
    places[:n_first] = first_offsets[:-1]
    lengths = n_bytes = np.ones(n_symbols, np.int32)
    if known is not None:
        n_bytes = lengths.copy()
        n_bytes[:n_first] = n_bytes_of
    symbols = kernels.Symbols(
        lengths=lengths, n_bytes=n_bytes, places=places,
        order=_order(n_symbols, text, first_offsets, by_bytes),
        pair_before=none[0], pair_after=none[1],
        merges=np.zeros(2 * (n_symbols - n_first), np.int32),
    )
    settings = np.array([symbol_bits, least, longest, n_wanted, by_bytes, n_first], np.int64)
    if known is None:
        pairs, state = _lay_out(pretokens, settings, workers)
    else:
        pairs, state = _lay_out_tokens(pretokens, known.ids, n_bytes, settings)
    kernels.queue_pairs(pretokens, symbols, pairs, state, 0)
    while True:
        status = kernels.merge_steps(pretokens, symbols, pairs, state, _PLACES_PER_CALL)
        n_merges = int(state.used[kernels.N_MERGES])
        if progress is not None:
            progress(n_merges, n_wanted)
        if status == kernels.FINISHED:
            break
        if status == kernels.GROW_PAIRS:
            pairs = _grow(pairs)
    return symbols.merges[: 2 * n_merges].reshape(-1, 2)


def _lay_out(
    pretokens: kernels.Pretokens, settings: NDArray[np.int64], workers: int
) -> tuple[kernels.Pairs, kernels.MergeState]:
    """Lay out all bytes in rows, and the pairs of bytes that may be merged, not yet queued."""
    least, longest = settings[[kernels.LEAST, kernels.LONGEST]].tolist()
    n_positions = len(pretokens.text)
    n_parts = min(workers, _MOST_PARTS, 1 + n_positions // _PART_OF_ROWS)
    spaced = np.linspace(0, n_positions, n_parts + 1, dtype=np.int64)
    edges = np.searchsorted(pretokens.offsets, spaced)
    parts = list(pairwise(np.minimum(edges, len(pretokens.counts)).tolist()))
    code_counts, occurrences = np.zeros((2, n_parts, 65536), np.int64)

    def count_byte_pairs(number: int, part: tuple[int, int]) -> None:
        counted = code_counts[number], occurrences[number]
        kernels.count_byte_pairs(pretokens, *part, *counted)

    for_each(parts, count_byte_pairs, n_parts)
    counts_of_all = code_counts.sum(axis=0)
    codes = np.flatnonzero((counts_of_all >= least) & (longest >= 2))
    n_places = occurrences[:, codes].sum(axis=0)
    places = np.cumsum(np.append(0, occurrences[:, codes].T))
    next_places = places[:-1].reshape(len(codes), n_parts).T.copy()
    pairs, state = _new_state(
        n_positions, settings, (codes >> 8, codes & 255), counts_of_all[codes], n_places
    )
    pair_of_code = np.full(65536, kernels.NO_PAIR, np.int32)
    pair_of_code[codes] = np.arange(len(codes), dtype=np.int32)

    def fill_rows(number: int, part: tuple[int, int]) -> None:
        kernels.fill_rows(pretokens, *part, state, pair_of_code, next_places[number])

    for_each(parts, fill_rows, n_parts)
    return pairs, state


def _lay_out_tokens(
    pretokens: kernels.Pretokens, ids: NDArray[np.int32], n_bytes: NDArray[np.int32],
    settings: NDArray[np.int64],
) -> tuple[kernels.Pairs, kernels.MergeState]:
    """Lay out the tokens of pre-tokens in rows, and their pairs, as `_lay_out` does bytes."""
    ends, least = pretokens.offsets - 1, settings[kernels.LEAST]
    is_last = np.zeros(len(ids), np.bool_)
    is_last[ends[1:] - 1] = True
    first = np.flatnonzero(~is_last).astype(np.int32)
    # Arrays of all positions are most of the memory: few are there at a time.
    codes = ids[first].astype(np.int64)
    codes <<= 32
    codes |= ids[first + 1]
    order = np.argsort(codes, kind="stable")
    codes = codes[order]
    first = first[order]
    del order
    is_new = np.ones(len(codes), np.bool_)
    np.not_equal(codes[1:], codes[:-1], out=is_new[1:])
    starts = np.flatnonzero(is_new)
    n_places = np.diff(starts, append=len(codes))
    left, right = codes[starts] >> 32, codes[starts] & 0xFFFFFFFF
    del codes, is_new
    counts = np.repeat(pretokens.counts, np.diff(ends))[first]
    counts_of = np.add.reduceat(counts, starts) if len(starts) else starts
    del counts
    is_kept = counts_of >= least
    is_kept &= n_bytes[left].astype(np.int64) + n_bytes[right] <= settings[kernels.LONGEST]
    numbers = np.where(is_kept, np.cumsum(is_kept) - 1, kernels.NO_PAIR).astype(np.int32)
    of_places = np.repeat(numbers, n_places)
    pairs, state = _new_state(
        len(ids) + 1, settings, (left[is_kept], right[is_kept]), counts_of[is_kept],
        n_places[is_kept],
    )
    kept = first[of_places >= 0]
    state.places[: len(kept)] = kept
    state.places[: len(kept)] += 1
    del kept
    rows = state.rows[2:-2].reshape(-1, 2) if len(ids) else state.rows.reshape(-1, 2)
    rows[first, kernels.PAIR] = of_places
    rows[is_last, kernels.PAIR] = kernels.ENDS
    del first, of_places
    counts = np.repeat(pretokens.counts, np.diff(ends))
    counts[counts >= kernels.BEGINS >> settings[kernels.SYMBOL_BITS]] = 0
    counts <<= settings[kernels.SYMBOL_BITS]
    counts |= ids
    rows[:, kernels.HEAD] = counts
    rows[ends[:-1], kernels.HEAD] |= kernels.BEGINS
    return pairs, state


def _new_state(
    n_positions: int, settings: NDArray[np.int64],
    parts: tuple[NDArray[np.int64], NDArray[np.int64]], counts: NDArray[np.int64],
    n_places: NDArray[np.int64],
) -> tuple[kernels.Pairs, kernels.MergeState]:
    """Return the first pairs, (left, right) `parts`, and a state with room for their places."""
    n, stops = len(counts), np.cumsum(n_places)
    pairs = _pairs(max(_PAIRS, 2 * n))
    pairs.left[:n], pairs.right[:n], pairs.counts[:n] = *parts, counts
    pairs.first_place[:n], pairs.n_places[:n] = stops - n_places, n_places
    most_places = 2 * int(n_places.max(initial=0)) + 1
    state = kernels.MergeState(
        # One more, for the row after the last pair is prefetched.
        rows=zeros(2 * (n_positions + 1), np.int32),
        settings=settings, places=zeros(3 * n_positions, np.int32),
        new_pairs=zeros(most_places, np.int32), new_places=zeros(most_places, np.int32),
        used=np.array([n, 0, 0, n_places.sum(), 0], np.int64),
    )
    return pairs, state


def _least_merged(incomplete: NDArray[np.int64], n_wanted: int) -> int:
    """Return a lower bound of the counts of merged pairs.

    `incomplete` are counts of the pre-tokens of several symbols, and as many bytes as a token may
    have. While a pre-token of count n has several symbols, its pairs have a count of at least n. A
    merge completes at most one pre-token. So if `n_wanted` of them have a count of at least n, one
    is incomplete before each of `n_wanted` merges, and the merged pair, which has the highest
    count, has at least n.
    """
    of_count = np.bincount(
        np.minimum(incomplete, _MOST_TOLD_APART), minlength=_MOST_TOLD_APART + 1
    )
    enough = np.flatnonzero(np.cumsum(of_count[::-1]) >= n_wanted)
    return int(_MOST_TOLD_APART - enough[0]) if len(enough) else 0


def _order(
    n_symbols: int, text: NDArray[np.uint8], offsets: NDArray[np.int64], by_bytes: bool
) -> NDArray[np.uint64]:
    """Return `kernels.Symbols.order`; `offsets` are those of the first symbols in `text`."""
    n_first, lengths = len(offsets) - 1, np.diff(offsets)
    if by_bytes:
        # The kernel fills in entries of merges.
        order = np.zeros(n_symbols, np.uint64)
        for i in range(min(8, int(lengths.max()))):
            longer = np.flatnonzero(lengths > i)
            shift = np.uint64(56 - 8 * i)
            order[longer] |= text[offsets[longer] + i].astype(np.uint64) << shift
        return order
    # Bytes by their characters, others by their numbers.
    numbers = np.arange(256, 256 + n_symbols, dtype=np.uint64)
    single = np.flatnonzero(lengths[:n_first] == 1)
    by_character = np.argsort(np.argsort([ord(character) for character in BYTE_LEVEL_ALPHABET]))
    numbers[single] = by_character[text[offsets[single]]]
    # Reversed, for the least number precedes in Hugging Face, the greatest in the kernel.
    return np.uint64(2**32) - numbers


def _pairs(capacity: int) -> kernels.Pairs:
    narrow, wide = partial(zeros, capacity, np.int32), partial(zeros, capacity, np.int64)
    return kernels.Pairs(
        left=narrow(), right=narrow(), counts=wide(), first_place=wide(), n_places=narrow(),
        queue=narrow(), queue_counts=wide(),
    )


def _grow(pairs: kernels.Pairs) -> kernels.Pairs:
    larger = _pairs(2 * len(pairs.left))
    for name, before in pairs._asdict().items():
        getattr(larger, name)[: len(before)] = before
    return larger


@checked
def train_bpe(
    input: str | os.PathLike[str] | Iterable[str] | Iterable[os.PathLike[str]], vocab_size: int,
    special_tokens: Sequence[str] = (), *, pattern: str = "gpt2", tie_break: str = "greatest-bytes",
    min_frequency: int = 2, max_token_length: int | None = None, workers: int | None = None,
    extend: Tokenizer | None = None,
) -> Tokenizer:
    """Train a tokenizer on files or on texts.

    Args:
        input: A path (str or PathLike) or an iterable of PathLike: text files in UTF-8, in which
            special tokens separate documents. Or an iterable of str: documents.
        vocab_size: Number of ids: 256 bytes, merges, special tokens.
        special_tokens: Have the last ids; their text is not learnt from.
        pattern: Split pattern, a name or a regex.
        tie_break: See `train_from_counts`.
        min_frequency: Minimum count of a merged pair.
        max_token_length: See `train_from_counts`.
        workers: Number of threads, one per processor if None.
        extend: See `train_from_counts`; text is split by its pattern, and added tokens are special.

    Raises:
        OSError: A file cannot be read.
        ChangedError: A file has changed while it was being read.
        EncodingError: A file is not UTF-8, or a text has lone surrogates.
        TrainingError: As `train_from_counts`, or the texts are names of files.
        PatternError: The pattern is unknown.
    """
    special_tokens = list(special_tokens)
    vocab_size, min_frequency, max_token_length, workers = _check(
        vocab_size, special_tokens, tie_break, min_frequency, max_token_length, workers
    )
    name, cut_out = pattern_name(pattern), special_tokens
    if extend is not None:
        name = extend.pattern
        new = new_special_tokens(extend, special_tokens)
        check_extension(extend, name, vocab_size, new)
        cut_out = [*added_texts(extend), *new]
    counted: list[PretokenCounts] = []

    def make_work() -> Callable[[_Documents], None]:
        counts = PretokenCounts(name, cut_out)
        counted.append(counts)
        return lambda documents: counts.add(*documents())

    parts = _parts(input, name, cut_out)
    with closing(run_in_order(parts, make_work, workers or available_workers())) as results:
        deque(results, maxlen=0)
    return train_from_counts(
        sum_counts(counted or [PretokenCounts(name, cut_out)]), vocab_size,
        special_tokens=special_tokens, tie_break=tie_break, min_frequency=min_frequency,
        max_token_length=max_token_length, workers=workers, extend=extend,
    )


# Returns uint8[n_bytes], UTF-8, and int64[n_documents + 1], the offsets of documents.
_Documents = Callable[[], tuple[NDArray[np.uint8], NDArray[np.int64]]]


def _parts(
    input: str | os.PathLike[str] | Iterable[str] | Iterable[os.PathLike[str]], pattern: str,
    special_tokens: Sequence[str],
) -> Iterator[_Documents]:
    if isinstance(input, str | os.PathLike):
        input = [Path(local_path(input))]
        if not os.path.exists(input[0]):
            what = "No such file or directory; to train on a text, put it into a list"
            raise FileNotFoundError(errno.ENOENT, what, str(input[0]))
    texts: list[str] = []
    size = n_texts = 0
    all_exist = True  # then they are likely to be names by mistake
    for item in input:
        if isinstance(item, os.PathLike):
            yield from _parts_of_file(Path(item), pattern, special_tokens)
            continue
        name = item
        n_texts += 1
        if not isinstance(item, str):
            raise ArgumentError(
                f"input: should have texts or paths; got {item!r:.100} as number {n_texts:,}"
            )
        all_exist = all_exist and os.path.isfile(item)
        texts.append(item)
        size += len(item)
        if size >= _PART_BYTES:
            yield partial(join_texts, texts)
            texts, size = [], 0
    if n_texts and all_exist:
        raise TrainingError(
            f"every one of the {n_texts} texts is the name of an existing file, {name!r}"
            " for one; to train on files pass pathlib.Path objects, to train on these very texts"
            " add one that names no file"
        )
    if texts:
        yield partial(join_texts, texts)


def _parts_of_file(path: Path, pattern: str, special_tokens: Sequence[str]) -> Iterator[_Documents]:
    """Yield parts of a file, each a document; they end where a cut changes no pre-token.

    Raises:
        ChangedError: The file has changed meanwhile.
    """
    matcher = SpecialTokenMatcher(dict.fromkeys(special_tokens, 0))
    safe_cut = Pretokenizer(pattern).safe_cut
    start, data = 0, b""
    with open(path, "rb") as file:
        before = _size_and_time(path)
        # Text without a safe cut is searched again when it has doubled.
        while more := file.read(max(_PART_BYTES, len(data))):
            data += more
            cut = matcher.last_cut(data, safe_cut)
            if cut:
                yield partial(_check_part, path, start, data[:cut])
            start, data = start + cut, data[cut:]
    if data:
        yield partial(_check_part, path, start, data)
    if _size_and_time(path) != before:
        raise ChangedError(
            f"{path}: was changed while it was being read (expected {before[0]:,} bytes as they"
            " were at first); train again when nothing writes to it"
        )


def _size_and_time(path: Path) -> tuple[int, int]:
    """Return the size in bytes and the modification time in ns of a regular file, else zeros."""
    state = os.stat(path)
    return (state.st_size, state.st_mtime_ns) if stat.S_ISREG(state.st_mode) else (0, 0)


def _check_part(path: Path, start: int, data: bytes) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return a part of a file from byte `start` on as one document; raise unless it is UTF-8."""
    part = np.frombuffer(data, np.uint8)
    if not is_utf8(part):
        place, what = invalid_utf8(part)
        raise EncodingError(
            f"{path}: not UTF-8 at byte {start + place:,} (found {what}); convert it to UTF-8"
        )
    return part, np.array([0, len(part)])

"""Pre-tokens -> token ids, as `reference.encode` gives them: looked up if known, else merged.

Most pre-tokens are one token of up to eight bytes. They are in a table that all threads share (see
`token_hash`), with 8 bytes for each token. The others, misses, are looked up in a small cache of
the thread, whose rows have up to four ids to be copied; then in the cache of all threads
(`bpe.encode.cache_rows`); else they are merged.

Pre-tokens are handled in groups, in passes that seldom wait for memory or mispredict: ids of tokens
and a list of misses; keys of misses; their ids in the thread cache; those of the others; then all
ids in order. Each pass prefetches for the next. A single pass was three times slower.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bpe.encode.apply_merges import SCRATCH_BYTES
from bpe.encode.cache_rows import PretokenCache, is_full, publish_counts
from bpe.encode.group import (
    COPIED,
    END_OF_DOCUMENT,
    HIGH,
    MISSES,
    fill_tail,
    take_positions,
)
from bpe.encode.misses import FACTOR, emit_unseen, look_up_misses
from bpe.runtime import machine
from bpe.runtime.jit import kernel
from bpe.runtime.machine import copy_16_ids

TOKEN_BYTES = 8  # bytes of the longest token in the table of tokens
TOKEN_BITS = 15  # of the places in that table, and of an id in it: 256 KiB stay near the processor

PADDING = np.array([2**64 - (1 << 8 * n) for n in range(TOKEN_BYTES + 1)] + [2**64 - 1], np.uint64)
"""uint64[TOKEN_BYTES + 2], at n the padding of a token of n bytes to 8: 0xFF, which is in no UTF-8.
The last entry replaces all bytes, for longer tokens."""


class Documents(NamedTuple):
    """Bytes and ids of each document.

    With gaps, range d of `offsets` is a document if d is even, and without ids if it is odd: then
    `d & gaps` is 1.
    """

    offsets: NDArray[np.int64]  # int64[n_documents + 1], of bytes
    token_offsets: NDArray[np.int64]  # int64[n_documents + 1], of ids; replaced
    # int64[4]: id before and after each (-1: none), 1 if the last one continues in a later call, 1
    # if there are gaps
    around: NDArray[np.int64]


@kernel
def token_hash(word):
    """Return an invertible hash of the 8 bytes of a short pre-token: no two have the same; 0 -> 0.

    The lowest TOKEN_BITS, the upper bits of the product, are its place in `Tables.tokens`. The row
    there is `hash ^ id`: `row ^ hash` is the id, and larger than any id for another hash.
    """
    return machine.rotate(machine.multiply(word, FACTOR), np.uint64(TOKEN_BITS))


@kernel
def longest_pretoken(starts):
    """Return the bytes of the longest pre-token, or SCRATCH_BYTES: starts 0 and 5000 -> 5000."""
    longest, k = np.int64(SCRATCH_BYTES), np.int64(0)
    while k < starts.size:
        if starts[k] == 0:
            # The first word and the last one have a bit.
            before = k
            while before > 0 and starts[before] == 0:
                before -= 1
            while k < starts.size - 1 and starts[k] == 0:
                k += 1
            start = 64 * before + 63 - machine.leading_zeros(starts[before])
            longest = max(longest, 64 * k + machine.trailing_zeros(starts[k]) - start)
        # A longer one has so many words without a bit that one of them is looked at.
        k += SCRATCH_BYTES // 64 - 1
    return longest


@kernel
def tokens_between(tokens, source, source_start, positions, first, stop, group, n_misses):
    """Put the ids of tokens among pre-tokens `first` to `stop` into `group`, and list the misses.

    Example: pre-tokens ab, xy, c with tokens ab, c -> their ids at 0 and 2; from MISSES on: 1.
    `source[0]` is byte `source_start` of the text. Returns the number of misses now.
    """
    machine.noinline()
    most = np.uint64(2**TOKEN_BITS - 1)
    # Unsigned numbers need no test for places counted from the end.
    i, n, one = np.uint64(first), np.uint64(n_misses), np.uint64(1)
    start, last = positions[i], positions[np.uint64(stop)]
    # A loop whose end cannot be counted is not unrolled: registers are just enough.
    while start != last:
        end = positions[i + one]
        length = np.uint64(min(end - start, np.int64(TOKEN_BYTES + 1)))
        hashed = token_hash(machine.load_u64(source, start - source_start) | PADDING[length])
        differing = tokens[hashed & most] ^ hashed
        # Without a branch, which would be mispredicted.
        group[i] = np.uint32(differing)
        group[n + MISSES] = np.uint32(i)
        n += np.uint64(differing > most)
        i += one
        start = end
    return np.int64(n)


@kernel
def take_group(tables, scratch, documents, document, buffer, tail_start, n_pretokens):
    """Put the ids of a group's tokens into `scratch.group`; return the number of misses.

    Ends of documents are misses, too: tokens ab | c -> END_OF_DOCUMENT | 1; `document` is open.
    """
    machine.always_inline()
    positions, group, tail = scratch.positions, scratch.group, scratch.tail_text
    offsets, gaps = documents.offsets, documents.around[3]
    last = offsets.size - 1
    first, n_misses = 0, 0
    while True:
        # The pre-tokens of one document.
        stop = n_pretokens
        end = offsets[min(document + 1, last)]
        if positions[n_pretokens - 1] >= end:
            stop = first
            while positions[stop] < end:
                stop += 1
        if not document & gaps:
            inside = stop
            while inside > first and positions[inside - 1] >= tail_start:
                inside -= 1
            n_misses = tokens_between(
                tables.tokens, buffer, 0, positions, first, inside, group, n_misses
            )
            n_misses = tokens_between(
                tables.tokens, tail, tail_start, positions, inside, stop, group, n_misses
            )
        if stop == n_pretokens:
            return n_misses
        group[MISSES + np.uint64(n_misses)] = END_OF_DOCUMENT | np.uint32(stop)
        n_misses += 1
        first = stop
        while document < last and offsets[document + 1] <= positions[stop]:
            document += 1


@kernel
def copy_ids(source, first, stop, ids, n_ids):
    """Append `source[first:stop]`, up to COPIED more; return the number of ids: 2:5, 7 -> 10."""
    machine.always_inline()
    copy_16_ids(source, first, ids, n_ids)
    for done in range(COPIED, stop - first, COPIED):
        copy_16_ids(source, first + done, ids, n_ids + done)
    return n_ids + stop - first


@kernel
def emit_ids(found, group, first, copied, n_misses, ids, n_ids):
    """Append ids from pre-token `copied` through the last miss before one not in the thread cache.

    `first` is the index of the next miss. Returns (index of the miss that is not cached, n_misses
    for none; first pre-token whose ids are not written; n_ids). Example: token 5, cached miss 7 8,
    token 6, miss, n_ids 0 -> ids 5 7 8; (1, 2, 3).
    """
    machine.noinline()
    number, n = np.uint64(first), np.uint64(n_misses)
    while number < n:
        second_ids = found[HIGH + number]
        n_found = np.int64(second_ids >> np.uint64(61))
        if n_found == 0:
            break
        i = np.int64(group[MISSES + number])
        n_ids = copy_ids(group, copied, i, ids, n_ids)
        # Always four; those past the number are overwritten by the next ones.
        machine.store_halves_of_two(found[number], second_ids, ids, n_ids)
        n_ids += n_found
        copied = i + 1
        number += np.uint64(1)
    return np.int64(number), copied, n_ids


@kernel
def close_documents(documents, document, position, ids, n_ids, n_before):
    """Close every document that ends at or before `position`, and open the next.

    `n_before` ids were written before those in `ids`. Returns (the open document, number of ids):
    offsets 0 3 5, document 0, position 3, id 9 after each, one id -> 9 is appended; (1, 2).
    """
    last = documents.offsets.size - 2
    before, after, ends_mid_document, gaps = documents.around
    while document <= last and documents.offsets[document + 1] <= position:
        is_gap = document & gaps
        if after >= 0 and not is_gap and not (document == last and ends_mid_document):
            ids[n_ids] = after
            n_ids += 1
        document += 1
        documents.token_offsets[document] = n_before + n_ids
        if before >= 0 and document <= last and not document & gaps:
            ids[n_ids] = before
            n_ids += 1
    return document, n_ids


@kernel
def emit_group(
    tables, thread_cache, cache, scratch, documents, document, buffer, n_pretokens, n_misses, ids,
    n_ids, n_before,
):
    """Append a group's ids in order (5, miss 7 8, 6 -> 5 7 8 6); return as `close_documents`."""
    machine.always_inline()
    group, gaps = scratch.group, documents.around[3]
    number, copied = 0, 0
    while True:
        number, copied, n_ids = emit_ids(scratch.found, group, number, copied, n_misses, ids, n_ids)
        if number == n_misses:
            break
        miss = group[MISSES + np.uint64(number)]
        i = np.int64(miss & ~END_OF_DOCUMENT)
        if not document & gaps:
            n_ids = copy_ids(group, copied, i, ids, n_ids)
        copied = i
        if miss >= END_OF_DOCUMENT:
            document, n_ids = close_documents(
                documents, document, scratch.positions[i], ids, n_ids, n_before
            )
        else:
            row = np.uint64(number)
            n_ids = emit_unseen(tables, thread_cache, cache, scratch, buffer, row, ids, n_ids)
            copied += 1
        number += 1
    if not document & gaps:
        n_ids = copy_ids(group, copied, n_pretokens, ids, n_ids)
    return document, n_ids


@kernel
def encode_pretokens(
    cache, tables, scratch, documents, thread_cache, own, buffer, starts, cursor, ids, narrow,
    n_ids, most, though_full,
):
    """Encode pre-tokens from `cursor` on until the text or `most` groups are done, or a full cache.

    Example: b"ab c", pre-tokens ab and " c": starts 0b10101; merge (a, b) -> ids of ab, " ", c.

    Args:
        cache, tables, scratch, documents: See there; `own` replaces that of `cache`.
        thread_cache: uint64[4 * power of two], see `bpe.encode.misses`. Modified in place.
        buffer: uint8[n_bytes or more].
        starts: uint64[n_bytes // 64 + 1 or more], where pre-tokens begin, and the end.
        cursor: int64[4]: see `take_positions`; the open document; bytes of the longest pre-token,
            0 before the first call. Modified in place.
        ids: uint32, with room for one id per byte, those around documents, and COPIED more.
        narrow: uint16, the same memory, if ids of 16 bits are to be written; else uint16[0].
        n_ids: The number of ids that are written already.
        most: Groups after which the kernel returns, so that signals are seen.
        though_full: Go on with a full cache.

    Returns:
        The number of ids written so far. The text is done when `cursor[0]` is n_bytes // 64 + 1.
        No group is begun if `scratch` has no room for the longest pre-token.
    """
    n_bytes = documents.offsets[documents.offsets.size - 1]
    starts = starts[: (n_bytes >> 6) + 1]
    cache = PretokenCache(
        cache.rows, cache.long_rows, cache.arena, cache.arena_bytes, cache.used, cache.limits, own
    )
    if cursor[3] == 0:
        cursor[3] = longest_pretoken(starts)
    if 4 * cursor[3] > scratch.rows.size:
        return n_ids
    tail_start = fill_tail(buffer, n_bytes, scratch.tail)
    document = cursor[2]
    while most > 0 and cursor[0] < starts.size and (though_full or not is_full(cache)):
        most -= 1
        n_pretokens = max(take_positions(starts, cursor, scratch.positions) - 1, 0)
        n_misses = 0
        if n_pretokens > 0:
            n_misses = take_group(
                tables, scratch, documents, document, buffer, tail_start, n_pretokens
            )
            look_up_misses(tables, thread_cache, cache, scratch, buffer, tail_start, n_misses)
        # Ids of 16 bits are written over those of 32 bits of a group, which begin after all others.
        n_before = n_ids >> 1 if narrow.size else np.int64(0)
        first_id = n_ids - n_before
        document, n_ids = emit_group(
            tables, thread_cache, cache, scratch, documents, document, buffer,
            n_pretokens, n_misses, ids, first_id, n_before,
        )
        if cursor[0] == starts.size:
            document, n_ids = close_documents(documents, document, n_bytes, ids, n_ids, n_before)
        if narrow.size:
            for i in range(first_id, n_ids, COPIED):
                copy_16_ids(ids, i, narrow, n_before + i)
        n_ids += n_before
        publish_counts(cache)
    cursor[2] = document
    return n_ids

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

import numpy as np

from bpe.encode.cache_rows import PretokenCache, is_full, publish_counts
from bpe.encode.merge import SCRATCH_BYTES
from bpe.encode.misses import FACTOR, emit_unseen, look_up_misses
from bpe.encode.work import (
    COPIED,
    END_OF_SPAN,
    GROUPS_LEFT,
    HIGH,
    IGNORES_FULL,
    LONGEST,
    MISSES,
    N_IDS,
    NEXT_WORD,
    OPEN_RANGE,
    Text,
    fill_tail,
    take_positions,
)
from bpe.runtime import machine
from bpe.runtime.jit import kernel
from bpe.runtime.machine import copy_16_ids

TOKEN_BYTES = 8  # bytes of the longest token in the table of tokens
TOKEN_BITS = 15  # of the places in that table, and of an id in it: 256 KiB stay near the processor

PADDING = np.array([2**64 - (1 << 8 * n) for n in range(TOKEN_BYTES + 1)] + [2**64 - 1], np.uint64)
"""uint64[TOKEN_BYTES + 2], at n the padding of a token of n bytes to 8: 0xFF, which is in no UTF-8.
The last entry replaces all bytes, for longer tokens."""


@kernel
def token_hash(word):
    """Return an invertible hash of the 8 bytes of a short pre-token: no two have the same.

    The lowest TOKEN_BITS, the upper bits of the product, are its place in `Model.tokens`. The row
    there is `hash ^ id`: `row ^ hash` is the id, and larger than any id for another hash.
    """
    return machine.rotate(machine.multiply(word, FACTOR), np.uint64(TOKEN_BITS))


@kernel
def longest_pretoken(starts):
    """Return the bytes of the longest pre-token, at least SCRATCH_BYTES."""
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
def tokens_between(model, work, source, source_start, pretokens, n_misses):
    """Put the ids of tokens into `work.group`, and list the other pre-tokens as misses.

    Args:
        model, work: See there.
        source, source_start: uint8; `source[0]` is byte `source_start` of the text.
        pretokens: Numbers of the first one and of the one after the last.
        n_misses: Misses that are listed already.

    Returns the number of misses now.
    """
    machine.noinline()
    tokens, positions, group = model.tokens, work.positions, work.group
    most = np.uint64(2**TOKEN_BITS - 1)
    # Unsigned numbers need no test for places counted from the end.
    i, n, one = np.uint64(pretokens[0]), np.uint64(n_misses), np.uint64(1)
    start, last = positions[i], positions[np.uint64(pretokens[1])]
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
def take_group(model, work, text, open_range, tail_start, n_pretokens):
    """Look up all pre-tokens of a group in the table of tokens; return the number of misses.

    Ends of spans are listed among the misses. `open_range` is that of the first pre-token.
    """
    machine.always_inline()
    positions, bounds = work.positions, text.bounds
    last = bounds.size - 1
    first, n_misses = 0, 0
    while True:
        # The pre-tokens of one range.
        stop = n_pretokens
        end = bounds[min(open_range + 1, last)]
        if positions[n_pretokens - 1] >= end:
            stop = first
            while positions[stop] < end:
                stop += 1
        if not open_range & 1:
            inside = stop
            while inside > first and positions[inside - 1] >= tail_start:
                inside -= 1
            n_misses = tokens_between(model, work, text.buffer, 0, (first, inside), n_misses)
            n_misses = tokens_between(
                model, work, work.tail_text, tail_start, (inside, stop), n_misses
            )
        if stop == n_pretokens:
            return n_misses
        work.group[MISSES + np.uint64(n_misses)] = END_OF_SPAN | np.uint32(stop)
        n_misses += 1
        first = stop
        while open_range < last and bounds[open_range + 1] <= positions[stop]:
            open_range += 1


@kernel
def copy_ids(source, first, stop, ids, n_ids):
    """Append `source[first:stop]`, and up to COPIED more to be overwritten; return n_ids now."""
    machine.always_inline()
    copy_16_ids(source, first, ids, n_ids)
    for done in range(COPIED, stop - first, COPIED):
        copy_16_ids(source, first + done, ids, n_ids + done)
    return n_ids + stop - first


@kernel
def emit_ids(work, n_misses, number, copied, ids, n_ids):
    """Append ids from pre-token `copied` through the last miss before one not in the thread cache.

    `number` is the index of the next miss. Returns (index of the miss that is not cached, n_misses
    for none; first pre-token whose ids are not written; n_ids).
    """
    machine.noinline()
    found, group = work.found, work.group
    number, n = np.uint64(number), np.uint64(n_misses)
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
def close_ranges(text, out, open_range, position, n_ids, n_before):
    """Close every range that ends at or before `position`, and open the next.

    `n_before` ids were written before those in `out.ids`. Returns (the open range, n_ids), with the
    ids around spans.
    """
    last = text.bounds.size - 2
    before, after, ends_mid_span = text.around
    while open_range <= last and text.bounds[open_range + 1] <= position:
        if not open_range & 1:
            if after >= 0 and not (open_range == last and ends_mid_span):
                out.ids[n_ids] = after
                n_ids += 1
            out.offsets[(open_range >> 1) + 1] = n_before + n_ids
        elif before >= 0:
            out.ids[n_ids] = before
            n_ids += 1
        open_range += 1
    return open_range, n_ids


@kernel
def encode_group(cache, model, work, text, out, state):
    """Encode the next group of pre-tokens; see `encode_pretokens`."""
    machine.always_inline()
    group, ids, open_range = work.group, out.ids, state[OPEN_RANGE]
    n_bytes = text.bounds[text.bounds.size - 1]
    tail_start = max(n_bytes - 16, np.int64(0))
    n_pretokens = max(take_positions(text.starts, state, work.positions) - 1, 0)
    n_misses = 0
    if n_pretokens > 0:
        n_misses = take_group(model, work, text, open_range, tail_start, n_pretokens)
        look_up_misses(cache, model, work, text, tail_start, n_misses)
    # Ids of 16 bits are written over those of 32 bits of a group, which begin after all others.
    n_before = state[N_IDS] >> 1 if out.narrow.size else np.int64(0)
    first_id = state[N_IDS] - n_before
    n_ids = first_id
    number, copied = 0, 0
    while True:
        number, copied, n_ids = emit_ids(work, n_misses, number, copied, ids, n_ids)
        if number == n_misses:
            break
        miss = group[MISSES + np.uint64(number)]
        i = np.int64(miss & ~END_OF_SPAN)
        if not open_range & 1:
            n_ids = copy_ids(group, copied, i, ids, n_ids)
        copied = i
        if miss >= END_OF_SPAN:
            position = work.positions[i]
            open_range, n_ids = close_ranges(text, out, open_range, position, n_ids, n_before)
        else:
            n_ids += emit_unseen(cache, model, work, text, np.uint64(number), ids[n_ids:])
            copied += 1
        number += 1
    if not open_range & 1:
        n_ids = copy_ids(group, copied, n_pretokens, ids, n_ids)
    if state[NEXT_WORD] == text.starts.size:
        open_range, n_ids = close_ranges(text, out, open_range, n_bytes, n_ids, n_before)
    if out.narrow.size:
        for i in range(first_id, n_ids, COPIED):
            copy_16_ids(ids, i, out.narrow, n_before + i)
    state[OPEN_RANGE], state[N_IDS] = open_range, n_ids + n_before


@kernel
def encode_pretokens(cache, model, work, text, out, state):
    """Encode pre-tokens until the text or GROUPS_LEFT of the state are done, or the cache is full.

    The text is done when NEXT_WORD of the state is n_bytes // 64 + 1. No group is begun if `work`
    has no room for the longest pre-token. `work.own` replaces that of `cache`; see
    `bpe.encode.work` for the arguments. Returns the number of ids written so far.
    """
    n_bytes = text.bounds[text.bounds.size - 1]
    text = Text(text.buffer, text.bounds, text.starts[: (n_bytes >> 6) + 1], text.around)
    cache = PretokenCache(
        cache.rows, cache.long_rows, cache.arena, cache.arena_bytes, cache.used, cache.limits,
        work.own,
    )
    if state[LONGEST] == 0:
        state[LONGEST] = longest_pretoken(text.starts)
    if 3 * state[LONGEST] > work.links.size:
        return state[N_IDS]
    fill_tail(text.buffer, n_bytes, work.tail)
    while (
        state[GROUPS_LEFT] > 0
        and state[NEXT_WORD] < text.starts.size
        and (state[IGNORES_FULL] or not is_full(cache))
    ):
        state[GROUPS_LEFT] -= 1
        encode_group(cache, model, work, text, out, state)
        publish_counts(cache)
    return state[N_IDS]

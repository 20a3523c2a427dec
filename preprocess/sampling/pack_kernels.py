"""Plan rows of documents: which pieces share a row.

A document is cut into pieces of `row_length` tokens, the last of which may be shorter. A strategy
gives each piece a row that has room for it. Pieces are numbered in the order of the data.
"""

from __future__ import annotations

import numpy as np

from bpe.runtime.jit import kernel
from bpe.runtime.machine import trailing_zeros


@kernel
def cut_documents(ends, begin, n_tokens, row_length, lengths, n):
    """Write the lengths of pieces behind the first `n` of `lengths`; return their new number.

    Args:
        ends: uint64[n_documents], the position after each document.
        begin: Where the first of them begins.
        n_tokens: No document ends after it.
        row_length: Largest length of a piece.
        lengths: int32[n_pieces], filled from `n` on; negative for pieces that do not end their
            document.
        n: See above.

    Returns:
        The number of pieces; for an end out of order, -1 minus the number of its document.

    Example: ends 4 4 9 from 0 on, row_length 3, n 0 -> lengths -3 1 -3 2; 4.
    """
    for i in range(ends.size):
        end = np.int64(ends[i])
        if end < begin or end > n_tokens:
            return -1 - i
        while begin < end:
            length = min(end - begin, row_length)
            begin += length
            lengths[n] = length if begin == end else -length
            n += 1
    return n


@kernel
def pack_greedy(lengths, row_length, row_of):
    """Put each piece into the latest row, or into a new one.

    Args:
        lengths: As of `cut_documents`.
        row_length: Of a row.
        row_of: int64[n_pieces], filled.

    Returns:
        The number of rows.

    Example: lengths 3 1 3 2 and row_length 4 -> row_of 0 0 1 2; 3.
    """
    n_rows, room = 0, 0
    for i in range(lengths.size):
        length = abs(np.int64(lengths[i]))
        if length > room:
            n_rows += 1
            room = row_length
        row_of[i] = n_rows - 1
        room -= length
    return n_rows


@kernel
def pack_pool(lengths, row_length, row_of, rows, rooms):
    """Put each piece into the open row with the least room for it; a few rows are open at a time.

    If no open row has room, a new one is opened; if all places of the pool are taken, instead of
    the open row with the least room. Ties: the place that is first in the pool.

    Args:
        lengths: As of `cut_documents`.
        row_length: Of a row.
        row_of: int64[n_pieces], filled.
        rows: int64[n_open], memory.
        rooms: int64[n_open], memory.

    Returns:
        The number of rows.

    Example: lengths 3 2 1 2 and row_length 4, two open -> row_of 0 1 0 1; 2.
    """
    n_rows, n_open = 0, 0
    for i in range(lengths.size):
        length = abs(np.int64(lengths[i]))
        best, fullest = -1, 0
        for place in range(n_open):
            if rooms[place] >= length and (best < 0 or rooms[place] < rooms[best]):
                best = place
            if rooms[place] < rooms[fullest]:
                fullest = place
        if best < 0:
            best = fullest
            if n_open < rows.size:
                best = n_open
                n_open += 1
            rows[best] = n_rows
            rooms[best] = row_length
            n_rows += 1
        row_of[i] = rows[best]
        rooms[best] -= length
    return n_rows


@kernel
def pack_first_fit(lengths, row_length, row_of, tree):
    """Put each piece into the first row that has room for it, of the latest rows.

    Args:
        lengths: As of `cut_documents`.
        row_length: Of a row.
        row_of: int64[n_pieces], filled.
        tree: int64[2 * n_open], memory; n_open a power of two from 2 on. When so many rows are
            open, the first half of them is closed.

    Returns:
        The number of rows.

    Example: lengths 3 3 1 1 and row_length 4, four open -> row_of 0 1 0 1; 2.
    """
    # Node k has the most room of nodes 2 k and 2 k + 1; leaves are the rows from `closed` on.
    n_open = tree.size // 2
    half = n_open // 2
    n_rows, closed = 0, 0
    for k in range(tree.size):
        tree[k] = 0
    for i in range(lengths.size):
        length = abs(np.int64(lengths[i]))
        if tree[1] >= length:
            k = 1
            while k < n_open:
                k *= 2
                if tree[k] < length:
                    k += 1
        else:
            if n_rows - closed == n_open:
                closed += half
                for leaf in range(half):
                    tree[n_open + leaf] = tree[n_open + half + leaf]
                    tree[n_open + half + leaf] = 0
                for node in range(n_open - 1, 0, -1):
                    tree[node] = max(tree[2 * node], tree[2 * node + 1])
            k = n_open + n_rows - closed
            tree[k] = row_length
            n_rows += 1
        row_of[i] = closed + k - n_open
        tree[k] -= length
        k //= 2
        while k:
            tree[k] = max(tree[2 * k], tree[2 * k + 1])
            k //= 2
    return n_rows


@kernel
def pack_best_fit(lengths, row_length, row_of, sorted_pieces, next_row, first_of, has_rows):
    """Put each piece, the longest first, into the row with the least room for it, or a new one.

    Ties: pieces in the order of the data; the row that came to this room last.

    Args:
        lengths: As of `cut_documents`.
        row_length: Of a row.
        row_of: int64[n_pieces], filled.
        sorted_pieces: int64[n_pieces], memory.
        next_row: int64[n_pieces], memory: the next row with the same room.
        first_of: int64[row_length + 1], memory: the first row with so much room.
        has_rows: uint64[row_length // 64 + 1], memory: a bit for each room that a row has.

    Returns:
        The number of rows.

    Example: lengths 1 3 2 2 and row_length 4 -> row_of 0 0 1 1; 2.
    """
    # Sort by counting: `first_of` is where pieces of each length begin, the longest first.
    for length in range(row_length + 1):
        first_of[length] = 0
    for i in range(lengths.size):
        first_of[abs(np.int64(lengths[i]))] += 1
    before = 0
    for k in range(row_length + 1):
        length = row_length - k
        count = first_of[length]
        first_of[length] = before
        before += count
    for i in range(lengths.size):
        length = abs(np.int64(lengths[i]))
        sorted_pieces[first_of[length]] = i
        first_of[length] += 1

    one, n_rows = np.uint64(1), 0
    for room in range(row_length + 1):
        first_of[room] = -1
    for k in range(has_rows.size):
        has_rows[k] = np.uint64(0)
    for k in range(lengths.size):
        piece = sorted_pieces[k]
        length = abs(np.int64(lengths[piece]))
        word = length // 64
        bits = has_rows[word] >> np.uint64(length % 64) << np.uint64(length % 64)
        while not bits and word + 1 < has_rows.size:
            word += 1
            bits = has_rows[word]
        if bits:
            room = word * 64 + trailing_zeros(bits)
            row = first_of[room]
            first_of[room] = next_row[row]
            if first_of[room] < 0:
                has_rows[word] &= ~(one << np.uint64(room % 64))
        else:
            row, room = n_rows, row_length
            n_rows += 1
        row_of[piece] = row
        room -= length
        next_row[row] = first_of[room]
        first_of[room] = row
        if room:
            has_rows[room // 64] |= one << np.uint64(room % 64)
    return n_rows


@kernel
def count_in_rows(row_of, offsets):
    """Write where the pieces of each row begin, if pieces are sorted by row.

    Args:
        row_of: int64[n_pieces], each in [0, n_rows).
        offsets: int64[n_rows + 1] of zeros; filled from 1 on with the place of the first piece of
            each row.

    Returns:
        The place of the first piece of the last row.

    Example: row_of 0 2 0 -> offsets 0 0 2 2; 2.
    """
    for i in range(row_of.size):
        if row_of[i] + 2 < offsets.size:
            offsets[row_of[i] + 2] += 1
    for row in range(1, offsets.size):
        offsets[row] += offsets[row - 1]
    return offsets[offsets.size - 1]


@kernel
def sort_by_row(lengths, row_of, offsets, starts, sorted_lengths):
    """Write pieces to their places, sorted by row; in a row as in the data.

    Args:
        lengths: int32[n_pieces], as of `cut_documents`; a piece begins where that before it ends.
        row_of: int64[n_pieces].
        offsets: int64[n_rows + 1], as of `count_in_rows`; moved on to where the rows end, which is
            the number of the first piece of each row, and of all pieces.
        starts: int64[n_pieces], filled with positions of pieces in the data.
        sorted_lengths: int32[n_pieces], filled.

    Returns:
        The number of tokens.

    Example: lengths 2 -3 1, row_of 1 0 1, offsets 0 0 1 -> offsets 0 1 3, starts 2 0 5,
        sorted_lengths -3 2 1; 6.
    """
    begin = 0
    for i in range(lengths.size):
        row = row_of[i] + 1
        place = offsets[row]
        offsets[row] += 1
        starts[place] = begin
        sorted_lengths[place] = lengths[i]
        begin += abs(np.int64(lengths[i]))
    return begin

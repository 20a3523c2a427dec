"""Plan which pieces of documents share a row, read rows piece by piece, and number what is in them.

A document is cut into pieces of `row_length` tokens, the last of which may be shorter, or a
conversation between turns; a strategy gives each piece a row that has room for it. Pieces are
numbered in the order of the data.

A table of pieces is int64[5, n_pieces], by column a piece: its position in the tokens, its number
of inputs and of targets, its place in the rows one after another, and the place up to which the
rows are filled up after it.
"""

from __future__ import annotations

import numpy as np

from bpe.runtime.jit import kernel
from bpe.runtime.machine import prefetch, trailing_zeros

_AHEAD = 6  # pieces, or rows


@kernel
def ends_answer(mask, begin, position):
    """Return True if an answer ends before a position: mask 0 1 1 0, begin 0, position 3 -> True.

    A token of an answer has 1 in the loss mask; `begin` is that of the document.
    """
    return position > begin and mask[position - 1] == 1 and mask[position] == 0


@kernel
def cut_at_lengths(bounds, row_length, lengths, begins, n):
    """Write pieces of documents: of `row_length` tokens, the last of which may be shorter.

    Args:
        bounds: int64[n_documents + 1], where documents begin, and the last one ends.
        row_length: Largest length of a piece.
        lengths: int32[n_pieces], filled from `n` on; negative for pieces that do not end their
            document.
        begins: int64[n_pieces], filled from `n` on: positions in the dataset.
        n: See above.

    Returns:
        The number of pieces.

    Example: bounds 0 4 9, row_length 3, n 0 -> lengths -3 1 -3 2, begins 0 3 4 7; 4.
    """
    for i in range(bounds.size - 1):
        begin, end = bounds[i], bounds[i + 1]
        while end - begin > row_length:
            lengths[n], begins[n] = -row_length, begin
            begin += row_length
            n += 1
        if end > begin:
            lengths[n], begins[n] = end - begin, begin
            n += 1
    return n


@kernel
def cut_at_turns(mask, bounds, row_length, lengths, begins, n, totals):
    """Write pieces of conversations, which begin where a document begins, or after an answer.

    A piece has as many answers, each after what it answers, as fit. If one does not fit with it,
    the piece has all of the answer and the end of what it answers; of an answer that is longer than
    that, it has the beginning, after at most half a row, and the rest is in no piece. Neither is
    what has no target to train on. A document that is one answer, as text without conversations is,
    is cut as `cut_at_lengths` does.

    Args:
        mask: uint8[n_tokens], 1 for tokens to train on, of these documents.
        bounds: int64[n_documents + 1], where documents begin in the dataset, and the last one ends.
        row_length: Largest length of a piece.
        lengths: As of `cut_at_lengths`.
        begins: As of `cut_at_lengths`.
        n: As of `cut_at_lengths`.
        totals: int64[3]; the targets to train on of documents, of pieces, and those of pieces that
            are the token after it, are added.

    Returns:
        The number of pieces.

    Example: mask 0 1 1 0 1 0 0 1 1 1, bounds 0 10, row_length 4, n 0 -> lengths -3 -2 4,
        begins 0 3 6; 3; totals 6 6 0.
    """
    first = bounds[0]
    for i in range(bounds.size - 1):
        begin, end = bounds[i] - first, bounds[i + 1] - first
        after = begin
        while after < end and mask[after] == 1:
            after += 1
        for k in range(begin + 1, end):
            totals[0] += mask[k]
        is_answer = after >= end - 1 and after > begin
        while begin < end:
            cut = min(begin + row_length, end)
            following = cut
            if not is_answer and cut < end:
                while cut > begin and not ends_answer(mask, begin, cut):
                    cut -= 1
                following = cut
                if cut == begin:
                    following = begin + row_length
                    while following < end and not ends_answer(mask, begin, following):
                        following += 1
                    answer = following
                    while answer > begin and mask[answer - 1] == 1:
                        answer -= 1
                    if following - answer <= row_length:
                        begin = following - row_length
                    else:
                        begin = max(begin, answer - row_length // 2)
                    cut = begin + row_length
            n_trained = 0
            for k in range(begin + 1, min(cut + 1, end)):
                n_trained += mask[k]
            if n_trained:
                lengths[n] = cut - begin if cut == end else begin - cut
                begins[n] = first + begin
                n += 1
            totals[1] += n_trained
            if cut < end:
                totals[2] += mask[cut]
            begin = following
    return n


@kernel
def count_spans(ends, documents, options, totals, found):
    """Count the spans of documents, see `DocumentSpans`.

    Args:
        ends: uint64[n_documents], the position after each document.
        documents: int64[2], the first document and the one after the last.
        options: int64[6]: length, stride, tokens before and after that are in no span, 1 for the
            first span alone, 1 to leave out short ones.
        totals: int64[n], zeros: the spans of as many documents each as `found` says are added.
        found: int64[5], modified: documents of a total; then tokens of all spans, tokens of the
            longest one, spans that are shorter than `length`, and those left out are added.

    Example: ends 4 9, documents 0 2, options 3 2 0 0 0 0, 1 document of a total -> totals 2 2;
    tokens 11, longest 3, 1 shorter.
    """
    length, stride, n_before, n_after = options[0], options[1], options[2], options[3]
    n_tokens, longest, n_partial, n_short = found[1], found[2], found[3], found[4]
    end = np.int64(ends[documents[0] - 1]) if documents[0] > 0 else 0
    for block in range(totals.size):
        first, n_spans = documents[0] + block * found[0], 0
        for i in range(first, min(first + found[0], documents[1])):
            begin, end = end + n_before, np.int64(ends[i])
            size = max(end - n_after - begin, 0)
            n = np.int64(size > 0)
            if size > length and not options[4]:
                n += min(-(-(size - length) // stride), (size - 1) // stride)
            left = size - (n - 1) * stride
            if n and left < length and options[5]:
                n, left = n - 1, left + stride
                n_short += 1
            if n:
                n_tokens += (n - 1) * min(size, length) + min(left, length)
                longest = max(longest, min(size, length))
                n_partial += left < length
            n_spans += n
        totals[block] += n_spans
    found[1], found[2], found[3], found[4] = n_tokens, longest, n_partial, n_short


@kernel
def pack_pool(lengths, row_length, row_of, rows, rooms):
    """Put each piece into the open row with the least room for it; a few rows are open at a time.

    If no open row has room, a new one is opened; if all places of the pool are taken, instead of
    the open row with the least room. Ties: the place that is first in the pool.

    Args:
        lengths: As of `cut_at_lengths`.
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
        lengths: As of `cut_at_lengths`.
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
def pack_best_fit(lengths, row_length, row_of, run_rows, run_sizes, next_row, memory, has_rows):
    """Put each piece, the longest first, into the row with the least room for it, or a new one.

    Ties: pieces in the order of the data; the row that came to this room last.

    Args:
        lengths: As of `cut_at_lengths`.
        row_length: Of a row.
        row_of: int64[n_pieces], filled.
        run_rows: int64[n_pieces], memory: rows that have pieces of one length, by this length.
        run_sizes: int64[n_pieces], memory: the number of these pieces.
        next_row: int64[n_pieces], memory: the next row with the same room.
        memory: int64[3, row_length + 1]: the pieces of each length that are not in a row, the first
            row with so much room, and the first of the runs of each length.
        has_rows: uint64[row_length // 64 + 1], memory: a bit for each room that a row has.

    Returns:
        The number of rows.

    Example: lengths 1 3 2 2 and row_length 4 -> row_of 0 0 1 1; 2.
    """
    left, first_of, run_of = memory[0], memory[1], memory[2]
    left[:], first_of[:], has_rows[:] = 0, -1, 0
    for i in range(lengths.size):
        left[abs(np.int64(lengths[i]))] += 1
    one, n_rows, n_runs = np.uint64(1), 0, 0
    for k in range(row_length):
        length = row_length - k
        run_of[length] = n_runs
        while left[length]:
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
            # What is left of the room is the least for further pieces of this length, too.
            n = min(left[length], room // length)
            run_rows[n_runs], run_sizes[n_runs] = row, n
            n_runs += 1
            left[length] -= n
            room -= n * length
            next_row[row] = first_of[room]
            first_of[room] = row
            if room:
                has_rows[room // 64] |= one << np.uint64(room % 64)
    for i in range(lengths.size):
        length = abs(np.int64(lengths[i]))
        run = run_of[length]
        row_of[i] = run_rows[run]
        run_sizes[run] -= 1
        if run_sizes[run] == 0:
            run_of[length] = run + 1
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
def sort_by_row(lengths, begins, row_of, offsets, starts, sorted_lengths):
    """Write pieces to their places, sorted by row; in a row as in the data.

    Args:
        lengths: int32[n_pieces], as of `cut_at_lengths`.
        begins: int64[n_pieces], their positions.
        row_of: int64[n_pieces].
        offsets: int64[n_rows + 1], as of `count_in_rows`; moved on to where the rows end, which is
            the number of the first piece of each row, and of all pieces.
        starts: int64[n_pieces], filled with positions of pieces in the data.
        sorted_lengths: int32[n_pieces], filled.

    Example: lengths 2 -3 1, begins 0 2 5, row_of 1 0 1, offsets 0 0 1 -> offsets 0 1 3,
        starts 2 0 5, sorted_lengths -3 2 1.
    """
    for i in range(lengths.size):
        row = row_of[i] + 1
        place = offsets[row]
        offsets[row] += 1
        starts[place], sorted_lengths[place] = begins[i], lengths[i]


@kernel
def find_pieces(plan, rows, row_length, table):
    """Find the pieces of some rows of a plan.

    Args:
        plan: offsets, starts and lengths of a plan (`packing`).
        rows: int64[n], each in [0, offsets.size - 1).
        row_length: Of a row.
        table: int64[5, n_pieces], filled from the left.

    Returns:
        The number of pieces; -1 if there are more than the table has places for, none in a row, or
        one that its row has no room for.

    Example: offsets 0 1 3, starts 2 0 5, lengths -3 2 1, rows 1 0, row_length 4 -> table
        0 5 2 / 2 1 3 / 1 0 3 / 0 2 4 / 2 4 8; 3.
    """
    offsets, starts, lengths = plan[0], plan[1], plan[2]
    n = 0
    for row in range(rows.size):
        first, stop = offsets[rows[row]], offsets[rows[row] + 1]
        if first < 0 or first >= stop or stop > lengths.size or stop - first > table.shape[1] - n:
            return -1
        place = row * row_length
        for i in range(first, stop):
            length, n_later = np.int64(lengths[i]), 0
            if length < 0:
                length, n_later = -length, 1
            if length == 0 or length > (row + 1) * row_length - place:
                return -1
            table[0, n], table[1, n], table[2, n] = starts[i], length, length - 1 + n_later
            table[3, n] = place
            place += length
            table[4, n] = place
            n += 1
        table[4, n - 1] = (row + 1) * row_length
    return n


@kernel
def document_at(ends, position):
    """Return the number of the document that has the token at a position.

    Args:
        ends: uint64[n_documents], the position after each document.
        position: Of a token; after the last document, the number of documents is returned.

    Example: ends 3 3 9, position 3 -> 2.
    """
    low, high = 0, ends.size
    while low < high:
        middle = (low + high) // 2
        # An end that overflows int64 becomes negative.
        if np.int64(ends[middle]) <= position:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def divide_pieces(table, documents, out):
    """Divide pieces where documents end; the last token of a document has no target.

    Args:
        table: int64[5, n_pieces].
        documents: A tuple of uint64[n_documents], the position after each document.
        out: int64[5, n], filled from the left with a table of the parts, none of them empty.

    Returns:
        The number of parts, which may be more than the columns of `out`: those are not written; -1
        if ends descend.

    Example: table 1 / 4 / 4 / 0 / 6, ends 3 9 -> out 1 3 / 2 2 / 1 2 / 0 2 / 2 6; 2.
    """
    ends, n = documents[0], 0
    for i in range(table.shape[1]):
        begin, stop = table[0, i], table[0, i] + table[1, i]
        number, shift, end = document_at(ends, begin), table[3, i] - begin, begin
        while begin < stop:
            before, end = end, np.int64(ends[number]) if number < ends.size else stop
            cut, n_out = min(end, stop), min(end, stop) - begin
            if end <= stop:
                n_out -= 1
            if end < before:
                return -1
            if cut > begin:
                if n < out.shape[1]:
                    out[0, n], out[1, n], out[2, n] = begin, cut - begin, n_out
                    out[3, n], out[4, n] = begin + shift, cut + shift
                n += 1
            begin = cut
            number += 1
        if number < ends.size and np.int64(ends[number]) < end:
            return -1
        if 0 < n <= out.shape[1]:
            out[4, n - 1] = table[4, i]
    return n


@kernel
def copy_pieces(tokens, table, padding, ignored, inputs, targets):
    """Copy the inputs of pieces, and the tokens after them as targets; fill up what follows.

    Args:
        tokens: uint16|uint32[n_tokens].
        table: int64[5, n_pieces].
        padding: After the inputs of a piece.
        ignored: After the targets of a piece.
        inputs: int64[n], filled in these places.
        targets: int64[n], filled in these places.

    Returns:
        False if a piece is outside of `tokens` or of `inputs`; it is the last that is looked at.

    Example: tokens 7 8 9, table 0 2 / 2 1 / 2 0 / 0 3 / 3 4, padding 5, ignored -1 -> inputs
        7 8 5 9, targets 8 9 -1 -1; True.
    """
    n = table.shape[1]
    for i in range(n):
        start, n_in, n_out = table[0, i], table[1, i], table[2, i]
        place, stop = table[3, i], table[4, i]
        if min(min(start, place), min(n_in, n_out)) < 0 or stop > min(inputs.size, targets.size):
            return False
        if max(n_in, n_out) > stop - place or max(n_in, n_out + 1) > tokens.size - start:
            return False
        if i + _AHEAD < n:
            # Pieces are anywhere in the file; a line of the cache has 32 or 16 tokens.
            later, n_later = table[0, i + _AHEAD], table[1, i + _AHEAD]
            if later >= 0 and n_later <= tokens.size - later:
                for k in range(0, n_later, 16):
                    prefetch(tokens, later + k)
        # Of slices, because an index that may be negative keeps a loop from being vectorized.
        found, copied = tokens[start : start + n_in], inputs[place : place + n_in]
        for k in range(n_in):
            copied[k] = np.int64(found[k])
        found, copied = tokens[start + 1 : start + 1 + n_out], targets[place : place + n_out]
        for k in range(n_out):
            copied[k] = np.int64(found[k])
        for k in range(place + n_in, stop):
            inputs[k] = padding
        for k in range(place + n_out, stop):
            targets[k] = ignored
    return True


@kernel
def read_packed(plan, rows, padding, ignored, inputs, targets, segment_ids):
    """Read rows of a plan: what `find_pieces`, `copy_pieces` and `number_segments` do, in one call.

    The calls, and the arrays between them, would take a third of the time of a batch.

    Args:
        plan: offsets, starts and lengths of a plan (`packing`), and tokens uint16|uint32[n_tokens].
        rows: int64[n], each in [0, offsets.size - 1).
        padding: Of inputs.
        ignored: Of targets: padding, and after the last token of a document.
        inputs: int64[n, row_length], filled.
        targets: int64[n, row_length], filled.
        segment_ids: int32[n, row_length], filled; or with no rows, left alone.

    Returns:
        The number of pieces; -1 if one is outside of the plan, of the tokens or of its row.

    Example: offsets 0 1 3, starts 2 0 5, lengths -3 2 1, tokens 10 11 12 13 14 15 16, rows 1 0,
        padding 7, ignored -1 -> inputs 10 11 15 7 / 12 13 14 7, targets 11 -1 -1 -1 / 13 14 15 -1,
        segment_ids 1 1 2 0 / 1 1 1 0; 3.
    """
    offsets, starts, lengths, tokens = plan[0], plan[1], plan[2], plan[3]
    row_length, total = inputs.shape[1], 0
    for row in range(rows.size):
        if row + _AHEAD < rows.size:
            # Rows are anywhere in the plan, and pieces anywhere in the file.
            later = offsets[rows[row + _AHEAD]]
            if later >= 0 and later < lengths.size:
                prefetch(starts, later)
                prefetch(lengths, later)
        if row + 1 < rows.size:
            later, stop = offsets[rows[row + 1]], offsets[rows[row + 1] + 1]
            # Checked, for bounds of `range` that are far apart overflow.
            if later >= 0 and stop <= lengths.size and later < stop and stop - later <= row_length:
                for i in range(later, stop):
                    start, n_lines = starts[i], min(abs(np.int64(lengths[i])), row_length) // 16 + 1
                    if start >= 0 and start < tokens.size:
                        # A line of the cache has 32 or 16 tokens.
                        for k in range(min(n_lines, (tokens.size - 1 - start) // 16 + 1)):
                            prefetch(tokens, start + 16 * k)
        first, stop, place = offsets[rows[row]], offsets[rows[row] + 1], 0
        if first < 0 or first >= stop or stop > lengths.size:
            return -1
        for i in range(first, stop):
            start, length, n_out = starts[i], np.int64(lengths[i]), np.int64(lengths[i]) - 1
            if length < 0:
                length, n_out = -length, -length
            if start < 0 or length <= 0 or length > row_length - place:
                return -1
            if max(length, n_out + 1) > tokens.size - start:
                return -1
            # Of slices, because an index that may be negative keeps a loop from being vectorized.
            found, copied = tokens[start : start + length], inputs[row, place : place + length]
            for k in range(length):
                copied[k] = np.int64(found[k])
            found, copied = tokens[start + 1 : start + 1 + n_out], targets[row, place:]
            for k in range(n_out):
                copied[k] = np.int64(found[k])
            if n_out < length:
                copied[n_out] = ignored
            if segment_ids.shape[0]:
                part, number = segment_ids[row, place : place + length], np.int32(i - first + 1)
                for k in range(length):
                    part[k] = number
            place += length
        total += stop - first
        inputs[row, place:], targets[row, place:] = padding, ignored
        if segment_ids.shape[0]:
            segment_ids[row, place:] = 0
    return total


@kernel
def copy_spans(values, starts, lengths, places, out):
    """Copy spans of an array to their places in another.

    Args:
        values: uint8|uint16|uint32|int32[n].
        starts: int64[n_spans], positions in `values`.
        lengths: int64[n_spans].
        places: int64[n_spans], positions in `out`.
        out: uint8|int32[m], filled in these places.

    Returns:
        False if a span is outside of `values` or of `out`; it is the last that is looked at.

    Example: values 7 8 9, starts 1 0, lengths 2 1, places 0 3, out 0 0 0 0 -> 8 9 0 7; True.
    """
    for i in range(starts.size):
        start, length, place = starts[i], lengths[i], places[i]
        if min(min(start, place), length) < 0:
            return False
        if length > values.size - start or length > out.size - place:
            return False
        # Of slices, because an index that may be negative keeps a loop from being vectorized.
        found, copied = values[start : start + length], out[place : place + length]
        for k in range(length):
            copied[k] = found[k]
    return True


@kernel
def number_places(table, is_position, out):
    """Number the places of rows: by their segment in the row from 1, or in the segment from 0.

    Args:
        table: int64[5, n_segments]; instead of the position in the tokens, it has 0 for the first
            segment of a row, and others for others.
        is_position: True for numbers in the segment, for which that does not matter.
        out: int32|int64[n], filled; what follows a segment up to the next has 0.

    Returns:
        False if a segment is outside of `out`; it is the last that is looked at.

    Example: table 0 2 / 2 2 / 0 0 / 0 2 / 2 5, is_position False -> 1 1 2 2 0; True.
    """
    number = 0
    for i in range(table.shape[1]):
        n, place, stop = table[1, i], table[3, i], table[4, i]
        if place < 0 or n < 0 or n > stop - place or stop > out.size:
            return False
        if table[0, i] == 0:
            number = 0
        number += 1
        part, padding = out[place : place + n], out[place + n : stop]
        for k in range(part.size):
            part[k] = k if is_position else number
        for k in range(padding.size):
            padding[k] = 0
    return True

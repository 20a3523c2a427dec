"""Read the rows of a batch piece by piece, and number the documents in them.

A table of pieces is int64[5, n_pieces], by column a piece: its position in the tokens, its number
of inputs and of targets, its place in the rows one after another, and the place up to which the
rows are filled up after it.
"""

from __future__ import annotations

import numpy as np

from bpe.runtime.jit import kernel
from bpe.runtime.machine import prefetch

_AHEAD = 6  # pieces, or rows


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
        if row + _AHEAD < rows.size:
            # Rows are anywhere in the plan.
            later = offsets[rows[row + _AHEAD]]
            if later >= 0 and later < lengths.size:
                prefetch(starts, later)
                prefetch(lengths, later)
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
def ignore_last_targets(table, documents, ignored, targets):
    """Replace the targets of the last tokens of documents, which belong to the next document.

    Args:
        table: int64[5, n_pieces].
        documents: A tuple of uint64[n_documents], the position after each document.
        ignored: Written in their places.
        targets: int64[n], of the pieces.

    Returns:
        False if a piece is outside of `targets`, or ends descend; it is the last looked at.

    Example: table 1 / 4 / 4 / 0 / 6, ends 3 9, ignored -1, targets 5 6 7 8 -1 -1 -> 5 -1 7 8 -1 -1;
        True.
    """
    ends = documents[0]
    for i in range(table.shape[1]):
        begin, n, place = table[0, i], table[1, i], table[3, i]
        if place < 0 or n < 0 or n > targets.size - place:
            return False
        number, end = document_at(ends, begin), begin
        while number < ends.size and end - begin < n:
            before, end = end, np.int64(ends[number])
            if end < before:
                return False
            if 0 < end - begin <= n:
                targets[place + end - begin - 1] = ignored
            number += 1
        if number < ends.size and np.int64(ends[number]) < end:
            return False
    return True


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
def number_places(before, table, is_position, out):
    """Number the places of rows: by their segment in the row from 1, or in the segment from 0.

    Args:
        before: int64[n_segments], 0 for the first segment of a row.
        table: int64[5, n_segments].
        is_position: True for numbers in the segment.
        out: int32|int64[n], filled; what follows a segment up to the next has 0.

    Returns:
        False if a segment is outside of `out`; it is the last that is looked at.

    Example: before 0 2, table 0 0 / 2 2 / 0 0 / 0 2 / 2 5, is_position False -> 1 1 2 2 0; True.
    """
    number = 0
    for i in range(table.shape[1]):
        n, place, stop = table[1, i], table[3, i], table[4, i]
        if place < 0 or n < 0 or n > stop - place or stop > out.size:
            return False
        if before[i] == 0:
            number = 0
        number += 1
        part, padding = out[place : place + n], out[place + n : stop]
        for k in range(part.size):
            part[k] = k if is_position else number
        for k in range(padding.size):
            padding[k] = 0
    return True

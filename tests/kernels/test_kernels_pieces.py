"""Kernels that read pieces and number documents: as plain slices, and no index out of bounds."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from preprocess import TokenFileError
from preprocess.sampling import pieces as kernels
from preprocess.sampling.data import copy_pieces
from preprocess.sampling.fields import number_positions, number_segments
from preprocess.sampling.windows import StrideWindows, divided


@given(st.data())
def test_pieces_are_copied_as_slices(data: Any) -> None:
    """Each where it belongs, filled up to the next; of both widths."""
    tokens = np.arange(100, 140).astype(data.draw(st.sampled_from([np.uint16, np.uint32])))
    columns: list[tuple[int, ...]] = []
    at = data.draw(st.integers(0, 3))
    for n_inputs in data.draw(st.lists(st.integers(0, 20), max_size=6)):
        n_targets = max(n_inputs - data.draw(st.integers(0, 1)), 0)
        start = data.draw(st.integers(0, 40 - max(n_inputs, n_targets + 1)))
        stop = at + n_inputs + data.draw(st.integers(0, 3))
        columns.append((start, n_inputs, n_targets, at, stop))
        at = stop
    table = np.array(columns, np.int64).reshape(-1, 5).T.copy()
    inputs, targets, more = np.full(at + 2, -1), np.full(at + 2, -1), np.full(at + 2, -1)
    expected = inputs.copy()
    copy_pieces(tokens, table, 5, expected, more)
    assert kernels.copy_pieces(tokens, table, 5, -100, inputs, targets)
    assert (inputs == expected).all()
    assert (targets == more).all()


@pytest.mark.parametrize(
    "change",
    [
        {"starts": -1}, {"starts": 7}, {"n_inputs": 11}, {"n_inputs": -1}, {"n_targets": -1},
        {"n_targets": 10}, {"places": -1}, {"places": 18}, {"stops": 21}, {"places": 2**62},
        {"starts": 2**62}, {"n_inputs": 2**62}, {"stops": 2**62},
    ],
)  # fmt: skip
def test_pieces_out_of_bounds_are_refused(change: dict[str, int]) -> None:
    tokens = np.arange(10, dtype=np.uint16)
    inputs, targets = np.full(20, -1), np.full(20, -1)
    piece = {"starts": 2, "n_inputs": 4, "n_targets": 3, "places": 5, "stops": 12} | change
    table = np.array([[value] for value in piece.values()])
    assert not kernels.copy_pieces(tokens, table, 0, -100, inputs, targets)
    assert (inputs == -1).all()
    assert (targets == -1).all()


@given(st.data())
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.int32])
def test_spans_are_copied_as_slices(dtype: Any, data: Any) -> None:
    values = np.arange(20, dtype=dtype)
    lengths = data.draw(st.lists(st.integers(0, 6), max_size=6))
    starts = [data.draw(st.integers(0, 20 - n)) for n in lengths]
    places = np.cumsum([0, *lengths])[:-1]
    out = np.full(sum(lengths) + 2, 99, np.uint8 if dtype is np.uint8 else np.int32)
    spans = zip(starts, lengths, strict=True)
    expected = [x for start, n in spans for x in range(start, start + n)]
    arrays = (np.array(each, np.int64) for each in (starts, lengths, places))
    assert kernels.copy_spans(values, *arrays, out)
    assert out.tolist() == [*expected, 99, 99]


@pytest.mark.parametrize(("start", "length", "place"), [
    (-1, 2, 0), (0, -1, 0), (0, 2, -1), (9, 2, 0), (0, 11, 0), (0, 2, 4), (2**62, 2, 0),
    (0, 2**62, 0), (0, 2, 2**62),
])
def test_spans_out_of_bounds_are_refused(start: int, length: int, place: int) -> None:
    out = np.zeros(5, np.int32)
    spans = (np.array([0, each], np.int64) for each in (start, length, place))
    assert not kernels.copy_spans(np.arange(10, dtype=np.uint16), *spans, out)
    assert not out.any()


def test_pieces_of_rows_by_hand() -> None:
    offsets, starts = np.array([0, 1, 3]), np.array([2, 0, 5])
    lengths = np.array([-3, 2, 1], np.int32)
    table = np.full((5, 3), 9)
    plan = offsets, starts, lengths
    assert kernels.find_pieces(plan, np.array([1, 0]), 4, table) == 3
    assert table.tolist() == [[0, 5, 2], [2, 1, 3], [1, 0, 3], [0, 2, 4], [2, 4, 8]]
    for bad in ([0, 4, 3], [0, 0, 3], [0, -1, 3], [0, 2, 9], [0, 1, 2**62]):
        rows, small = np.array([0, 1]), np.full((5, 3), 9)
        found = kernels.find_pieces((np.array(bad), starts, lengths), rows, 4, small)
        assert found == -1, bad
    for wrong in ([-5, 2, 1], [0, 2, 1], [-3, 4, 1]):  # without room, or a token
        bad = np.array(wrong, np.int32)
        assert kernels.find_pieces((offsets, starts, bad), np.array([0, 1]), 4, table) == -1
    table = np.full((5, 2), 9)
    assert kernels.find_pieces(plan, np.array([0, 1]), 4, table) == -1


@given(st.data())
def test_packed_rows_are_those_of_the_kernels_for_each_step(data: Any) -> None:
    row_length = data.draw(st.integers(1, 9))
    tokens = np.arange(100, 140).astype(data.draw(st.sampled_from([np.uint16, np.uint32])))
    offsets, starts, lengths = [0], [], []
    for _ in range(data.draw(st.integers(1, 4))):
        room = row_length
        while room and (room == row_length or data.draw(st.booleans())):
            length = data.draw(st.integers(1, room))
            goes_on = data.draw(st.booleans())
            starts.append(data.draw(st.integers(0, 40 - length - goes_on)))
            lengths.append(-length if goes_on else length)
            room -= length
        offsets.append(len(starts))
    plan = np.array(offsets), np.array(starts), np.array(lengths, np.int32)
    rows = np.array(data.draw(st.lists(st.integers(0, len(offsets) - 2), max_size=12)), np.int64)
    n_pieces, shape = int((plan[0][rows + 1] - plan[0][rows]).sum()), (len(rows), row_length)
    table = np.empty((5, n_pieces), np.int64)
    assert kernels.find_pieces(plan, rows, row_length, table) == n_pieces
    expected = [np.full(shape, -1), np.full(shape, -1), np.full(shape, -1, np.int32)]
    inputs, targets, segments = (each.reshape(-1) for each in expected)
    assert kernels.copy_pieces(tokens, table, 5, -100, inputs, targets)
    number_segments(table[3] % row_length, table, segments)
    for n_segment_rows in (len(rows), 0):
        found = [np.full(shape, -2), np.full(shape, -2)]
        found.append(np.full((n_segment_rows, row_length), -2, np.int32))
        assert kernels.read_packed((*plan, tokens), rows, 5, -100, *found) == n_pieces
        for some, all_rows in zip(found, expected, strict=True):
            assert some.tolist() == all_rows[: len(some)].tolist()


@pytest.mark.parametrize(
    ("part", "place", "value"),
    [
        (0, 0, -1), (0, 0, -(2**63)), (0, 0, 2**63 - 1), (0, 1, 0), (0, 1, 9), (0, 1, 2**62),
        (0, 1, 2**63 - 1), (0, 1, -(2**63)), (1, 0, -1), (1, 0, 9), (1, 0, 2**62),
        (1, 0, 2**63 - 1), (1, 0, -(2**63)), (2, 0, 0), (2, 0, 5), (2, 0, -5), (2, 0, 2**31 - 1),
        (2, 0, -(2**31)),
    ],
)  # fmt: skip
def test_packed_rows_out_of_bounds_are_refused(part: int, place: int, value: int) -> None:
    """In the row that is read, and in the one that is fetched ahead."""
    tokens = np.arange(10, dtype=np.uint16)
    plan = np.array([0, 1, 2]), np.array([7, 2]), np.array([3, 4], np.int32)
    plan[part][place] = value
    for rows in ([0], [1, 0]):
        n = len(rows)
        out = [np.full((n, 4), -1), np.full((n, 4), -1), np.full((n, 4), -1, np.int32)]
        assert kernels.read_packed((*plan, tokens), np.array(rows), 5, 6, *out) == -1
        assert all((each[n - 1] == -1).all() for each in out)


@given(st.lists(st.integers(0, 9), min_size=1), st.integers(1, 12), st.integers(1, 12))
def test_segments_and_positions_are_numbered(sizes: list[int], length: int, stride: int) -> None:
    ends, of = np.cumsum(sizes), np.repeat(np.arange(len(sizes)), sizes)
    windows = StrideWindows(len(of), length, stride, False)
    pieces = windows.pieces(np.arange(len(windows)))
    documents = (ends.astype(np.uint64),)
    table = divided(pieces, documents)
    shape = len(windows), length
    segments, positions = np.full(shape, 9, np.int32), np.full(shape, 9)
    number_segments(table[3] % length, table, segments)
    number_positions(table, positions)
    for row, (start, n) in enumerate(pieces[:2].T.tolist()):
        here = of[start : start + n].tolist()
        numbers = sorted({*here})
        padding = [0] * (length - n)
        assert segments[row].tolist() == [numbers.index(x) + 1 for x in here] + padding
        expected = [i - here.index(x) for i, x in enumerate(here)]
        assert positions[row].tolist() == expected + padding
    assert table[1].sum() == pieces[1].sum()
    # The last token of a document has no target.
    lasts = table[0] + table[1]
    assert (table[1] - table[2] == np.isin(lasts, ends)).all()


@pytest.mark.parametrize("ends", [[4, 2, 9], [2**64 - 1, 9], [3, 2**63, 5, 9], [9, 3], []])
def test_damaged_ends_of_documents_are_refused_or_stay_inside(ends: list[int]) -> None:
    table = np.array([[1, 0], [6, 3], [6, 3], [0, 6], [6, 9]])
    documents = (np.array(ends, np.uint64),)
    try:
        found = divided(table, documents)
    except TokenFileError:
        pass
    else:
        assert found[1].sum() == 9
        assert (found[3] + found[1] <= found[4]).all()


@pytest.mark.parametrize(
    "segment", [[3, -1, 2], [-1, 0, 5], [3, 3, 5], [3, 3, 6], [2**62, 0, 5], [1, 0, 2**62]]
)
def test_segments_out_of_bounds_are_refused(segment: list[int]) -> None:
    n, place, stop = segment
    table = np.array([[0], [n], [0], [place], [stop]])
    numbered = partial(number_segments, np.ones(1, np.int64))
    for number, dtype in ((numbered, np.int32), (number_positions, np.int64)):
        out = np.zeros(5, dtype)
        with pytest.raises(TokenFileError, match="positions are outside of the dataset, so its d"):
            number(table, out)
        assert not out.any()

"""Kernels that pack pieces into rows: the same rows as plain lists, and no index out of bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from preprocess.sampling import pieces as kernels

# Reference: a row is (its number, its room); each returns the row of each piece.


def greedy(lengths: list[int], row_length: int) -> list[int]:
    rows: list[int] = []
    row, room = -1, 0
    for length in lengths:
        if length > room:
            row, room = row + 1, row_length
        rows.append(row)
        room -= length
    return rows


def pool(lengths: list[int], row_length: int, n_open: int) -> list[int]:
    rows: list[int] = []
    places: list[list[int]] = []  # [row, room]
    for length in lengths:
        fitting = [place for place in places if place[1] >= length]
        if fitting:
            place = min(fitting, key=lambda place: place[1])
        else:
            if len(places) < n_open:
                place = [0, 0]
                places.append(place)
            else:
                place = min(places, key=lambda place: place[1])
            place[:] = max(rows, default=-1) + 1, row_length
        rows.append(place[0])
        place[1] -= length
    return rows


def first_fit(lengths: list[int], row_length: int, n_open: int) -> list[int]:
    rows: list[int] = []
    rooms: list[int] = []
    for length in lengths:
        row = next((row for row, room in enumerate(rooms) if room >= length), len(rooms))
        if row == len(rooms):
            # Closed rows have no room for anything.
            n_closed = 0 if not rooms else rooms.count(-1)
            if len(rooms) - n_closed == n_open:
                rooms[n_closed : n_closed + n_open // 2] = [-1] * (n_open // 2)
            rooms.append(row_length)
        rows.append(row)
        rooms[row] -= length
    return rows


def best_fit(lengths: list[int], row_length: int) -> list[int]:
    rows = [-1] * len(lengths)
    open_rows: list[tuple[int, int]] = []  # (room, row), the last one last
    for piece in sorted(range(len(lengths)), key=lambda piece: -lengths[piece]):
        fitting = [each for each in open_rows if each[0] >= lengths[piece]]
        room, row = row_length, len({row for _, row in open_rows})
        if fitting:
            least = min(fitting)[0]
            room, row = next(each for each in reversed(open_rows) if each[0] == least)
            open_rows.remove((room, row))
        open_rows.append((room - lengths[piece], row))
        rows[piece] = row
    return rows


def run(name: str, lengths: list[int], row_length: int, n_open: int) -> tuple[int, list[int]]:
    n, row_of = len(lengths), np.full(len(lengths), -7)
    memory: dict[str, Any] = {
        "pack_pool": (np.full(n_open, 9), np.full(n_open, 9)),
        "pack_first_fit": (np.full(2 * n_open, 9),),
        "pack_best_fit": (
            np.full(n, 9), np.full(n, 9), np.full(n, 9), np.full((3, row_length + 1), 9),
            np.full(row_length // 64 + 1, 9, np.uint64),
        ),
    }
    values = np.array(lengths, np.int32)
    values[::2] *= -1  # pieces that do not end their document
    return getattr(kernels, name)(values, row_length, row_of, *memory[name]), row_of.tolist()


@given(st.data(), st.integers(1, 200), st.sampled_from([2, 4, 8]))
def test_strategies_are_those_of_plain_lists(data: Any, row_length: int, n_open: int) -> None:
    lengths = data.draw(st.lists(st.integers(1, row_length), max_size=60))
    for name, expected in (
        ("pack_pool", pool(lengths, row_length, n_open)),
        ("pack_first_fit", first_fit(lengths, row_length, n_open)),
        ("pack_best_fit", best_fit(lengths, row_length)),
    ):
        n_rows, rows = run(name, lengths, row_length, n_open)
        assert (n_rows, rows) == (max(rows, default=-1) + 1, expected), name
    assert run("pack_pool", lengths, row_length, 1)[1] == greedy(lengths, row_length)


@given(
    st.lists(st.integers(0, 40), max_size=40), st.integers(1, 12), st.integers(0, 3),
    st.randoms(use_true_random=False),
)
def test_pieces_are_cut_and_sorted_by_row(
    sizes: list[int], row_length: int, begin: int, random: Any
) -> None:
    expected = []
    for size in sizes:
        cut = [min(size - at, row_length) for at in range(0, size, row_length)]
        expected += [-length for length in cut[:-1]] + cut[-1:]
    n, bounds = len(expected), begin + np.cumsum([0, *sizes])
    lengths, begins = np.full(n + 2, 9, np.int32), np.full(n + 2, 9)
    assert n + 1 == kernels.cut_at_lengths(bounds, row_length, lengths, begins, 1)
    assert lengths.tolist() == [9, *expected, 9]
    assert begins[1:-1].tolist() == (begin + np.cumsum([0, *map(abs, expected)])[:-1]).tolist()
    n_rows = random.randint(1, 9)
    row_of = [*(random.randrange(n_rows) for _ in expected), n_rows - 1]
    offsets, starts, found = np.zeros(n_rows + 1, np.int64), np.full(n + 1, 9), lengths[1:].copy()
    kernels.count_in_rows(np.array(row_of), offsets)
    kernels.sort_by_row(
        np.array([*expected, 1], np.int32), begins[1:], np.array(row_of), offsets, starts, found,
    )
    assert offsets.tolist() == [sum(row < k for row in row_of) for k in range(n_rows + 1)]
    by_row = sorted(range(n + 1), key=lambda piece: row_of[piece])
    assert starts.tolist() == begins[1:][by_row].tolist()
    assert found.tolist() == [[*expected, 1][piece] for piece in by_row]

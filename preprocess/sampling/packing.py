"""Rows of several documents: which pieces share a row is a plan, made once and kept in a file.

A document is cut into pieces of `context_length` tokens, the last of which may be shorter; a
strategy gives each piece a row with room for it. Every token is in one piece. With cut "turns" a
piece never begins inside of an answer, and the end of an answer that does not fit is in none. The
plan is beside the dataset, NAME.STRATEGY-LENGTH-DIGEST.plan, or NAME.STRATEGY-turns-LENGTH..., and
little-endian, in this order:

    header     256 bytes, or 512 if it needs more: JSON, filled up with blanks
    offsets    int64[n_rows + 1], the number of the first piece of each row
    starts     int64[n_pieces], positions in the dataset, sorted by row, in a row ascending
    lengths    int32[n_pieces], negative for pieces that do not end their document

The digest in its name is of the dataset's manifest; `digest` in the header is of what follows it.
A plan is written under a temporary name, and renamed when it is complete; plans of a manifest that
the dataset no longer has are removed then.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import mmap
import os
import re
import tempfile
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from bpe.parallel import cached_property
from preprocess.dataset.columns import TokenFileError
from preprocess.dataset.file_map import FileMap
from preprocess.dataset.manifest import spellings_of
from preprocess.dataset.reader import TokenFile, read_bounds
from preprocess.dataset.shards import ShardView
from preprocess.sampling.data import IGNORED, Batch, SamplingError, kernels
from preprocess.sampling.windows import Numbers, RowPieces

_logger = logging.getLogger("preprocess")

_HEADER_BYTES = 256
_FORMAT = "tokenmill plan 1"
_POOL_ROWS = 64  # open at a time
_FIRST_FIT_ROWS = 1 << 20
_KEPT = (
    "the dataset is not affected; a plan that was made where there is room and permission may be"
    " copied beside the dataset"
)
MAX_ROW_LENGTH = 2**31 - 1  # lengths are int32

Lengths = npt.NDArray[np.int32]
Scratch = Callable[[int, Any], npt.NDArray[Any]]


def _pool(
    lengths: Lengths, row_length: int, row_of: Numbers, scratch: Scratch, n_open: int = _POOL_ROWS
) -> Any:
    rows, rooms = np.zeros(n_open, np.int64), np.zeros(n_open, np.int64)
    return kernels().pack_pool(lengths, row_length, row_of, rows, rooms)


def _first_fit(lengths: Lengths, row_length: int, row_of: Numbers, scratch: Scratch) -> Any:
    tree = np.zeros(2 * _FIRST_FIT_ROWS, np.int64)
    return kernels().pack_first_fit(lengths, row_length, row_of, tree)


def _best_fit(lengths: Lengths, row_length: int, row_of: Numbers, scratch: Scratch) -> Any:
    runs = (scratch(len(lengths), np.int64) for _ in range(3))
    memory, has_rows = np.empty((3, row_length + 1), np.int64), np.empty(row_length // 64 + 1, "Q")
    return kernels().pack_best_fit(lengths, row_length, row_of, *runs, memory, has_rows)


def _alone(lengths: Lengths, row_length: int, row_of: Numbers, scratch: Scratch) -> Any:
    np.cumsum(np.broadcast_to(1, len(row_of)), out=row_of)
    row_of -= 1
    return len(row_of)


STRATEGIES: dict[str, Callable[..., Any]] = {
    "greedy": partial(_pool, n_open=1), "pool": _pool, "first_fit": _first_fit,
    "best_fit": _best_fit,
}
ALONE = "alone"  # each piece has a row: windows of one document
_ALL_STRATEGIES = STRATEGIES | {ALONE: _alone}
_TURNS = "-turns"  # after the strategy, if documents are cut at turns
_BLOCK = 1 << 17  # documents, or tokens of some, that are cut at a time


class Plan(NamedTuple):
    """The pieces of each row, mapped; see the module."""

    offsets: Numbers
    starts: Numbers
    lengths: Lengths


class _Pieces(NamedTuple):
    """Pieces in the order of the data, and the row of each: what a plan is made of."""

    lengths: Lengths
    begins: Numbers
    row_of: Numbers

    def plan_of(self, rows: Numbers, n_rows: int) -> tuple[Plan, Numbers]:
        """Return a plan of some rows, and the numbers that these have in it."""
        rows, numbers = np.unique(rows, return_inverse=True)
        is_asked = np.zeros(n_rows, bool)
        is_asked[rows] = True
        places = np.concatenate([
            first + np.flatnonzero(is_asked[self.row_of[first : first + _BLOCK]])
            for first in range(0, len(self.row_of), _BLOCK)
        ])  # fmt: skip
        lengths, begins, row_of = (each[places] for each in self)
        plan = Plan(np.zeros(len(rows) + 1, np.int64), begins.copy(), lengths.copy())
        _Pieces(lengths, begins, np.searchsorted(rows, row_of)).sort_into(plan)
        return plan, numbers

    def sort_into(self, plan: Plan) -> None:
        """Fill a plan, whose offsets are 0."""
        kernels().count_in_rows(self.row_of, plan.offsets)
        kernels().sort_by_row(*self, *plan)


class PackedWindows:
    """Windows of several pieces of documents each.

    Attributes:
        n_tokens: Tokens of all windows.
        n_inputs: The same, for none is in two windows.
        n_short: 0, for none is left out.
        share_lost: Share of the tokens to train on that are in no window, of cut "turns".

    Args:
        file: The dataset.
        context_length: Length of a row.
        strategy: One of `STRATEGIES`, or `ALONE`.
        cut: "length" or "turns".
        keeps_plan: False to write nothing beside the dataset: if there is no plan, the pieces of
            a row are looked for among all, which takes less time than a plan for a few batches.
        is_written: True for rows that are written, without the target of the last token of a piece.

    Raises:
        SamplingError: The dataset has no loss mask, which turns are found by, or one of zeros.
        TokenFileError: As `open_plan`.
        OutputError: As `open_plan`.
    """

    def __init__(
        self, file: TokenFile, context_length: int, strategy: str, cut: str = "length",
        keeps_plan: bool = True, is_written: bool = False,
    ) -> None:
        from bpe.runtime.jit import pack

        self._file, self._context_length = file, context_length
        if cut == "turns":
            check_has_mask(file)
            strategy += _TURNS
        self._path, self._plan, header = open_plan(file, context_length, strategy, keeps_plan)
        self._n_rows = int(header["n_rows"])
        self._view = file.tokens if isinstance(file.tokens, ShardView) else None
        self._packed_plan = pack(tuple(self._plan))
        self._with_tokens = None if self._view else pack((*self._plan, file.tokens))
        self.n_tokens = self.n_inputs = header.get("n_tokens", file.n_tokens)
        self.n_short = 0
        n_trained, n_kept = header.get("trained", (0, 0))
        if cut == "turns" and not n_trained:
            raise SamplingError(
                f"{file.path}: its loss mask has no token to train on, and rows that are cut at"
                " turns (--cut turns) have some each; leave the option out"
            )
        n_kept -= header.get("trained_after", 0) * is_written
        self.share_lost = 1 - n_kept / n_trained if n_trained else 0.0
        if cut == "turns":
            _logger.info(
                "%s: cut at turns, %.2f %% of the tokens to train on do not fit into rows of %s and"
                " are left out", file.path, 100 * self.share_lost, f"{context_length:,}",
            )

    def __len__(self) -> int:
        return self._n_rows

    def read(
        self, numbers: Numbers, padding: int, inputs: Batch, targets: Batch, segment_ids: Batch
    ) -> bool:
        """Read windows, by their numbers from 0 on, in less time than piece by piece.

        Args:
            numbers: Of the windows.
            padding: Of the inputs.
            inputs: int64[n_windows, context_length], filled.
            targets: int64, of the same shape, filled.
            segment_ids: int32, of the same shape, filled; or without rows.

        Returns:
            False if this is not possible: of several shards, or without a plan.
        """
        from bpe.runtime.jit import pack

        is_sharded = self._view is not None and len(self._view.arrays) > 1
        if is_sharded or isinstance(self._plan, _Pieces):
            return False
        view = nullcontext() if self._view is None else self._view.at(lambda: self._spans(numbers))
        with view as here:
            if here is not None and self._with_tokens is None:
                self._with_tokens = pack((*self._plan, *here.arrays))
            n_pieces = kernels().read_packed(
                self._with_tokens, numbers, padding, IGNORED, inputs, targets, segment_ids
            )
        if n_pieces < 0:
            raise _damaged(self._path, "the pieces that it had when it was opened")
        self._file.count_reads(n_pieces, inputs.size)
        return True

    def _spans(self, numbers: Numbers) -> tuple[Numbers, Numbers]:
        """Return where the pieces of windows begin and end."""
        starts, n_inputs, n_targets, *_ = self.pieces(numbers)
        stops = starts + np.maximum(n_inputs, n_targets + 1)
        if starts.min(initial=0) < 0 or stops.max(initial=0) > self._file.n_tokens:
            raise _damaged(self._path, "the pieces that it had when it was opened")
        return starts, stops

    def rows(self, first: int, stop: int) -> RowPieces:
        """Return the pieces of windows [first, stop), as rows of any length."""
        starts, lengths, _, places, _ = self.pieces(np.arange(first, stop))
        firsts = np.flatnonzero(places % self._context_length == 0)
        return RowPieces(starts, lengths, np.append(firsts, len(starts)))

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest window."""
        firsts, step = range(0, len(self), 1 << 20), 1 << 20
        rows = (self.rows(first, min(first + step, len(self))) for first in firsts)
        return max((int(each.row_lengths().max()) for each in rows), default=0)

    def pieces(self, numbers: Numbers) -> Numbers:
        """Return the pieces of windows, as `DocumentWindows.pieces`."""
        from bpe.runtime.jit import pack

        plan, packed, length = self._plan, self._packed_plan, self._context_length
        if isinstance(plan, _Pieces):
            plan, numbers = plan.plan_of(numbers, self._n_rows)
            packed = pack(tuple(plan))
        n = int((plan.offsets[numbers + 1] - plan.offsets[numbers]).sum())
        table = np.empty((5, min(max(n, 0), len(numbers) * length)), np.int64)
        if kernels().find_pieces(packed, numbers, length, table) != n:
            raise _damaged(self._path, "the pieces that it had when it was opened")
        return table


def check_has_mask(file: TokenFile) -> None:
    """Raise SamplingError if a dataset has no loss mask to find turns by."""
    if not file.has_mask:
        raise SamplingError(
            f"{file.path}: has no loss mask, which turns are found by (--cut turns) and datasets of"
            " conversations have; leave the option out"
        )


def open_plan(
    file: TokenFile, context_length: int, strategy: str, keeps_plan: bool = True
) -> tuple[Path, Plan | _Pieces, dict[str, Any]]:
    """Return the path, the plan and its header; it is made if there is none.

    Without `keeps_plan` it is not, and the pieces are in temporary files, which have no name.

    Raises:
        TokenFileError: The plan, or the column of document ends, is damaged.
        OutputError: The plan cannot be written.
    """
    digest = file.manifest.digest
    about = {
        "format": _FORMAT, "dataset": digest, "strategy": strategy, "row_length": context_length,
    }
    name = f"{Path(file.path).stem}.{strategy}-{context_length}-{digest[:16]}.plan"
    path = file.directory / name
    if not path.exists() and not keeps_plan:
        from preprocess.storage import writing

        directory = tempfile.gettempdir()
        with writing(directory, _KEPT):
            return path, *_pack(file, context_length, strategy, _scratch_in(directory))
    if not path.exists():
        _make_plan(path, file, about)
    try:
        return path, *_read_plan(path, about)
    except FileNotFoundError:
        raise TokenFileError(
            f"{path}: was removed while it was being opened, as when the dataset was built again;"
            " open the dataset again"
        ) from None


def _read_plan(path: Path, about: dict[str, Any]) -> tuple[Plan, dict[str, Any]]:
    """Map a plan; raise TokenFileError if it is damaged."""
    with open(path, "rb") as opened:
        head = opened.read(_HEADER_BYTES)
        if b"}" not in head:
            head += opened.read(_HEADER_BYTES)
        size = os.fstat(opened.fileno()).st_size
        try:
            header = json.loads(head)
            n_rows, n_pieces, digest = (header[key] for key in ("n_rows", "n_pieces", "digest"))
            header["format"] = _FORMAT if header["format"] in spellings_of(_FORMAT) else None
            is_sound = all(header[name] == value for name, value in about.items())
            trained, kept = header.get("trained", (0, 0))
            counts = n_rows, n_pieces, trained, kept, header.get("trained_after", 0)
            is_sound &= all(type(each) is int and each >= 0 for each in counts)
            if not is_sound or size != len(head) + 8 * (n_rows + 1) + 12 * n_pieces:
                raise ValueError(n_rows)
        except (ValueError, KeyError, TypeError):
            raise _damaged(path, "a header of this dataset, and the size in it") from None
        data = FileMap(opened.fileno(), size).view(np.uint8)[len(head):]
    # Positions are checked where they are read.
    if _digest_of(data) != digest:
        raise _damaged(path, f"pieces of this dataset with the digest {digest}")
    return _plan_in(data, n_rows, n_pieces), header


def _plan_in(data: Any, n_rows: int, n_pieces: int) -> Plan:
    at = 8 * (n_rows + 1)
    return Plan(
        np.frombuffer(data, np.int64, n_rows + 1),
        np.frombuffer(data, np.int64, n_pieces, at),
        np.frombuffer(data, np.int32, n_pieces, at + 8 * n_pieces),
    )


def _damaged(path: Path, expected: str) -> TokenFileError:
    return TokenFileError(
        f"{path}: damaged: expected {expected}; remove it, and it is made again"
    )


def _digest_of(data: Any) -> str:
    """Return the digest of what follows the header."""
    digest = xxhash.xxh3_128()
    with memoryview(data) as view:
        for start in range(0, len(view), 1 << 24):
            digest.update(view[start : start + (1 << 24)])
    return str(digest.hexdigest())


def _make_plan(path: Path, file: TokenFile, about: dict[str, Any]) -> None:
    """Make a plan; of several processes one does so, and the others wait for it."""
    from bpe.files.atomic_write import sync, sync_directory
    from preprocess.storage import writing

    with writing(path, _KEPT), _locked(path.parent) as suffix:
        if path.exists():  # the one that held the lock before has made it
            return
        partial = path.with_name(f".{path.name}.partial{suffix}")
        pieces, more = _pack(file, about["row_length"], about["strategy"], _scratch_in(path.parent))
        n_rows, n_pieces = more["n_rows"], len(pieces.lengths)
        header = about | more | {"n_pieces": n_pieces, "digest": "-" * 32}
        begin = _HEADER_BYTES * (1 + (len(json.dumps(header)) > _HEADER_BYTES))
        with open(partial, "w+b") as opened:
            mapped = _mapped(opened, begin + 8 * (n_rows + 1) + 12 * n_pieces)
            data = np.frombuffer(mapped, np.uint8, offset=begin)
            pieces.sort_into(_plan_in(data, n_rows, n_pieces))
            header["digest"] = _digest_of(data)
            mapped[:begin] = json.dumps(header).encode().ljust(begin)
            mapped.flush()
            sync(opened.fileno())
        os.replace(partial, path)
        sync_directory(path.parent)
        _remove_old_plans(path, file)


@contextmanager
def _locked(directory: Path) -> Iterator[str]:
    """Lock a directory; yields "", or a suffix of this process on a file system without locks."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            suffix = ""
        except OSError:
            suffix = f".{os.getpid()}"  # several processes may make the same plan
        yield suffix
    finally:
        os.close(descriptor)


def _remove_old_plans(path: Path, file: TokenFile) -> None:
    """Remove the plans, and parts of plans, of manifests that this dataset had before."""
    stem, digest = Path(file.path).stem, file.manifest.digest
    try:
        if xxhash.xxh3_128_hexdigest(path.with_name(f"{stem}.json").read_bytes()) != digest:
            return  # it was built again since the file was opened, so other plans may be newer
    except OSError:
        return  # it is being built again
    own = rf"{re.escape(stem)}\.(?:{'|'.join(_ALL_STRATEGIES)})(?:{_TURNS})?-\d+-(\w{{16}})\.plan"
    for name in os.listdir(path.parent):
        match = re.fullmatch(rf"{own}|\.{own}\.partial[.\d]*", name)
        if match and (match[1] or match[2]) != digest[:16]:
            with suppress(OSError):  # another process has removed it
                os.unlink(path.with_name(name))


def count_rows(lengths: Numbers, counts: Numbers, row_length: int) -> int:
    """Count the rows of `PackedWindows` with the strategy "best_fit", without a plan.

    Pieces of one length are placed together: the row with the least room that fits has them until
    no other one fits.

    Args:
        lengths: int64[n], distinct lengths of documents.
        counts: int64[n], documents of each.
        row_length: Of a row.

    >>> count_rows(np.array([2, 3, 9]), np.array([1, 2, 1]), 4)  # rows 4, 4, 3 1, 3, 2
    5
    """
    n_rows = int((lengths // row_length) @ counts)
    pieces = np.bincount(lengths % row_length, counts, row_length).astype(np.int64)
    rooms: list[int] = []  # ascending
    rows_of: dict[int, int] = {}  # room -> rows
    for size in (np.flatnonzero(pieces[1:])[::-1] + 1).tolist():
        left = int(pieces[size])
        while left:
            place = bisect_left(rooms, size)
            room = rooms[place] if place < len(rooms) else row_length
            fit = room // size
            there = rows_of.pop(rooms.pop(place)) if place < len(rooms) else -(-left // fit)
            n_rows += there if room == row_length else 0
            filled = min(there, left // fit)
            last = min(left - filled * fit, fit) if there > filled else 0
            left -= filled * fit + last
            changed = {room: there - filled - (last > 0), room - fit * size: filled}
            changed[room - last * size] = changed.get(room - last * size, 0) + (last > 0)
            for each, n in changed.items():
                if n and each:
                    if each not in rows_of:
                        insort(rooms, each)
                    rows_of[each] = rows_of.get(each, 0) + n
    return n_rows


def _scratch_in(directory: str | Path) -> Scratch:
    """Return a function for memory of a file without a name, which the system writes out."""
    def scratch(n: int, dtype: Any) -> npt.NDArray[Any]:
        with tempfile.TemporaryFile(dir=directory) as temporary:
            return np.frombuffer(_mapped(temporary, max(1, n * np.dtype(dtype).itemsize)), dtype, n)

    return scratch


def _pack(
    file: TokenFile, row_length: int, strategy: str, scratch: Scratch
) -> tuple[_Pieces, dict[str, Any]]:
    """Return the pieces, and what the header of a plan says of them."""
    name = strategy.removesuffix(_TURNS)
    lengths, begins, totals = _cut(file, row_length, name != strategy, scratch)
    row_of = scratch(len(lengths), np.int64)
    more = {"n_rows": int(_ALL_STRATEGIES[name](lengths, row_length, row_of, scratch))}
    if name != strategy:
        blocks = (lengths[first : first + _BLOCK] for first in range(0, len(lengths), _BLOCK))
        n_tokens = sum(int(np.abs(each).sum(dtype=np.int64)) for each in blocks)
        *trained, after = totals.tolist()
        more |= {"n_tokens": n_tokens, "trained": trained, "trained_after": after}
    return _Pieces(lengths, begins, row_of), more


def _cut(
    file: TokenFile, row_length: int, at_turns: bool, scratch: Scratch
) -> tuple[Lengths, Numbers, Numbers]:
    """Return (lengths of pieces, where they begin, totals), as of `cut_at_turns`."""
    n = file.n_documents
    # At turns, two pieces of a document that follow one another have more tokens than a row.
    most = (1 + at_turns) * (n + file.n_tokens // row_length)
    lengths, begins = scratch(most, np.int32), scratch(most, np.int64)
    totals, n_pieces, first = np.zeros(3, np.int64), 0, 0
    while first < n:
        stop = min(first + _BLOCK, n)
        if at_turns:
            ends = file.document_ends
            begin = int(ends[first - 1]) if first else 0
            stop = max(first + 1, int(np.searchsorted(ends, np.uint64(begin + _BLOCK), "right")))
        bounds = read_bounds(file, first, stop)
        if at_turns:
            mask = np.ascontiguousarray(file.loss_mask[bounds[0] : bounds[-1]])
            n_pieces = kernels().cut_at_turns(
                mask, bounds, row_length, lengths, begins, n_pieces, totals
            )
        else:
            n_pieces = kernels().cut_at_lengths(bounds, row_length, lengths, begins, n_pieces)
        first = stop
    return lengths[:n_pieces], begins[:n_pieces], totals


def _mapped(opened: IO[bytes], n_bytes: int) -> mmap.mmap:
    """Map a file of zeros, whose space is reserved: a full disk is an error here, not later."""
    try:
        os.posix_fallocate(opened.fileno(), 0, n_bytes)
    except (AttributeError, OSError) as error:
        # macOS has none, some file systems refuse it: zeros that are written have space.
        if getattr(error, "errno", errno.EINVAL) not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
        for start in range(0, n_bytes, 1 << 20):
            opened.write(bytes(min(1 << 20, n_bytes - start)))
        opened.flush()
    return mmap.mmap(opened.fileno(), n_bytes)

"""AsyncDataLoader: batches that a thread prepares while the caller uses those before."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any

import numpy as np

from bpe.arguments import checks_names
from preprocess.run_ahead import run_ahead
from preprocess.sampling.data import IGNORED, SamplingError, check_integer
from preprocess.sampling.mixture import Mixture
from preprocess.sampling.sampler import Sampler

Batch = dict[str, Any]
Item = tuple[Any, Batch]  # (its step, or the place after its last record; a batch)


@checks_names
class AsyncDataLoader:
    """Batches of a sampler, or of records, prepared ahead by a thread.

    >>> sampler = Sampler(np.arange(9), 1, 4, order="sequential")
    >>> [batch["inputs"].tolist() for batch in AsyncDataLoader(sampler)]
    [[[0, 1, 2, 3]], [[4, 5, 6, 7]]]
    >>> records = [{"ids": np.arange(n, n + 2)} for n in range(3)]
    >>> [batch["ids"].tolist() for batch in AsyncDataLoader(records, batch_size=2)]
    [[[0, 1], [1, 2]], [[2, 3]]]

    An error of the source is raised by the iteration, after the batches before it. The thread ends
    with the iteration, also when the loop is left early; leaving waits until the source has given
    the batch that it is working on.

    Args:
        source: A `Sampler` or a `Mixture`; its `step` counts the batches that were yielded, not
            those prepared ahead, so its `state_dict` resumes exactly. Or an iterable of records,
            each a dictionary of arrays and numbers; arrays of one name have the same shape, but
            rows (with "input_ids") may differ in length: columns of the length of a row are padded
            to the longest one of the batch, `input_ids` with `pad_id`, `labels` with -100, others
            with 0.
        batch_size: Number of records that are stacked to a batch; the last has what is left. None
            for samplers, which have batches. If they are of a source of shards, such as
            `ParquetShardedSource`, its `state_dict` counts the records that were yielded.
        prefetch_enabled: False to prepare each batch when it is asked for.
        prefetch_buffer_size: Number of batches that are prepared ahead, at least 1.
        pad_id: Id of padding; None: that of the source, which has it from the manifest of its rows,
            else 0.

    Raises:
        SamplingError: An argument cannot work, or records of a batch differ.
    """

    def __init__(
        self, source: Sampler | Mixture | Iterable[Mapping[str, Any]],
        batch_size: int | None = None, prefetch_enabled: bool = True, prefetch_buffer_size: int = 4,
        *, pad_id: int | None = None,
    ) -> None:
        if isinstance(source, str | os.PathLike) or not hasattr(source, "__iter__"):
            raise SamplingError(
                "the source should be a Sampler, a Mixture or an iterable of records; got"
                f" {type(source).__name__}: make a Sampler of a dataset first"
            )
        is_sampler = isinstance(source, Sampler | Mixture)
        if is_sampler != (batch_size is None):
            raise SamplingError(
                "a sampler has a global_batch_size of its own; leave batch_size out"
                if is_sampler else "records are stacked to batches; give a batch_size"
            )
        if batch_size is not None:
            batch_size = check_integer("batch_size", batch_size, 1)
        n_ahead = check_integer("prefetch_buffer_size", prefetch_buffer_size, 1)
        self._source: Any = source
        self._batch_size = batch_size
        self._pad_id = None if pad_id is None else check_integer("pad_id", pad_id, 0)
        self._buffer_size = n_ahead if prefetch_enabled else 0
        self._is_sampler, self._has_place = is_sampler, hasattr(source, "placed")  # as of shards

    def __iter__(self) -> Iterator[Batch]:
        items = self._items()
        if self._buffer_size:
            items = run_ahead(items, self._buffer_size)
        with closing(items):
            for step, batch in items:
                if self._is_sampler:
                    self._source.step = step + 1
                elif self._has_place:
                    self._source.place = step
                yield batch
        if self._has_place:
            self._source.place = None

    def __repr__(self) -> str:
        return f"AsyncDataLoader({self._source!r}, batch_size={self._batch_size})"

    def __len__(self) -> int:
        """Return the number of batches of an epoch, or of records; TypeError if there is none."""
        return -(-len(self._source) // (self._batch_size or 1))

    def _items(self) -> Generator[Item]:
        source = self._source
        if self._is_sampler:
            for step in source.steps():
                yield step, source.batch(step)
            return
        records: list[Mapping[str, Any]] = []
        pad_id = getattr(source, "pad_id", 0) if self._pad_id is None else self._pad_id
        placed = source.placed() if self._has_place else enumerate(source)
        for place, record in placed:
            if not isinstance(record, Mapping):
                raise SamplingError(
                    f"a record should be a dictionary of arrays and numbers; got"
                    f" {type(record).__name__}"
                )
            records.append(record)
            if len(records) == self._batch_size:
                yield place, _stack(records, pad_id)
                records = []
        if records:
            yield place, _stack(records, pad_id)


def _stack(records: list[Mapping[str, Any]], pad_id: int) -> Batch:
    """Stack the arrays of records by name; rows are padded to the longest."""
    names = records[0].keys()
    for record in records:
        if record.keys() != names:
            raise SamplingError(
                f"records of a batch should have the same names; one has {', '.join(names)} and"
                f" another {', '.join(record)}"
            )
    found: Batch = {}
    shapes_of_rows = [np.shape(record.get("input_ids", 0)) for record in records]
    longest, are_rows = max(shapes_of_rows), {len(shape) for shape in shapes_of_rows} == {1}
    for name in names:
        arrays = [np.asarray(record[name]) for record in records]
        if are_rows and [array.shape for array in arrays] == shapes_of_rows:
            filler = {"input_ids": pad_id, "labels": IGNORED}.get(name, 0)
            filled = [array for array in arrays if len(array)]  # an empty list has no type
            dtype = np.result_type(*filled) if filled else np.int64
            found[name] = np.full((len(arrays), *longest), filler, dtype)
            for row, array in zip(found[name], arrays, strict=True):
                row[: len(array)] = array
            continue
        if len(shapes := {array.shape for array in arrays}) > 1:
            raise SamplingError(
                f"arrays of a batch should have one shape; {name!r} has {sorted(shapes)}: pad or"
                " pack them first"
            )
        found[name] = np.stack(arrays)
    return found

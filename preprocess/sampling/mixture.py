"""Mixture: batches of windows of several datasets, in given proportions.

Windows of a mixture are numbered over all batches. Window p belongs to the dataset in whose share
of [0, 1) the fractional part of p * g + offset is, g near the golden ratio: such points are spread
more evenly than random ones, so every stretch has the proportions but for a few windows. How many
of the windows before p a dataset has is a floor sum, computed in logarithmic time; so a batch
depends on the samplers, the weights, the seed and the step alone.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from itertools import pairwise
from typing import Any, Literal, Never

import numpy as np
import numpy.typing as npt

from bpe.arguments import MISSING, check, checked, checks_names, tells_missing
from bpe.parallel import cached_property
from preprocess.dataset.reader import TokenFile
from preprocess.sampling.data import (
    SamplingError,
    check_choice,
    check_integer,
    check_state,
    naming,
    new_batch,
    own_state,
)
from preprocess.sampling.fields import Fields, cumulative_lengths
from preprocess.sampling.sampler import Sampler
from preprocess.sampling.streams import Stream
from preprocess.split_mix import key_of

Array = npt.NDArray[Any]
Weights = Mapping[str, float]

_MODULUS = 2**64
_STEP = 0x9E3779B97F4A7C15  # 2**64 divided by the golden ratio, odd
_EQUAL = ("global_batch_size", "context_length", "rank", "world_size", "fields", "device")


class Mixture:
    """Batches of windows of several samplers.

    >>> samplers = {
    ...     name: Sampler(np.arange(first, first + 99), 4, 2, order="epoch", seed=1)
    ...     for name, first in (("few", 0), ("many", 500))
    ... }
    >>> mixture = Mixture(samplers, {"few": 1, "many": 3})
    >>> [int((mixture.batch(step)["inputs"] >= 500).all(axis=1).sum()) for step in range(4)]
    [3, 3, 3, 3]

    Iterating yields batches from the current step on, and moves the step.

    Args:
        samplers: Name of a dataset -> its sampler. All have the same batch size, context length,
            rank, world size, fields and device.
        weights: Name of a dataset -> its weight; or a schedule, a list of (first step, weights),
            the first from step 0 on.
        unit: What weights are shares of: "tokens" that are no padding, "documents" or "windows".
        seed: Of the order in which datasets take turns.
        continue_from: State of another mixture. Datasets that it, or one that it continued, had
            continue, also if documents were appended to them, see `Sampler`; weights, other
            datasets and the order in which they take turns are new. None: all begin.
        exhausted: "repeat": a dataset whose epoch is over begins another. "stop": an iteration ends
            before the first batch for which that would be needed.

    Attributes:
        step: The next step of an iteration.
        samplers: As given, or copies that continue.
        layout: Options that all samplers have in common, and the order of the first.

    Raises:
        SamplingError: Samplers differ, or weights cannot work.
    """

    @checks_names
    def __init__(
        self, samplers: Mapping[str, Sampler], weights: Weights | Sequence[tuple[int, Weights]],
        *, unit: Literal["tokens", "documents", "windows"] = "tokens", seed: int = 0,
        exhausted: Literal["repeat", "stop"] = "repeat",
        continue_from: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(samplers, Mapping) or not samplers:
            raise SamplingError(
                "samplers should be a dictionary, name of a dataset -> its sampler, with at least"
                f" one; got {'none' if isinstance(samplers, Mapping) else type(samplers).__name__}"
            )
        for name, sampler in samplers.items():
            if not isinstance(sampler, Sampler):
                raise SamplingError(
                    f"{name!r} should be a Sampler, not {type(sampler).__name__}; make one of each"
                    " dataset first"
                )
        self.samplers = dict(samplers)
        first, self.layout = next((x, y.layout) for x, y in self.samplers.items())
        for (name, sampler), option in itertools.product(self.samplers.items(), _EQUAL):
            if sampler.layout[option] != self.layout[option]:
                raise SamplingError(
                    f"the samplers {first!r} and {name!r} differ in {option},"
                    f" {self.layout[option]!r} and {sampler.layout[option]!r}; make them with the"
                    " same"
                )
        check_choice("exhausted", exhausted, ("repeat", "stop"))
        check_choice("unit", unit, ("tokens", "documents", "windows"))
        self._seed, self._exhausted = check_integer("seed", seed, 0, math.inf), exhausted
        self._offset = int(key_of(self._seed)[0])
        self._schedule = [
            (step, self._shares(given, unit)) for step, given in _schedule_of(weights)
        ]
        self._continue_from = own_state(continue_from)
        for name, sampler in samplers.items():
            with naming(f"continue_from, for the sampler {name!r}"):
                if after := self._reached(name, continue_from):
                    self.samplers[name] = copy(sampler)
                    self.samplers[name].continue_after(after)
        self.step = 0

    def _reached(self, name: str, state: Mapping[str, Any] | None) -> tuple[Stream, int] | None:
        """Return the stream of a dataset in a mixture with a state, and how far it came.

        Of a dataset that only a mixture before had, its stream there; None: none had it.
        """
        if state is None:
            return None
        _check_mixture(state)
        after = self._reached(name, state.get("continue_from"))
        of_sampler = state["samplers"].get(name)
        if of_sampler is None:
            return after
        stream, _ = self.samplers[name].reached(of_sampler, after)
        seed = check_integer("the seed of a state", state["seed"], 0, math.inf)
        step = check_integer("the step of a state", state["step"], 0)
        offset, size = int(key_of(seed)[0]), of_sampler["global_batch_size"]
        counts = _counts(_schedule_in(state), offset, size, step)
        return stream, counts[[*state["samplers"]].index(name)]

    def _shares(self, weights: Weights, unit: str) -> tuple[int, ...]:
        """Return where the share of each dataset ends, in [0, 2**64]."""
        if unknown := weights.keys() ^ self.samplers.keys():
            raise SamplingError(
                f"weights should be of the samplers {', '.join(self.samplers)}, each once; check"
                f" {', '.join(map(repr, sorted(unknown)))}"
            )
        values = weights.values()
        if not all(isinstance(each, int | float) and 0 <= each < math.inf for each in values):
            raise SamplingError(f"weights should be at least 0, and finite; got {dict(weights)}")
        shares = [weights[name] / self._units_per_window(name, unit) for name in self.samplers]
        if not 0 < sum(shares) < math.inf:
            raise SamplingError(f"weights should have a sum above 0; got {dict(weights)}")
        ends = [round(float(x) * 2**53) << 11 for x in np.cumsum(shares) / sum(shares)]
        last = max(number for number, share in enumerate(shares) if share)
        return (*ends[:last], *[_MODULUS] * (len(ends) - last))

    def _units_per_window(self, name: str, unit: str) -> float:
        sampler = self.samplers[name]
        if unit != "documents":
            return sampler.tokens_per_window if unit == "tokens" else 1.0
        if not isinstance(sampler.dataset, TokenFile):
            raise SamplingError(
                f"the sampler {name!r} reads an array, which has no documents; choose"
                " unit='tokens' or 'windows', or give a .bin"
            )
        return sampler.tokens_per_window * sampler.dataset.n_documents / sampler.dataset.n_tokens

    @checked
    def counts(self, step: int) -> dict[str, int]:
        """Return how many windows each dataset has in the batches before `step`."""
        step = check_integer("step", step, 0, math.inf)
        found = _counts(self._schedule, self._offset, self.layout["global_batch_size"], step)
        return dict(zip(self.samplers, found, strict=True))

    @tells_missing
    def batch(self, step: int, **_unknown: Never) -> dict[str, Any]:
        """Return the arrays of this rank of batch `step`, as `Sampler.batch`."""
        if _unknown or step is MISSING:
            check(Mixture.batch, (self, step), _unknown)
        rank, world_size = self.layout["rank"], self.layout["world_size"]
        size, length = self.layout["global_batch_size"], self.layout["context_length"]
        n = size * (rank + 1) // world_size - size * rank // world_size
        arrays: dict[str, Array] = {}
        for _, rows, read in self._reads(step):
            for name in self.layout["fields"]:
                values = getattr(read, "segment_ids" if name == "cu_seqlens" else name)
                if name not in arrays:
                    arrays[name] = new_batch(n, length, values.dtype)
                arrays[name][rows] = values
        if "cu_seqlens" in arrays:
            arrays["cu_seqlens"] = cumulative_lengths(arrays["cu_seqlens"])
        sampler = next(iter(self.samplers.values()))
        # In the order of the fields.
        return sampler.to_device({name: arrays[name] for name in self.layout["fields"]})

    def _reads(self, step: int) -> Iterator[tuple[str, Array, Fields]]:
        """Yield (name, rows that it has in the batch of this rank, these) of each dataset."""
        step = check_integer("step", step, 0)
        size = self.layout["global_batch_size"]
        ends = [ends for start, ends in self._schedule if start <= step][-1]
        positions = np.arange(step * size, (step + 1) * size, dtype=np.uint64)
        points = positions * np.uint64(_STEP) + np.uint64(self._offset)
        limits = np.array([end for end in ends if end < _MODULUS], np.uint64)
        dataset_of = np.searchsorted(limits, points, side="right")
        rank, world_size = self.layout["rank"], self.layout["world_size"]
        first, stop = (size * each // world_size for each in (rank, rank + 1))
        before = self.counts(step).values()
        for number, ((name, sampler), n) in enumerate(
            zip(self.samplers.items(), before, strict=True)
        ):
            all_rows = np.flatnonzero(dataset_of == number)
            chosen = (all_rows >= first) & (all_rows < stop)
            yield name, all_rows[chosen] - first, sampler.read(n + np.flatnonzero(chosen))

    @checked
    def describe(self, step: int) -> list[dict[str, Any]]:
        """Describe the rows of batch `step`, as `Sampler.describe`; `dataset` names the sampler."""
        found = list[dict[str, Any]]()
        for name, rows, fields in self._reads(step):
            described = self.samplers[name].describe_fields(fields)
            found += [
                each | {"row": row, "dataset": name}
                for row, each in zip(rows.tolist(), described, strict=True)
            ]
        return sorted(found, key=lambda each: int(each["row"]))

    def __repr__(self) -> str:
        return f"Mixture({', '.join(self.samplers)}, step={self.step})"

    def __len__(self) -> int:
        """Return the number of batches until a dataset runs out; TypeError if none does."""
        n = self._n_batches
        if n is None:
            raise TypeError(
                "the mixture has no length: it repeats its datasets, or all of them with a weight"
                " have order 'random', so it yields batches without end; choose exhausted='stop'"
                " and order='epoch' for one of them, or a number of steps"
            )
        return n

    @cached_property
    def _n_batches(self) -> int | None:
        """Number of batches until a dataset runs out; None if none does, or they repeat."""
        limits = {
            name: sampler.n_first for name, sampler in self.samplers.items()
            if sampler.layout["order"] != "random" and self._exhausted == "stop"
        }

        def is_over(n: int) -> bool:
            counts = self.counts(n + 1)
            return any(counts[name] > limit for name, limit in limits.items())

        most = 1 << 62
        return bisect.bisect_left(range(most), True, key=is_over) if is_over(most) else None

    def steps(self) -> Iterator[int]:
        """Yield the steps of an iteration that begins now, without moving `step`."""
        n = self._n_batches
        return itertools.count(self.step) if n is None else iter(range(self.step, n))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for step in self.steps():
            self.step = step + 1
            yield self.batch(step)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for JSON: the step, the shares, and the states of the samplers."""
        states = {name: sampler.state_dict() for name, sampler in self.samplers.items()}
        shares = [[step, *map(str, ends)] for step, ends in self._schedule]
        found = {"step": self.step, "seed": self._seed, "shares": shares, "samplers": states}
        more = self._continue_from
        return found if more is None else found | {"continue_from": more}

    @checks_names
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a mixture with this state is; the number of ranks may be another.

        Raises:
            SamplingError: The state is of other samplers, weights or another seed.
        """
        own = self.state_dict()
        _check_mixture(state)
        if [*state["samplers"]] != [*own["samplers"]]:
            raise SamplingError(
                f"the state is of the samplers {', '.join(state['samplers'])}, and here they are"
                f" {', '.join(own['samplers'])}; give the same, in the same order"
            )
        for name in ("seed", "shares", "continue_from"):
            if state.get(name) != own.get(name):
                raise SamplingError(
                    f"the state is of another mixture: its {name} differ; make the mixture with the"
                    " weights and the seed of the state"
                )
        step = check_integer("the step of a state", state["step"], 0)
        # Nothing changes unless all of them fit.
        steps = [s.check_state(state["samplers"][name]) for name, s in self.samplers.items()]
        for sampler, of_sampler in zip(self.samplers.values(), steps, strict=True):
            sampler.step = of_sampler
        self.step = step


def _check_mixture(state: Any) -> None:
    """Raise SamplingError if a state is not that of a mixture."""
    check_state(state, ("step", "seed", "shares", "samplers"), "a mixture")
    check_state(state["samplers"], (), "the samplers of a mixture")


def _schedule_in(state: Mapping[str, Any]) -> list[tuple[int, list[int]]]:
    """Return (first step, where the share of each dataset ends) of the state of a mixture."""
    try:
        found = [(int(step), [*map(int, ends)]) for step, *ends in state["shares"]]
        if found[0][0] == 0 and {len(ends) for _, ends in found} == {len(state["samplers"])}:
            return found
    except (TypeError, ValueError, IndexError):
        pass  # as if they were of others
    raise SamplingError(
        "the state of a mixture should have the shares of all of its samplers; give what its"
        " state_dict() returned"
    )


def _counts(
    schedule: Sequence[tuple[int, Sequence[int]]], offset: int, size: int, step: int
) -> list[int]:
    """Return how many windows each dataset has in the batches of `size` before `step`."""
    found = [0] * len(schedule[0][1])
    stops = [start for start, _ in schedule[1:]]
    for (start, ends), stop in zip(schedule, [*stops, step], strict=True):
        if start < step:
            below = [
                _count_below(end, min(stop, step) * size, offset)
                - _count_below(end, start * size, offset)
                for end in ends
            ]
            found = [n + b - a for n, (a, b) in zip(found, pairwise([0, *below]), strict=True)]
    return found


def _schedule_of(weights: Weights | Sequence[tuple[int, Weights]]) -> list[tuple[int, Weights]]:
    """Return the parts of a schedule, (first step, weights), or raise SamplingError."""
    found = [(0, weights)] if isinstance(weights, Mapping) else weights
    for entry in found if isinstance(found, Sequence) else [found]:
        match entry:
            case (step, Mapping()):
                check_integer("the first step of weights", step, 0)
            case _:
                raise SamplingError(
                    "weights should be a dictionary, name of a dataset -> weight, or a list of"
                    f" (first step, such a dictionary); got {entry!r}"
                )
    starts = [step for step, _ in found]
    if not starts or starts[0] != 0 or any(b <= a for a, b in pairwise(starts)):
        raise SamplingError(
            f"the steps of a schedule should ascend from 0; got {', '.join(map(str, starts))}"
        )
    return [(int(step), given) for step, given in found]  # of NumPy, which is nothing for JSON


def _count_below(end: int, n: int, offset: int) -> int:
    """Count the p in range(n) with (p * _STEP + offset) mod 2**64 < end."""
    return (
        _floor_sum(n, _MODULUS, _STEP, offset + _MODULUS)
        - _floor_sum(n, _MODULUS, _STEP, offset + _MODULUS - end)
    )


def _floor_sum(n: int, m: int, a: int, b: int) -> int:
    """Return the sum of (a * i + b) // m for i in range(n); none of them is negative."""
    total = 0
    while n:
        total += n * (n - 1) // 2 * (a // m) + n * (b // m)
        a, b = a % m, b % m
        last = a * n + b
        if last < m:
            break
        n, b, m, a = last // m, last % m, a, m
    return total

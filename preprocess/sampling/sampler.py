"""Sampler: batches of windows of a dataset, in an order, for one of several processes.

What a window is and the order of windows are independent choices. The order is an endless stream of
windows (`orders`); batch `step` has the next `global_batch_size` of them, of which each rank takes
its share. So a batch depends on the dataset, the options, the seed and the step alone, and the
stream does not depend on the number of ranks.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Never

import numpy as np
import numpy.typing as npt
import xxhash

from bpe.arguments import MISSING, check, checked, checks_names, tells_missing
from bpe.parallel import cached_property
from preprocess.dataset.manifest import APPENDED
from preprocess.dataset.reader import TokenFile, open_tokens
from preprocess.sampling.data import (
    Dataset,
    OpenDataset,
    SamplingError,
    check_choice,
    check_integer,
    check_state,
    name_of,
    naming,
    new_batch,
    open_dataset,
    own_state,
    read_pieces,
    read_windows,
    to_device,
    token_array,
    torch_device,
)
from preprocess.sampling.fields import NAMES, NEED_DOCUMENTS, Fields
from preprocess.sampling.orders import ORDERS, Numbers
from preprocess.sampling.packing import ALONE, MAX_ROW_LENGTH, STRATEGIES, PackedWindows
from preprocess.sampling.streams import Stream
from preprocess.sampling.windows import DocumentWindows, StrideWindows

if TYPE_CHECKING:
    import torch

Array = npt.NDArray[Any]
Windows = DocumentWindows | PackedWindows  # `len` is their number

_SAMPLES, _SAMPLE_LENGTH = 64, 512  # of an array, for its fingerprint
_STEPS = 64  # whose windows are computed at a time
# What states lack that are of earlier versions, or of samplers that begin.
_EARLIER: dict[str, Any] = {"cut": "length", "drop_short": False, "continue_from": None}


class Sampler:
    """Batches of windows of a dataset.

    >>> sampler = Sampler(np.arange(10), 2, 4, order="sequential", drop_last=False)
    >>> batch = sampler.batch(0)
    >>> batch["inputs"].tolist(), batch["targets"].tolist()
    ([[0, 1, 2, 3], [4, 5, 6, 7]], [[1, 2, 3, 4], [5, 6, 7, 8]])
    >>> len(sampler), sampler.batch(1)["targets"].tolist()
    (2, [[9, -100, -100, -100]])

    A pickle holds the options and the path of the dataset, or all ids of an array. Several threads
    may call `batch`.

    Iterating yields the batches from the current step to the end of the epoch, and moves the step;
    `random` has no epochs, and yields batches without end.

    Args:
        dataset: What `open_tokens` returns, the path of a .bin or of its manifest, or
            integer[n_tokens].
        global_batch_size: Number of windows in a batch of all ranks, at least 1.
        context_length: Number of inputs in a window, at least 1.
        windows: "stride": windows begin at multiples of `stride`, across documents. "documents":
            windows of one document each; shorter ones are padded. "packed": windows of several
            documents; longer documents are cut. Which documents share a window is planned when the
            first sampler with these options is made, and kept in a file beside the dataset.
        stride: Distance of windows; None: `context_length`, so that windows do not overlap. Not of
            "packed".
        strategy: Of "packed", see docs/sampling.md.
        cut: Where documents are cut. "length": after `context_length` tokens. "turns", of
            conversations with a loss mask, for "packed" and "documents": a window begins with a
            document or after an answer, never inside of one; the end of an answer that does not fit
            is left out, and `share_lost` says how much.
        order: "random": independent windows, each with the same probability; of "stride" they begin
            at any position, as those of `get_batch`. "epoch": each window once per epoch, in a new
            random order. "sequential": each window once per epoch, in the order of the data.
        seed: Of "random" and "epoch".
        drop_last: True to leave out a last window of "stride" with fewer targets, and the last
            windows of an epoch that do not fill a batch. False: the window is padded, and the last
            batch of an epoch is smaller.
        drop_short: True to leave out windows of "documents" with fewer than `context_length`
            targets, instead of padding them.
        rank: Number of this process, in range(world_size).
        world_size: Number of processes.
        fields: Names of the arrays of a batch, listed in docs/sampling.md.
        device: None for NumPy arrays, else the PyTorch device of tensors.
        continue_from: State of a sampler of the dataset before documents were appended, or of the
            same: the first epoch has the windows that it had not given in its own, and those of the
            new documents; None: all windows. Not of "random"; of "packed" for the same dataset.

    Attributes:
        step: The next step of an iteration.
        dataset: The dataset, opened.
        layout: The options.

    Raises:
        SamplingError: An option has a value that cannot work, or there is no window.
        TokenFileError: The path is not a finished `.bin`, or its plan is damaged.
        OutputError: The plan of "packed" cannot be written.
        Exception: PyTorch does not know the device.
    """

    _keeps_plan = True  # of "packed", beside the dataset

    @checks_names
    def __init__(
        self, dataset: Dataset, global_batch_size: int, context_length: int, *,
        windows: Literal["stride", "documents", "packed"] = "stride", stride: int | None = None,
        strategy: Literal["greedy", "pool", "first_fit", "best_fit"] = "best_fit",
        cut: Literal["length", "turns"] = "length",
        order: Literal["random", "epoch", "sequential"] = "random", seed: int = 0,
        drop_last: bool = True, drop_short: bool = False, rank: int = 0, world_size: int = 1,
        fields: Sequence[str] = ("inputs", "targets"),
        device: str | torch.device | None = None, continue_from: Mapping[str, Any] | None = None,
    ) -> None:
        self.layout: dict[str, Any] = {
            "global_batch_size": check_integer("global_batch_size", global_batch_size, 1),
            "context_length": check_integer("context_length", context_length, 1),
            "stride": None if stride is None else check_integer("stride", stride, 1),
            "world_size": check_integer("world_size", world_size, 1), "windows": windows,
            "strategy": strategy, "cut": cut, "order": order,
            "seed": check_integer("seed", seed, 0, math.inf),
            "drop_last": bool(drop_last), "drop_short": bool(drop_short),
            "rank": check_integer("rank", rank, 0), "device": device,
            "fields": fields if isinstance(fields, str) else tuple(fields),
            "continue_from": own_state(continue_from),
        }
        if self.layout["rank"] >= self.layout["world_size"]:
            raise SamplingError(
                f"rank should be in range(world_size), of {world_size}; got {rank}"
            )
        if device is not None:
            torch_device(device)
        if isinstance(dataset, str | os.PathLike):
            dataset = open_tokens(dataset)
        self.dataset = open_dataset(dataset)
        self._n_tokens = len(token_array(self.dataset))
        self._padding, self._has_mask = 0, False
        if isinstance(self.dataset, TokenFile):
            self._padding = self.dataset.manifest.end_of_text_id or 0
            self._has_mask = self.dataset.has_mask
        check_choice("order", order, ORDERS)
        self._check_fields()
        self._windows = self._make_windows()
        self._fingerprint, self.step = _fingerprint(self.dataset), 0
        self._block: tuple[int, Numbers, list[int]]
        with naming("continue_from"):
            self.continue_after(None if continue_from is None else self.reached(continue_from))
        self._check_enough()

    def _make_windows(self) -> Windows:
        windows, drop_short = self.layout["windows"], self.layout["drop_short"]
        length, stride = self.layout["context_length"], self.layout["stride"]
        check_choice("windows", windows, ("stride", "documents", "packed"))
        check_choice("strategy", self.layout["strategy"], STRATEGIES)
        check_choice("cut", cut := self.layout["cut"], ("length", "turns"))
        if drop_short and windows != "documents":
            raise SamplingError(
                f"drop_short is of windows='documents', not of {windows!r}: leave it out; drop_last"
                " is of 'stride', and packed windows are padded"
            )
        if cut == "turns" and (windows == "stride" or stride is not None or drop_short):
            raise SamplingError(
                "cut='turns' needs windows='packed' or 'documents', without stride and drop_short:"
                " windows begin where a turn does, and have any length"
            )
        if windows == "stride":
            if self.layout["order"] == "random":  # every position, and only whole windows
                return StrideWindows(self._n_tokens, length, 1, True)
            return StrideWindows(self._n_tokens, length, stride or length, self.layout["drop_last"])
        if not isinstance(self.dataset, TokenFile):
            raise _needs_documents(f"windows={windows!r}")
        if windows == "documents" and cut == "length":
            ends = self.dataset.document_ends
            return DocumentWindows(ends, length, stride or length, drop_short)
        if stride is not None and windows == "packed":
            raise SamplingError(
                f"stride={stride} is of windows='stride' and 'documents'; packed windows do not"
                " overlap: leave it out"
            )
        if length > MAX_ROW_LENGTH or not self._n_tokens:
            raise SamplingError(
                f"{name_of(self.dataset)} has {self._n_tokens:,} tokens, and packed windows of"
                f" context_length {length:,} need at least 1 and have at most {MAX_ROW_LENGTH:,};"
                " choose a smaller context_length, or more data"
            )
        strategy = self.layout["strategy"] if windows == "packed" else ALONE
        return PackedWindows(self.dataset, length, strategy, cut, self._keeps_plan)

    def continue_after(self, after: tuple[Stream, int] | None) -> None:
        """Begin the stream, after a position of another one if there is one, see `Stream`."""
        names = "order", "seed", "global_batch_size", "drop_last"
        order, seed, size, drop_last = (self.layout[name] for name in names)
        self._stream = Stream(order, self.n_windows, seed, after, size, drop_last)
        self._block = -1, np.empty(0, np.int64), []

    def reached(
        self, state: Mapping[str, Any], after: tuple[Stream, int] | None = None
    ) -> tuple[Stream, int]:
        """Return the stream of a sampler of this dataset, or its beginning, and how far it came.

        `after` is what it continued from, if the state does not have it.

        Raises:
            SamplingError: The state is of another dataset, or of other options.
        """
        check_state(state, ("order",), "a sampler")
        if "random" in (self.layout["order"], state["order"]):
            raise SamplingError(
                "in order 'random' windows are drawn again and again, so none are left to continue"
                " with; leave continue_from out and choose another seed, or begin with"
                " order='epoch', which can be continued"
            )
        # The rank and the size of batches may differ.
        others = ["dataset", "global_batch_size", "continue_from"]
        others += ["drop_last"] * (self.layout["windows"] != "stride")
        state = self._checked(state, others)
        if after is None and state["continue_from"] is not None:
            after = self.reached(state["continue_from"])
        n_before = self._windows_before(state["dataset"], name_of(self.dataset))
        size = check_integer("the global_batch_size of a state", state["global_batch_size"], 1)
        order, seed = self.layout["order"], self.layout["seed"]
        stream = Stream(order, n_before, seed, after, size, state["drop_last"])
        step = check_integer("the step of a state", state["step"], 0)
        return stream, int(stream.batches(np.array([step]))[0][0])

    def _windows_before(self, fingerprint: str, name: str) -> int:
        """Return how many windows the dataset had when it had this fingerprint."""
        if fingerprint == self._fingerprint:
            return self.n_windows
        windows, length = self.layout["windows"], self.layout["context_length"]
        sources = self.dataset.manifest.sources if isinstance(self.dataset, TokenFile) else ()
        known = [source[APPENDED] for source in sources if APPENDED in source]
        before = next((each for each in known if each["digest"] == fingerprint), None)
        if before is None:
            raise SamplingError(
                f"the state is of another dataset than {name}, and of none to which documents were"
                " appended to make it (tokenmill append); give that of one of these"
            )
        is_planned = windows == "packed" or self.layout["cut"] != "length"
        if is_planned or (windows == "stride" and not self.layout["drop_last"]):
            raise SamplingError(
                "after documents were appended, windows that the old dataset ended with are others;"
                " choose windows='documents' that are cut by length, or 'stride' with"
                " drop_last=True, from the beginning"
            )
        assert isinstance(self.dataset, TokenFile)
        stride = self.layout["stride"] or length
        if windows == "stride":
            return len(StrideWindows(before["n_tokens"], length, stride, True))
        ends = self.dataset.document_ends[: before["n_documents"]]
        return len(DocumentWindows(ends, length, stride, self.layout["drop_short"]))

    def _check_enough(self) -> None:
        """Raise SamplingError if there is no window, or no batch in an epoch."""
        name, layout = name_of(self.dataset), self.layout
        if not self.n_windows and layout["windows"] == "documents":
            least = layout["context_length"] + 1 if layout["drop_short"] else 2
            raise SamplingError(
                f"{name} has no document of at least {least:,} tokens, inputs and a target; choose"
                " windows='stride' or 'packed', or other data"
            )
        if not self.n_windows:
            advice = "a smaller context_length, " * (self._n_tokens > 1)
            advice += "drop_last=False, " * (self._n_tokens > 1 and layout["order"] != "random")
            raise SamplingError(
                f"{name} has {self._n_tokens:,} tokens, and a window of context_length"
                f" {layout['context_length']:,} needs one more than that; choose {advice}"
                f"{'or ' * bool(advice)}more data"
            )
        if layout["order"] != "random" and not self._stream.n_batches:
            raise SamplingError(
                f"{name} has {self.n_windows:,} windows, and a batch needs"
                f" {layout['global_batch_size']:,}; choose a smaller global_batch_size, or"
                " drop_last=False"
            )

    def _check_fields(self) -> None:
        fields = self.layout["fields"]
        if not fields:
            raise SamplingError(f"fields has no name; choose some of {', '.join(NAMES)}")
        for name in [fields] if isinstance(fields, str) else fields:
            if isinstance(fields, str) or name not in NAMES:
                raise SamplingError(
                    f"there is no field {name!r}; choose some of {', '.join(NAMES)}"
                )
            if name in NEED_DOCUMENTS and not isinstance(self.dataset, TokenFile):
                raise _needs_documents(f"the field {name!r}")

    def __repr__(self) -> str:
        shown = {name: self.layout[name] for name in ("windows", "order", "seed")}
        return f"Sampler({name_of(self.dataset)!r}, {shown}, step={self.step})"

    def __len__(self) -> int:
        """Return the number of batches of an epoch; raise TypeError for "random"."""
        if self.layout["order"] == "random":
            raise TypeError(
                "a sampler of order 'random' has no length: it yields batches without end; choose"
                " order='epoch', or a number of steps"
            )
        return self._stream.n_batches

    @tells_missing
    def batch(self, step: int, **_unknown: Never) -> dict[str, Any]:
        """Return the arrays of this rank of batch `step`, by name.

        Args:
            step: From 0 on, over all epochs.

        Returns:
            int64[n, context_length] for each of `fields`, except `cu_seqlens`; n is the share of
            this rank, which may be 0.
        """
        if _unknown or step is MISSING:
            check(Sampler.batch, (self, step), _unknown)
        return self.arrays_of(self.fields_of(step))

    @checked
    def describe(self, step: int) -> list[dict[str, Any]]:
        """Describe the rows of this rank of batch `step`: documents, texts, sources, ids, masks.

        Returns:
            A dictionary for each row, for JSON; docs/sampling.md lists its keys.

        Raises:
            SamplingError: The dataset is an array, which has no documents.
        """
        return self.describe_fields(self.fields_of(step))

    def describe_fields(self, fields: Fields) -> list[dict[str, Any]]:
        """Describe all rows of fields, as `describe`."""
        from preprocess.sampling.describe import add_texts, describe_rows

        if not isinstance(self.dataset, TokenFile):
            raise _needs_documents("describe")
        rows = range(len(fields.inputs))
        return [*add_texts(self.dataset, describe_rows(self.dataset, fields, rows))]

    def fields_of(self, step: int) -> Fields:
        """Return what `batch` takes its arrays from."""
        numbers = self._numbers(check_integer("step", step, 0))
        rank, world_size = self.layout["rank"], self.layout["world_size"]
        first, stop = (len(numbers) * each // world_size for each in (rank, rank + 1))
        return self._read(numbers[first:stop])

    def arrays_of(self, fields: Fields) -> dict[str, Any]:
        """Return the arrays of the sampler's fields, by name, on its device."""
        return self.to_device({name: getattr(fields, name) for name in self.layout["fields"]})

    def to_device(self, arrays: dict[str, Array]) -> dict[str, Any]:
        """Return arrays, or tensors on the sampler's device."""
        device = self.layout["device"]
        if device is None:
            return arrays
        return {name: to_device(array, device) for name, array in arrays.items()}

    def read(self, positions: Numbers) -> Fields:
        """Read the windows at positions of the endless stream."""
        return self._read(self._stream.at(positions))

    @property
    def n_first(self) -> int:
        """Number of windows of the first epoch, which has fewer if it continues another."""
        return self._stream.n_first

    @property
    def n_windows(self) -> int:
        """Number of windows per epoch; for order "random", number of possible windows."""
        return len(self._windows)

    @property
    def share_lost(self) -> float:
        """Share of the tokens to train on that are in no window; 0 but for cut "turns"."""
        return getattr(self._windows, "share_lost", 0.0)

    @property
    def tokens_per_window(self) -> float:
        """Mean number of inputs of a window that are no padding."""
        return self._windows.n_inputs / self.n_windows

    def _numbers(self, step: int) -> Numbers:
        """Return the numbers of the windows of a global batch; those of many steps are kept."""
        block, index = divmod(step, _STEPS)
        kept, numbers, limits = self._block  # another thread may replace it
        if kept != block:
            numbers, limits = self._numbers_of_block(block)
            self._block = block, numbers, limits
        return numbers[limits[index] : limits[index + 1]]

    def _numbers_of_block(self, block: int) -> tuple[Numbers, list[int]]:
        """Return the numbers of the windows of many steps, and where each step begins in them."""
        steps = np.arange(block * _STEPS, (block + 1) * _STEPS)
        size = self.layout["global_batch_size"]
        firsts, counts = steps * size, np.full(_STEPS, size)
        if self.layout["order"] != "random":
            firsts, counts = self._stream.batches(steps)
        limits = np.append(0, np.cumsum(counts))
        positions = np.arange(limits[-1]) + np.repeat(firsts - limits[:-1], counts)
        return self._stream.at(positions), limits.tolist()

    def _read(self, numbers: Numbers) -> Fields:
        """Read windows by their numbers, and pad those with fewer tokens."""
        windows, n, length = self._windows, len(numbers), self.layout["context_length"]
        starts, crosses = None, False
        if isinstance(windows, StrideWindows):
            starts, crosses = windows.whole_windows(numbers), isinstance(self.dataset, TokenFile)
        trained = partial(self._trained, numbers) if self._has_mask else None
        documents = (lambda: self._documents) if crosses else None
        how = partial(windows.pieces, numbers), documents, trained
        if n and starts is not None:
            found = read_windows(self.dataset, starts, length + 1)
            inputs = _copied(found[:, :-1])
            return Fields(inputs, lambda: _copied(found[:, 1:]), *how, is_full=True)
        inputs, targets = new_batch(n, length), new_batch(n, length)
        fields = Fields(inputs, targets.copy, *how)
        fields.targets = targets
        if isinstance(windows, PackedWindows):
            # Less time now than later.
            is_asked = not {"segment_ids", "cu_seqlens"}.isdisjoint(self.layout["fields"])
            segment_ids = new_batch(n if is_asked else 0, length, np.int32)
            if windows.read(numbers, self._padding, inputs, targets, segment_ids):
                if is_asked:
                    fields.segment_ids = segment_ids
                return fields
        read_pieces(self.dataset, fields.pieces, self._padding, inputs, targets)
        return fields

    @cached_property
    def _documents(self) -> Any:
        """A packed tuple of uint64[n_documents], where documents end."""
        from bpe.runtime.jit import pack

        assert isinstance(self.dataset, TokenFile)
        return pack((self.dataset.document_ends,))

    def _trained(self, numbers: Numbers) -> Array:
        """Return the loss mask of the targets of windows: int64[n, context_length]."""
        file = self.dataset
        assert isinstance(file, TokenFile)
        shape = len(numbers), self.layout["context_length"]
        inputs, targets = new_batch(*shape), new_batch(*shape)
        read_pieces(file, self._windows.pieces(numbers), 0, inputs, targets, file.loss_mask)
        return targets

    def steps(self) -> Iterator[int]:
        """Yield the steps of an iteration that begins now, without moving `step`."""
        if self.layout["order"] == "random":
            return itertools.count(self.step)
        begin, n = self._stream.n_first_batches, self._stream.n_batches  # of the second epoch
        n_over = (self.step - begin) // n + 1 if self.step >= begin else 0
        return iter(range(self.step, begin + n_over * n))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for step in self.steps():
            self.step = step + 1
            yield self.batch(step)

    def __reduce__(self) -> tuple[Any, ...]:
        # A memory map would be pickled with all of its data.
        state = {"step": self.step, "_stream": self._stream}  # a mixture sets the stream
        return partial(Sampler, **self.layout), (self.dataset,), state

    def state_dict(self) -> dict[str, Any]:
        """Return the state for JSON: the step, the seed, the dataset and the options."""
        names = ("global_batch_size", "context_length", "stride", "world_size", "windows",
                 "strategy", "cut", "order", "seed", "drop_last", "drop_short")
        found = {name: self.layout[name] for name in names}
        if found["stride"] is None:
            found["stride"] = found["context_length"]
        if found["windows"] != "packed":
            found["strategy"] = None
        if self.layout["continue_from"] is not None:
            found["continue_from"] = self.layout["continue_from"]
        return {"step": self.step, "dataset": self._fingerprint} | found

    @checks_names
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a sampler with this state is; the number of ranks may be another.

        Raises:
            SamplingError: The state is of another dataset, or of other options.
        """
        self.step = self.check_state(state)

    def check_state(self, state: Mapping[str, Any]) -> int:
        """Return the step of a state; raise SamplingError if it is of another sampler."""
        return check_integer("the step of a state", self._checked(state)["step"], 0)

    def _checked(self, state: Mapping[str, Any], others: Sequence[str] = ()) -> dict[str, Any]:
        """Return a state; raise SamplingError if options, but for `others`, are not those here."""
        own = _EARLIER | self.state_dict()
        found = {**_EARLIER, **state} if isinstance(state, Mapping) else state
        check_state(found, (x for x in own if x != "world_size"), "a sampler")
        for name in own:
            if name not in ("step", "world_size", *others) and found[name] != own[name]:
                raise SamplingError(
                    f"the state is of another sampler than this of {name_of(self.dataset)}: its"
                    f" {name} is {found[name]!r}, and here it is {own[name]!r}; make the"
                    " sampler with the dataset and options of the state"
                )
        return found


def _copied(ids: Array) -> Array:
    """Copy ids to a batch: int64, of the same shape."""
    found = new_batch(*ids.shape)
    found[:] = ids
    return found


def _needs_documents(what: str) -> SamplingError:
    return SamplingError(
        f"{what} needs a dataset with documents, and an array has none; give a .bin"
    )


def _fingerprint(dataset: OpenDataset) -> str:
    """Return the digest of the manifest, or length, dtype and a digest of samples of an array."""
    if isinstance(dataset, TokenFile):
        return dataset.manifest.digest
    digest = xxhash.xxh3_64()
    for start in np.linspace(0, len(dataset), _SAMPLES, endpoint=False, dtype=np.int64).tolist():
        digest.update(np.ascontiguousarray(dataset[start : start + _SAMPLE_LENGTH]).data)
    return f"{len(dataset)} {dataset.dtype} {digest.hexdigest()}"

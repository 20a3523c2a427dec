"""Datasets under PyTorch's DataLoader, torchdata's and the Trainer: every window, in order."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import written

from bpe import Tokenizer
from bpe.errors import ArgumentError
from bpe.vocabulary import Vocabulary
from preprocess import (
    AsyncDataLoader,
    ChatTemplateTransform,
    JsonShardedSource,
    Mixture,
    Sampler,
    TokenFile,
    TokenizerConfig,
    TransformedShardedSource,
)
from preprocess.rows.write import write_rows
from preprocess.sampling.data import SamplingError

torch = pytest.importorskip("torch", reason="needs the extra `torch`")

from torch.utils.data import ConcatDataset, DataLoader  # noqa: E402 (torch may be missing)

from preprocess import (  # noqa: E402
    BatchDataset,
    StreamingTokenizedDataset,
    TokenizedDataset,
    WindowDataset,
    window_loader,
)

START = pytest.mark.parametrize("start", ["fork", "spawn"])


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> TokenFile:
    """43 documents of 1 to 43 tokens."""
    return written.dataset(tmp_path_factory.mktemp("data"), range(1, 44), seed=None)


def same(found: Any, expected: Any) -> bool:
    """Return True if tensors equal arrays of the same names."""
    return found.keys() == expected.keys() and all(
        found[name].dtype in (torch.int64, torch.int32)
        and np.array_equal(found[name].numpy(), expected[name])
        for name in found
    )


# Batches of a sampler.


@START
@pytest.mark.parametrize("windows", ["stride", "documents", "packed"])
def test_workers_give_the_batches_in_order(file: TokenFile, start: str, windows: Any) -> None:
    """With `persistent_workers`, too, which get the number of the epoch."""
    fields = ("inputs", "targets", "segment_ids", "cu_seqlens")
    sampler = Sampler(file, 4, 16, windows=windows, order="epoch", drop_last=False, fields=fields)
    dataset = BatchDataset(sampler)
    loader = DataLoader(
        dataset, batch_size=None, num_workers=2, multiprocessing_context=start,
        persistent_workers=windows == "packed",
    )
    for epoch in (0, 1, 0, 5) if windows == "packed" else (0, 1):
        dataset.set_epoch(epoch)
        steps = range(epoch * len(sampler), (epoch + 1) * len(sampler))
        assert all(
            same(batch, sampler.batch(step)) for batch, step in zip(loader, steps, strict=True)
        )
    assert len(loader) == len(sampler)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="has no CUDA device to put a batch on")
def test_batches_on_cuda(file: TokenFile) -> None:
    fields = ("inputs", "targets", "segment_ids")
    options: dict[str, Any] = {"windows": "packed", "fields": fields}
    batch = Sampler(file, 4, 16, **options, device="cuda").batch(0)
    assert all(tensor.is_cuda for tensor in batch.values())
    on_cpu = {name: tensor.cpu() for name, tensor in batch.items()}
    assert same(on_cpu, Sampler(file, 4, 16, **options).batch(0))


def test_sources_without_epochs(file: TokenFile) -> None:
    sampler = Sampler(file, 4, 16, order="epoch")
    for source in (
        Sampler(file, 4, 16), Mixture({"a": sampler}, {"a": 1}),
        Mixture({"a": sampler}, {"a": 1}, exhausted="stop"),
    ):
        dataset = BatchDataset(source)
        source.step = 5
        dataset.set_epoch(0)
        assert same(next(iter(dataset)), source.batch(0))
        with pytest.raises(SamplingError, match="have one epoch, number 0; got 1: loop once, over"):
            dataset.set_epoch(1)
    with pytest.raises(SamplingError, match="epoch should be at least 0; got -1"):
        BatchDataset(sampler).set_epoch(-1)
    with pytest.raises(SamplingError, match="the first step of the epoch should be at most 1,099,"):
        BatchDataset(sampler).set_epoch(2**40)
    assert sampler.step == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iteration_does_not_move_the_sampler(file: TokenFile, workers: int) -> None:
    sampler = Sampler(file, 4, 16, order="epoch", seed=4)
    loader = DataLoader(BatchDataset(sampler), batch_size=None, num_workers=workers)
    first, second = ([batch["inputs"].tolist() for batch in loader] for _ in range(2))
    assert first == second
    assert sampler.step == 0
    sampler.step = 3
    assert [batch["inputs"].tolist() for batch in loader] == first[3:]


def loaders_of(file: TokenFile, rows: Path, kind: str, workers: int) -> Callable[[], Any]:
    """Return a function that makes a loader, whose batches are equal each time."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="needs torchdata")
    datasets = {
        "batches": lambda: BatchDataset(Sampler(file, 5, 14, order="epoch", seed=2)),
        "windows": lambda: WindowDataset(Sampler(file, 1, 14, order="epoch", seed=2)),
        "rows": lambda: TokenizedDataset(rows),
    }

    def make() -> Any:
        dataset = datasets.get(kind, lambda: StreamingTokenizedDataset(rows, 1))()
        return stateful.StatefulDataLoader(
            dataset, batch_size=None if kind in ("batches", "shuffled singly") else 5,
            sampler=dataset.shuffled(3) if "shuffled" in kind else None, num_workers=workers,
        )

    return make


@pytest.fixture(scope="module")
def rows(file: TokenFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("rows")
    return write_rows(file.path, out=out, format="jsonl", seq_length=11, num_shards=3)[0].path


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata's own
@pytest.mark.parametrize(
    "kind", ["batches", "windows", "rows", "stream", "shuffled", "shuffled singly"]
)
@pytest.mark.parametrize("workers", [0, 2])
def test_torchdata_resumes(file: TokenFile, rows: Path, kind: str, workers: int) -> None:
    """In the first epoch, and in the second, where blocks have an order of their own in each."""
    make = loaders_of(file, rows, kind, workers)
    name = "inputs" if kind in ("batches", "windows") else "input_ids"

    def of(loader: Any, n: int | None = None) -> list[Any]:
        return [batch[name].tolist() for batch in islice(loader, n)]

    undisturbed = make()
    epochs = [of(undisturbed) for _ in range(4)]
    n, is_shuffled = len(epochs[0]), "shuffled" in kind
    assert n >= 13
    # The end is noticed by asking for one more. Workers are started each time, which takes long.
    places = (0, 1, 5, n - 1, n, None)
    for epoch in range(1 + is_shuffled):
        for n_read in places[1 + 2 * (n > 50) :: 2] if workers else places:
            stopped, continued = make(), make()
            assert [of(stopped) for _ in range(epoch)] == epochs[:epoch]
            assert of(stopped, n_read) == epochs[epoch][:n_read]
            continued.load_state_dict(stopped.state_dict())
            follows = [of(continued), of(continued)]
            if n_read is None:
                assert follows == epochs[epoch + 1 : epoch + 3]
            elif n_read or not is_shuffled:
                assert follows == [epochs[epoch][n_read:], epochs[epoch + 1]]


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("kind", ["sampler", "mixture", "records"])
def test_what_is_prepared_ahead_resumes(
    file: TokenFile, rows: Path, kind: str, ahead: bool
) -> None:
    """Two epochs, and where another loader goes on."""

    def source() -> Any:
        if kind == "records":
            return JsonShardedSource(rows)
        sampler = Sampler(file, 5, 14, order="epoch", seed=2)
        return sampler if kind == "sampler" else Mixture({"a": sampler}, {"a": 1})

    def of(source: Any, n: int | None = None) -> list[Any]:
        size = None if kind != "records" else 5
        loader = AsyncDataLoader(source, size, prefetch_enabled=ahead)
        end = 13 if kind == "mixture" else None  # which has no end
        return [batch[min(batch)].tolist() for batch in islice(loader, end if n is None else n)]

    undisturbed = source()
    first, second = of(undisturbed), of(undisturbed)
    n = len(first)
    assert n >= 13
    for n_read in (1, n - 1, n, None):
        stopped, continued = source(), source()
        assert of(stopped, n_read) == first[:n_read]
        continued.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
        follows = of(continued) + of(continued)  # the first may have none left
        at = n if n_read is None else n_read
        assert follows[:12] == (first + second)[at : at + 12]


# Windows one by one.


@START
def test_a_map_style_dataset_under_a_dataloader(file: TokenFile, start: str) -> None:
    fields = ("input_ids", "labels", "attention_mask")
    sampler = Sampler(file, 1, 16, windows="packed", order="sequential", fields=fields)
    dataset = WindowDataset(sampler)
    loader = DataLoader(dataset, batch_size=7, num_workers=2, multiprocessing_context=start)
    found = {name: np.concatenate([batch[name].numpy() for batch in loader]) for name in fields}
    expected = sampler.arrays_of(sampler.read(np.arange(len(dataset))))
    assert all(np.array_equal(found[name], expected[name]) for name in fields)
    shuffled = [
        row.tolist() for batch in DataLoader(dataset, 7, shuffle=True) for row in batch["input_ids"]
    ]
    assert sorted(shuffled) == sorted(expected["input_ids"].tolist())


def test_workers_where_processes_are_spawned(tmp_path: Path) -> None:
    """As by default on macOS: all that a dataset has is pickled."""
    tokenizer = Tokenizer.from_vocabulary(Vocabulary.from_merges([], ["<|endoftext|>"]))
    message = {"role": "assistant", "content": "ab"}
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": [message]}) + "\n")
    (tmp_path / "chat").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    transform = ChatTemplateTransform(tokenizer, chat_template=str(tmp_path / "chat"))
    chats = TransformedShardedSource(JsonShardedSource(tmp_path / "chats.jsonl"), transform)
    windows = WindowDataset("some text " * 9, tokenizer, max_length=8, stride=8)
    dataset = ConcatDataset([windows, chats])
    assert chats[0]["input_ids"].tolist() == [97, 98]
    method = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("spawn", force=True)
    try:
        *found, last = DataLoader(dataset, batch_size=None, num_workers=1)
    finally:
        multiprocessing.set_start_method(method, force=True)
    assert [x.tolist() for x, _ in found] == [x.tolist() for x, _ in windows]
    assert last["input_ids"].tolist() == [97, 98]
    source = AsyncDataLoader(chats, batch_size=1)  # a thread, in any process
    assert [batch["loss_mask"].tolist() for batch in source] == [[[1, 1]]]


def test_items_of_a_map_style_dataset(file: TokenFile) -> None:
    dataset = WindowDataset(Sampler(file, 3, 16, order="epoch", seed=5))
    n = len(dataset)
    items = [dataset[i]["inputs"].tolist() for i in range(n)]
    assert len({tuple(item) for item in items}) == n
    assert dataset[-1]["inputs"].tolist() == items[-1]
    assert dataset.__getitems__([]) == []
    for index in (n, -n - 1, 2**70, -(2**70)):
        with pytest.raises(IndexError, match=f"there are {n} windows; got"):
            dataset[index]
    for wrong in ("a", 1.5, None, slice(0, 2), [0, 1]):
        with pytest.raises(ArgumentError, match="index: should be a whole number, of one window"):
            dataset[wrong]  # type: ignore[index]
    with pytest.raises(SamplingError, match="should be a sampler, ids or the path of"):
        WindowDataset("a text")


def test_the_loss_of_a_model_of_transformers_is_ours(file: TokenFile) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the extra `hf`")
    config = transformers.GPT2Config(
        vocab_size=301, n_positions=16, n_embd=8, n_layer=1, n_head=1, resid_pdrop=0, embd_pdrop=0,
        attn_pdrop=0,
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    fields = ("input_ids", "labels", "targets", "attention_mask")
    batch = Sampler(file, 8, 16, windows="packed", fields=fields, device="cpu").batch(0)
    targets = batch.pop("targets")
    output = model(**batch)
    expected = torch.nn.functional.cross_entropy(
        output.logits[:, :-1].flatten(0, 1), targets[:, :-1].flatten(), ignore_index=-100
    )
    assert torch.allclose(output.loss, expected)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"order": "random"}, "a sampler of order 'random' has no windows to count; choose"),
        ({"world_size": 2}, "divided among processes by its reader; make the sampler with"),
        ({"fields": ("cu_seqlens",)}, "cu_seqlens is of a whole batch, and items are windows; le"),
        ({"device": "cpu"}, "datasets for a DataLoader are on the CPU; make the sampler without"),
    ],
)
def test_samplers_that_are_no_datasets(file: TokenFile, more: Any, message: str) -> None:
    options = {"order": "sequential"} | more
    with pytest.raises(SamplingError, match=message):
        WindowDataset(Sampler(file, 2, 8, **options))
    if "device" in more:
        with pytest.raises(SamplingError, match=message):
            BatchDataset(Sampler(file, 2, 8, **options))


def test_sources_of_wrong_types() -> None:
    mixture: Any = Mixture({"a": Sampler(np.arange(9), 1, 4)}, {"a": 1})
    message = "the source should be a Sampler, not Mixture; make a Sampler of a dataset first"
    with pytest.raises(SamplingError, match=message):
        WindowDataset(mixture)
    with pytest.raises(ArgumentError, match="source: should be a Sampler or a Mixture; got"):
        BatchDataset([mixture])  # type: ignore[arg-type]


def test_wrong_states(file: TokenFile) -> None:
    dataset = BatchDataset(Sampler(file, 4, 8))
    state = dataset.state_dict()
    for name in ("source", "next"):
        with pytest.raises(SamplingError, match=f"the state of a BatchDataset has no '{name}'"):
            dataset.load_state_dict({x: y for x, y in state.items() if x != name})
    with pytest.raises(SamplingError, match="the next step of a state should be at least 0; got"):
        dataset.load_state_dict(state | {"next": -1})
    with pytest.raises(SamplingError, match=r"device should be one of PyTorch, .* got 'nonsense'"):
        Sampler(file, 4, 8, device="nonsense")


# From a text.


LETTERS = "ABCDEFGHIJ"


class Letters:
    """A tokenizer whose ids are 1 for A and so on."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) - ord("A") + 1 for letter in text]


@pytest.mark.parametrize("n", [5, 6, 9, 10])
@pytest.mark.parametrize("stride", [1, 2, 3, 4, 7])
def test_windows_of_a_text_are_those_of_the_notebook(n: int, stride: int) -> None:
    ids, length = Letters().encode(LETTERS[:n]), 4
    expected = [
        (ids[i : i + length], ids[i + 1 : i + length + 1])
        for i in range(0, len(ids) - length, stride)
    ]
    dataset = WindowDataset(LETTERS[:n], Letters(), length, stride)
    assert [(x.tolist(), y.tolist()) for x, y in map(dataset.__getitem__, range(len(dataset)))] == (
        expected
    )
    assert {tensor.dtype for pair in (dataset[0], dataset[-1]) for tensor in pair} == {torch.int64}
    loader = window_loader(
        LETTERS[:n], Letters(), batch_size=2, max_length=length, stride=stride, shuffle=False,
        drop_last=False,
    )
    rows = [pair for inputs, targets in loader for pair in zip(inputs, targets, strict=True)]
    assert [(x.tolist(), y.tolist()) for x, y in rows] == expected
    assert len(loader) == -(-len(expected) // 2)


def test_what_a_text_may_be(file: TokenFile) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    ours = Tokenizer.from_vocabulary(Vocabulary.from_merges([(b"a", b"b")]))
    other = tiktoken.Encoding(
        "tiny", pat_str=r"\w+|\s", special_tokens={},
        mergeable_ranks={**{bytes([i]): i for i in range(256)}, b"ab": 256},
    )
    text = "abab cd " * 5
    first = [
        next(iter(window_loader(text, each, 2, 4, shuffle=False)))[0].tolist()
        for each in (ours, other)
    ]
    assert first[0] == first[1] == [[256, 256, 32, 99], [100, 32, 256, 256]]
    for data in (file, file.path, np.asarray(file.tokens)):
        inputs, targets = next(iter(window_loader(data, None, 2, 4, shuffle=False)))
        assert inputs.flatten().tolist() == file[:8].tolist()
        assert targets.flatten().tolist() == file[1:9].tolist()
    with pytest.raises(SamplingError, match="was given, so the source should be a text"):
        window_loader(np.arange(9), ours)
    with pytest.raises(SamplingError, match="encodes, or its path or name; got None: give one"):
        window_loader(text, {})
    with pytest.raises(SamplingError, match="tokenizer: windows have no max_length; leave "):
        window_loader(text, {"name_or_path": "gpt2", "max_length": 4})
    with pytest.raises(SamplingError, match="no tokenizer was given, so the source should be a s"):
        window_loader(text)
    with pytest.raises(SamplingError, match="the loader would give no batch: there are 2 w"):
        window_loader("abcdefghi", Letters(), batch_size=4, max_length=4)
    with pytest.raises(SamplingError, match=r"a window needs max_length \+ 1 = 257; choose a"):
        window_loader("abc", ours)
    with pytest.raises(SamplingError, match=r"the array has 9 tokens, and a window needs max"):
        window_loader(np.arange(9))


def test_a_text_with_special_tokens(tmp_path: Path) -> None:
    """Every tokenizer finds them in the text, and adds none of its own."""
    tiktoken = pytest.importorskip("tiktoken")
    tokenizers = pytest.importorskip("tokenizers", reason="needs the extra `hf`")
    transformers = pytest.importorskip("transformers", reason="needs the extra `hf`")
    end, text = "<|endoftext|>", "abab cd<|endoftext|>ab" * 5
    vocabulary = Vocabulary.from_merges([(b"a", b"b")], [end])
    ours = Tokenizer.from_vocabulary(vocabulary)
    ours.save(tmp_path / "tokenizer.json")
    other = tiktoken.Encoding(
        "tiny", pat_str=r"\w+|\s|\W+", special_tokens={end: 257},
        mergeable_ranks={**{bytes([i]): i for i in range(256)}, b"ab": 256},
    )
    engine = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    engine.post_processor = tokenizers.processors.TemplateProcessing(
        f"{end} $A", special_tokens=[(end, 257)]
    )
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=engine)
    path = tmp_path / "tokenizer.json"
    named = (path, str(path), {"name_or_path": path}, TokenizerConfig(name_or_path=str(path)))
    for each in (ours, other, engine, fast, *named):
        inputs, targets = WindowDataset(text, each, max_length=8, stride=8)[0]
        assert inputs.tolist() == [256, 256, 32, 99, 100, 257, 256, 256]
        assert targets.tolist() == [256, 32, 99, 100, 257, 256, 256, 256]
    engine.enable_truncation(3)
    with pytest.raises(SamplingError, match="the tokenizer has truncation, which changes the ids"):
        WindowDataset(text, engine, 8, 8)

"""A sink of another kind, and more than two outputs: one class, and no change of the pass."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faults
import numpy as np
import pytest
from msgspec.structs import replace

from bpe import Tokenizer, train_bpe
from preprocess.documents.batch import DocumentBatch, ReadOptions
from preprocess.report.progress import Progress
from preprocess.report.summary import Report
from preprocess.run import journal
from preprocess.run.encode_pass import EncodePass
from preprocess.run.encoding import SpecialIds
from preprocess.run.journal import Journal
from preprocess.run.sinks import TokenFiles
from preprocess.sources import find_sources
from preprocess.storage import LocalStorage

END = "<|endoftext|>"
NAMES = {"short": "short", "middle": "m", "long": "long"}


class Lengths:
    """A sink: one line of JSON for each document, its number of tokens."""

    def __init__(self, storage: LocalStorage, name: str, states: Sequence[Any]) -> None:
        n_bytes, self._open = states[-1] if states else (0, 0)
        self._storage, self._name = storage, name
        self._stream = storage.stream(f"{name}.jsonl", n_bytes)

    @property
    def streams(self) -> list[Any]:
        return [self._stream]

    def append(self, ids: Any, document_ends: Any, **columns: Any) -> None:
        lengths = np.diff(document_ends, prepend=-self._open).tolist()
        self._open = len(ids) - int(document_ends[-1]) if lengths else self._open + len(ids)
        self._stream.append(memoryview("".join(f"{n}\n" for n in lengths).encode()))

    def state(self, whole: bool = False) -> Any:
        return self._stream.n_bytes, self._open

    def finish(self, **facts: Any) -> Any:
        self._stream.sync()
        self._storage.put(f"{self._name}.json", json.dumps(facts).encode())
        return facts

    def close(self) -> None:
        self._stream.close()


@dataclass
class ListsOfLengths:
    storage: LocalStorage

    def open(self, name: str, states: Sequence[Any]) -> Lengths:
        return Lengths(self.storage, name, states)

    def result_of(self, name: str) -> Any:
        return json.loads(self.storage.get(f"{name}.json") or b"")


class ByLength:
    """A source whose documents go to three outputs."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def read(self, *memory: Any) -> DocumentBatch:
        batch: DocumentBatch = self._inner.read(*memory)
        return replace(batch, in_validation=np.digitize(batch.sizes, [20, 30]))

    def units(self, after: Any = None) -> Iterator[Any]:
        return map(ByLength, self._inner.units(after))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_bpe(["some words " * 9], 262, special_tokens=[END])


@pytest.mark.parametrize("kind", [ListsOfLengths, TokenFiles])
def test_three_outputs_of_any_kind(
    kind: Any, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "SECONDS_BETWEEN_COMMITS", 0.0)
    documents = [f"document {i}{' more' * (i % 7)}" for i in range(99)]
    (tmp_path / "text").write_text(END.join(documents))
    reading = ReadOptions(unit_size=200, validation_fraction=0.5)  # no document is cut
    sources = [ByLength(each) for each in find_sources([str(tmp_path / "text")], reading)]
    ids = SpecialIds(tokenizer.special_tokens[END], None)

    def run(name: str, progress: Progress) -> tuple[dict[str, Any], Report]:
        with LocalStorage(tmp_path / name, "run") as storage, Journal(storage) as entries:
            report = Report()
            more = {"vocab_size": 262} if kind is TokenFiles else {}
            encoding = EncodePass(0, sources, tokenizer, ids, 2, report, progress, entries)
            return encoding.fill(NAMES, kind(storage, **more)), report

    def files(name: str) -> dict[str, bytes]:
        there = (tmp_path / name / ".run.partial").iterdir()
        return {each.name: each.read_bytes() for each in there if "journal" not in each.name}

    wanted, whole = run("peace", Progress())
    with pytest.raises(faults.CutOff):
        run("cut", faults.Stopping("encoding short and middle and long"))
    assert run("cut", Progress())[0] == wanted
    again, report = run("cut", Progress())  # finished: nothing is encoded
    assert json.dumps(again, default=str) == json.dumps(wanted, default=str)
    assert files("cut") == files("peace")
    assert report.outputs == whole.outputs
    lengths = np.digitize([len(each) for each in documents], [20, 30])
    assert [whole.outputs[name].documents for name in NAMES] == np.bincount(lengths).tolist()
    if kind is ListsOfLengths:
        counts = [len(each) + 1 for each in tokenizer.encode_batch(documents)]
        for number, name in enumerate(NAMES.values()):
            found = (tmp_path / "cut" / ".run.partial" / f"{name}.jsonl").read_text().split()
            expected = [n for n, output in zip(counts, lengths, strict=True) if output == number]
            assert list(map(int, found)) == expected


def test_a_document_for_an_output_that_is_not_there(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "text").write_text(f"a{END}{'long ' * 9}")
    reading = ReadOptions(unit_size=200, validation_fraction=0.5)  # no document is cut
    sources = [ByLength(each) for each in find_sources([str(tmp_path / "text")], reading)]
    encoding = EncodePass(0, sources, tokenizer, SpecialIds(-1, None), 1, Report(), Progress())
    with pytest.raises(ValueError, match="a document is assigned to output 2, of 1 outputs"):
        encoding.run({})

"""A format of its own: one file, one line of registry, with spans of its documents."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_cases import assert_goes_on

from bpe.text.spans import find_pieces
from preprocess import build
from preprocess.check.verify import verify
from preprocess.documents.batch import DocumentBatch, ReadOptions, Spans, prepare
from preprocess.sources import find_sources, registry
from preprocess.sources.base import ResumePoint, Source, WorkUnit
from preprocess.sources.text import Cutter, Ends
from preprocess.sources.text_file import new_array


class LinesUnit(WorkUnit, frozen=True):
    """Documents are lines; capital letters are spans."""

    line: int
    ends: Ends

    @property
    def next_line(self) -> int:
        within = self.content().tobytes().rfind(b"\n") + 1
        return self.start + within if within else self.line

    @property
    def after(self) -> ResumePoint | None:
        return None if self.ends is Ends.FILE else [self.stop, self.next_line]

    def read(self, array: Any = new_array) -> DocumentBatch:
        content = self.content(array)
        starts, ends = find_pieces(content, b"\n")
        if self.ends is Ends.BETWEEN:
            starts, ends = starts[:-1], ends[:-1]
        found = [match.span() for match in re.finditer(rb"[A-Z]+", content)]
        batch = DocumentBatch(
            content,
            np.stack([starts, ends], axis=1).ravel(),
            starts_mid_document=self.line < self.start,
            ends_mid_document=self.ends is Ends.INSIDE,
            content=content,
            spans=Spans(np.array(found, np.int64).ravel(), np.array([b - a for a, b in found])),
        )
        return prepare(batch, self.reading, self.byte)


class LinesSource(Source):
    """A file of lines; long ones are cut inside."""

    separator = b"\n"

    def units(self, after: ResumePoint | None = None) -> Iterator[LinesUnit]:
        start, line = after or [0, 0]
        cutter = Cutter(self.file, b"\n", self.reading.atomic, self.reading.safe_cut)
        ends = Ends.BETWEEN
        while ends is not Ends.FILE:
            stop, ends = cutter.cut(start + self.reading.unit_size)
            unit = LinesUnit(self.file, self.reading_of_units, start, stop, line, ends)
            yield unit
            start, line = stop, unit.next_line


@pytest.fixture(autouse=True)
def _lines(monkeypatch: pytest.MonkeyPatch) -> None:
    form = registry.Format("lines", (".lines",), LinesSource)
    monkeypatch.setattr(registry, "FORMATS", [*registry.FORMATS, form])


def test_a_format_is_built_killed_resumed_and_verified(tmp_path: Path, often: None) -> None:
    lines = [f"user {i} asks, BOT {i} says {'A LOT ' * (i % 60)}" for i in range(99)]
    (tmp_path / "chat.lines").write_text("\n".join(lines))
    (tmp_path / "text.txt").write_text("<|endoftext|>".join(lines))
    options: dict[str, Any] = {"vocab_size": 270, "unit_size": 200, "workers": 2}
    lined: dict[str, Any] = options | {"train": tmp_path / "chat.lines", "val_fraction": 0}
    assert_goes_on(lined, tmp_path, ["counting", "encoding train"])
    assert all(finding.sound for finding in verify(tmp_path / "whole", deep=True))
    build(**options, train=tmp_path / "text.txt", val_fraction=0, out=tmp_path / "text")
    for name in ("train.bin", "train.docs"):
        assert (tmp_path / "text" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


texts = st.text(st.sampled_from("aB C\nDé日\n"), max_size=60)


def described(units: Any) -> tuple[list[bytes], list[tuple[bytes, int]]]:
    """Lines, and spans with their text and value."""
    documents, found = list[bytes](), list[tuple[bytes, int]]()
    for unit in units:
        batch = unit.read()
        for number, (start, end) in enumerate(batch.bounds.reshape(-1, 2)):
            text = batch.buffer[start:end].tobytes()
            if number == 0 and batch.starts_mid_document:
                documents[-1] += text
            else:
                documents.append(text)
        for (start, end), value in zip(
            batch.spans.bounds.reshape(-1, 2), batch.spans.values, strict=True
        ):
            found.append((batch.buffer[start:end].tobytes(), int(value)))
    return documents, found


@given(text=texts, unit_size=st.integers(1, 30), least=st.integers(0, 6))
def test_spans_follow_their_documents_wherever_these_are_cut(
    tmp_path_factory: pytest.TempPathFactory, text: str, unit_size: int, least: int
) -> None:
    """Those of whole documents that are left out go with them."""
    path = tmp_path_factory.mktemp("x") / "x.lines"
    data = text.encode()
    path.write_bytes(data)
    reading = ReadOptions(unit_size=1000 if least else unit_size, min_length=least)
    with pytest.MonkeyPatch.context() as patch:
        form = registry.Format("lines", (".lines",), LinesSource)
        patch.setattr(registry, "FORMATS", [*registry.FORMATS, form])
        (source,) = find_sources([path], reading)
    documents, spans = described(source.units())
    expected = [x.encode() for x in text.split("\n") if len(x) >= max(least, 1)]
    assert documents == expected
    words = re.findall(rb"[A-Z]+", b"\n".join(expected))
    assert spans == [(word, len(word)) for word in words]

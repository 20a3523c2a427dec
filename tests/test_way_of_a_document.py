"""docs/architecture.md names the functions on the way of a document: these run, and no others."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import processes

import preprocess
from preprocess import pipeline

ROOT = Path(preprocess.__file__).parent.parent
_FEW, _MANY, _PER_UNIT = 4, 14, 40  # units, and documents in each

Function = tuple[str, str]  # (file, qualified name)


def page() -> list[Function]:
    """The functions of the numbered list, in order."""
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    section = text.partition("## The way of a document")[2].partition("\n## ")[0]
    found = re.findall(r"^\d+\. `([\w.]+)` in\s+\[([\w/.]+)\]", section, re.MULTILINE)
    return [(file, name) for name, file in found]


def function_of(frame: FrameType | None) -> Function | None:
    """The function of ours that a frame runs, in or below one of its comprehensions."""
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(str(ROOT)):
            return None
        if not code.co_name.startswith("<"):
            file = Path(code.co_filename).relative_to(ROOT).as_posix()
            return file, code.co_qualname.replace(".<locals>", "")
        frame = frame.f_back
    return None


def carries(value: Any) -> bool:
    """Whether a value has the documents of a unit: their text, ids, or places."""
    if isinstance(value, np.ndarray):
        return value.size >= _PER_UNIT
    if isinstance(value, bytes | bytearray | memoryview | list):
        return len(value) >= _PER_UNIT
    return type(value).__name__ in ("DocumentBatch", "Item", "EncodedBatch", "Encoded", "Part")


class Walk:
    """Records the functions that are called, and who calls those that are given documents."""

    def __init__(self) -> None:
        self.calls: Counter[Function] = Counter()
        self.order: list[Function] = []
        self.callers: set[tuple[Function, Function]] = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or frame.f_code.co_name.startswith("<"):
            return
        if (called := function_of(frame)) is None:
            return
        self.calls[called] += 1
        self.order.append(called)
        code = frame.f_code
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        caller = function_of(frame.f_back)
        if caller is not None and any(carries(frame.f_locals.get(name)) for name in names):
            self.callers.add((called, caller))


def walk(directory: Path, n_units: int) -> Walk:
    """Encode so many units on this thread, and record what runs."""
    record = json.dumps({"text": "a document says hello"}) + "\n"
    (directory / "x.jsonl").write_text(record * _PER_UNIT * n_units)
    walked = Walk()
    sys.setprofile(walked)
    try:
        pipeline.encode(
            paths=directory / "x.jsonl", tokenizer=directory / "tokenizer.json", workers=1,
            out=directory / f"out-{n_units}" / "x.bin", unit_size=len(record) * _PER_UNIT,
        )
    finally:
        sys.setprofile(None)
    return walked


def test_the_page_has_the_functions_that_run_for_each_unit(tmp_path: Path) -> None:
    """In a process of its own, where nothing else is recorded."""
    code = "import tests.test_way_of_a_document as of; of.compare(of.Path(of.sys.argv[1]))"
    processes.run("-c", code, tmp_path)


def compare(tmp_path: Path) -> None:
    """Compare the page with what runs."""
    named = page()
    assert 10 <= len(named) <= 15
    assert len({file for file, _ in named}) <= 10
    (tmp_path / "x.txt").write_text("a document says hello")
    pipeline.train(paths=tmp_path / "x.txt", vocab_size=260, out=tmp_path / "tokenizer.json")
    few, many = walk(tmp_path, _FEW), walk(tmp_path, _MANY)
    per_unit = {x: n - few.calls[x] for x, n in many.calls.items()}
    assert [x for x in named if per_unit.get(x, 0) < _MANY - _FEW] == []
    # In the order in which the last unit passes them.
    ends = [i for i, x in enumerate(many.order) if x == named[0]]
    last = many.order[ends[-3] : ends[-2]]
    assert sorted(named, key=last.index) == named
    # What else is given the documents of a unit is called in the same files: nothing is between.
    files = {file for file, _ in named}
    for (file, name), caller in many.callers:
        is_per_unit = min(per_unit[file, name], per_unit.get(caller, 0)) >= _MANY - _FEW
        is_ours = file.startswith("preprocess/") and (file, name.split(".")[0]) not in named
        assert caller[0] in files or not (is_per_unit and is_ours), (file, name, caller)

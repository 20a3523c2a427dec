"""Calls in the spelling of NPZ scripts."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
from inputs import END, ids_of, same


def run(command: str, code: int = 0) -> str:
    """Run a command, and return what it printed; the code is that of its end."""
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def npz_script() -> None:
    run("tokenmill build --train posts --text-preset title-text --tokenizer tok --val-fraction 0"
        " --out dataset --batch-size 500 --workers 4 --max-minutes 10")  # fmt: skip
    rows = ("tokenmill rows --input dataset --output out --format npz --max-length 1024"
            " --stride 512 --workers 4 --max-minutes 10")  # fmt: skip
    run(rows)
    tokens = np.load("out/part_000.npz")
    assert tokens["input_ids"].dtype in (np.int32, np.int64)
    assert tokens["input_ids"].shape == tokens["attention_mask"].shape
    documents = []
    for name in ("first", "second"):
        for line in Path(f"posts/{name}.jsonl").read_text().splitlines():
            item = json.loads(line)
            title, text = item.get("title", "").strip(), item.get("text", "").strip()
            if document := "\n".join(each for each in (title, text) if each):
                documents.append(document)
    expected = []
    for document in documents:
        ids = ids_of(document, False) + ids_of(END, False)
        at = 0
        while True:
            expected.append(ids[at : at + 1024])
            if at + 1024 >= len(ids):
                break
            at += 512
    found = [
        row[mask.astype(bool)]
        for row, mask in zip(tokens["input_ids"], tokens["attention_mask"], strict=True)
    ]
    same(found, expected)
    assert "up to date" in run(rows)

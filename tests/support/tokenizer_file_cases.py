"""Merges, and a function that writes JSON, for the tests of tokenizer files."""

from __future__ import annotations

import json
from pathlib import Path

MERGES = [(b"#", b"#"), (b" ", b"a"), (b" a", b"\n"), (b"\xc3", b"\xa9")]


def write(path: Path, value: object) -> Path:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
    return path

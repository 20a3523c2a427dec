"""Whether this machine is fit for a long job: what is installed, what there is, what works.

Law: everything that is said was tried or measured just now; nothing is left behind. A check that
fails is a line that says what to do, and does not keep the others from being done.
"""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bpe.errors import TokenbinError
from preprocess.engine import available_workers
from preprocess.outputs import TOKENIZER_FILE, refuse_directory
from preprocess.storage import OutputError, unfinished, writing

_PACKAGES = ("tokenbin", "numpy", "numba", "pyarrow", "xxhash", "torch", "tokenizers")
_WRITTEN_BYTES = 32 * 1024 * 1024
_LEAST_MEMORY = 1e9
_LEAST_DISK = 1e9
_TEXT = "It's 42 — naïve 日本語 🙂\n\n\tlow lower lowest <|endoftext|> \ufeff end" * 20


class NotFitError(TokenbinError):
    """Something that a job needs is not there."""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: What.
        fit: Whether it is as a job needs it.
        text: What was found, and what to do.
    """

    name: str
    fit: bool
    text: str

    def line(self) -> str:
        """For people."""
        return f"{'ok     ' if self.fit else 'PROBLEM'}  {self.name}: {self.text}"


def examined(path: Path) -> list[Check]:
    """Look at the machine, and at the directory where outputs would land.

    Args:
        path: That directory; it need not exist. Its tokenizer.json is tried, if it has one.
    """
    checks: list[tuple[str, Callable[[], str]]] = [
        ("versions", _versions),
        ("processor", _processor),
        ("memory", _memory),
        ("accelerator", _accelerator),
        ("output directory", lambda: _directory(path)),
        ("disk", lambda: _disk(path)),
        ("tokenizer", lambda: _tokenizer(path)),
    ]
    found = []
    for name, check in checks:
        try:
            found.append(Check(name, True, check()))
        except (TokenbinError, OSError, ImportError) as error:
            found.append(Check(name, False, str(error)))
    return found


def as_json(checks: list[Check]) -> dict[str, Any]:
    """Checks for JSON."""
    return {"fit": all(check.fit for check in checks), "checks": [asdict(c) for c in checks]}


def _versions() -> str:
    said = [f"Python {platform.python_version()}"]
    for name in _PACKAGES:
        try:
            said.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            said.append(f"{name} not installed")
    return ", ".join(said)


def _processor() -> str:
    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass  # Not Linux: the name above is what there is.
    return f"{model}, {available_workers()} processors for this process ({platform.system()})"


def _memory() -> str:
    page = os.sysconf("SC_PAGE_SIZE")
    total = page * os.sysconf("SC_PHYS_PAGES")
    free = page * os.sysconf("SC_AVPHYS_PAGES")
    text = f"{total / 1e9:,.1f} GB, {free / 1e9:,.1f} GB of them free"
    if total < _LEAST_MEMORY:
        raise NotFitError(f"{text}; a build needs about 1 GB: take a machine that has more")
    return text


def _accelerator() -> str:
    if find_spec("torch") is None:
        return "PyTorch is not installed; building needs none of it"
    import torch

    if not torch.cuda.is_available():
        return "none that PyTorch sees; building needs none"
    return str(torch.cuda.get_device_name())


def _directory(path: Path) -> str:
    refuse_directory(path)
    work = [each.name for each in unfinished(path)] if path.is_dir() else []
    more = f"; unfinished: {', '.join(work)}" if work else ""
    return f"{path} can be written{'' if path.exists() else ' (it does not exist yet)'}{more}"


def _existing(path: Path) -> Path:
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _disk(path: Path) -> str:
    place = _existing(path)
    state = os.statvfs(place)
    free = state.f_bavail * state.f_frsize
    block = os.urandom(1024 * 1024)
    with writing(place), tempfile.TemporaryFile(dir=place) as file:
        began = time.perf_counter()
        for _ in range(_WRITTEN_BYTES // len(block)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        rate = _WRITTEN_BYTES / 1e6 / (time.perf_counter() - began)
    text = f"{free / 1e9:,.1f} GB free, {rate:,.0f} MB/s written and brought to the disk"
    if free < _LEAST_DISK:
        raise OutputError(f"{text}; make space or choose another directory")
    return text


def _tokenizer(path: Path) -> str:
    """A round trip, with the tokenizer that is there or with one that is trained."""
    from bpe import load_tokenizer, train_bpe

    there = path / TOKENIZER_FILE
    if there.exists():
        tokenizer, what = load_tokenizer(there), str(there)
    else:
        tokenizer, what = train_bpe([_TEXT], 290, ["<|endoftext|>"], workers=1), "one just trained"
    ids = tokenizer.encode_ordinary(_TEXT)
    back = tokenizer.decode(ids)
    if back != _TEXT and not there.exists():
        raise NotFitError(
            f"{what} does not give the text back that it encoded: the installation is damaged;"
            " install tokenbin and numba again"
        )
    exact = "gives every byte back" if back == _TEXT else "changes text before it encodes it"
    return f"{what} {exact} ({len(_TEXT.encode()):,} bytes, {len(ids):,} tokens)"

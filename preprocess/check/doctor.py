"""Check whether a machine is fit for a long job: versions, hardware, disk, tokenizer.

Every check measures or tries something, and leaves nothing behind. A failed check is reported with
its remedy, and does not stop the others.
"""

from __future__ import annotations

import math
import os
import platform
import resource
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bpe.errors import TokenmillError
from bpe.files.atomic_write import sync
from bpe.files.temporary import temporary_directory
from bpe.parallel import available_workers
from preprocess.options import DoctorSettings
from preprocess.report.progress import amount, system_values
from preprocess.run.outputs import TOKENIZER_FILE
from preprocess.settings import takes
from preprocess.storage import LocalStorage, OutputError, open_storage, writing

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer

_PACKAGES = (
    "tokenmill", "numpy", "numba", "llvmlite", "xxhash", "torch", "tokenizers", "tiktoken", "pandas"
)
_WRITTEN_BYTES = 32 * 1024 * 1024
_MEMORY_INFO, _GROUPS = Path("/proc/meminfo"), Path("/proc/self/cgroup")
_GROUP_ROOT = Path("/sys/fs/cgroup")
_LEAST_MEMORY = _LEAST_DISK = 1e9
_SHOWN = "Hello, world! naïve 日本語"
_TEXT = "It's 42 — naïve 日本語 🙂\n\n\tlow lower lowest <|endoftext|> \ufeff end" * 20


class NotFitError(TokenmillError):
    """A requirement of a job is not met."""


class Check(NamedTuple):
    """Result of one check: its subject, whether it is fit for a job, and the finding or remedy."""

    name: str
    fit: bool
    text: str


@takes(DoctorSettings)
def run_doctor(settings: DoctorSettings) -> list[Check]:
    """Check the machine and an output directory, with its tokenizer.json if it has one.

    The directory need not exist.
    """
    directory = Path(settings.path)
    checks: dict[str, Callable[[Path], str]] = {
        "versions": _versions, "processor": _processor, "memory": _memory,
        "accelerator": _accelerator, "output directory": _directory, "disk": _disk,
        "tokenizer": _tokenizer,
    }
    found = []
    for name, check in checks.items():
        try:
            found.append(Check(name, True, check(directory)))
        except (TokenmillError, OSError, ImportError) as error:
            found.append(Check(name, False, str(error)))
    return found


def _versions(_: Path) -> str:
    found = {each.name.lower(): each.version for each in distributions() if each.name}
    said = [f"{name} {found.get(name, 'not installed')}" for name in _PACKAGES]
    return ", ".join([f"Python {platform.python_version()}", *said])


def _processor(_: Path) -> str:
    values = system_values(Path("/proc/cpuinfo"))
    model = values.get("model name") or platform.processor() or platform.machine()
    return f"{model}, {available_workers()} processors for this process ({platform.system()})"


def _memory(_: Path) -> str:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    said = amount(total)
    if (limit := _memory_limit()) < total:
        said += f", {amount(limit)} of them for this group of processes (cgroup)"
    # Available without swapping, file cache included.
    free = system_values(_MEMORY_INFO).get("MemAvailable")
    available = math.inf if free is None else int(free.split()[0]) * 1024
    if free is not None:
        said += f", {amount(available)} available on the machine now"
    if min(total, limit, available) < _LEAST_MEMORY:
        raise NotFitError(
            f"{said}; a build needs about 1 GB: end other work, raise the limit, or take a machine"
            " that has more"
        )
    return said


def _memory_limit() -> float:
    """Return the lowest limit of the control groups of this process in bytes, or infinity.

    A process above the limit is killed, even if the machine has free memory.
    """
    limits = [math.inf]
    for line in _GROUPS.read_text().splitlines() if _GROUPS.exists() else ():  # on Linux
        _, controllers, group = line.split(":", 2)
        root, file = _GROUP_ROOT, "memory.max"
        if "memory" in controllers.split(","):
            root, file = _GROUP_ROOT / "memory", "memory.limit_in_bytes"
        elif controllers:
            continue
        path = root / group.lstrip("/")
        # Limits of parent groups apply, too. In a container the own group may be the root.
        for place in (each / file for each in (path, *path.parents) if each.is_relative_to(root)):
            text = place.read_text().strip() if place.is_file() else ""
            limits += [int(text)] if text.isdecimal() else []
    return min(limits)


def _accelerator(_: Path) -> str:
    if find_spec("torch") is None:
        return "PyTorch is not installed; building does not need it"
    import torch

    if not torch.cuda.is_available():
        return "none that PyTorch sees; building needs none"
    try:
        name, (free, total) = torch.cuda.get_device_name(), torch.cuda.mem_get_info()
        done = int(torch.ones(1000, device="cuda").sum().item())
    except RuntimeError as error:
        raise NotFitError(
            f"PyTorch sees one and cannot use it ({' '.join(str(error).split())}); building needs"
            " none, but training a model does: check its driver and the CUDA version of PyTorch"
        ) from error
    if done != 1000:
        raise NotFitError(f"{name} computes {done} as the sum of 1000 ones; use another one")
    memory = f"{amount(total)} of memory, {amount(free)} of it free"
    return f"{torch.cuda.device_count()} x {name}, {memory}"


def _directory(path: Path) -> str:
    storage = open_storage(path, "doctor")
    if path.is_dir():
        with storage:
            pass  # takes the lock, or raises an error that names its owner
    has_locks = _write_as_a_build_does(_existing(path))
    work = [Path(open_storage(path, run).where()).name for run in storage.runs()]
    more = f"; unfinished: {', '.join(work)}" if work else ""
    if not has_locks:
        more += "; its file system has no locks, so a lock file that is renewed is used instead"
    return f"{path} can be written{'' if path.exists() else ' (it does not exist yet)'}{more}"


def _write_as_a_build_does(place: Path) -> bool:
    """Lock, append, sync, rename and map files as a build, or raise OutputError.

    Returns:
        True if the lock is one of the system.
    """
    content = bytes(range(256))
    with (
        writing(place),
        temporary_directory(".tokenmill-doctor-", place) as trial,
        LocalStorage(str(trial), "doctor") as storage,
    ):
        has_locks = storage.has_system_lock
        stream = storage.stream("trial.bin")
        stream.append(memoryview(content))
        stream.sync()
        stream.close()
        storage.put("trial.json", content)
        storage.publish(["trial.bin"], ["trial.json"])
        storage.clear()
        found = np.memmap(Path(trial, "trial.bin")).tobytes()
    if found != content:
        raise OutputError(
            f"{place}: a mapped file has other content than was written; choose a directory on"
            " another disk"
        )
    return has_locks


def _existing(path: Path) -> Path:
    return next(each for each in (path, *path.parents) if each.exists())


def _disk(path: Path) -> str:
    place = _existing(path)
    free = open_storage(place).space()[0]
    block = os.urandom(1024 * 1024)
    with writing(place), tempfile.TemporaryFile(dir=place) as file:
        began = time.perf_counter()
        for _ in range(_WRITTEN_BYTES // len(block)):
            file.write(block)
        file.flush()
        sync(file.fileno())
        rate = _WRITTEN_BYTES / 1e6 / (time.perf_counter() - began)
    text = f"{amount(free)} free, {rate:,.0f} MB/s written and brought to the disk"
    if free < _LEAST_DISK:
        raise OutputError(f"{text}; make space or choose another directory")
    if (largest := resource.getrlimit(resource.RLIMIT_FSIZE)[0]) != resource.RLIM_INFINITY:
        limit = f"no file may be larger than {largest:,} bytes"
        raise OutputError(f"{text}, but {limit}; raise that limit (ulimit -f unlimited)")
    return text


def _tokenizer(path: Path) -> str:
    """Encode and decode a text with a new tokenizer and with the one in the directory."""
    from bpe import Tokenizer, load_tokenizer, train_bpe

    tokenizer: AnyTokenizer = train_bpe([_TEXT], 290, ["<|endoftext|>"], workers=1)
    which, existing = "a new one", path / TOKENIZER_FILE
    back = tokenizer.decode(ids := tokenizer.encode_ordinary(_TEXT))
    if back != _TEXT:
        raise NotFitError(
            "a new one does not decode its ids to the same text: the installation is damaged;"
            " install tokenmill, numba and llvmlite again"
        )
    if existing.exists():
        tokenizer, which = load_tokenizer(existing), str(existing)
        back = tokenizer.decode(ids := tokenizer.encode_ordinary(_TEXT))
    # Normal forms and a space in front are idempotent: they change a text only once.
    if back != _TEXT and isinstance(tokenizer, Tokenizer) and (
        not back or tokenizer.decode(tokenizer.encode_ordinary(back)) != back
    ):
        raise NotFitError(
            f"{existing}: does not decode its ids to the same text, not even its own output;"
            " save it again from its origin, or train one"
        )
    shown = tokenizer.encode_ordinary(_SHOWN)
    does = "decodes to the same bytes" if back == _TEXT else "changes text before encoding it"
    return (
        f"{which} {does} ({len(_TEXT.encode()):,} bytes, {len(ids):,} tokens);"
        f" {_SHOWN!r} -> {shown} -> {tokenizer.decode(shown)!r}"
    )

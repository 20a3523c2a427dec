"""Fit a run to `--memory-limit`; results never depend on the limit.

The limit bounds anonymous memory (RssAnon), which excludes the file cache. If not all workers fit,
the unit size is reduced to 4 MiB, then to 256 KiB, then the number of workers, then the unit size
of the last worker. Tables of counts are spilled to files at a quarter of the remaining memory.
Merging cannot be divided: if it does not fit, it raises an error, and a run with a greater limit
resumes from the saved counts. Documents without a safe cut are read whole, regardless of the limit.
"""

from __future__ import annotations

from typing import Any, TypeVar

from bpe.errors import TokenmillError
from bpe.files.locations import is_url
from bpe.parallel import available_workers
from preprocess.options import ReadSettings, TrainSettings
from preprocess.report.progress import logger
from preprocess.settings import SettingsError

# Measured, in bytes.
_BASE = 220_000_000  # the interpreter with compiled kernels and a tokenizer of 32,000 ids
_CACHE = 150_000_000  # the cache of pre-tokens
_OF_WORKER = 30_000_000
_REMOTE = 100_000_000  # pieces of files at URLs, which are read ahead, and the library
_SELECTING = 300_000_000  # digests of documents, or pieces of a token file that is shuffled
# Text, bounds and ids per byte of a unit, queued results included: 5 for English, 10 for one-byte
# pre-tokens, 70 if every other byte is a document, 10 more for uint32 ids. The rest is for other
# libraries, which take more.
_OF_UNIT_BYTE = 90
_USUAL_UNIT, _SMALL_UNIT, _LEAST_UNIT = 4 << 20, 256 * 1024, 64 * 1024
_OF_ID = 1_000
_TABLES_SHARE = 4  # growing a table holds the old and the new one; tables are copied, too

AnySettings = TypeVar("AnySettings", bound=ReadSettings)


class MemoryLimitError(TokenmillError):
    """A step needs more memory than the limit; progress is saved."""


def bytes_for_tables(limit: int | None, workers: int, unit_size: int) -> float:
    """Return the size in bytes at which tables of counts are spilled to files."""
    if limit is None:
        return float("inf")
    return max(limit - _BASE - workers * _OF_UNIT_BYTE * unit_size, 0) / _TABLES_SHARE


def check_merging(limit: int | None, n_bytes: int, n_pretokens: int) -> None:
    """Raise MemoryLimitError if merging `n_pretokens` pre-tokens of `n_bytes` exceeds the limit."""
    from bpe.train.trainer import memory_of_merging

    needed = _BASE + memory_of_merging(n_bytes, n_pretokens)
    if limit is not None and needed > limit:
        raise MemoryLimitError(
            f"merging {n_pretokens:,} different pre-tokens takes about {_mb(needed)}, and"
            f" --memory-limit is {_mb(limit)}; counts are saved: rerun the same command with"
            f" --memory-limit {_mb(needed)} or without it to resume, or train on a sample"
        )


def apply_profile(settings: AnySettings) -> AnySettings:
    """Set workers, unit size and memory limit by the profile, if one is chosen, and report them.

    Values that are given stay.
    """
    profile: str | None = getattr(settings, "profile", None)
    if profile is None:
        return settings
    n = available_workers()
    workers, unit_size, limit = {
        "memory": (1, 256 * 1024, 500_000_000), "balanced": (-(-n // 2), 1 << 20, 2_000_000_000),
        "speed": (n, _USUAL_UNIT, None),
    }[profile]
    of_profile = {"workers": workers, "unit_size": unit_size, "memory_limit": limit}
    chosen: dict[str, Any] = {x: y for x, y in of_profile.items() if settings.given.get(x) is None}
    if chosen.get("memory_limit") is not None:
        chosen["memory_limit"] = max(chosen["memory_limit"], _least_memory(settings))
    logger.info(
        "profile %s: %s", profile,
        ", ".join(f"{name} {'none' if x is None else f'{x:,}'}" for name, x in chosen.items()),
    )
    return settings.replace(**chosen)


def expected_memory(settings: ReadSettings) -> int:
    """Return the most anonymous memory in bytes that a run takes, documents of normal size given.

    Tables of counts grow with the text if there is no memory limit.
    """
    limit: int | None = getattr(settings, "memory_limit", None)
    needed = _fixed(settings) + settings.workers * (
        _OF_WORKER + _OF_UNIT_BYTE * settings.unit_size
    )
    shuffles = getattr(settings, "shuffle_documents", None) is not None
    needed += _SELECTING * (shuffles or getattr(settings, "selects", False))
    return needed if limit is None else min(needed, limit)


def _fixed(settings: ReadSettings) -> int:
    """Return the memory of a run without its workers."""
    given = [x for name in ("train", "val", "paths") for x in getattr(settings, name, ())]
    # A list of paths may have URLs.
    fixed = _BASE + _CACHE + _REMOTE * any(is_url(x) or x.startswith("@") for x in given)
    if isinstance(settings, TrainSettings) and getattr(settings, "tokenizer", None) is None:
        return fixed + _OF_ID * settings.largest_size
    return fixed


def _least_memory(settings: ReadSettings) -> int:
    """Return the least memory limit of a run."""
    least = min(_LEAST_UNIT, settings.unit_size)
    return _fixed(settings) + _OF_WORKER + _OF_UNIT_BYTE * least


def fit_to_memory(settings: AnySettings) -> AnySettings:
    """Reduce workers and unit size to the memory limit; raise SettingsError if impossible.

    On Ray, the limit is that of each worker, which fits its part to it.
    """
    limit: int | None = getattr(settings, "memory_limit", None)
    if limit is None or getattr(settings, "executor", "") == "ray":
        return settings
    base = _fixed(settings)
    for most in (settings.unit_size, _USUAL_UNIT, _SMALL_UNIT):
        unit_size = min(settings.unit_size, most)
        workers = (limit - base) // (_OF_WORKER + _OF_UNIT_BYTE * unit_size)
        if workers >= settings.workers:
            break
    if workers >= 1:
        return settings.replace(workers=min(settings.workers, workers), unit_size=unit_size)
    unit_size = (limit - base - _OF_WORKER) // _OF_UNIT_BYTE
    least = min(_LEAST_UNIT, settings.unit_size)
    if unit_size < least:
        raise SettingsError(
            f"--memory-limit {_mb(limit)} is below the minimum of this run; set it to"
            f" {_mb(_least_memory(settings))} or more"
        )
    return settings.replace(workers=1, unit_size=unit_size)


def _mb(n_bytes: int) -> str:
    """Format bytes as megabytes, rounded up, in the syntax of the option."""
    return f"{-(-n_bytes // 1_000_000)}MB"

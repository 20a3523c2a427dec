"""Keep a run within `--memory-limit`; a result never depends on it.

The limit bounds anonymous memory (RssAnon), which leaves out the file cache. If not all workers
fit, units are reduced to 256 KiB, then workers are removed, then the units of the last one are
reduced. Counts of pre-tokens go to files when their tables take a quarter of what is left. Merging
cannot be divided: if it does not fit, an error says so, and a run with a greater limit resumes from
the counts. Documents without a safe cut are read whole, whatever the limit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from bpe.errors import TokenbinError
from preprocess.settings.options import SettingsError
from preprocess.settings.schema import ReadSettings, TrainSettings

# Measured, in bytes.
_BASE = 220_000_000  # the interpreter with compiled kernels and a tokenizer of 32,000 ids
_WORDS = 150_000_000  # the cache of pre-tokens
_OF_WORKER = 30_000_000
# Text, bounds, ids of a unit and of those that wait: 5 for English, 10 for pre-tokens of a byte, 70
# where every other byte is a document, 10 more for ids of four bytes. Other libraries take more.
_OF_UNIT_BYTE = 90
_SMALL_UNIT, _LEAST_UNIT = 256 * 1024, 64 * 1024
_OF_ID = 1_000
_TABLES_SHARE = 4  # tables double, which needs both for a moment, and are copied

Settings = TypeVar("Settings", bound=ReadSettings)


class MemoryLimitError(TokenbinError):
    """A step needs more memory than the limit; progress is saved."""


def bytes_for_tables(limit: int | None, workers: int, unit_size: int) -> float:
    """Return how many bytes tables of counts may take before they go to files."""
    if limit is None:
        return float("inf")
    return max(limit - _BASE - workers * _OF_UNIT_BYTE * unit_size, 0) / _TABLES_SHARE


def check_merging(limit: int | None, n_bytes: int, n_words: int) -> None:
    """Raise MemoryLimitError if merging so many pre-tokens of so many bytes does not fit."""
    from bpe.training.trainer import memory_of_merging

    needed = _BASE + memory_of_merging(n_bytes, n_words)
    if limit is not None and needed > limit:
        raise MemoryLimitError(
            f"merging {n_words:,} different pre-tokens takes about {_mb(needed)}, and"
            f" --memory-limit is {_mb(limit)}; what was counted is kept: run the same"
            f" command with --memory-limit {_mb(needed)} or without it, or train on a sample"
        )


def fit_to_memory(settings: Settings) -> Settings:
    """Reduce workers and unit size to what the memory limit has room for.

    Raises:
        SettingsError: The limit is less than the least that a run needs.
    """
    limit: int | None = getattr(settings, "memory_limit", None)
    if limit is None:
        return settings
    base = _BASE + _WORDS
    if isinstance(settings, TrainSettings) and getattr(settings, "tokenizer", None) is None:
        base += _OF_ID * settings.vocab_size
    for unit_size in (settings.unit_size, min(settings.unit_size, _SMALL_UNIT)):
        workers = (limit - base) // (_OF_WORKER + _OF_UNIT_BYTE * unit_size)
        if workers >= settings.workers:
            break
    if workers >= 1:
        return replace(settings, workers=min(settings.workers, workers), unit_size=unit_size)
    unit_size = (limit - base - _OF_WORKER) // _OF_UNIT_BYTE
    least = min(_LEAST_UNIT, settings.unit_size)
    if unit_size < least:
        raise SettingsError(
            f"memory_limit: {_mb(limit)} is less than the least that this run needs, which is"
            f" {_mb(base + _OF_WORKER + _OF_UNIT_BYTE * least)}; give it that or more"
        )
    return replace(settings, workers=1, unit_size=unit_size)


def _mb(n_bytes: int) -> str:
    """Megabytes, rounded up, as the option takes them."""
    return f"{-(-n_bytes // 1_000_000)}MB"

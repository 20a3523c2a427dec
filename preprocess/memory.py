"""What a run may take of the memory: `--memory-limit`.

Law: a result never depends on it. A limit bounds anonymous memory (RssAnon), which is what the run
itself takes; pages of files that the system keeps are not part of it. If not all workers fit, units
are of 256 KiB at most, then workers are taken away until the others fit, and the units of the
last one made smaller; counts of pre-tokens go to files when their tables take a quarter of what is
left. Merging cannot be done in parts: what it needs is known when all is counted, and is refused
then; the counts are kept, so a run with a greater limit goes on there. Documents that may be cut
nowhere (see the patterns) are read whole, whatever the limit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from bpe.errors import TokenbinError
from preprocess.settings.options import SettingsError
from preprocess.settings.schema import ReadSettings, TrainSettings

# Measured: the interpreter with compiled kernels and a tokenizer of 32,000 ids; the words that all
# workers have merged; what each has of its own; text, places of documents, boundaries and ids of
# its unit and of those that wait. The last is 5 for a byte of English and 10 for one of pre-tokens
# of a byte, but 70 where every other byte is a document, and 10 more with ids of four bytes. What
# another library encodes takes more, as strings and lists of integers.
_BASE = 220_000_000
_WORDS = 150_000_000
_OF_WORKER = 30_000_000
_OF_UNIT_BYTE = 90
_SMALL_UNIT, _LEAST_UNIT = 256 * 1024, 64 * 1024
_OF_ID = 1_000
# Of what is left to tables of counts: they double, which needs both for a moment, and are copied.
_TABLES_SHARE = 4

Settings = TypeVar("Settings", bound=ReadSettings)


class MemoryLimitError(TokenbinError):
    """Something needs more memory than the run may take; what was done is kept."""


@dataclass(frozen=True)
class MemoryLimit:
    """How much a run may take.

    Attributes:
        n_bytes: In all; None: as much as there is.
    """

    n_bytes: int | None = None

    def for_tables(self, workers: int, unit_size: int) -> float:
        """What tables of counts may take before they go to files."""
        if self.n_bytes is None:
            return float("inf")
        # Counting needs no words of encoders.
        rest = self.n_bytes - _BASE - workers * _OF_UNIT_BYTE * unit_size
        return max(rest, 0) / _TABLES_SHARE

    def refuse_merging(self, n_bytes: int, n_words: int) -> None:
        """Refuse to merge so many pre-tokens of so many bytes.

        Raises:
            MemoryLimitError: That takes more than the limit.
        """
        from bpe.train import memory_of_merging

        needed = _BASE + memory_of_merging(n_bytes, n_words)
        if self.n_bytes is not None and needed > self.n_bytes:
            raise MemoryLimitError(
                f"merging {n_words:,} different pre-tokens takes about {_mb(needed)}, and"
                f" --memory-limit is {_mb(self.n_bytes)}; what was counted is kept: run the same"
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
        workers = min(settings.workers, workers)
        return replace(settings, workers=workers, unit_size=unit_size)
    unit_size = (limit - base - _OF_WORKER) // _OF_UNIT_BYTE
    if unit_size < min(_LEAST_UNIT, settings.unit_size):
        least = base + _OF_WORKER + _OF_UNIT_BYTE * min(_LEAST_UNIT, settings.unit_size)
        raise SettingsError(
            f"memory_limit: {_mb(limit)} is less than the least that this run needs, which is"
            f" {_mb(least)}; give it that or more"
        )
    return replace(settings, workers=1, unit_size=unit_size)


def _mb(n_bytes: int) -> str:
    """Megabytes, rounded up, as the option takes them."""
    return f"{-(-n_bytes // 1_000_000)}MB"

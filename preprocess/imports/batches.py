"""A dataset that one run writes batch by batch: what `import` and `DatasetWriter` share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any, Self

from msgspec import Struct, field

from preprocess.dataset.columns import DOCUMENT_ENDS, IDS, Column, Values
from preprocess.dataset.manifest import Count
from preprocess.dataset.writer import TokenFileWriter, WriterState
from preprocess.locations import split_location
from preprocess.options import ImportSettings, WriterSettings
from preprocess.report.progress import Stage
from preprocess.report.summary import Counts
from preprocess.run.outputs import add_token_file, is_up_to_date, open_published, put_stats
from preprocess.run.record import Record
from preprocess.run.run import Run

_KEY = "batches"  # in the journal


class Checkpoint(Struct, forbid_unknown_fields=True):
    """Checkpoint: the files of the dataset are durable up to a position of what is given."""

    state: WriterState = field(default_factory=WriterState)  # new since the previous checkpoint
    position: Count = 0  # documents, or ids, that were given
    counts: Counts = field(default_factory=Counts)  # documents of the dataset
    digest: str = ""  # of what was given
    seconds: float = 0.0


class DatasetRun:
    """The run of a dataset that is written batch by batch; a context manager, entered when made.

    Args:
        settings: Place and shards of the dataset.
        record: Inputs of the run.
        vocab_size: Exclusive upper bound of ids.
        columns: As of `TokenFileWriter`.
        **of_run: As of `Run`.

    Attributes:
        run: The run.
        name: NAME of NAME.bin.
        stats_file: Name of its stats.json.
        reached: How far it came; at first the last checkpoint.
        is_finished: True if the dataset is there already: the run is over.
    """

    def __init__(
        self, settings: ImportSettings | WriterSettings, record: Record, vocab_size: int,
        columns: Sequence[Column] = (IDS, DOCUMENT_ENDS), **of_run: Any,
    ) -> None:
        (directory, _), self.name = split_location(settings.out), settings.name
        self.stats_file, self.reached = f"{self.name}_stats.json", Checkpoint()
        with ExitStack() as self._stack:
            run = self.run = Run(directory, self.name, record, settings.overwrite, **of_run)
            self._stack.enter_context(run)
            self.is_finished = run.is_complete or is_up_to_date(
                run, self.stats_file, [self.name], shards=settings.shard_tokens is not None
            )
            if self.is_finished:
                open_published(run.storage.final, self.name)
                return
            run.begin()
            entries = run.journal.values(_KEY, Checkpoint)
            self.reached = entries[-1] if entries else self.reached
            self._writer = TokenFileWriter(
                run.storage, self.name, vocab_size=vocab_size, columns=columns,
                states=[each.state for each in entries], shard_tokens=settings.shard_tokens,
                split_documents=settings.split_documents,
            )
            self._stack.enter_context(closing(self._writer))
            self._stack.callback(run.journal.rest)  # its thread may still sync the streams
            self._stack = self._stack.pop_all()

    def append(
        self, ids: Values, ends: Values, n_bytes: int, position: int, *, digest: str = "",
        stage: Stage | None = None, **others: Values,
    ) -> None:
        """Append a batch, as `TokenFileWriter.append`, up to a position; make a due checkpoint.

        Its documents have `n_bytes` of text; `digest` is of all that was given up to there.
        """
        self._writer.append(ids, ends, **others)
        self.reached.counts.add(Counts(len(ends), n_bytes, len(ids)))
        self.reached.position, self.reached.digest = position, digest
        if self.run.journal.due():
            self.checkpoint(stage)

    def checkpoint(self, stage: Stage | None = None) -> None:
        """Begin to make durable what was appended."""
        journal, reached = self.run.journal, self.reached
        whole = journal.is_long
        reached.state = self._writer.state(whole)
        reached.seconds = 0.0 if stage is None else stage.seconds
        journal.submit(_KEY, reached, self._writer.streams, adds=not whole, stage=stage)

    def finish(self, tokenizer: Any, stats: Mapping[str, Any], **fields: Any) -> None:
        """Write the manifest, of `fields` and of the tokenizer if there is one; publish all."""
        self.run.journal.wait()
        manifest = self._writer.finish(
            n_bytes=self.reached.counts.bytes, **fields,
            tokenizer_fingerprint=getattr(tokenizer, "fingerprint", ""),
            pattern=getattr(tokenizer, "pattern", ""),
            unicode_version=getattr(tokenizer, "unicode_version", ""),
        )
        add_token_file(self.run, self.name, manifest)
        put_stats(self.run, self.stats_file, stats)
        self.run.publish()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self._stack.__exit__(kind, error, traceback)

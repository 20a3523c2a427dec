"""A dataset whose documents a program writes one by one; resumable.

    with DatasetWriter("data/train.bin", tokenizer="tokenizer.json") as writer:
        for text in itertools.islice(texts(), writer.n_documents, None):
            writer.write(text)

Documents are collected to batches, which threads encode; batches are appended in order. About once
a second the journal of the run records how many documents are durable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bpe.arguments import checked
from bpe.errors import CorpusError
from bpe.parallel import Task, Threads, cached_property
from preprocess.dataset.columns import MASK, Values, columns_of, token_dtype
from preprocess.dataset.manifest import IMPORTED, Count, Manifest
from preprocess.dataset.writer import TokenFileWriter, WriterState
from preprocess.imports.write import Numbers, text_lengths
from preprocess.locations import split_location
from preprocess.options import WriterSettings
from preprocess.report.summary import Counts
from preprocess.run.encode_pass import SpecialIds
from preprocess.run.outputs import (
    STATS_FORMAT,
    add_token_file,
    is_up_to_date,
    open_published,
    put_stats,
    read_object,
)
from preprocess.run.reading import load_given_tokenizer
from preprocess.run.record import Record, end_of_text_token
from preprocess.run.run import Run
from preprocess.settings import SettingsError, StrPath, TokenizerSource, options_of

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyEncoder

_BATCH_BYTES = 1 << 20  # of text, or of ids, that a thread encodes at a time
_KEY = "written"  # in the journal


class WriterCheckpoint(Struct, forbid_unknown_fields=True):
    """Checkpoint: the files of the dataset are durable up to a document."""

    state: WriterState  # new since the previous checkpoint
    given: Count  # documents that were written, also empty ones
    counts: Counts  # documents of the dataset


class _Ids(NamedTuple):
    """A document of ids."""

    ids: NDArray[Any]
    mask: NDArray[Any] | None


class _Encoded(NamedTuple):
    """A batch of documents, ready to be appended."""

    n_given: int
    counts: Counts
    ids: NDArray[Any]
    ends: Numbers
    mask: NDArray[np.uint8] | None


@checked
class DatasetWriter:
    """Writer of a dataset whose documents a program gives, one after another.

    It is a context manager: leaving the `with` finishes the dataset. After an error or a kill, the
    files keep their temporary names, and a writer with the same arguments goes on with document
    `n_documents`. If the dataset is finished already, `n_documents` is the number of all, and
    nothing is left to write. Documents without text are left out, as `build` leaves them out. One
    thread writes. Until it is closed, no other run writes to the directory.

    Args:
        out: The .bin file, or its URL in a bucket, where the dataset has shards.
        tokenizer: A tokenizer.json, a directory that has one, a name, or a tokenizer.
        end_of_text: Special token after each document; None: the tokenizer's.
        begin_of_text: Special token before each document; None: none.
        loss_mask: True if the dataset has a mask: 1 for each token to train on.
        pattern: Split pattern of a .tiktoken file.
        shard_tokens: Maximum number of tokens of a shard; None: no shards.
        split_documents: True if a document may continue in the next shard.
        workers: Threads that encode; None: one for each processor.
        overwrite: True to replace a dataset that exists, or an unfinished one of other arguments.

    Attributes:
        n_documents: Number of documents that were written, also empty ones: where to go on.

    Raises:
        SettingsError: An argument has a value that cannot work.
        TokenFileError: Another dataset of this name exists.
        OutputError: The files cannot be written.
        TokenmillError: The tokenizer cannot be used.
    """

    def __init__(
        self, out: StrPath, *, tokenizer: TokenizerSource, end_of_text: str | None = None,
        begin_of_text: str | None = None, loss_mask: bool = False, pattern: str | None = None,
        shard_tokens: int | None = None, split_documents: bool = False, workers: int | None = None,
        overwrite: bool = False,
    ) -> None:
        settings = self._settings = WriterSettings(
            out=out, tokenizer=tokenizer, end_of_text=end_of_text, begin_of_text=begin_of_text,
            loss_mask=loss_mask, pattern=pattern, shard_tokens=shard_tokens,
            split_documents=split_documents, workers=workers, overwrite=overwrite,
        )
        self._tokenizer = load_given_tokenizer(settings)
        self._special = SpecialIds.of(self._tokenizer, settings)
        self._vocab_size = self._tokenizer.vocab_size
        self._directory, _ = split_location(settings.out)
        self._held: list[bytes] | list[_Ids] = []
        self._n_held_bytes = 0
        self._under_way = deque[Task[_Encoded]]()
        self._encoders: list[AnyEncoder] = []
        self._writer: TokenFileWriter | None = None
        # An error is that of the program, which may go on after it.
        self._run: Run | None = Run(
            self._directory, settings.name, self._record, settings.overwrite, hopeless=()
        )
        self._run.__enter__()
        try:
            self._open(self._run)
        except BaseException as error:
            self._leave(error)
            raise

    @property
    def _record(self) -> Record:
        """The inputs of the run; the documents are not known."""
        settings, options = self._settings, options_of(WriterSettings).values()
        leave_out = {each.name for each in options if each.is_location or not each.changes_result}
        chosen = settings.as_json(leave_out)
        chosen["end_of_text"] = end_of_text_token(settings, self._tokenizer)
        return Record("DatasetWriter", chosen, {settings.name: []}, self._tokenizer.fingerprint)

    @property
    def _stats_file(self) -> str:
        return f"{self._settings.name}_stats.json"

    def _open(self, run: Run) -> None:
        """Begin the dataset, go on with it, or find that it is finished."""
        settings = self._settings
        has_shards = settings.shard_tokens is not None
        self.n_documents, self._counts = 0, Counts()
        if run.is_complete or is_up_to_date(
            run, self._stats_file, [settings.name], shards=has_shards
        ):
            stats = read_object(run.storage.final, self._stats_file, STATS_FORMAT) or {}
            self.n_documents = int(stats.get("documents_given", 0))
            self._manifest: Manifest | None = open_published(run.storage.final, settings.name)
            self._leave(None)
            return
        self._manifest = None
        run.begin()
        entries = run.journal.values(_KEY, WriterCheckpoint)
        for entry in entries[-1:]:
            self.n_documents, self._counts = entry.given, entry.counts
        self._n_appended = self.n_documents
        self._writer = TokenFileWriter(
            run.storage, settings.name, vocab_size=self._vocab_size,
            states=[each.state for each in entries], shard_tokens=settings.shard_tokens,
            split_documents=settings.split_documents, columns=columns_of(settings.loss_mask),
        )
        self._tokenizer.new_encoder()  # makes the tables once, before threads need them
        self._threads = Threads(settings.workers)

    # --- documents ---

    def write(self, text: str) -> None:
        """Write a document.

        Raises:
            CorpusError: It is not valid Unicode. It is not written, and others can be.
            OutputError: A write failed; a new writer goes on.
            SettingsError: The writer is closed, or its dataset is finished.
        """
        self._check_open()
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise CorpusError(
                f"document {self.n_documents:,}: not valid Unicode (a lone surrogate at character"
                f" {error.start:,}); correct it, or leave it out"
            ) from None
        self._hold(data, len(data))

    def write_ids(
        self, ids: Sequence[int] | NDArray[Any], mask: Sequence[int] | NDArray[Any] | None = None
    ) -> None:
        """Write a document of token ids; special ids around it are added where they are missing.

        Args:
            ids: integer[n], ids of the tokenizer.
            mask: integer[n], 1 for each token to train on, else 0; None: all are. Added ids have
                those of their neighbours.

        Raises:
            CorpusError: Ids or mask cannot be those of a document. Nothing is written.
            OutputError, SettingsError: As `write`.
        """
        self._check_open()
        # Copied, for the program may use its arrays again.
        document = _Ids(np.array(ids), None if mask is None else np.array(mask))
        if not len(document.ids):
            document = document._replace(ids=np.zeros(0, token_dtype(self._vocab_size)))
        self._check_ids(document)
        around = {self._special.begin_of_text, self._special.end_of_text}
        if len(document.ids) <= 2 and not {*document.ids.tolist()} - around:
            document = _Ids(document.ids[:0], None)  # it has no text
        self._hold(document, document.ids.nbytes)

    def _check_open(self) -> None:
        if self._manifest is not None:
            raise SettingsError(
                f"{self._settings.out}: is finished, with {self.n_documents:,} documents; write it"
                " anew (--overwrite), or add text (tokenmill append)"
            )
        if self._run is None:
            raise SettingsError(
                f"{self._settings.out}: the writer is closed; make a new one, which goes on with"
                " document n_documents"
            )

    def _check_ids(self, document: _Ids) -> None:
        """Raise CorpusError for ids or a mask that a document cannot have."""
        ids, mask, where = document.ids, document.mask, f"document {self.n_documents:,}"
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise CorpusError(
                f"{where}: expected integers in a list, got {ids.dtype} of shape {ids.shape}"
            )
        wrong = np.flatnonzero((ids < 0) | (ids >= self._vocab_size))
        if len(wrong):
            raise CorpusError(
                f"{where}: id {int(ids[wrong[0]]):,} at position {int(wrong[0]):,} is not in the"
                f" vocabulary of {self._vocab_size:,} ids; encode with the writer's tokenizer"
            )
        inside = np.flatnonzero(ids[:-1] == self._special.end_of_text)
        if len(inside):
            raise CorpusError(
                f"{where}: has the end-of-text id {self._special.end_of_text} at position"
                f" {int(inside[0]):,}, before its end; write the documents one by one"
            )
        if mask is not None and not self._settings.loss_mask:
            raise SettingsError("mask: the dataset has none; make the writer with loss_mask=True")
        if mask is not None and (mask.shape != ids.shape or not np.isin(mask, (0, 1)).all()):
            raise CorpusError(
                f"{where}: a mask has 0 or 1 for each of {len(ids):,} ids; got {mask.dtype} of"
                f" shape {mask.shape}"
            )

    def _hold(self, document: Any, n_bytes: int) -> None:
        """Add a document to the batch, which has texts or ids."""
        if self._held and type(self._held[-1]) is not type(document):
            self._submit()
        self._held.append(document)
        self._n_held_bytes += n_bytes
        self.n_documents += 1
        run = self._run
        assert run is not None
        if self._n_held_bytes >= _BATCH_BYTES:
            self._submit()
        elif run.journal.due():  # of a program that writes slowly, all is durable then
            self._submit(waits=not self._under_way)

    # --- batches ---

    def _submit(self, waits: bool = False) -> None:
        """Let a thread encode the batch; append those that are ready, or too many, or all."""
        if not self._held:
            return
        held, self._held, self._n_held_bytes = self._held, [], 0
        self._under_way.append(self._threads.submit(self._encode, held))
        most = 0 if waits else 2 * self._settings.workers
        while self._under_way and (len(self._under_way) > most or self._under_way[0].is_done):
            self._append()

    def _encode(self, held: Sequence[Any]) -> _Encoded:
        documents = [each for each in held if len(each.ids if isinstance(each, _Ids) else each)]
        if documents and isinstance(documents[0], _Ids):
            return self._join_ids(documents, len(held))
        begin = self._special.begin_of_text
        try:
            encoder = self._encoders.pop()
        except IndexError:
            encoder = self._tokenizer.new_encoder(token_dtype(self._vocab_size))
        ends = np.cumsum([0, *map(len, documents)], dtype=np.int64)
        ids, offsets = encoder.encode(
            np.frombuffer(b"".join(documents), np.uint8), np.stack([ends[:-1], ends[1:]], 1),
            prefix_id=-1 if begin is None else begin, suffix_id=self._special.end_of_text,
        )
        ids = ids.copy()  # the encoder uses its memory again
        self._encoders.append(encoder)
        mask = np.ones(len(ids), np.uint8) if self._settings.loss_mask else None
        counts = Counts(len(documents), int(ends[-1]), len(ids))
        return _Encoded(len(held), counts, ids, offsets[1:], mask)

    def _join_ids(self, documents: Sequence[_Ids], n_given: int) -> _Encoded:
        begin, end = self._special.begin_of_text, self._special.end_of_text
        dtype, ids, masks = token_dtype(self._vocab_size), list[Values](), list[Values]()
        for of_document, mask in documents:
            before = np.full(int(begin is not None and of_document[0] != begin), begin or 0, dtype)
            after = np.full(int(of_document[-1] != end), end, dtype)
            ids += [np.concatenate([before, of_document.astype(dtype), after])]
            own = np.ones(len(of_document), np.uint8) if mask is None else mask.astype(np.uint8)
            masks += [np.pad(own, (len(before), len(after)), "edge")]
        joined = np.concatenate(ids)
        lengths = self._text_lengths
        n_bytes = 0 if lengths is None else int(lengths[joined].sum())
        counts = Counts(len(documents), n_bytes, len(joined))
        mask = np.concatenate(masks) if self._settings.loss_mask else None
        return _Encoded(n_given, counts, joined, np.cumsum([*map(len, ids)]), mask)

    @cached_property
    def _text_lengths(self) -> Numbers | None:
        return text_lengths(self._tokenizer)

    def _append(self) -> None:
        """Append the first batch that is under way; a failure closes the writer."""
        writer, run = self._writer, self._run
        assert writer is not None
        assert run is not None
        try:
            batch = self._under_way.popleft().result()
            others = {} if batch.mask is None else {MASK.name: batch.mask}
            writer.append(batch.ids, batch.ends, **others)
            self._counts.add(batch.counts)
            self._n_appended += batch.n_given
            if run.journal.due():
                self._checkpoint(run, writer)
        except BaseException as error:
            self._leave(error)
            raise

    def _checkpoint(self, run: Run, writer: TokenFileWriter) -> None:
        journal = run.journal
        whole = journal.is_long
        entry = WriterCheckpoint(writer.state(whole), self._n_appended, self._counts)
        journal.submit(_KEY, entry, writer.streams, adds=not whole)

    # --- the end ---

    def close(self) -> None:
        """Finish the dataset, which gets its final name; nothing if it is finished or closed.

        Raises:
            CorpusError: No document has text.
            OutputError: A write failed.
        """
        run, settings = self._run, self._settings
        if run is None:
            return
        self._append_all()
        writer, tokenizer, counts = self._writer, self._tokenizer, self._counts
        assert writer is not None
        try:
            run.journal.wait()
            if not counts.documents:
                raise CorpusError(
                    f"{settings.out}: no document with text was written, and a dataset has at"
                    " least one"
                )
            source = {
                "name": "DatasetWriter", "bytes": counts.bytes, "digest": "",
                "documents": counts.documents, "tokens": counts.tokens, IMPORTED: "documents",
            }
            self._manifest = writer.finish(
                end_of_text_id=self._special.end_of_text,
                begin_of_text_id=self._special.begin_of_text, n_bytes=counts.bytes,
                tokenizer_fingerprint=tokenizer.fingerprint, pattern=tokenizer.pattern,
                unicode_version=tokenizer.unicode_version, sources=[source],
            )
            add_token_file(run, settings.name, self._manifest)
            stats = {"settings": settings.as_json(), "documents_given": self.n_documents}
            put_stats(run, self._stats_file, stats)
            run.publish()
        except BaseException as error:
            self._leave(error)
            raise
        self._leave(None)

    def _append_all(self) -> None:
        self._submit()
        while self._under_way:
            self._append()

    def _leave(self, error: BaseException | None) -> None:
        """Close files and threads, and unlock the directory."""
        run, self._run = self._run, None
        if run is None:
            return
        if self._writer is not None:
            self._threads.close()
            run.journal.rest()
            self._writer.close()
        run.__exit__(None if error is None else type(error), error, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            self.close()
            return
        run, writer = self._run, self._writer
        if run is not None and writer is not None and isinstance(error, Exception):
            self._append_all()  # what was written before the error of the program
            self._checkpoint(run, writer)
            run.journal.wait()
        self._leave(error)

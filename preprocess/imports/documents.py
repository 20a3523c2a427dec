"""A dataset whose documents a program writes one by one; resumable.

    with DatasetWriter("data/train.bin", tokenizer="tokenizer.json") as writer:
        for text in itertools.islice(texts(), writer.n_documents, None):
            writer.write(text)

Documents are collected to batches, which threads encode; batches are appended in order. About once
a second the journal of the run records how many documents are durable.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from bpe.arguments import checked
from bpe.errors import CorpusError
from bpe.parallel import Task, Threads, cached_property
from preprocess.dataset.columns import MASK, columns_of, token_dtype
from preprocess.dataset.manifest import IMPORTED
from preprocess.imports.batches import DatasetRun
from preprocess.imports.write import Numbers, text_lengths
from preprocess.options import WriterSettings
from preprocess.run.encode_pass import SpecialIds
from preprocess.run.outputs import STATS_FORMAT, read_object
from preprocess.run.reading import load_given_tokenizer
from preprocess.run.record import Record, recorded_settings
from preprocess.settings import SettingsError, StrPath, TokenizerSource

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyEncoder

_BATCH_BYTES = 1 << 20  # of text, or of ids, that a thread encodes at a time


class _Ids(NamedTuple):
    """A document of ids."""

    ids: NDArray[Any]
    mask: NDArray[Any] | None


class _Encoded(NamedTuple):
    """A batch of documents, ready to be appended."""

    n_given: int
    n_bytes: int  # of text
    ids: NDArray[Any]
    ends: Numbers
    mask: NDArray[np.uint8]


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
        self._dtype = token_dtype(self._tokenizer.vocab_size)
        self._held, self._n_held_bytes = list[Any](), 0  # bytes of texts, or `_Ids`
        self._under_way, self._encoders = deque[Task[_Encoded]](), list["AnyEncoder"]()
        chosen = recorded_settings(settings, self._tokenizer)
        record = Record("DatasetWriter", chosen, {settings.name: []}, self._tokenizer.fingerprint)
        # An error is that of the program, which may go on after it.
        run = DatasetRun(
            settings, record, self._tokenizer.vocab_size, columns_of(settings.loss_mask),
            hopeless=(),
        )
        self.n_documents, self._is_finished = run.reached.position, run.is_finished
        # None: closed, also in a fork.
        self._run: DatasetRun | None = None if run.is_finished else run
        self._threads = Threads(settings.workers)
        _writers.add(self)
        if run.is_finished:
            stats = read_object(run.run.storage.final, run.stats_file, STATS_FORMAT) or {}
            self.n_documents = int(stats.get("documents_given", 0))
        self._tokenizer.new_encoder()  # makes the tables once, before threads need them

    # --- documents ---

    def write(self, text: str) -> None:
        """Write a document.

        Raises:
            CorpusError: It is not valid Unicode. It is not written, and others can be.
            OutputError: A write failed; a new writer continues.
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
        given = np.array(ids) if len(ids) else np.zeros(0, self._dtype)
        trained = None if mask is None else np.array(mask)
        if mask is not None and not self._settings.loss_mask:
            raise SettingsError("mask: the dataset has none; make the writer with loss_mask=True")
        self._check_ids(given, trained)
        begin, end = self._special.begin_of_text, self._special.end_of_text
        if len(given) <= 2 and not {*given.tolist()} - {begin, end}:
            self._hold(b"", 0)  # it has no text
        else:
            self._hold(_Ids(given, trained), given.nbytes)

    def _check_open(self) -> None:
        if self._is_finished:
            raise SettingsError(
                f"{self._settings.out}: is finished, with {self.n_documents:,} documents; write it"
                " anew (--overwrite), or add text (tokenmill append)"
            )
        if self._run is None:
            raise SettingsError(
                f"{self._settings.out}: the writer is closed; make a new one, which goes on with"
                " document n_documents"
            )

    def _check_ids(self, ids: NDArray[Any], mask: NDArray[Any] | None) -> None:
        """Raise CorpusError for ids or a mask that a document cannot have."""
        where, end = f"document {self.n_documents:,}", self._special.end_of_text
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise CorpusError(
                f"{where}: expected integers in a list, got {ids.dtype} of shape {ids.shape}"
            )
        size = self._tokenizer.vocab_size
        if len(wrong := np.flatnonzero((ids < 0) | (ids >= size))):
            raise CorpusError(
                f"{where}: id {int(ids[wrong[0]]):,} at position {int(wrong[0]):,} is not in the"
                f" vocabulary of {size:,} ids; encode with the writer's tokenizer"
            )
        if len(inside := np.flatnonzero(ids[:-1] == end)):
            raise CorpusError(
                f"{where}: has the end-of-text id {end} at position {int(inside[0]):,}, before its"
                " end; write the documents one by one"
            )
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
        if self._n_held_bytes >= _BATCH_BYTES:
            self._submit()
        elif self._run is not None and self._run.run.journal.due():
            # Of a program that writes slowly, all is durable then.
            self._submit(waits=not self._under_way)

    # --- batches ---

    def _submit(self, waits: bool = False) -> None:
        """Let a thread encode the batch; append those that are ready, or too many, or all."""
        if self._held:
            held, self._held, self._n_held_bytes = self._held, [], 0
            encode = self._encode if type(held[0]) is bytes else self._join
            self._under_way.append(self._threads.submit(encode, held))
        most = 0 if waits else 2 * self._settings.workers
        while self._under_way and (len(self._under_way) > most or self._under_way[0].is_done):
            self._append()

    def _encode(self, held: Sequence[bytes]) -> _Encoded:
        documents, begin = [*filter(None, held)], self._special.begin_of_text
        try:
            encoder = self._encoders.pop()
        except IndexError:
            encoder = self._tokenizer.new_encoder(self._dtype)
        ends = np.cumsum([0, *map(len, documents)], dtype=np.int64)
        ids, offsets = encoder.encode(
            np.frombuffer(b"".join(documents), np.uint8), np.stack([ends[:-1], ends[1:]], 1),
            prefix_id=-1 if begin is None else begin, suffix_id=self._special.end_of_text,
        )
        ids = ids.copy()  # the encoder uses its memory again
        self._encoders.append(encoder)
        return _Encoded(len(held), int(ends[-1]), ids, offsets[1:], np.ones(len(ids), np.uint8))

    def _join(self, held: Sequence[_Ids]) -> _Encoded:
        begin, end = self._special.begin_of_text, self._special.end_of_text
        around, ids, masks = np.array([begin or 0, end]), list[Any](), list[Any]()
        ends = np.zeros(len(held), np.int64)
        for i, (given, mask) in enumerate(held):
            before, after = int(begin is not None and given[0] != begin), int(given[-1] != end)
            trained = np.ones(len(given), np.uint8) if mask is None else mask
            ids += [around[:before], given, around[1 : 1 + after]]
            masks += [trained[:before], trained, trained[len(given) - after :]]
            ends[i] = before + len(given) + after
        joined = np.concatenate(ids, dtype=self._dtype, casting="unsafe")
        mask = np.concatenate(masks, dtype=np.uint8, casting="unsafe")
        n_bytes = 0 if self._text_lengths is None else int(self._text_lengths[joined].sum())
        return _Encoded(len(held), n_bytes, joined, np.cumsum(ends), mask)

    @cached_property
    def _text_lengths(self) -> Numbers | None:
        return text_lengths(self._tokenizer)

    def _append(self) -> None:
        """Append the first batch that is under way; a failure closes the writer."""
        run = self._run
        assert run is not None
        try:
            batch = self._under_way.popleft().result()
            others: dict[str, Any] = {MASK.name: batch.mask} if self._settings.loss_mask else {}
            given = run.reached.position + batch.n_given
            run.append(batch.ids, batch.ends, batch.n_bytes, given, **others)
        except BaseException as error:
            self._leave(error)
            raise

    # --- the end ---

    def close(self) -> None:
        """Finish the dataset, which gets its final name; nothing if it is finished or closed.

        Nothing, too, in a process that was forked since the writer was made.

        Raises:
            CorpusError: No document has text.
            OutputError: A write failed.
        """
        run = self._run
        if run is None:
            return
        self._submit(waits=True)
        settings, counts = self._settings, run.reached.counts
        try:
            if not counts.documents:
                raise CorpusError(
                    f"{settings.out}: no document with text was written, and a dataset has at"
                    " least one"
                )
            source = {
                "name": "DatasetWriter", "bytes": counts.bytes, "digest": "",
                "documents": counts.documents, "tokens": counts.tokens, IMPORTED: "documents",
            }
            run.finish(
                self._tokenizer,
                {"settings": settings.as_json(), "documents_given": self.n_documents},
                end_of_text_id=self._special.end_of_text,
                begin_of_text_id=self._special.begin_of_text, sources=[source],
            )
            self._is_finished = True
        except BaseException as error:
            self._leave(error)
            raise
        self._leave(None)

    def _leave(self, error: BaseException | None) -> None:
        """Close the open files and unlock the directory; a new writer continues."""
        run, self._run = self._run, None
        if run is not None:
            self._threads.close()
            run.__exit__(None if error is None else type(error), error, None)

    def __del__(self) -> None:
        if hasattr(self, "_threads"):
            self._leave(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            self.close()
        elif (run := self._run) is not None and isinstance(error, Exception):
            self._submit(waits=True)  # what was written before the error of the program
            run.checkpoint()
            run.run.journal.wait()
        self._leave(error)


_writers = WeakSet[DatasetWriter]()


def _close_in_fork() -> None:
    for each in [*_writers]:
        each._run = None


os.register_at_fork(after_in_child=_close_in_fork)  # to look at each document takes 5 % longer

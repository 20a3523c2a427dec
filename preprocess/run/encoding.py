"""Encode work units: token ids, columns, and the part of each output.

A document has the begin-of-text id (optional), the ids of its text, and the end-of-text id. Text
that spells a special token is encoded as ordinary text and counted; only the special tokens that a
source names, those of a chat template, become special ids.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from bpe.errors import TokenmillError
from bpe.parallel import run_in_order
from preprocess.dataset import columns as table
from preprocess.dataset.columns import DOCUMENT_ENDS, IDS, token_dtype
from preprocess.documents.batch import DocumentBatch, SpecialTokenText
from preprocess.documents.chat_tokens import ConversationEncoder
from preprocess.documents.token_offsets import token_lengths, tokens_at
from preprocess.reused_memory import ReusedMemory
from preprocess.run.readers import Read, read_here, unit_readers
from preprocess.run.record import end_of_text_token
from preprocess.settings.schema import EncodeSettings, TrainSettings
from preprocess.sources import Source, WorkUnit
from preprocess.sources.digest import BlockDigests, digest_blocks

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyEncoder, AnyTokenizer


class SpecialTokenError(TokenmillError, ValueError):
    """A tokenizer lacks a required special token."""


class SpecialIds(Struct, frozen=True):
    """Special ids around each document."""

    end_of_text: int  # after each document; -1: none
    begin_of_text: int | None  # before each document; None: none

    @classmethod
    def of(cls, tokenizer: AnyTokenizer, settings: TrainSettings | EncodeSettings) -> SpecialIds:
        """Look up the tokens in the settings, or the tokenizer's own end-of-text token.

        Raises:
            SpecialTokenError: A token is missing, or the end-of-text token is an ordinary one, too.
        """
        known = tokenizer.special_tokens
        end = end_of_text_token(settings, tokenizer)
        for token, option in ((end, "--end-of-text"), (settings.begin_of_text, "--begin-of-text")):
            if token is not None and token not in known:
                if not known:
                    raise SpecialTokenError(
                        f"the tokenizer has no special tokens; add one: --end-of-text {token!r}"
                    )
                raise SpecialTokenError(
                    f"the tokenizer has no special token {token!r}; choose one that it has"
                    f" ({option}): {', '.join(map(repr, known))}"
                )
        text = np.frombuffer(end.encode(), np.uint8)
        if known[end] in tokenizer.new_encoder().encode(text, np.array([[0, len(text)]]))[0]:
            raise SpecialTokenError(
                f"{end!r} is an ordinary token of this tokenizer as well, so a document that spells"
                " it would end there; choose another special token (--end-of-text):"
                f" {', '.join(map(repr, known))}"
            )
        begin = settings.begin_of_text
        return cls(known[end], None if begin is None else known[begin])


class EncodedBatch(Struct, frozen=True, eq=False):
    """A batch of documents and its token ids: the input of `Column.make`."""

    batch: DocumentBatch
    ids: NDArray[np.unsignedinteger[Any]]  # [n_tokens], special ids included
    offsets: NDArray[np.int64]  # [n_documents + 1]: document d is ids[offsets[d] : offsets[d + 1]]
    special: SpecialIds
    lengths: Callable[[], NDArray[np.int64]]  # returns `token_lengths` of the tokenizer
    trained: NDArray[np.uint8] | None = None  # [n_tokens], 1 to train on it; None: on all

    def mask(self) -> NDArray[np.uint8]:
        """Return 1 for each token to train on: uint8[n_tokens]."""
        return np.ones(len(self.ids), np.uint8) if self.trained is None else self.trained

    def tokens_at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the position in `ids` of the token that contains each byte: int64[n].

        Args:
            positions: int64[n], positions in `batch.buffer`, each inside a document.

        Raises:
            EncodingError: The tokenizer changes text before it is encoded.
            ValueError: A position is outside the documents.
        """
        lengths = self.lengths()[self.ids]
        # Special ids spell no bytes of the document.
        if self.special.begin_of_text is not None:
            lengths[self.offsets[int(self.batch.starts_mid_document) : -1]] = 0
        if self.special.end_of_text >= 0:
            lengths[self.offsets[1 : self.batch.n_ended + 1] - 1] = 0
        return tokens_at(positions, self.batch.bounds, np.cumsum(lengths))


class Part(Struct, frozen=True, eq=False):
    """Encoded documents of one unit that belong to one output."""

    ids: NDArray[np.unsignedinteger[Any]]
    document_ends: NDArray[np.int64]  # positions in `ids`
    n_bytes: int  # bytes of text
    columns: Mapping[str, NDArray[Any]] = {}  # name -> values, of all other columns

    def values(self) -> dict[str, NDArray[Any]]:
        """Return name -> values of all columns."""
        return {IDS.name: self.ids, DOCUMENT_ENDS.name: self.document_ends, **self.columns}

    def counts(self) -> tuple[int, int, int]:
        """Return (documents that end, bytes of text, tokens)."""
        return len(self.document_ends), self.n_bytes, len(self.ids)


class Encoded(NamedTuple):
    """Token ids, counts and digests of a unit."""

    batch: DocumentBatch  # without text
    parts: list[Part]  # one for each output
    look_alikes: NDArray[np.int64]  # counts of special-token text
    digests: BlockDigests  # of the bytes of the source


class Encoding:
    """Factory of workers that encode units for `n_outputs` outputs."""

    def __init__(
        self, tokenizer: AnyTokenizer, ids: SpecialIds, look_alikes: SpecialTokenText,
        n_outputs: int, has_mask: bool, read: Read = read_here,
    ) -> None:
        self._tokenizer, self._ids, self._has_mask, self._read = tokenizer, ids, has_mask, read
        self._look_alikes, self._n_outputs = look_alikes, n_outputs
        # Text and ids of units in progress.
        self._memory = ReusedMemory(limit=256, largest=1 << 26)
        tokenizer.new_encoder()  # makes the shared tables once, before threads need them

    @cached_property
    def _conversation_encoder(self) -> ConversationEncoder:
        return ConversationEncoder(self._tokenizer, token_dtype(self._tokenizer.vocab_size))

    @cached_property
    def _lengths(self) -> NDArray[np.int64]:
        return token_lengths(self._tokenizer)

    def __call__(self) -> Callable[[WorkUnit], Encoded]:
        """Return a function that encodes units, for one thread at a time."""
        encoder = self._tokenizer.new_encoder(token_dtype(self._tokenizer.vocab_size))
        return partial(self._encode, encoder)

    def _encode(self, encoder: AnyEncoder, unit: WorkUnit) -> Encoded:
        batch, begin = self._read(unit, self._memory.array), self._ids.begin_of_text
        content = batch.content if batch.content is not None else unit.content(self._memory.array)
        digests, batch = digest_blocks(content, unit.start), replace(batch, content=None)
        del content  # frees its memory
        prefix_id, suffix_id, mask = -1 if begin is None else begin, self._ids.end_of_text, None
        if batch.special is not None:
            encode = self._conversation_encoder.encode
            ids, offsets, mask = encode(encoder, batch, prefix_id, suffix_id)
        else:
            ids, offsets = encoder.encode(
                batch.buffer, batch.bounds.reshape(-1, 2),
                prefix_id=prefix_id, suffix_id=suffix_id,
                starts_mid_document=batch.starts_mid_document,
                ends_mid_document=batch.ends_mid_document, memory=self._memory.array,
            )
        encoded = EncodedBatch(batch, ids, offsets, self._ids, lambda: self._lengths, mask)
        parts = _divide(encoded, self._n_outputs, self._has_mask)
        counts = self._look_alikes.count(batch)
        return Encoded(replace(batch.without_text(), fields={}), parts, counts, digests)


def reencode(
    source: Source, tokenizer: AnyTokenizer, ids: SpecialIds, workers: int, n_outputs: int,
    has_mask: bool = False,
) -> Generator[list[Part], None, None]:
    """Encode a source again, and yield the parts of each unit, one per output.

    Raises:
        CorpusError: Text cannot be read.
    """
    with unit_readers([source], workers) as read:
        make_work = Encoding(tokenizer, ids, SpecialTokenText(()), n_outputs, has_mask, read)
        with closing(run_in_order(source.units(), make_work, workers)) as results:
            for encoded in results:
                yield encoded.parts


def _divide(encoded: EncodedBatch, n_outputs: int, has_mask: bool) -> list[Part]:
    """Divide a batch among outputs, by `in_validation`; without it all goes to the first."""
    batch, ids, offsets = encoded.batch, encoded.ids, encoded.offsets
    n_ended = batch.n_ended
    columns = {
        each: each.make(encoded) for each in table.columns_of(has_mask) if each.make is not None
    }
    decided = np.zeros(1) if batch.in_validation is None else batch.in_validation
    output_of = decided.astype(np.int64)
    present = np.flatnonzero(np.bincount(output_of)).tolist()  # np.unique imports numpy.ma
    if present and present[-1] >= n_outputs:
        raise ValueError(f"a document is assigned to output {present[-1]}, of {n_outputs} outputs")
    if len(present) < 2:  # nothing is copied
        by_name = {each.name: values for each, values in columns.items()}
        everything = Part(ids, offsets[1 : n_ended + 1], batch.n_bytes, by_name)
        empty = {name: values[:0] for name, values in by_name.items()}
        nothing = Part(ids[:0], offsets[:0], 0, empty)
        return [everything if [number] == present else nothing for number in range(n_outputs)]
    n_ids, n_bytes, parts = np.diff(offsets), batch.sizes, []
    output_of_id = np.repeat(output_of.astype(np.min_scalar_type(n_outputs)), n_ids)
    for number in range(n_outputs):
        chosen, chosen_ids = output_of == number, output_of_id == number
        ended = chosen[:n_ended]
        further = {
            each.name: values[chosen_ids if each.per == "token" else ended]
            for each, values in columns.items()
        }
        ends = np.cumsum(n_ids[chosen])[: int(ended.sum())]
        parts.append(Part(ids[chosen_ids], ends, int(n_bytes[chosen].sum()), further))
    return parts

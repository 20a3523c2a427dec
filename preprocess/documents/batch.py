"""Batches of documents, and their preparation between a source and the kernels.

Documents are neither stripped nor normalized. Empty documents are dropped; invalid UTF-8 is an
error, is replaced, or its document is skipped; all of these are counted. Decisions are made per
document, so they do not depend on work units.

Documents are not copied: a batch is the buffer that was read and the bounds of each document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple, replace
from numpy.typing import NDArray

from bpe.errors import CorpusError

if TYPE_CHECKING:
    from preprocess.documents.chat_template import ChatFormat

Bytes = NDArray[np.uint8]
Offsets = NDArray[np.int64]
SafeCut = Callable[[Bytes, int, int], int]
InvalidText = Literal["error", "replace", "skip"]


class ReadOptions(Struct, frozen=True):
    """How the sources of a pass are read.

    Documents longer than a unit may be cut where `safe_cut`, as `Pretokenizer.safe_cut`, allows it
    (None: the rule of gpt2), but not inside the byte strings in `atomic`, the special tokens.
    """

    separator: bytes = b"<|endoftext|>"  # between documents; empty: each file is one document
    unit_size: int = 4 * 1024 * 1024  # target size of a work unit in bytes, at least 1
    on_invalid_utf8: InvalidText = "error"
    validation_fraction: float = 0.0  # of the documents, in [0, 1)
    safe_cut: SafeCut | None = None
    atomic: tuple[bytes, ...] = ()
    format: str = ""  # of all files, a name in `registry.FORMATS`; empty: by suffix and content
    content_field: tuple[str, ...] = ()  # fields of records with the text; empty: a usual one
    text_preset: str = ""  # how text is made of fields, a name in `sources.records.PRESETS`
    strip: bool = False  # remove white space at both ends of documents
    min_length: int = 0  # characters; shorter documents are left out
    max_length: int | None = None  # characters; longer documents are left out
    numbers_records: bool = False  # documents have the numbers of their records
    skip_bad_records: bool = False  # leave bad records out; False: they are errors
    whole_documents: bool = False  # never divide a document
    chat: str = "off"  # conversations: "auto", "off" or a name in `conversations.KINDS`
    chat_format: ChatFormat | None = None  # how conversations become text; None: unknown

    @property
    def filters(self) -> bool:
        """True if documents are changed or left out because of their text."""
        return self.strip or self.min_length > 0 or self.max_length is not None

    @property
    def keeps_whole(self) -> bool:
        """True if no document may be divided."""
        return self.whole_documents or self.filters


class Rejected(Struct, frozen=True):
    """A bad record that was left out."""

    file: str
    record: int  # number of its line or element, from 1, or of its row, from 0
    byte: int | None  # its position in the file; None: a row
    reason: str


class Spans(Struct, frozen=True, eq=False):
    """Byte ranges with values, such as the bytes to train on.

    Range i is `buffer[bounds[2 * i] : bounds[2 * i + 1]]` of a batch: not empty, in one document.
    """

    bounds: Offsets  # int64[2 * n], ascending
    values: NDArray[Any]  # [n]

    def document_of(self, bounds: Offsets) -> NDArray[np.intp]:
        """Return the index of the document of each range, int64[n]; `bounds` as in a batch."""
        return np.searchsorted(bounds[1::2], self.bounds[::2], side="right")

    def select(self, batch: DocumentBatch, chosen: NDArray[np.bool_], begin: int) -> Spans:
        """Return the ranges in documents of a batch where `chosen`, from byte `begin` on."""
        kept = chosen[self.document_of(batch.bounds)]
        bounds = self.bounds.reshape(-1, 2)[kept] - begin
        return Spans(bounds.ravel(), self.values[kept])


class DocumentBatch(Struct, frozen=True, eq=False):
    """Documents in one buffer; after `prepare` none is empty and all are UTF-8.

    Attributes:
        buffer: uint8[n_bytes], decoded text, read-only; reused once no view of it is left.
        bounds: int64[2 * n_documents]: document d is `buffer[bounds[2 * d] : bounds[2 * d + 1]]`.
            The first begins at 0, the last ends at n_bytes; gaps between them are ignored.
    """

    buffer: Bytes
    bounds: Offsets
    starts_mid_document: bool = False  # document 0 began in an earlier batch of the source
    ends_mid_document: bool = False  # the last document continues in the next batch
    in_validation: NDArray[np.bool_] | None = None  # bool[n_documents]; None: not divided
    n_empty: int = 0  # documents of zero bytes that were dropped
    n_skipped: int = 0  # documents that were skipped because of invalid UTF-8
    n_short: int = 0  # documents that were left out because of `ReadOptions.min_length`
    n_long: int = 0  # documents that were left out because of `ReadOptions.max_length`
    n_replaced: int = 0  # invalid sequences that became U+FFFD
    n_records: int = 0  # records of the unit that are numbered; 0: numbers are those of the source
    numbers: Offsets | None = None  # int64[n_documents], of their records, as `Rejected.record`
    rejected: tuple[Rejected, ...] = ()
    content: Bytes | None = None  # raw bytes of the unit, for its digest; not pickled
    spans: Spans | None = None  # what is trained on; None: all
    special: Spans | None = None  # special tokens in the text, and their ids; None: it has none
    forged: Mapping[str, int] | None = None  # counts of special-token text; None: to be counted

    def __reduce__(self) -> tuple[Any, ...]:
        return DocumentBatch, astuple(replace(self, content=None))

    def __len__(self) -> int:
        return len(self.bounds) // 2

    @property
    def sizes(self) -> Offsets:
        """Size of each document in bytes: int64[n_documents]."""
        return self.bounds[1::2] - self.bounds[::2]

    @property
    def n_bytes(self) -> int:
        """Size of all documents in bytes."""
        return int(self.sizes.sum())

    @property
    def n_ended(self) -> int:
        """Number of documents that end in this batch: all, or all but the last."""
        return len(self) - self.ends_mid_document

    def without_text(self) -> DocumentBatch:
        """Return the batch with its counts and decisions, without buffer and spans."""
        bounds = np.broadcast_to(np.int64(0), self.bounds.shape)  # takes no memory
        return replace(
            self, buffer=self.buffer[:0].copy(), bounds=bounds, content=None, spans=None,
            special=None, numbers=None,
        )

    def select(self, chosen: NDArray[np.bool_]) -> DocumentBatch:
        """Return the documents where `chosen`, bool[n_documents], is True, with their fields."""
        bounds = self.bounds.reshape(-1, 2)[chosen].ravel()
        first, end = (bounds[0], bounds[-1]) if len(bounds) else (0, 0)
        spans, special = (
            each and each.select(self, chosen, int(first)) for each in (self.spans, self.special)
        )
        return replace(
            self, buffer=self.buffer[first:end], bounds=bounds - first,
            starts_mid_document=self.starts_mid_document and bool(chosen[:1].any()),
            ends_mid_document=self.ends_mid_document and bool(chosen[-1:].any()),
            in_validation=None if self.in_validation is None else self.in_validation[chosen],
            spans=spans, special=special,
            numbers=None if self.numbers is None else self.numbers[chosen],
        )


def replace_invalid(data: bytes) -> tuple[bytes, int]:
    r"""Return (data with each invalid UTF-8 sequence replaced by U+FFFD, number of sequences).

    >>> replace_invalid(b"a\xffb\xe4\xb8")
    (b'a\xef\xbf\xbdb\xef\xbf\xbd', 2)
    """
    replaced = data.decode("utf-8", "replace").encode()
    mark = "\ufffd".encode()
    return replaced, replaced.count(mark) - data.count(mark)


def validation_limit(fraction: float) -> int:
    """Return the limit: documents with a smaller xxh3_64 are validation.

    The decision depends only on the document: copies get the same one, also as a corpus grows.
    """
    return round(fraction * 2**64)


def validation_mask(buffer: Bytes, bounds: Offsets, fraction: float) -> NDArray[np.bool_]:
    """Return True for validation documents: bool[n_documents]; bounds as in `DocumentBatch`."""
    from xxhash import xxh3_64_intdigest

    from bpe.text.spans import iter_ranges

    hashes = (xxh3_64_intdigest(buffer[start:end].data) for start, end in iter_ranges(bounds))
    return np.fromiter(hashes, np.uint64, len(bounds) // 2) < validation_limit(fraction)


def prepare(
    batch: DocumentBatch, reading: ReadOptions, where: Callable[[int], str],
    in_validation: bool | None = None,
) -> DocumentBatch:
    """Prepare documents of a source: drop empty ones, check UTF-8, decide on validation.

    Args:
        batch: Documents, some of them empty or invalid UTF-8. The gaps are UTF-8.
        reading: Options of the user.
        where: Formats position i of the buffer as a position in the source, for error messages.
        in_validation: Decision for all of these documents, if it was made before.

    Raises:
        CorpusError: Text is not UTF-8 and `reading.on_invalid_utf8` is "error".
    """
    from bpe.text.utf8 import is_utf8

    if reading.numbers_records and batch.numbers is None:
        batch = replace(batch, numbers=np.arange(1, len(batch) + 1))
    prepared = _leave_out(batch, batch.sizes == 0, "n_empty")
    if not is_utf8(batch.buffer):
        if reading.on_invalid_utf8 == "error":
            raise invalid_text_error(batch.buffer, where)
        prepared, n_replaced = _replace_all_invalid(prepared)
        if reading.on_invalid_utf8 == "skip":
            prepared = _leave_out(prepared, n_replaced > 0, "n_skipped")
        else:
            prepared = replace(prepared, n_replaced=int(n_replaced.sum()))
    if reading.strip:
        stripped = replace(prepared, bounds=strip_bounds(prepared.buffer, prepared.bounds))
        prepared = _leave_out(stripped, stripped.sizes == 0, "n_empty")
    if reading.filters:
        lengths = count_characters(prepared.buffer, prepared.bounds)
        is_short = lengths < reading.min_length
        is_long = lengths > (np.inf if reading.max_length is None else reading.max_length)
        prepared = _leave_out(prepared, is_short, "n_short")
        prepared = _leave_out(prepared, is_long[~is_short], "n_long")
    decided = None
    if fraction := reading.validation_fraction:
        decided = np.full(len(prepared), bool(in_validation))
        if in_validation is None:
            decided = validation_mask(prepared.buffer, prepared.bounds, fraction)
    return replace(prepared, in_validation=decided, content=batch.content)


def _leave_out(batch: DocumentBatch, left_out: NDArray[np.bool_], counter: str) -> DocumentBatch:
    """Return a batch without documents, which are added to a counter of it."""
    n = getattr(batch, counter) + int(left_out.sum())
    return replace(batch.select(~left_out), **{counter: n})


def strip_bounds(buffer: Bytes, bounds: Offsets) -> Offsets:
    """Return bounds without the white space at both ends of documents, as `str.strip` removes it.

    Args:
        buffer: uint8[n_bytes], documents in UTF-8, none of them empty.
        bounds: int64[2 * n_documents], see `DocumentBatch`.

    Returns:
        int64[2 * n_documents]; documents of white space become empty.
    """
    stripped = bounds.reshape(-1, 2).copy()
    if not len(stripped):
        return bounds
    # White space of ASCII is below "!"; other white space has bytes from 0x80 on.
    ends = buffer[stripped - [0, 1]]
    for number in np.flatnonzero(((ends <= 0x20) | (ends >= 0x80)).any(axis=1)).tolist():
        start, stop = stripped[number].tolist()
        text = buffer[start:stop].tobytes().decode()
        left = text.lstrip()
        start += len(text[: len(text) - len(left)].encode())
        stripped[number] = start, start + len(left.rstrip().encode())
    return stripped.ravel()


def count_characters(buffer: Bytes, bounds: Offsets) -> NDArray[np.int64]:
    """Count the characters of documents: int64[n_documents]; arguments as of `strip_bounds`."""
    if not len(bounds):
        return np.zeros(0, np.int64)
    begins = (buffer & 0xC0) != 0x80
    # Sums from each bound to the next: of documents, and of the gaps between them.
    return np.add.reduceat(begins, bounds[:-1], dtype=np.int64)[::2]


def invalid_text_error(buffer: Bytes, where: Callable[[int], str]) -> CorpusError:
    """Return the error for text that is not UTF-8; `where` as in `prepare`."""
    from bpe.text.utf8 import invalid_utf8

    place, what = invalid_utf8(buffer)
    return CorpusError(
        f"{where(place)}: not valid UTF-8 ({what}); convert the text to UTF-8, or choose"
        " --on-invalid-utf8 replace (puts U+FFFD there) or skip (leaves the document out)"
    )


def _replace_all_invalid(batch: DocumentBatch) -> tuple[DocumentBatch, NDArray[np.int64]]:
    """Return (batch without invalid UTF-8, replaced sequences of each document: int64[n]).

    It is rare, so not optimized. Conversations are always valid, so no ranges are moved.
    """
    from bpe.text.spans import iter_ranges

    text, ends, counts = bytearray(), [0], np.zeros(len(batch), np.int64)
    # One document at a time: lists of small objects take many times the memory of the text.
    for number, (start, end) in enumerate(iter_ranges(batch.bounds)):
        replaced, counts[number] = replace_invalid(batch.buffer[start:end].tobytes())
        text += replaced
        ends.append(len(text))
    buffer = np.frombuffer(text, np.uint8)
    buffer.flags.writeable = False
    return replace(batch, buffer=buffer, bounds=np.repeat(np.array(ends), 2)[1:-1]), counts


class SpecialTokenText:
    """Counter of text in documents that spells a special token.

    Special tokens that contain the separator cannot occur inside a document, and are excluded.
    """

    def __init__(self, special_tokens: Iterable[str], separator: bytes = b"") -> None:
        from bpe.special import SpecialTokenMatcher

        inside = (x for x in special_tokens if not separator or separator not in x.encode())
        self.tokens = tuple(inside)
        self._matcher = SpecialTokenMatcher({token: i for i, token in enumerate(self.tokens)})

    def count(self, batch: DocumentBatch) -> NDArray[np.int64]:
        """Count the non-overlapping occurrences of each of `tokens`: int64[n_tokens]."""
        if batch.forged is not None:
            return np.array([batch.forged.get(token, 0) for token in self.tokens], np.int64)
        counts, ends = np.zeros(len(self.tokens), np.int64), batch.bounds[1::2]
        for token, found in self._matcher.occurrences(batch.buffer).items():
            # One across an end is inside neither document, and may hide one that it overlaps.
            last = found + len(token) - 1
            for number in np.unique(np.searchsorted(ends, np.append(found, last), "right")):
                start, end = batch.bounds[2 * number : 2 * number + 2]
                text = batch.buffer[start:end].tobytes()
                counts[self._matcher.ids[token]] += text.count(token)
        return counts


# --- selected documents ---

Cuts = Mapping[int, tuple[int, int]]


class Kept(Struct, frozen=True, eq=False):
    """Which documents of a source are kept.

    Attributes:
        bits: uint8[n], bit i % 8 of byte i // 8 is 1 if document i is kept; of several sources.
        first: Number in `bits` of the first document of the source.
        stop: Number of documents of the source that are read; None: all.
        cuts: Number in `bits` of a document -> the range of its characters that is kept.
        validation_fraction: As in `ReadOptions`; a document that was cut is decided on again.
    """

    bits: NDArray[np.uint8]
    first: int = 0
    stop: int | None = None
    cuts: Cuts = {}
    validation_fraction: float = 0.0

    def select(self, batch: DocumentBatch, n_before: int) -> DocumentBatch:
        """Return the kept documents of a batch, of which the source has `n_before` before it."""
        first = self.first + n_before
        stop = first + len(batch)
        if self.stop is not None:
            stop = min(stop, self.first + self.stop)
        some = np.unpackbits(self.bits[first // 8 : -(-stop // 8)], bitorder="little")
        chosen = np.zeros(len(batch), np.bool_)
        chosen[: max(stop - first, 0)] = some[first % 8 : first % 8 + stop - first]
        for number in self.cuts:
            if first <= number < stop:
                batch = self._cut(batch, number - first, *self.cuts[number])
        return batch.select(chosen)

    def _cut(self, batch: DocumentBatch, index: int, first: int, stop: int) -> DocumentBatch:
        """Keep a range of the characters of one document."""
        bounds = batch.bounds.copy()
        start, end = bounds[2 * index : 2 * index + 2].tolist()
        text = batch.buffer[start:end].tobytes().decode()
        own = start + np.array([len(text[:n].encode()) for n in (first, stop)])
        bounds[2 * index : 2 * index + 2] = own
        in_validation = batch.in_validation
        if in_validation is not None:
            in_validation = in_validation.copy()
            in_validation[index] = validation_mask(batch.buffer, own, self.validation_fraction)[0]
        return replace(batch, bounds=bounds, in_validation=in_validation)

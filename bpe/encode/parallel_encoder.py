"""Encode documents on all threads, with a pool of encoders.

Ids depend neither on the number of threads nor on how text is cut into parts. With a `Normalizer`,
text is normalized as a whole and then encoded in parts.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from bpe.parallel import Lock, available_workers, run_in_order
from bpe.runtime.arrays import zeros
from bpe.special import Normalizer, SpecialTokenMatcher, utf8
from bpe.split.patterns import PATTERNS
from bpe.text.spans import close_gaps, find_pieces, spans_of
from bpe.text.utf8 import check_utf8
from bpe.vocabulary import AddedToken

if TYPE_CHECKING:
    from bpe.encode.encoder import Encoder, EncoderTables
    from bpe.formats.hf_write import TokenizerParts

Unit = TypeVar("Unit")
Result = TypeVar("Result")
# Documents: `uint8[n_bytes]`, UTF-8, and `int64[n_documents + 1]`, ascending from 0 to n_bytes.
Documents: TypeAlias = tuple[NDArray[np.uint8], NDArray[np.int64]]
# `uint32[n_ids]`, the ids of all documents, and `int64[n_documents + 1]`, their offsets.
Encoded: TypeAlias = tuple[NDArray[np.uint32], NDArray[np.int64]]

# Text of twice this size or more is encoded in parts of this size on all threads: to start a thread
# takes as long as to encode 50 KB.
_PART_BYTES = 1 << 21

# Texts of up to so many bytes, with up to so many special tokens, are encoded between these one
# after another, as `Encoder.encode_text` does with arguments packed once: to encode spans at once
# takes as long as to encode forty short texts.
_SHORT, _FEW = 1 << 11, 32

_STREAM_BYTES = 1 << 16  # of a stream that are collected before a cut is searched

_WARM_ENCODERS = 4  # that keep up to 8 MiB while nobody uses them


def join_documents(documents: Sequence[bytes]) -> Documents:
    """Concatenate documents."""
    offsets = np.zeros(len(documents) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, documents), np.int64, len(documents)), out=offsets[1:])
    return np.frombuffer(b"".join(documents), np.uint8), offsets


def _joined(parts: Generator[tuple[Encoded, int]], size: int) -> Encoded:
    """Concatenate the ids of parts as they come; a document may end in a later one.

    Args:
        parts: Their ids, valid until the next one is taken, and their sizes in any unit.
        size: Sum of the sizes, from which memory is estimated: pages beyond it are never touched.
    """
    ids, offsets, n_ids, size_so_far = np.empty(0, np.uint32), [np.zeros(1, np.int64)], 0, 0
    with closing(parts):
        for (of_part, part_offsets), part_size in parts:
            end, size_so_far = n_ids + len(of_part), size_so_far + part_size
            if end > len(ids):
                expected = int(1.2 * end * size / size_so_far)
                larger = np.empty(max(expected, 2 * len(ids), end), np.uint32)
                larger[:n_ids] = ids[:n_ids]
                ids = larger
            ids[n_ids:end] = of_part
            offsets.append(part_offsets[1:] + n_ids)
            n_ids = end
    return ids[:n_ids], np.concatenate(offsets)


def _copied(ids: NDArray[np.uint32], spare: list[Any]) -> NDArray[np.uint32]:
    """Copy ids to an array of `spare`, or a new one: an allocator keeps what a thread frees."""
    memory = np.empty(0, np.uint32)
    with suppress(IndexError):
        memory = spare.pop()
    if len(memory) < len(ids):
        memory = zeros(len(ids), np.uint32)
    memory[: len(ids)] = ids
    return memory[: len(ids)]


class _Part(NamedTuple):
    """Spans in `buffer[start:stop]`; the first may begin in the part before."""

    start: int
    stop: int
    spans: NDArray[np.int64]  # int64[n_spans, 2], start and end of each, relative to `start`
    ends_mid_span: bool  # the last one continues in the next part


class ParallelEncoder:
    """Encodes documents on all threads; may be used from several threads at once.

    Args:
        parts: The tokens, how they merge, the split pattern, and what happens before the split.

    Attributes:
        normalizer: Changes text before it is split; None: nothing does.
    """

    def __init__(self, parts: TokenizerParts) -> None:
        self._vocabulary, self._pattern = parts.vocabulary, parts.pattern
        self.normalizer: Normalizer | None = None
        # Special tokens without settings need no normalizer: a matcher finds them.
        added, forms = parts.vocabulary.added_tokens, parts.vocabulary.normal_forms
        settings = {replace(token, text="", id=0) for token in added}
        plain = AddedToken("", 0)
        only_special = settings in (set(), {plain}, {replace(plain, normalized=True)})
        if forms or parts.add_prefix_space or not only_special:
            self.normalizer = Normalizer(added, forms, parts.add_prefix_space)
        self._lock = Lock()
        self._tables: EncoderTables | None = None
        # Not bound to threads: the cache of an encoder outlives the thread that filled it.
        self._idle_encoders: list[Encoder] = []

    def tables(self) -> EncoderTables:
        """Return the tables that all encoders share."""
        if self._tables is None:
            from bpe.encode.encoder import EncoderTables

            with self._lock:
                if self._tables is None:
                    self._tables = EncoderTables(self._vocabulary, self._pattern)
        return self._tables

    def _idle_encoder(self) -> Encoder:
        try:
            return self._idle_encoders.pop()
        except IndexError:
            from bpe.encode.encoder import Encoder

            return Encoder(self.tables())

    def _put_back(self, encoder: Encoder) -> None:
        if encoder.has_cache:
            n_warm = sum(each.has_cache for each in list(self._idle_encoders))
            encoder.rest(stays_warm=n_warm < _WARM_ENCODERS)
        self._idle_encoders.append(encoder)

    def _on_threads(
        self, units: Iterable[Unit], encode: Callable[[Encoder, Unit], Result], n: int
    ) -> Generator[Result]:
        """Yield `encode(encoder, unit)` of each unit, computed on up to `n` threads."""
        encoders: list[Encoder] = []

        def make_work() -> Callable[[Unit], Result]:
            encoders.append(self._idle_encoder())
            return partial(encode, encoders[-1])

        workers = max(1, min(available_workers(), n))
        with closing(run_in_order(units, make_work, workers)) as done:
            yield from done
        for encoder in encoders:
            self._put_back(encoder)

    def new_encoder(self, dtype: np.dtype[Any] | None) -> Encoder:
        """Return an encoder for a thread of its own, see `Tokenizer.new_encoder`."""
        from bpe.encode.encoder import Encoder

        return Encoder(self.tables(), self.normalizer, dtype)

    def safe_cut(self, buffer: NDArray[np.uint8], position: int, stop: int) -> int:
        """Return the first position where a document can be cut, see `Tokenizer.safe_cut`."""
        safe_cut = self.tables().pretokenizer.safe_cut
        if self.normalizer is None:
            return safe_cut(buffer, position, stop)
        if not self.normalizer.allows_cuts:
            return stop
        # Normal forms neither change ASCII nor act across a position between two ASCII characters.
        while (cut := safe_cut(buffer, position, stop)) < stop:
            if buffer[cut - 1] < 0x80 and buffer[cut] < 0x80:
                return cut
            position = cut + 1
        return stop

    def encode_text(self, data: bytes, matcher: SpecialTokenMatcher | None = None) -> list[int]:
        """Return the ids of one document; special tokens of the matcher become their ids."""
        ids: list[int] = []
        if self.normalizer is None and len(data) < 2 * _PART_BYTES:
            if matcher is None or not matcher.occurs_in(data):
                return self._encode_plain(data)
            is_short = len(data) <= _SHORT and self._pattern in PATTERNS
            found = [*islice(matcher.find(data, 0, len(data)), _FEW + 1)] if is_short else []
            if 0 < len(found) <= _FEW:
                begin = 0
                for start, stop, token_id in found:
                    ids += self._encode_plain(data[begin:start])
                    ids.append(token_id)
                    begin = stop
                return ids + self._encode_plain(data[begin:])
        ids = self.encode(*join_documents([data]), matcher)[0].tolist()
        return ids

    def _encode_plain(self, data: bytes) -> list[int]:
        """Return the ids of text in which special tokens are ordinary text."""
        encoder = self._idle_encoder()
        ids = encoder.encode_text(data)
        self._put_back(encoder)
        return ids

    def encode(
        self, buffer: NDArray[np.uint8], offsets: NDArray[np.int64],
        matcher: SpecialTokenMatcher | None = None, encoder: Encoder | None = None,
    ) -> Encoded:
        """Encode documents; the special tokens of the matcher, if any, become their ids.

        An encoder that is given encodes all of them, on this thread.
        """
        if self.normalizer is not None:
            recognised = () if matcher is None else matcher.special_tokens
            return self.normalizer.encode(
                lambda text, cuts: self._encode_spans(text, spans_of(cuts)),
                buffer, offsets, recognised,
            )
        spans = spans_of(offsets)
        if matcher is None or not matcher.occurs_in(buffer.data):
            return self._encode_spans(buffer, spans, encoder)
        # Spans of text end, and begin again, at ends of documents and at special tokens, none of
        # which crosses the end of a document.
        starts, stops, special_ids = matcher.find_in_documents(buffer, offsets).T
        bounds = np.sort(np.concatenate([spans.ravel(), starts, stops])).reshape(-1, 2)

        def insert(ids: NDArray[np.uint32], counts: NDArray[np.int64]) -> Encoded:
            documents = np.searchsorted(offsets, starts, side="right")
            places = counts[documents + np.arange(len(starts))]
            n_before = np.searchsorted(starts, offsets)
            token_offsets = counts[np.arange(len(offsets)) + n_before] + n_before
            return np.insert(ids, places, special_ids), token_offsets

        return self._encode_spans(buffer, bounds, encoder, insert)

    def _encode_spans(
        self, buffer: NDArray[np.uint8], spans: NDArray[np.int64], encoder: Encoder | None = None,
        finish: Callable[[NDArray[np.uint32], NDArray[np.int64]], Encoded] | None = None,
        *, is_checked: bool = True,
    ) -> Encoded:
        """Encode spans of text, each a document, on all threads if they are long.

        Args:
            buffer: uint8[n_bytes]; what is in no span has no ids.
            spans: int64[n_spans, 2], start and end of each, ascending.
            encoder: Encodes all of them, if given.
            finish: Returns the result, from uint32[n_ids], which a later call overwrites, and
                int64[n_spans + 1], the offsets of spans. None: they are the result, copied.
            is_checked: Whether the buffer is known to be UTF-8.

        Raises:
            EncodingError: The buffer is not UTF-8.
        """
        if encoder is None and len(buffer) >= 2 * _PART_BYTES:
            found = self._encode_parts(buffer, spans, is_checked)
            return finish(*found) if finish else found
        if not is_checked:
            check_utf8(buffer, 0)
        used = encoder or self._idle_encoder()
        ids, offsets = used.encode_view(buffer, spans)
        found = finish(ids, offsets) if finish else (ids.copy(), offsets)
        if encoder is None:
            self._put_back(used)
        return found

    def _encode_parts(
        self, buffer: NDArray[np.uint8], spans: NDArray[np.int64], is_checked: bool
    ) -> Encoded:
        """Encode long spans in parts, on threads; see `_encode_spans`."""

        def encode_part(encoder: Encoder, part: _Part) -> tuple[Encoded, int]:
            text = buffer[part.start : part.stop]
            if not is_checked:
                check_utf8(text, part.start)
            ids, offsets = encoder.encode_view(text, part.spans)
            copied = _copied(ids, spare)  # the encoder writes the next part over them
            return (copied, offsets[:-1] if part.ends_mid_span else offsets), len(text)

        def encode_parts() -> Generator[tuple[Encoded, int]]:
            for each in self._on_threads(parts, encode_part, n_threads):
                yield each
                spare.append(each[0][0].base)

        spare: list[Any] = []  # memory of parts that were joined
        n_threads = min(available_workers(), len(buffer) // _PART_BYTES)
        parts = self._parts(buffer, spans, n_threads)
        return _joined(encode_parts(), len(buffer))

    def _parts(
        self, buffer: NDArray[np.uint8], spans: NDArray[np.int64], n_threads: int
    ) -> Iterator[_Part]:
        """Cut spans into parts: between two, or inside a long one where no token changes."""
        safe_cut = self.tables().pretokenizer.safe_cut
        starts, stops = spans.T
        first, begin = 0, 0
        while first < len(starts):
            size = len(buffer) + 1
            if size > 2 * _PART_BYTES:
                # Large parts cost less; small ones at the end keep all threads busy.
                size = min(4 * _PART_BYTES, (len(buffer) - begin) // (3 * n_threads))
                size = max((_PART_BYTES + 1) // 2, size)
            after = int(np.searchsorted(starts, begin + size))
            stop, ends_mid_span = int(stops[after - 1]), False
            if stop > begin + size:
                # Not at the first byte of a span: a cut there depends on the text before it.
                place = max(begin + size, int(starts[after - 1]) + 1)
                cut = safe_cut(buffer, place, stop)
                stop, ends_mid_span = cut, cut < stop
            inside = spans[first:after] - begin
            inside[0, 0], inside[-1, 1] = 0, stop - begin
            yield _Part(begin, stop, inside, ends_mid_span)
            first, begin = after - ends_mid_span, stop
            if not ends_mid_span and after < len(starts):
                begin = int(starts[after])

    def encode_texts(self, texts: list[str], matcher: SpecialTokenMatcher) -> Encoded:
        """Encode texts, each a document; special tokens of the matcher become their ids."""
        # Groups fit the processor's cache, so they help on one core, too.
        groups = _groups(texts) if self.normalizer is None else [texts]
        if len(groups) <= 1:
            return self.encode(*join_texts(texts), matcher)
        # Very long texts are encoded in parts, on all threads.
        alone = {
            number: self.encode(*join_texts(group), matcher)
            for number, group in enumerate(groups) if len(group[0]) >= 2 * _PART_BYTES
        }

        sizes = [sum(map(len, group)) for group in groups]

        def encode_group(encoder: Encoder, number: int) -> tuple[Encoded, int]:
            if number in alone:
                return alone.pop(number), sizes[number]
            return self.encode(*join_texts(groups[number]), matcher, encoder), sizes[number]

        encoded = self._on_threads(range(len(groups)), encode_group, len(groups) - len(alone))
        return _joined(encoded, sum(sizes))

    def encode_separated(self, buffer: NDArray[np.uint8], separator: bytes) -> Encoded:
        """Encode documents between separators, see `Tokenizer.encode_separated_to_numpy`."""
        spans = np.stack(find_pieces(buffer, separator), axis=1)
        if self.normalizer is not None:  # which could change the separator
            check_utf8(buffer, 0)
            return self.encode(*close_gaps(buffer, spans))
        return self._encode_spans(buffer, spans, is_checked=False)

    def encode_stream(
        self, chunks: Iterable[str], matcher: SpecialTokenMatcher
    ) -> Iterator[list[int]]:
        """Yield the ids of one text, given in chunks, lazily: those of a part at a time."""
        if self.normalizer is not None:
            # No safe cut is known before the end of the text.
            yield self.encode_text(utf8("".join(chunks)), matcher)
            return
        pending: list[bytes] = []
        n_pending, wanted = 0, _STREAM_BYTES
        for chunk in filter(None, chunks):
            pending.append(utf8(chunk))
            n_pending += len(pending[-1])
            if n_pending < wanted:
                continue
            data = b"".join(pending)
            if cut := matcher.last_cut(data, self.tables().pretokenizer.safe_cut):
                yield self.encode_text(data[:cut], matcher)
            pending = [data[cut:]]
            n_pending = len(pending[0])
            # Text without a safe cut is searched again when it has doubled.
            wanted = max(_STREAM_BYTES, 2 * n_pending)
        yield self.encode_text(b"".join(pending), matcher)


def _groups(texts: list[str]) -> list[list[str]]:
    """Divide a list into lists of about `_PART_BYTES`; a text of twice that has its own."""
    groups, first, size = [], 0, 0
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"expected text, found {type(text).__name__}")
        if len(text) >= 2 * _PART_BYTES and first < number:
            groups.append(texts[first:number])
            first, size = number, 0
        # Most other characters have two or three bytes.
        size += len(text) if text.isascii() else 2 * len(text)
        if size >= _PART_BYTES:
            groups.append(texts[first : number + 1])
            first, size = number + 1, 0
    if first < len(texts):
        groups.append(texts[first:])
    return groups


def join_texts(texts: Sequence[str]) -> Documents:
    """Concatenate texts, each a document, as UTF-8."""
    return join_documents([utf8(text) for text in texts])

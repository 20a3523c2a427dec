"""Encode documents on all threads, with a pool of encoders.

Ids depend neither on the number of threads nor on how text is cut into parts. With a `Normalizer`,
text is normalized as a whole and then encoded in parts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from bpe.encoding.added_tokens import Normalizer
from bpe.encoding.part_collector import PartCollector
from bpe.parallel import Lock, available_workers, run_in_order
from bpe.pretokenize.patterns import PATTERNS
from bpe.separated import SeparatedPart, check_utf8, separated_parts
from bpe.special_tokens import SpecialTokenMatcher, utf8
from bpe.vocabulary import AddedToken

if TYPE_CHECKING:
    from bpe.encoding.encoder import Encoder, EncoderTables
    from bpe.formats.hf_write import TokenizerParts

Unit = TypeVar("Unit")
# Documents: `uint8[n_bytes]`, UTF-8, and `int64[n_documents + 1]`, ascending from 0 to n_bytes.
Documents: TypeAlias = tuple[NDArray[np.uint8], NDArray[np.int64]]
# `uint32[n_ids]`, the ids of all documents, and `int64[n_documents + 1]`, their offsets.
Encoded: TypeAlias = tuple[NDArray[np.uint32], NDArray[np.int64]]

# Text of twice this size or more is encoded in parts of this size on all threads: to start a thread
# takes as long as to encode 50 KB.
_PART_BYTES = 1 << 21

# Bytes of a stream collected before a cut is searched, and bytes before the end searched first.
_STREAM_BYTES = 1 << 16
_STREAM_LOOK_BACK = 1 << 10

_WARM_ENCODERS = 4  # that keep some 8 MiB while nobody uses them


def join_documents(documents: Sequence[bytes]) -> Documents:
    """Concatenate documents."""
    offsets = np.zeros(len(documents) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, documents), np.int64, len(documents)), out=offsets[1:])
    return np.frombuffer(b"".join(documents), np.uint8), offsets


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
            from bpe.encoding.encoder import EncoderTables

            with self._lock:
                if self._tables is None:
                    self._tables = EncoderTables(self._vocabulary, self._pattern)
        return self._tables

    def _idle_encoder(self) -> Encoder:
        try:
            return self._idle_encoders.pop()
        except IndexError:
            from bpe.encoding.encoder import Encoder

            return Encoder(self.tables())

    def _put_back(self, encoder: Encoder) -> None:
        n_warm = sum(each.has_cache for each in list(self._idle_encoders))
        encoder.rest(stays_warm=n_warm < _WARM_ENCODERS)
        self._idle_encoders.append(encoder)

    def _on_threads(
        self, units: Iterable[Unit], encode: Callable[[Encoder, int, Unit], object], n: int
    ) -> None:
        """Call `encode(encoder, number, unit)` for each unit, on up to `n` threads."""
        encoders: list[Encoder] = []

        def make_work() -> Callable[[tuple[int, Unit]], object]:
            encoder = self._idle_encoder()
            encoders.append(encoder)
            return lambda unit: encode(encoder, *unit)

        workers = max(1, min(available_workers(), n))
        with closing(run_in_order(enumerate(units), make_work, workers)) as done:
            deque(done, maxlen=0)
        for encoder in encoders:
            self._put_back(encoder)

    def new_encoder(self, dtype: np.dtype[Any] | None) -> Encoder:
        """Return an encoder for a thread of its own, see `Tokenizer.new_encoder`."""
        from bpe.encoding.encoder import Encoder

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
        at_once = self.normalizer is None and len(data) < 2 * _PART_BYTES
        if at_once and (matcher is None or not matcher.occurs_in(data)):
            encoder = self._idle_encoder()
            ids = encoder.encode_text(data)
            if encoder.has_cache:
                self._put_back(encoder)
            else:
                self._idle_encoders.append(encoder)
        else:
            ids = self.encode(*join_documents([data]), matcher)[0].tolist()
        return ids

    def encode(
        self, buffer: NDArray[np.uint8], offsets: NDArray[np.int64],
        matcher: SpecialTokenMatcher | None = None,
    ) -> Encoded:
        """Encode documents; the special tokens of the matcher, if any, become their ids."""
        if self.normalizer is not None:
            recognised = () if matcher is None else matcher.special_tokens
            return self.normalizer.encode(self._encode_normalized, buffer, offsets, recognised)
        return self._encode_normalized(buffer, offsets, matcher)

    def _encode_normalized(
        self, buffer: NDArray[np.uint8], offsets: NDArray[np.int64],
        matcher: SpecialTokenMatcher | None = None,
    ) -> Encoded:
        if matcher is not None and matcher.occurs_in(buffer.data):
            return self._encode_with_special(buffer, offsets, matcher)
        if len(buffer) >= 2 * _PART_BYTES:
            return self._encode_parts(buffer, offsets)
        encoder = self._idle_encoder()
        ids, token_offsets = encoder.encode_view(buffer, offsets)
        ids = ids.copy()  # before its memory is used again
        self._put_back(encoder)
        return ids, token_offsets

    def _encode_with_special(
        self, buffer: NDArray[np.uint8], offsets: NDArray[np.int64], matcher: SpecialTokenMatcher
    ) -> Encoded:
        """Encode documents in which special tokens occur.

        Text between special tokens is encoded in one call, with offsets at ends of documents and at
        special tokens; then the ids of the special tokens are inserted.
        """
        found = matcher.find_in_documents(buffer, offsets)
        starts, stops, special_ids = found.T
        removed = np.concatenate([[0], np.cumsum(stops - starts)])
        bounds = [0, *found[:, :2].ravel().tolist(), len(buffer)]
        spans = map(slice, bounds[::2], bounds[1::2])
        ordinary = b"".join(map(buffer.data.__getitem__, spans))
        # No special token crosses the end of a document.
        n_before = np.searchsorted(starts, offsets)
        document_cuts = offsets - removed[n_before]
        special_cuts = starts - removed[:-1]
        # Equal offsets are an empty document, without ids.
        cuts = np.sort(np.concatenate([document_cuts, special_cuts]))
        ids, counts = self._encode_normalized(np.frombuffer(ordinary, np.uint8), cuts)
        special_places = counts[np.searchsorted(cuts, special_cuts)]
        token_offsets = counts[np.searchsorted(cuts, document_cuts)] + n_before
        return np.insert(ids, special_places, special_ids), token_offsets

    def _encode_parts(self, buffer: NDArray[np.uint8], offsets: NDArray[np.int64]) -> Encoded:
        # Ends of documents and of parts are offsets, so that the tokens before the end of each
        # document are counted.
        safe_cut = self.tables().pretokenizer.safe_cut
        edges = [0]
        for target in range(_PART_BYTES, len(buffer), _PART_BYTES):
            if target > edges[-1]:
                end_of_document = int(offsets[np.searchsorted(offsets, target)])
                edges.append(safe_cut(buffer, target, end_of_document))
        if edges[-1] < len(buffer):
            edges.append(len(buffer))
        collector = PartCollector(len(edges) - 1)

        def encode_part(encoder: Encoder, number: int, part: tuple[int, int]) -> None:
            start, stop = part
            first, last = np.searchsorted(offsets, [start, stop], side="right")
            ends = offsets[first:last] - start
            cuts = np.unique(np.concatenate([[0], ends, [stop - start]]))
            ids, counts = encoder.encode_view(buffer[start:stop], cuts)
            collector.put(number, ids, counts[np.searchsorted(cuts, [0, *ends])])

        self._on_threads(pairwise(edges), encode_part, len(edges) - 1)
        ids, token_offsets = collector.result()
        n_empty = int(np.searchsorted(offsets, 0, side="right")) - 1
        return ids, np.concatenate([np.zeros(n_empty, np.int64), token_offsets])

    def encode_texts(self, texts: list[str], matcher: SpecialTokenMatcher) -> Encoded:
        """Encode texts, each a document; special tokens of the matcher become their ids."""
        # Groups fit the processor's cache, so they help on one core, too.
        groups = _groups(texts) if self.normalizer is None else [texts]
        if len(groups) <= 1:
            return self.encode(*join_texts(texts), matcher)
        collector = PartCollector(len(groups))

        def encode_group(encoder: Encoder, _: int, number: int) -> None:
            buffer, offsets = join_texts(groups[number])
            if matcher.occurs_in(buffer.data):
                collector.put(number, *self._encode_with_special(buffer, offsets, matcher))
            else:
                collector.put(number, *encoder.encode_view(buffer, offsets))

        # Very long texts are encoded in parts, on all threads.
        alone = [number for number, group in enumerate(groups) if len(group[0]) >= 2 * _PART_BYTES]
        for number in alone:
            collector.put(number, *self.encode(*join_texts(groups[number]), matcher))
        together = sorted(set(range(len(groups))) - set(alone))
        self._on_threads(together, encode_group, len(together))
        return collector.result()

    def encode_separated(self, buffer: NDArray[np.uint8], separator: bytes) -> Encoded:
        """Encode documents between separators, see `Tokenizer.encode_separated_to_numpy`."""
        if self.normalizer is not None or self._pattern not in PATTERNS:
            # A normalizer could change the separator, and a regex refuse it.
            check_utf8(buffer, 0)
            return self.encode(*join_documents(buffer.tobytes().split(separator)))
        collector = PartCollector(len(buffer))
        n_threads = min(available_workers(), 1 + 2 * len(buffer) // _PART_BYTES)

        def part_size(n_left: int) -> int:
            # Large parts cost less; small ones at the end keep all threads busy.
            return max(_PART_BYTES // 2, min(4 * _PART_BYTES, n_left // (3 * n_threads)))

        def encode_part(encoder: Encoder, number: int, part: SeparatedPart) -> None:
            text = buffer[part.start : part.stop]
            check_utf8(text, part.start)
            ids, offsets = encoder.encode_view(text, part.bounds, gaps=True)
            if part.ends_mid_document:
                offsets = offsets[:-1]
            collector.put(number, ids, offsets, part.stop - part.start)

        safe_cut = self.tables().pretokenizer.safe_cut
        parts = separated_parts(buffer, separator, part_size, safe_cut)
        self._on_threads(parts, encode_part, n_threads)
        return collector.result()

    def encode_stream(self, chunks: Iterable[str], matcher: SpecialTokenMatcher) -> Iterator[int]:
        """Yield the ids of one text, given in chunks, lazily."""
        if self.normalizer is not None:
            # No safe cut is known before the end of the text.
            yield from self.encode_text(utf8("".join(chunks)), matcher)
            return
        pending: list[bytes] = []
        n_pending, wanted = 0, _STREAM_BYTES
        for chunk in filter(None, chunks):
            pending.append(utf8(chunk))
            n_pending += len(pending[-1])
            if n_pending < wanted:
                continue
            data = b"".join(pending)
            if cut := self._stream_cut(data, matcher):
                yield from self.encode_text(data[:cut], matcher)
            pending = [data[cut:]]
            n_pending = len(pending[0])
            # Text without a safe cut is searched again when it has doubled.
            wanted = max(_STREAM_BYTES, 2 * n_pending)
        yield from self.encode_text(b"".join(pending), matcher)

    def _stream_cut(self, data: bytes, matcher: SpecialTokenMatcher) -> int:
        """Return a position where a text that begins with `data` can be cut, 0 if none is known."""
        found = list(matcher.find(data, 0, len(data))) if matcher.occurs_in(data) else []
        certain = matcher.open_from(data, found)
        # Text from the last special token before `certain` to `certain` is ordinary.
        start = max((stop for _, stop, _ in found if stop <= certain), default=0)
        buffer = np.frombuffer(data, np.uint8)[start:certain]
        safe_cut = self.tables().pretokenizer.safe_cut
        first, look_back = len(buffer), _STREAM_LOOK_BACK
        while first:
            first = max(0, len(buffer) - look_back)
            cut = safe_cut(buffer, first, len(buffer))
            if cut < len(buffer):
                return start + cut
            look_back *= 4
        return start


def _groups(texts: list[str]) -> list[list[str]]:
    """Divide a list into lists of about `_PART_BYTES`; a text of twice that has its own."""
    groups, first, size = [], 0, 0
    for number, text in enumerate(texts):
        if type(text) is not str:
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

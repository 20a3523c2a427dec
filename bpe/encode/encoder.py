"""The encoder of one thread: text as bytes and offsets in, token ids and offsets out.

The ids of a document are those of `reference.encode` for its pre-tokens, whatever caches hold.
Special tokens in text are ordinary text.

    EncoderTables   arrays of a vocabulary and a pattern, and the cache of pre-tokens; shared by all
                    threads
    Encoder         the tables and a small cache; one per thread
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from bpe.arguments import check
from bpe.encode import encode_pretokens as kernels
from bpe.encode import model as tables_of
from bpe.encode import work as layout
from bpe.encode.cache_rows import PretokenCache
from bpe.encode.merge import MAX_SYMBOLS, SCRATCH_BYTES
from bpe.encode.misses import FACTOR
from bpe.encode.pretoken_cache import SharedPretokenCache, empty_cache, is_full
from bpe.encode.work import Output, Text, Work
from bpe.errors import EncodingError, VocabularyError
from bpe.parallel import Lock
from bpe.runtime.arrays import check_ids, read_only, zeros
from bpe.runtime.jit import bind, pack
from bpe.split import documents as split
from bpe.split.patterns import PATTERNS
from bpe.split.pretokenizer import Pretokenizer, splitting
from bpe.text.bit_set import set_bits
from bpe.text.spans import check_spans, close_gaps, spans_of

if TYPE_CHECKING:
    from bpe.special import Normalizer
    from bpe.vocabulary import Vocabulary

Spans = NDArray[np.int64]
MAX_ID = 2**tables_of.ID_BITS - 2

_SMALL_THREAD_CACHE, _THREAD_CACHE = 2**14, 2**19  # words of 8 bytes, see `pretoken_cache`
# Groups (some KB of text each) per kernel call, so that Ctrl-C is handled; fewer while another
# thread enlarges the cache.
_GROUPS_PER_CALL, _GROUPS_WHILE_CONTENDED, _NO_LIMIT = 512, 64, 2**62
_FILLED_AFTER = 2**20  # bytes encoded before the table of tokens is filled, so that it pays
_NO_AFFIXES = np.array([-1, -1, 0], np.int64)
_USUAL = (int, int, bool, bool)  # types of arguments around documents
_NO_UINT16 = np.empty(0, np.uint16)
_PLACES = np.uint64(2**kernels.TOKEN_BITS - 1)
# Texts up to this many bytes are encoded by two kernel calls with arguments packed once; work is
# large enough for one pre-token of that length.
_BOUND_TEXT = 2048
assert _BOUND_TEXT <= SCRATCH_BYTES
_ZEROS = bytes(2 * split.BLOCK_NEEDS)
_MAX_KEPT_IDS = 2**24  # a larger array of ids is not kept for the next call
# Nor one into which more than this were written, by an encoder that may not be used for long.
_MAX_IDLE_IDS = 2**20


def _power_of_two_above(n: int) -> int:
    return 1 << int(n).bit_length()


def new_state(groups: int = _NO_LIMIT, ignores_full: bool = False) -> NDArray[np.int64]:
    """Return the state of kernels before the first group, see `bpe.encode.work`."""
    state = np.zeros(layout.STATE_WORDS, np.int64)
    state[layout.LAST_POSITION] = -1
    state[layout.GROUPS_LEFT], state[layout.IGNORES_FULL] = groups, ignores_full
    return state


def new_work(thread_cache: int = 8) -> Work:
    """Return the memory of a thread with a cache of so many words."""
    tail = np.empty(layout.TAIL, np.uint8)
    return Work(
        thread_cache=zeros(thread_cache, np.uint64), own=np.zeros(4, np.int64),
        positions=np.empty(layout.N_POSITIONS, np.int64),
        group=np.empty(int(layout.MISSES) + 2 * layout.N_POSITIONS, np.uint32),
        keys=np.empty(4 * layout.KEYS, np.uint64), found=np.empty(2 * layout.KEYS, np.uint64),
        unseen=np.empty(layout.KEYS, np.uint32),
        new_ids=np.empty(layout.LONGEST_CACHED + 1, np.uint32),
        tail=tail, tail_text=read_only(tail), symbols=np.empty(MAX_SYMBOLS, np.uint32),
        ranks=np.empty(MAX_SYMBOLS, np.uint32), **_growing(SCRATCH_BYTES),
    )


def _growing(longest: int) -> dict[str, NDArray[Any]]:
    """Return the arrays of `Work` that grow with the longest pre-token."""
    return {
        "links": np.empty(3 * longest, np.uint32),
        "least": np.empty(longest + longest // 8 + 256, np.uint64),
    }


class EncoderTables:
    """Arrays of one vocabulary and one pattern, and the shared cache.

    Args:
        vocabulary: the tokens and how they merge.
        pattern: name of the split pattern.

    Raises:
        VocabularyError: an id, or the number of a merge, is larger than `MAX_ID`, or negative.
        PatternError: the pattern is unknown or cannot be run exactly.
    """

    def __init__(self, vocabulary: Vocabulary, pattern: str) -> None:
        if vocabulary.size > MAX_ID + 1:
            raise VocabularyError(
                f"the largest token id is {vocabulary.size - 1:,};"
                f" the encoder takes ids up to {MAX_ID:,}: use a smaller vocabulary"
            )
        self.pretokenizer = Pretokenizer(pattern)
        pairs = vocabulary.pair_table()
        lefts, _, ranks, merged_ids = pairs
        if ranks.max(initial=0) > MAX_ID:
            raise VocabularyError(
                f"there are {int(ranks.max()) + 1:,} merges;"
                f" the encoder takes up to {MAX_ID + 1:,}: use a smaller vocabulary"
            )
        token_ids, token_offsets, token_bytes = vocabulary.flat
        n_pairs = _power_of_two_above(len(lefts))
        # Ids are packed by the bits of the largest, so that two words hold more than four.
        bits = max(16, (vocabulary.size - 1).bit_length())
        n_first = 64 // bits
        # In most vocabularies the id of a merge is its rank plus a constant: no look-up.
        shift = merged_ids - ranks
        same = len(shift) and shift[0] >= 0 and (shift == shift[0]).all()
        factor = int.from_bytes(os.urandom(8), "little") >> 1 | 1
        packing = bits, n_first, n_first + 61 // bits, shift[0] if same else -1, factor
        n_whole = len(token_ids) if vocabulary.ignore_merges else 0
        whole_ids, whole_offsets = token_ids[:n_whole].copy(), token_offsets[: n_whole + 1].copy()
        whole_bytes = token_bytes[: whole_offsets[-1]].copy()
        whole = np.empty(4 * _power_of_two_above(n_whole) if n_whole else 0, np.uint64)
        if n_whole:
            tables_of.fill_whole(whole_bytes, whole_offsets, whole, factor)
        self.model = tables_of.Model(
            byte_ids=vocabulary.byte_ids, byte_pairs=np.empty(65536, np.uint64),
            characters=np.empty(tables_of.CHARACTERS, np.uint32),
            pairs=zeros(2 * n_pairs, np.uint64),
            pair_filter=zeros(max(1, 16 * n_pairs // 64), np.uint64),
            merged=np.zeros(int(ranks.max(initial=-1)) + 1, np.uint32),
            tokens=_no_tokens(), packing=np.array(packing, np.int64), whole=whole,
            whole_bytes=whole_bytes, whole_offsets=whole_offsets, whole_ids=whole_ids,
        )
        token_bytes = read_only(token_bytes)
        first_bytes, last_bytes = np.zeros((2, vocabulary.size), np.uint8)
        # An empty token may be the last, or the first.
        first_bytes[token_ids] = token_bytes.take(token_offsets[:-1], mode="clip")
        last_bytes[token_ids] = token_bytes[token_offsets[1:] - 1]
        lowest = np.empty(tables_of.KINDS * vocabulary.size, np.uint32)
        tables_of.fill_pairs(self.model, pairs, first_bytes, last_bytes, lowest)
        self.packed = pack(self.model)
        self.cache = SharedPretokenCache()
        self._flat = token_bytes, token_offsets
        self._filling, self._is_filled = Lock(), False

    def fill_tokens(self) -> None:
        """Replace the cache by a large, empty one, and fill `Model.tokens`, once.

        The table holds tokens of up to TOKEN_BYTES bytes that encode to themselves; before that,
        they are looked up in the caches.
        """
        if not self._is_filled and self._filling.acquire(blocking=False):
            try:
                if not self._is_filled:
                    self.cache.make_room()  # first, as other threads go on meanwhile
                    _fill_tokens(self, *self._flat)
                    self._is_filled = True
            finally:
                self._filling.release()


def _token_hashes(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return `kernels.token_hash` of each."""
    bits, mixed = kernels.TOKEN_BITS, words * FACTOR
    return mixed << np.uint64(bits) | mixed >> np.uint64(64 - bits)


def _no_tokens() -> NDArray[np.uint64]:
    """Return an empty `Model.tokens`."""
    # A free row has the hash of a pre-token that begins with 0xFF, which no UTF-8 has; the lowest
    # byte of a hash depends on the first byte only.
    bits = np.uint64(kernels.TOKEN_BITS)
    free = _token_hashes(np.array([0xFF], np.uint64)) >> bits & np.uint64(0xFF)
    return free << bits | np.arange(2**kernels.TOKEN_BITS, dtype=np.uint64)


def _fill_tokens(tables: EncoderTables, data: NDArray[Any], offsets: NDArray[Any]) -> None:
    """Fill `Model.tokens` from token bytes `data` (uint8[n_bytes]) and `offsets` (int64[n + 1]).

    Of two tokens with one row the first is kept, which usually has the lower id.
    """
    lengths = np.diff(offsets)
    # A final 0xFF would be read as padding.
    chosen = (lengths > 0) & (lengths <= kernels.TOKEN_BYTES) & (data[offsets[1:] - 1] != 0xFF)
    begins, lengths = offsets[:-1][chosen], lengths[chosen]
    inside = np.arange(kernels.TOKEN_BYTES) < lengths[:, None]
    filled = np.append(data, np.zeros(kernels.TOKEN_BYTES, np.uint8))
    padded = sliding_window_view(filled, kernels.TOKEN_BYTES)[begins]
    text = read_only(padded[inside])
    padded[~inside] = 0xFF
    ends = np.cumsum(lengths)
    # Each token is a pre-token and a span, encoded with a cache of their own.
    room = 8 * _power_of_two_above(len(ends))
    starts = np.zeros(len(text) // 64 + 1, np.uint64)
    token_offsets = np.zeros(len(ends) + 1, np.int64)
    set_bits(starts, np.append(0, ends))
    bounds = read_only(np.append(0, np.repeat(ends, 2)[:-1]))
    ids = np.empty(len(text) + layout.COPIED, np.uint32)
    kernels.encode_pretokens(
        pack(empty_cache(room, 16, 2 * room)), tables.packed, new_work(),
        Text(text, bounds, starts, _NO_AFFIXES), Output(ids, _NO_UINT16, token_offsets),
        new_state(ignores_full=True),
    )
    first = token_offsets[:-1]
    kept = (np.diff(token_offsets) == 1) & (ids[first] < 2**kernels.TOKEN_BITS)
    hashes = _token_hashes(padded[kept].view(np.uint64)[:, 0])
    # Reversed, for of two values with one index NumPy assigns the last.
    tables.model.tokens[(hashes & _PLACES)[::-1]] = (hashes ^ ids[first[kept]])[::-1]


class Encoder:
    """Encodes documents, and caches pre-tokens for all encoders of the tables.

    Used by one thread at a time. Kernels release the GIL, so several encoders run in parallel.

    Args:
        tables: Shared with other encoders.
        normalizer: Changes text before it is split; None: nothing does.
        dtype: Type of the ids, uint16 or uint32 (None).

    Attributes:
        has_cache: True if it has a cache of pre-tokens of its own, for texts that are not short.

    Raises:
        EncodingError: `dtype` is another type, or too small for the vocabulary.
    """

    def __init__(
        self, tables: EncoderTables, normalizer: Normalizer | None = None,
        dtype: np.dtype[Any] | None = None,
    ) -> None:
        self._dtype = np.dtype(np.uint32 if dtype is None else dtype)
        if self._dtype not in (np.uint16, np.uint32):
            raise EncodingError(f"ids are uint16 or uint32, not {self._dtype}: take one of them")
        check_ids(self._dtype, largest_id=(1 << int(tables.model.packing[0])) - 1)
        self._normalizer, self._pretokenizer = normalizer, tables.pretokenizer
        self._tables, self._arena_number = tables, -1
        self._set_work(new_work(), has_cache=False)
        self._ids = np.empty(1024, np.uint32)
        self._n_written = 0  # the most ids of a call since then
        self._n_bytes = 0
        self._encode_bound: Callable[[bytes], list[int] | None] | None = None

    def encode(
        self, buffer: NDArray[np.uint8], spans: Spans, *, prefix_id: int = -1, suffix_id: int = -1,
        starts_mid_document: bool = False, ends_mid_document: bool = False,
        memory: Callable[[int], NDArray[np.uint8]] | None = None,
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Encode documents.

        Args:
            buffer: uint8[n_bytes], UTF-8; ids of invalid UTF-8 are unspecified.
            spans: int64[n_documents, 2], start and end of each document, ascending, from 0 to
                n_bytes; bytes between two documents have no ids.
            prefix_id: Id before each document, -1 for none.
            suffix_id: Id after each document, -1 for none.
            starts_mid_document: The first document began in an earlier call: it gets no prefix.
            ends_mid_document: The last document continues in a later call: it gets no suffix.
            memory: Returns uint8[n] of its own for the ids, n being the most bytes that they can
                take. None, or with a normalizer: new memory, trimmed to the ids.

        Returns:
            dtype[n_tokens], the ids; int64[n_documents + 1], the offsets of documents in them.

        Raises:
            ArgumentError: An argument is of another type.
            EncodingError: The arrays or spans are others, or the prefix or suffix id does not fit
                into the encoder's type.
        """
        around: dict[str, Any] = {
            "prefix_id": prefix_id, "suffix_id": suffix_id,
            "starts_mid_document": starts_mid_document, "ends_mid_document": ends_mid_document,
        }
        check_spans(buffer, spans)
        is_usual = tuple(map(type, around.values())) == _USUAL  # which is quick
        if not is_usual or not (memory is None or callable(memory)):
            check(Encoder.encode, (self, buffer, spans), {**around, "memory": memory})
        check_ids(self._dtype, prefix_id=prefix_id, suffix_id=suffix_id)
        if self._normalizer is not None:
            documents = close_gaps(buffer, spans)
            return self._normalizer.encode(
                lambda text, offsets: self.encode_view(text, spans_of(offsets)),
                *documents, frozenset(), **around,
            )
        ids, token_offsets = self.encode_view(buffer, spans, memory=memory, **around)
        return ids.copy() if memory is None else ids, token_offsets

    def _cache(self) -> tuple[PretokenCache, Any]:
        """Return the shared cache, also packed; not kept here, so replaced ones are freed."""
        number, cache, packed = self._tables.cache.current
        if number != self._arena_number:
            self._arena_number, self._work.own[:] = number, 0
        return cache, packed

    def encode_pretokens(
        self, buffer: NDArray[np.uint8], offsets: NDArray[np.int64]
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Encode pre-tokens as they are, without splitting them; as `encode_view`.

        Args:
            buffer: uint8[n_bytes], UTF-8.
            offsets: int64[n_pretokens + 1], from 0 to n_bytes.
        """
        starts = np.zeros(len(buffer) // 64 + 1, np.uint64)
        set_bits(starts, offsets)
        return self.encode_view(buffer, spans_of(offsets), starts=starts)

    def encode_view(
        self, buffer: NDArray[np.uint8], spans: Spans, *, prefix_id: int = -1, suffix_id: int = -1,
        starts_mid_document: bool = False, ends_mid_document: bool = False,
        memory: Callable[[int], NDArray[np.uint8]] | None = None,
        starts: NDArray[np.uint64] | None = None,
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Encode as `encode`, without normalizer or checks.

        Without `memory`, the ids are a view that is valid until the next call. `starts` are the
        boundaries of pre-tokens, if they are known.
        """
        if not len(spans) or self._pretokenizer.pattern not in PATTERNS:
            # A regex may refuse what is between documents.
            buffer, offsets = close_gaps(buffer, spans)
            spans = spans_of(offsets)
        self._n_bytes += len(buffer)
        if self._n_bytes > _FILLED_AFTER:
            self._tables.fill_tokens()
        if not self.has_cache:
            cache = zeros(_THREAD_CACHE, np.uint64)
            self._set_work(self._work._replace(thread_cache=cache), has_cache=True)
        ids = self._memory_for(len(buffer) + 2 * len(spans) + layout.COPIED, memory)
        narrow = ids.view(np.uint16) if self._dtype == np.uint16 else _NO_UINT16
        written: NDArray[Any] = narrow if len(narrow) else ids
        out = Output(ids, narrow, np.zeros(len(spans) + 1, np.int64))
        state = new_state()
        if len(spans):
            if prefix_id >= 0 and not starts_mid_document:
                written[0], state[layout.N_IDS] = prefix_id, 1
            bounds = read_only(spans.ravel())
            if starts is None:
                starts = self._pretokenizer.boundaries(buffer, bounds)
            around = np.array([prefix_id, suffix_id, ends_mid_document], np.int64)
            self._encode_all(Text(read_only(buffer), bounds, starts, around), out, state)
        self._n_written = max(self._n_written, int(state[layout.N_IDS]))
        return written[: state[layout.N_IDS]], out.offsets

    def _memory_for(
        self, capacity: int, memory: Callable[[int], NDArray[np.uint8]] | None
    ) -> NDArray[np.uint32]:
        """Return memory for so many ids: that of the caller, or kept or new memory."""
        if memory is not None:
            ids = memory(capacity * 4).view(np.uint32)
            if len(ids) < capacity:
                raise EncodingError(
                    f"memory has room for {len(ids):,} ids: expected {capacity:,}, 4 bytes each"
                )
            return ids
        if capacity <= len(self._ids):
            return self._ids
        ids = zeros(capacity, np.uint32)  # mapped, so that it can be given back
        if capacity <= _MAX_KEPT_IDS:
            self._ids = ids
        return ids

    def _encode_all(self, text: Text, out: Output, state: NDArray[np.int64]) -> None:
        """Call the kernel until the text is done, with larger caches and more work if needed."""
        work, n_words = self._work, len(text.starts)
        packed_work, packed_text, packed_out = self._packed_work, pack(text), pack(out)
        is_contended = False  # another thread is enlarging the cache
        while state[layout.NEXT_WORD] < n_words:
            cache, packed = self._cache()
            most = _GROUPS_WHILE_CONTENDED if is_contended else _GROUPS_PER_CALL
            state[layout.GROUPS_LEFT], state[layout.IGNORES_FULL] = most, is_contended
            kernels.encode_pretokens(
                packed, self._tables.packed, packed_work, packed_text, packed_out, state
            )
            longest = int(state[layout.LONGEST])
            if 3 * longest > len(work.links):
                # Work for one long pre-token is large, and not kept.
                work = work._replace(**_growing(longest))
                packed_work, is_contended = pack(work), False
            else:
                needs_room = state[layout.NEXT_WORD] < n_words and bool(is_full(cache).any())
                is_contended = needs_room and not self._tables.cache.make_room(cache)

    def rest(self, stays_warm: bool) -> None:
        """Give back memory before the encoder is idle: what a large text needed, or all of it."""
        if self._n_written > _MAX_IDLE_IDS or not stays_warm:
            self._ids, self._n_written = np.empty(1024, np.uint32), 0
        if not stays_warm:
            cache = np.empty(0, np.uint64)
            self._set_work(self._work._replace(thread_cache=cache), has_cache=False)

    def _set_work(self, work: Work, has_cache: bool) -> None:
        """Replace the memory of kernels, which is packed once for many calls."""
        self._work, self._packed_work, self.has_cache = work, pack(work), has_cache

    def encode_text(self, data: bytes) -> list[int]:
        """Return the ids of one document, UTF-8, without normalizer."""
        if len(data) <= _BOUND_TEXT and self._pretokenizer.pattern in PATTERNS:
            if self._encode_bound is None:
                self._encode_bound = self._bound_encoder()
            if (found := self._encode_bound(data)) is not None:
                return found
        spans = np.array([[0, len(data)]], np.int64)
        ids: list[int] = self.encode_view(np.frombuffer(data, np.uint8), spans)[0].tolist()
        return ids

    def _bound_encoder(self) -> Callable[[bytes], list[int] | None]:
        """Return a function that encodes up to `_BOUND_TEXT` bytes, with arguments packed once.

        It returns None if the cache is full and another thread is enlarging it.
        """
        buffer = np.zeros(_BOUND_TEXT + len(_ZEROS), np.uint8)
        bounds, state, start = np.zeros(2, np.int64), new_state(), new_state()
        start[layout.LONGEST] = 1  # there is room for any
        starts = np.empty(_BOUND_TEXT // 64 + 1, np.uint64)
        ids = np.empty(_BOUND_TEXT + 2 + layout.COPIED, np.uint32)
        text = Text(read_only(buffer), read_only(bounds), starts, _NO_AFFIXES)
        split_documents, characters, scratch = splitting(self._pretokenizer.pattern)
        split_text = bind(
            split_documents, characters, scratch, text.buffer, text.bounds, False, starts
        )
        # Arrays are the same as in `_work`, but for the thread cache.
        work = self._work._replace(thread_cache=zeros(_SMALL_THREAD_CACHE, np.uint64))
        encode_pretokens = bind(
            kernels.encode_pretokens, self._cache()[1], self._tables.packed, pack(work), pack(text),
            pack(Output(ids, _NO_UINT16, np.zeros(2, np.int64))), state,
        )
        content, end, now, first, found = buffer.data, bounds.data, state.data, start.data, ids.data

        def encode(data: bytes) -> list[int] | None:
            n = len(data)
            content[: n + len(_ZEROS)] = data + _ZEROS  # blocks are read past the end
            end[1] = n
            split_text(characters)
            while True:
                now[:] = first
                cache, packed = self._cache()
                n_ids = encode_pretokens(packed)
                if now[layout.NEXT_WORD] > n >> 6:
                    return found[:n_ids].tolist()
                if not self._tables.cache.make_room(cache):
                    return None

        return encode

"""Vocabularies: tokens and their ids, merges or ranks, special tokens.

A `Vocabulary` is consistent and immutable: every byte of UTF-8 has an id, every merge joins two
tokens into a token, ids and texts are unique. The rank of a pair is its position in the list of
merges or, with tiktoken's ranks, the rank of the joined bytes. `pair_table` covers both.

    >>> vocabulary = Vocabulary.from_merges([(b"a", b"b"), (b"ab", b"c")], ["<|endoftext|>"])
    >>> vocabulary.size, vocabulary.token_bytes(257), vocabulary.special_tokens
    (259, b'abc', {'<|endoftext|>': 258})
    >>> [array.tolist() for array in vocabulary.pair_table()]
    [[97, 256], [98, 99], [0, 1], [256, 257]]
"""

from __future__ import annotations

import functools
import heapq
import operator
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bpe.arguments import checked, checks_names
from bpe.byte_level import to_byte_level
from bpe.errors import EncodingError, VocabularyError
from bpe.parallel import cached_property
from bpe.reference import Pair
from bpe.text.normalize import normalized

_DECODE_IDS = 1 << 15  # ids decoded at a time, to bound memory beyond that of the text
_LISTED_IDS = 1 << 21  # ids that encoders take are below
LARGEST_ID = 2**31 - 2  # ids are int32 in the tables of the encoder
# Bytes that no UTF-8 has, so that a vocabulary may lack them, as GPT-NeoX's does.
_NOT_IN_UTF8 = {0xC0, 0xC1, *range(0xF5, 0x100)}


@checked
@dataclass(frozen=True)
class AddedToken:
    """A token that is found in text before it is split.

    Attributes:
        text, id: Text and id.
        special: Not found by `encode_ordinary`.
        lstrip, rstrip: Includes white space before, or after.
        single_word: Found only without a letter, mark, digit or `_` next to it.
        normalized: Searched in normalized text.
    """

    text: str
    id: int
    special: bool = True
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False


class PairTable(NamedTuple):
    """The pairs that an encoder merges, by rank; each array is `int32[n_pairs]`."""

    left_ids: NDArray[np.int32]
    right_ids: NDArray[np.int32]
    ranks: NDArray[np.int32]
    merged_ids: NDArray[np.int32]


class FlatTokens(NamedTuple):
    """Ordinary tokens as arrays."""

    ids: NDArray[np.int32]  # int32[n]
    offsets: NDArray[np.int64]  # int64[n + 1]: token i is `data[offsets[i] : offsets[i + 1]]`
    data: NDArray[np.uint8]  # uint8[n_bytes]

    @classmethod
    def of(cls, tokens: Mapping[int, bytes]) -> FlatTokens:
        """Convert id -> bytes."""
        lengths = np.fromiter(map(len, tokens.values()), np.int64, len(tokens))
        offsets = np.append(0, np.cumsum(lengths))
        data = np.frombuffer(b"".join(tokens.values()), np.uint8)
        return cls(np.fromiter(tokens, np.int32, len(tokens)), offsets, data)

    def tokens(self) -> dict[int, bytes]:
        """Return id -> bytes."""
        data = self.data.tobytes()
        parts = (data[start:stop] for start, stop in pairwise(self.offsets.tolist()))
        return dict(zip(self.ids.tolist(), parts, strict=True))

    def select(self, kept: NDArray[np.bool_]) -> FlatTokens:
        """Return the tokens where `kept`, bool[n], is True."""
        if kept.all():
            return self
        lengths = np.diff(self.offsets)
        offsets = np.append(0, np.cumsum(lengths[kept]))
        return FlatTokens(self.ids[kept], offsets, self.data[np.repeat(kept, lengths)])


class Vocabulary:
    """Consistent tokens, merges and special tokens.

    Args:
        tokens: Id -> bytes of every ordinary token, including all bytes that UTF-8 has. One may be
            empty, which text never gives. Or arrays of them, of which ids and bytes must be unique.
        merges: Pairs of tokens in the order of their ranks, or of their ids, int32[n, 2]; each
            makes a token of `tokens`. Of equal pairs the last counts, as in Hugging Face. None: the
            ids are tiktoken's ranks.
        special_tokens: Text -> id, or all added tokens, special or not.
        ignore_merges: A pre-token that is a token is not merged, as in Hugging Face and tiktoken.
        normal_forms: Unicode normal forms of text, in order: added tokens with `normalized` decode
            to normalized text.

    Attributes:
        has_tiktoken_ranks: Whether the ids are tiktoken's ranks.

    Raises:
        VocabularyError: Arguments are inconsistent.
    """

    @checks_names
    def __init__(
        self, tokens: Mapping[int, bytes] | FlatTokens,
        merges: Iterable[Pair] | NDArray[np.int32] | None,
        special_tokens: Mapping[str, int] | Iterable[AddedToken], *, ignore_merges: bool = False,
        normal_forms: tuple[str, ...] = (),
    ) -> None:
        if isinstance(special_tokens, Mapping):
            special_tokens = [AddedToken(text, number) for text, number in special_tokens.items()]
        added = list(special_tokens)
        if not isinstance(tokens, FlatTokens):
            _check_tokens(tokens)
            tokens = FlatTokens.of(tokens)
        self.flat = tokens
        self.has_tiktoken_ranks = merges is None
        self.ignore_merges, self.normal_forms = ignore_merges, tuple(normal_forms)
        self._check_bytes()
        _check_added_tokens(added, tokens)
        self.added_tokens = tuple(sorted(added, key=lambda token: token.id))
        self._pairs = None if merges is None else _pairs_of_merges(merges, self)

    def _check_bytes(self) -> None:
        missing = [x for x in np.flatnonzero(self.byte_ids < 0).tolist() if x not in _NOT_IN_UTF8]
        if missing:
            raise VocabularyError(
                f"{len(missing)} of the bytes in UTF-8 have no token, the first is "
                f"{bytes(missing[:1])!r}: expected a byte-level vocabulary, which can spell any"
                " text"
            )

    @cached_property
    def tokens(self) -> dict[int, bytes]:
        """Id -> bytes of the ordinary tokens."""
        return self.flat.tokens()

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        return {token: token_id for token_id, token in self.tokens.items()}

    @classmethod
    @checks_names
    def from_merges(
        cls, merges: Sequence[Pair] | NDArray[np.int32], special_tokens: Iterable[str] = ()
    ) -> Vocabulary:
        """Make a vocabulary with the ids of training: bytes, merges in order, special tokens.

        Merges are pairs of tokens or of ids, int32[n_merges, 2]; merge i makes the id 256 + i.

        Raises:
            VocabularyError: A special token is repeated, two merges make the same token, or one
                joins ids that no merge before it makes.
        """
        tokens = [bytes([byte]) for byte in range(256)]
        if isinstance(merges, np.ndarray):
            if (merges < 0).any() or (256 + np.arange(len(merges)) <= merges.T).any():
                raise VocabularyError(
                    "a merge joins an id that no merge before it makes: expected ids below 256 + i"
                    " in merge i, none negative"
                )
            for left, right in merges.tolist():
                tokens.append(tokens[left] + tokens[right])
        else:
            tokens += [left + right for left, right in merges]
        return cls(dict(enumerate(tokens)), merges, ids_of_special(special_tokens, len(tokens)))

    @classmethod
    @checks_names
    def from_ranks(
        cls, ranks: Mapping[bytes, int], special_tokens: Mapping[str, int] | Iterable[AddedToken],
        normal_forms: tuple[str, ...] = (),
    ) -> Vocabulary:
        """Make a vocabulary from tiktoken's ranks, which are the ids.

        Raises:
            VocabularyError: Two tokens share a rank, a byte has none, or special tokens conflict.
        """
        tokens: dict[int, bytes] = {}
        for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
            if rank in tokens:
                raise VocabularyError(
                    f"tokens {tokens[rank]!r} and {token!r} share the rank {rank}: "
                    "expected one token for each rank"
                )
            tokens[rank] = token
        return cls(tokens, None, special_tokens, ignore_merges=True, normal_forms=normal_forms)

    @cached_property
    def merges(self) -> list[Pair]:
        """The merges in the order of their ranks; derived if the ranks are tiktoken's.

        The list is made at its first use: garbage collection of its tuples takes most of the time.
        """
        if self._pairs is None:
            return merges_of_ranks(self._ids)
        lefts, rights = (map(self.tokens.__getitem__, ids.tolist()) for ids in self._pairs[:2])
        return list(zip(lefts, rights, strict=True))

    @property
    def n_merges(self) -> int:
        """Number of merges, without making a list of them if they were given."""
        return len(self.merges if self._pairs is None else self._pairs.ranks)

    @cached_property
    def special_tokens(self) -> dict[str, int]:
        """Text -> id of the special tokens, in the order of ids."""
        return {token.text: token.id for token in self.added_tokens if token.special}

    @cached_property
    def size(self) -> int:
        """The largest id plus one."""
        return max(int(self.flat.ids.max()), *(token.id for token in self.added_tokens), -1) + 1

    @property
    def n_joined(self) -> int:
        """Number of ordinary tokens of two bytes or more."""
        return int((np.diff(self.flat.offsets) > 1).sum())

    @cached_property
    def bytes_of_id(self) -> dict[int, bytes]:
        """Id -> bytes of every token in the order of ids, special tokens included."""
        added = {
            token.id: normalized(token.text.encode(), self.normal_forms * token.normalized)
            for token in self.added_tokens
        }
        # An added token that is an ordinary token, too, has its bytes.
        return dict(sorted({**added, **self.tokens}.items()))

    @cached_property
    def token_list(self) -> list[bytes | None]:
        """Bytes of each id below `_LISTED_IDS`; None for one without a token."""
        found: list[bytes | None] = [None] * min(self.size, _LISTED_IDS)
        for token_id, token in self.bytes_of_id.items():
            if token_id < len(found):
                found[token_id] = token
        return found

    @cached_property
    def flat_by_id(self) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
        """Concatenated bytes; offset and length of each id, length -1 for an id without a token."""
        tokens = self.bytes_of_id
        lengths = np.full(self.size, -1)
        lengths[list(tokens)] = [len(token) for token in tokens.values()]
        data, sizes = np.frombuffer(b"".join(tokens.values()), np.uint8), np.maximum(lengths, 0)
        return data, np.cumsum(sizes) - sizes, lengths

    @checked
    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token, special or not; raise EncodingError for an unknown id."""
        try:
            return self.bytes_of_id[operator.index(token_id)]
        except KeyError:
            raise EncodingError(unknown_id_message(token_id, self.size)) from None

    @checked
    def token_id(self, token: bytes) -> int | None:
        """Return the id of an ordinary token, None if there is none."""
        return self._ids.get(token)

    @cached_property
    def byte_ids(self) -> NDArray[np.int32]:
        """`int32[256]`: the id of each byte, -1 for one that no UTF-8 has and that has no token."""
        ids, offsets, data = self.flat
        of_one_byte = np.flatnonzero(np.diff(offsets) == 1)
        byte_ids = np.full(256, -1, np.int32)
        byte_ids[data[offsets[of_one_byte]]] = ids[of_one_byte]
        return byte_ids

    def pair_table(self) -> PairTable:
        """Return every pair that an encoder merges, with its rank and the id of the result.

        With tiktoken's ranks, rows are all splits of a token into two tokens, and can share a rank.
        Do not modify the arrays.
        """
        if self._pairs is not None:
            return self._pairs
        ids = self._ids
        rows = [(left, right, ids[token]) for token, left, right in _iterate_splits(ids)]
        lefts, rights, ranks = np.array(rows, np.int32).reshape(-1, 3).T.copy()
        return PairTable(lefts, rights, ranks, ranks)

    def ranks(self) -> dict[bytes, int]:
        """Return token -> rank (its id), with which tiktoken gives the same ids; no empty token.

        Raises:
            VocabularyError: Ids are not in the order of the merges, or merges do not make a token
                from its bytes.
        """
        ranks = dict(sorted(self._ids.items(), key=lambda item: item[1]))
        ranks.pop(b"", None)
        if not self.has_tiktoken_ranks:
            derived = merges_of_ranks(ranks)
            unmade = self.n_joined - len(derived)
            if derived != self.merges or (unmade and not self.ignore_merges):
                raise VocabularyError(
                    "this vocabulary cannot be written as tiktoken ranks: expected every token to"
                    " be made by one merge, and their ids in the order of the merges; use it"
                    " through tokenizer.json instead"
                )
        return ranks

    def check_expressible_as_merges(self) -> None:
        """Raise VocabularyError if no list of merges is equivalent to tiktoken's ranks."""
        if not self.has_tiktoken_ranks:
            return
        made = {left + right for left, right in self.merges}
        # Two parts with ranks below that of a token never meet, or it would have a merge.
        for token, left, right in _iterate_splits(self._ids):
            if token not in made and max(left, right) > (rank := self._ids[token]):
                parts = f"{self.tokens[left]!r} and {self.tokens[right]!r}"
                raise VocabularyError(
                    f"these ranks cannot be written as a list of merges: {token!r} has the "
                    f"rank {rank}, below one of its parts {parts}"
                )

    def __reduce__(self) -> tuple[Any, ...]:
        make = functools.partial(
            Vocabulary, ignore_merges=self.ignore_merges, normal_forms=self.normal_forms
        )
        merges = None if self._pairs is None else np.stack(self._pairs[:2], axis=1)
        return make, (self.flat, merges, self.added_tokens)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Vocabulary):
            return NotImplemented
        names = ["tokens", "added_tokens", "ignore_merges", "normal_forms", "has_tiktoken_ranks"]
        names += [] if self.has_tiktoken_ranks else ["merges"]
        return all(getattr(self, name) == getattr(other, name) for name in names)

    def __repr__(self) -> str:
        names, n = list(self.special_tokens), len(self.flat.ids)
        return f"Vocabulary(size={self.size}, tokens={n}, special_tokens={names!r})"


def unknown_id_message(token_id: object, size: int) -> str:
    """Format the message for an id that is not in a vocabulary of this size."""
    return (
        f"token id {token_id!r} is not in the vocabulary: expected an id from 0 to {size - 1} "
        "that has a token; were the ids made with another tokenizer?"
    )


def decode_bytes(vocabulary: Vocabulary, ids: Iterable[int]) -> bytes:
    """Return the bytes of tokens; raise EncodingError if an id has no token."""
    if type(ids) is not list and hasattr(ids, "__array__"):
        return _decode_array(vocabulary, np.asarray(ids))
    ids, tokens = [*ids], vocabulary.token_list
    try:
        if not ids or min(ids) >= 0:  # others would count from the end
            return b"".join([tokens[token_id] for token_id in ids])  # type: ignore[misc]
    except (IndexError, TypeError):  # an id that is not in the list, or no id
        pass
    try:
        return b"".join(map(vocabulary.bytes_of_id.__getitem__, map(operator.index, ids)))
    except KeyError as error:
        raise EncodingError(unknown_id_message(error.args[0], vocabulary.size)) from None


def _decode_array(vocabulary: Vocabulary, ids: NDArray[Any]) -> bytes:
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise EncodingError(
            f"ids have the shape {ids.shape} and the type {ids.dtype}: "
            "expected one dimension of whole numbers"
        )
    data, starts, lengths = vocabulary.flat_by_id
    pieces = []
    for first in range(0, len(ids), _DECODE_IDS):
        part = ids[first : first + _DECODE_IDS]
        inside = (part >= 0) & (part < len(lengths))
        taken = np.where(inside, part, 0).astype(np.int64)
        unknown = ~inside | (lengths[taken] < 0)
        if unknown.any():
            token_id = int(part[unknown.argmax()])
            raise EncodingError(unknown_id_message(token_id, vocabulary.size))
        # Twice as fast as joining the bytes of single tokens.
        ends = np.cumsum(lengths[taken])
        places = np.repeat(starts[taken] - ends + lengths[taken], lengths[taken])
        pieces.append(data[places + np.arange(len(places))].tobytes())
    return b"".join(pieces)


def make_vocabulary(
    vocab: Mapping[int, bytes], merges: Iterable[Pair],
    special_tokens: Mapping[str, int] | Iterable[str],
) -> Vocabulary:
    """Make a vocabulary, see `Tokenizer`; special tokens without ids get those after the last."""
    merges = list(merges)
    made = {left + right for left, right in merges}
    unmade = {x: number for number, x in vocab.items() if len(x) > 1 and x not in made}
    special = ids_of_special(special_tokens, max(vocab, default=-1) + 1, unmade)
    spelled = {i: text.encode("utf-8", "surrogatepass") for text, i in special.items()}
    tokens = {i: token for i, token in vocab.items() if spelled.get(i) != token}
    return Vocabulary(tokens, merges, special)


def ids_of_special(
    special_tokens: Mapping[str, int] | Iterable[str], first: int,
    known: Mapping[bytes, int] | None = None,
) -> dict[str, int]:
    """Return text -> id: given ids, else known ones, else new ones from `first` on."""
    if isinstance(special_tokens, Mapping):
        return dict(special_tokens)
    ids: dict[str, int] = {}
    for text in special_tokens:
        if text in ids:
            raise VocabularyError(f"special token {text!r} is named twice: name each one once")
        ids[text] = known.get(text.encode("utf-8", "surrogatepass"), first) if known else first
        first = max(first, ids[text] + 1)
    return ids


def _check_tokens(tokens: Mapping[int, bytes]) -> None:
    """Raise VocabularyError if an id or a token is none, or a token has two ids."""
    ids: dict[bytes, int] = {}
    for token_id, token in tokens.items():
        if not isinstance(token, bytes):
            raise VocabularyError(f"token {token_id!r} is {token!r}: expected bytes")
        _check_id(token_id, f"token {token!r}")
        if token in ids:
            raise VocabularyError(
                f"token {token!r} has two ids, {ids[token]} and {token_id}: expected one"
            )
        ids[token] = token_id


def _check_id(token_id: object, name: str) -> None:
    if type(token_id) is not int or not 0 <= token_id <= LARGEST_ID:
        raise VocabularyError(
            f"{name} has the id {token_id!r}: expected a whole number from 0 to {LARGEST_ID}"
        )


def _pairs_of_merges(
    merges: Iterable[Pair] | NDArray[np.int32], vocabulary: Vocabulary
) -> PairTable:
    """Return the table of merges; raise VocabularyError if one is inconsistent.

    Of equal merges the last is kept, as in Hugging Face's engine.
    """
    if not isinstance(merges, np.ndarray):
        ids = vocabulary._ids
        try:
            flat = [ids[token] for left, right in merges for token in (left, right)]
        except KeyError as error:
            raise VocabularyError(
                f"a merge joins {error.args[0]!r}, which is not in the vocabulary: expected tokens"
            ) from None
        merges = np.array(flat, np.int32).reshape(-1, 2)
    keys = merges[:, 0].astype(np.int64) << 32 | merges[:, 1]
    in_order = np.sort(keys)
    if (in_order[1:] == in_order[:-1]).any():
        _, last = np.unique(keys[::-1], return_index=True)
        merges = merges[np.sort(len(keys) - 1 - last)]
    made = _made_in_order(vocabulary.flat, merges)
    if made is None:
        made = _look_up_results(merges, vocabulary)
    lefts, rights = merges.T.copy()
    return PairTable(lefts, rights, np.arange(len(merges), dtype=np.int32), made)


def _look_up_results(merges: NDArray[np.int32], vocabulary: Vocabulary) -> NDArray[np.int32]:
    """Return the ids of the results of merges; raise VocabularyError if one has none."""
    tokens, ids = vocabulary.tokens, vocabulary._ids
    try:
        parts = [list(map(tokens.__getitem__, each.tolist())) for each in merges.T]
    except KeyError as error:
        raise VocabularyError(
            f"a merge joins the id {error.args[0]}, which has no token: expected ids of tokens"
        ) from None
    try:
        return np.fromiter(map(ids.__getitem__, map(operator.add, *parts)), np.int32, len(merges))
    except KeyError as error:
        raise VocabularyError(
            f"a merge makes {error.args[0]!r}, which is not in the vocabulary: expected a token"
        ) from None


def _made_in_order(flat: FlatTokens, merges: NDArray[np.int32]) -> NDArray[np.int32] | None:
    """Return the results of merges if they are all tokens from the first longer one on, else None.

    So they are after training, with ids that have no gaps. All bytes are compared at once, which
    takes a third of the time of look-ups.
    """
    ids, offsets, data = flat
    parts, lengths = merges.ravel(), np.diff(offsets)
    first = int((lengths > 1).argmax())
    made, bounds = ids[first : first + len(merges)], offsets[first : first + len(merges) + 1]
    numbers = np.clip(parts - ids[0], 0, len(ids) - 1)
    sizes = lengths[numbers]
    ends = np.cumsum(sizes)
    fits = len(made) == len(merges) and len(data) < 2**31
    if not fits or not np.array_equal(ends[1::2], bounds[1:] - bounds[0]):
        return None
    shifts = (offsets[numbers] - ends + sizes).astype(np.int32)
    places = np.repeat(shifts, sizes) + np.arange(sizes.sum(), dtype=np.int32)
    are_equal = np.array_equal(data[places], data[bounds[0] : bounds[-1]])
    return made if are_equal and np.array_equal(ids[numbers], parts) else None


def _check_added_tokens(added: Sequence[AddedToken], flat: FlatTokens) -> None:
    # Ordinary tokens with the ids of added tokens.
    wanted = [x.id for x in added if type(x.id) is int and 0 <= x.id <= LARGEST_ID]
    tokens = flat.select(np.isin(flat.ids, np.array(wanted, np.int32))).tokens()
    texts: set[str] = set()
    seen: dict[int, str] = {}
    for token in added:
        text, token_id = token.text, token.id
        name = f"{'special' if token.special else 'added'} token {text!r}"
        if not isinstance(text, str) or not text:
            raise VocabularyError(f"{name}: expected text of one character or more")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise VocabularyError(
                f"{name} is not valid Unicode: character {error.start} is a surrogate"
            ) from error
        _check_id(token_id, name)
        # An added token may be an ordinary token, too: one entry of tokenizer.json.
        ordinary = tokens.get(token_id)
        if token_id in seen or (ordinary is not None and to_byte_level(ordinary) != text):
            owner = seen.get(token_id, ordinary)
            raise VocabularyError(f"{name} has the id {token_id}, which {owner!r} has already")
        if text in texts:
            raise VocabularyError(f"{name} has two ids: expected one")
        texts.add(text)
        seen[token_id] = text


def merges_of_ranks(ranks: Mapping[bytes, int]) -> list[Pair]:
    """Return the merges that tiktoken's ranks imply, in the order of the ranks.

    The bytes of each token are encoded with the ranks below its own. If two parts remain, they are
    its merge. If more remain, only a whole pre-token gives this token: nothing is merged across the
    edge of a token of higher rank, so its bytes are encoded as here.

    Source: Hugging Face's and tiktoken's converters (`bpe(..., max_rank=...)`).
    """
    merges: list[Pair] = []
    for token, own_rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) > 1 and len(parts := _parts_below(token, own_rank, ranks)) == 2:
            merges.append((parts[0], parts[1]))
    return merges


def _parts_below(token: bytes, own_rank: int, ranks: Mapping[bytes, int]) -> list[bytes]:
    """Encode the bytes of a token with the ranks below its own; return two or more parts.

    A heap bounds the time, for a hostile file may have tokens of megabytes.
    """
    n_parts = n = len(token)
    stops = [*range(1, n + 1)]  # of the part that begins at a place, 0 if none does
    before = [*range(-1, n - 1)]  # where the part before it begins
    heap: list[tuple[int, int, int]] = []

    def push(start: int) -> None:
        if start >= 0 and stops[start] < n:
            stop = stops[stops[start]]
            if (rank := ranks.get(token[start:stop], own_rank)) < own_rank:
                heapq.heappush(heap, (rank, start, stop))

    for start in range(n):
        push(start)
    while heap and n_parts > 2:
        _, start, stop = heapq.heappop(heap)
        middle = stops[start]
        if not middle or middle == n or stops[middle] != stop:
            continue  # a part was merged before
        stops[start], stops[middle] = stop, 0
        if stop < n:
            before[stop] = start
        push(start)
        push(before[start])
        n_parts -= 1
    return [token[start:stop] for start, stop in enumerate(stops) if stop]


def _iterate_splits(ids: Mapping[bytes, int]) -> Iterator[tuple[bytes, int, int]]:
    """Yield (token, left id, right id) for every split of a token into two tokens."""
    # Only at lengths of tokens, which are few for a long token of a hostile file.
    lengths = sorted({*map(len, ids)} - {0})
    for token in ids:
        for cut in lengths[: bisect_left(lengths, len(token))]:
            left = ids.get(token[:cut])
            if left is not None and (right := ids.get(token[cut:])) is not None:
                yield token, left, right

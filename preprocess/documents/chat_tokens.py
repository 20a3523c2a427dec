"""Encode conversations, whose text has special tokens, and say which tokens are trained on.

A byte-level tokenizer encodes the text between special tokens: the bytes that its tokens spell say
where each begins. A tokenizer that changes text is run by Hugging Face's library, which says it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from bpe.errors import EncodingError
from bpe.huggingface import errors_as, without_special_entries
from bpe.tokenizer import Tokenizer
from preprocess.documents.batch import DocumentBatch, Spans

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyEncoder, AnyTokenizer

Positions = NDArray[np.int64]


# Ids and offsets as those of encoders, and int64[n_tokens] twice: the bytes of the buffer that each
# token spells. Tokens before and after a document spell none, at its first byte: they are trained
# on with all of it.
Encoded = tuple[NDArray[Any], Positions, Positions, Positions]


class ConversationEncoder:
    """Encodes conversations with a tokenizer; one may be used by several threads.

    Args:
        tokenizer: Any tokenizer.
        dtype: Type of the ids, that of the encoders.

    Raises:
        TokenmillError: Hugging Face's library is needed and cannot run the tokenizer.
    """

    def __init__(self, tokenizer: AnyTokenizer, dtype: DTypeLike = np.uint32) -> None:
        self._lengths, self._dtype = token_lengths(tokenizer, is_normalized=True), dtype
        self._engine = SpecialTextEncoder(tokenizer) if self._lengths is None else None

    def encode(
        self, encoder: AnyEncoder, batch: DocumentBatch, prefix_id: int, suffix_id: int
    ) -> tuple[NDArray[Any], Positions, NDArray[np.uint8]]:
        """Return (ids, offsets of documents, 1 for each token to train on: uint8[n_tokens]).

        A document that begins with the prefix id, or ends with the suffix id, does not get a
        second; -1: none. A token is trained on if a part of it is, as in transformers.
        """
        special, spans = batch.special, batch.spans
        assert special is not None
        assert spans is not None
        if self._lengths is not None:
            ids, offsets, begins, ends = encode_segments(
                encoder, batch, special, self._lengths, prefix_id, suffix_id
            )
        else:
            assert self._engine is not None
            ids, offsets, begins, ends = _encode_whole(
                self._engine, batch, special, prefix_id, suffix_id
            )
        starts, stops = spans.bounds[::2], spans.bounds[1::2]
        n_before = np.searchsorted(stops, begins, "right")
        n_up_to = np.searchsorted(starts, np.maximum(ends, begins + 1), "left")
        return ids.astype(self._dtype, copy=False), offsets, (n_up_to > n_before).astype(np.uint8)


class SpecialTextEncoder:
    """Encodes text in which only given places are special tokens, by Hugging Face's `tokenizers`.

    The ids are those of the library for the whole text: tokens at other places that spell special
    ones are ordinary text.

    Args:
        tokenizer: Any tokenizer.

    Raises:
        VocabularyError: The library cannot have the ranks of the tokenizer.
    """

    def __init__(self, tokenizer: AnyTokenizer) -> None:
        if isinstance(tokenizer, Tokenizer):
            text = tokenizer.to_huggingface().to_str()
        else:
            text = tokenizer.to_json()
        from random import SystemRandom

        from tokenizers import AddedToken
        from tokenizers import Tokenizer as Engine

        top = json.loads(text)
        top["model"].pop("dropout", None)
        self._engine = Engine.from_str(json.dumps(without_special_entries(top)))
        self._engine.encode_special_tokens = True
        self._engine.no_truncation()
        self._engine.no_padding()
        # At their places, special tokens have names of their lengths that no text contains.
        private, known = SystemRandom(), tokenizer.special_tokens
        self._names, self._special_ids = dict[int, str](), dict[int | None, int]()
        for each in top.get("added_tokens") or []:
            if each["content"] in known:
                name = "".join(chr(private.randrange(0x100000, 0x10FFFE)) for _ in each["content"])
                flags = {x: each[x] for x in ("single_word", "lstrip", "rstrip", "normalized")}
                self._engine.add_tokens([AddedToken(name, special=False, **flags)])
                self._names[known[each["content"]]] = name
                self._special_ids[self._engine.token_to_id(name)] = known[each["content"]]

    def encode(
        self, text: str, special: Iterable[tuple[int, int, int]]
    ) -> list[tuple[int, int, int]]:
        """Return (id, start, stop) of each token, places in characters.

        Args:
            text: A text.
            special: (start, stop, id) of its special tokens, ascending.
        """
        parts, at = list[str](), 0
        for start, stop, token_id in special:
            parts += [text[at:start], self._names[token_id]]
            at = stop
        with errors_as(EncodingError, "Hugging Face's library cannot encode this text"):
            found = self._engine.encode("".join([*parts, text[at:]]), add_special_tokens=False)
        ids = (self._special_ids.get(token_id, token_id) for token_id in found.ids)
        return [(token_id, *place) for token_id, place in zip(ids, found.offsets, strict=True)]


def _encode_whole(
    engine: SpecialTextEncoder, batch: DocumentBatch, special: Spans, prefix_id: int, suffix_id: int
) -> Encoded:
    """Encode whole documents, as `encode_segments`."""
    codes = np.append(batch.buffer, np.uint8(0))
    byte_of = np.flatnonzero((codes & 0xC0) != 0x80)  # of each character of the buffer
    text, bounds = batch.buffer.tobytes().decode(), np.searchsorted(byte_of, batch.bounds)
    places = np.searchsorted(byte_of, special.bounds).reshape(-1, 2)
    firsts = np.searchsorted(places[:, 0], bounds)
    rows, offsets = list[tuple[int, int, int]](), [0]
    for number in range(0, len(bounds), 2):
        start, stop = bounds[number : number + 2].tolist()
        of_it = slice(*firsts[number : number + 2])
        around = np.column_stack([places[of_it] - start, special.values[of_it]])
        found = engine.encode(text[start:stop], around.tolist())
        if prefix_id >= 0 and (not found or found[0][0] != prefix_id):
            found.insert(0, (prefix_id, 0, 0))
        if suffix_id >= 0 and (not found or found[-1][0] != suffix_id):
            found.append((suffix_id, 0, 0))
        rows += [(token_id, first + start, last + start) for token_id, first, last in found]
        offsets.append(len(rows))
    ids, begins, ends = np.array(rows, np.int64).reshape(-1, 3).T
    return ids, np.array(offsets), byte_of[begins], byte_of[ends]


def encode_segments(
    encoder: AnyEncoder, batch: DocumentBatch, special: Spans, lengths: Positions,
    prefix_id: int, suffix_id: int,
) -> Encoded:
    """Encode the text between special tokens, and put their ids in their places.

    A document that begins with the prefix id, or ends with the suffix id, does not get a second.

    Args:
        encoder: Encodes the text as ordinary text.
        batch: Whole documents.
        special: Bytes of the special tokens in them, and their ids.
        lengths: int64[vocab_size], the number of bytes that each id spells.
        prefix_id: Id before each document; -1: none.
        suffix_id: Id after each document; -1: none.
    """
    begins, ends = batch.bounds[::2], batch.bounds[1::2]
    starts, stops = special.bounds[::2], special.bounds[1::2]
    # Segments: what is between special tokens; those of no bytes are left out.
    firsts, lasts = np.sort(np.append(begins, stops)), np.sort(np.append(starts, ends))
    is_text = lasts > firsts
    firsts, lasts = firsts[is_text], lasts[is_text]
    low, high = (int(firsts[0]), int(lasts[-1])) if len(firsts) else (0, 0)
    bounds = np.stack([firsts, lasts], axis=1).ravel() - low
    ids, offsets = encoder.encode(batch.buffer[low:high], bounds.reshape(-1, 2))
    spelled = np.append(0, np.cumsum(lengths[ids]))
    assert (np.diff(spelled[offsets]) == lasts - firsts).all(), "tokens spell other text"
    n_ids, values = np.diff(offsets), special.values
    moved = np.repeat(firsts - spelled[offsets[:-1]], n_ids)
    document = np.arange(len(batch))
    of_special, of_text = (np.searchsorted(ends, each, "right") for each in (starts, firsts))
    before, after = (np.full(len(batch), each >= 0) for each in (prefix_id, suffix_id))
    before[of_special[(starts == begins[of_special]) & (values == prefix_id)]] = False
    after[of_special[(stops == ends[of_special]) & (values == suffix_id)]] = False
    # What is put between the ids of text: before documents, special tokens, and after documents.
    of = np.concatenate([document[before], of_special, document[after]])
    group = np.repeat([0, 1, 2], [before.sum(), len(starts), after.sum()])
    places = np.concatenate([begins[before], starts, ends[after]])
    order = np.lexsort((places, group, of))
    at = offsets[np.searchsorted(firsts, places)][order]
    tokens = np.choose(group, [prefix_id, 0, suffix_id])
    tokens[group == 1] = values
    spell = np.concatenate([begins[before], starts, begins[after]])
    spell_ends = np.concatenate([begins[before], stops, begins[after]])
    counts = np.bincount(of_text, n_ids, len(batch)) + np.bincount(of, minlength=len(batch))
    return (
        np.insert(ids, at, tokens[order].astype(ids.dtype)),
        np.append(0, np.cumsum(counts)).astype(np.int64),
        np.insert(spelled[:-1] + moved, at, spell[order]),
        np.insert(spelled[1:] + moved, at, spell_ends[order]),
    )


def gives_text_back(tokenizer: AnyTokenizer, is_normalized: bool = False) -> bool:
    """Return True if `decode(encode_ordinary(text)) == text` for every text, or normalized text."""
    return (
        isinstance(tokenizer, Tokenizer)
        and (is_normalized or not tokenizer.normal_forms)
        and not any(token.lstrip or token.rstrip for token in tokenizer.vocabulary.added_tokens)
        # no space is added in front
        and tokenizer.decode(tokenizer.encode_ordinary("x")) == "x"
    )


def token_lengths(tokenizer: AnyTokenizer, is_normalized: bool = False) -> Positions | None:
    """Return the number of bytes of text, or of normalized text, that each id spells.

    They are int64[vocab_size]; None: the tokenizer changes text before it is encoded, by normal
    forms, white space that is added or removed, or words.
    """
    if not gives_text_back(tokenizer, is_normalized):
        return None
    lengths = np.zeros(tokenizer.vocab_size, np.int64)
    for token_id, token in tokenizer.vocab.items():
        lengths[token_id] = len(token)
    return lengths

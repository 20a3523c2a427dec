"""Extend a vocabulary: learn merges of the tokens that a tokenizer has, after its own.

Ids keep their meaning, and new tokens have the ids after the last. New merges have the last ranks,
so encoding makes them after all others, of two tokens that are in the text then: the ids of text in
which no new pair occurs do not change.

So training begins where encoding with the tokenizer ends: `TokenizedCounts` are the pre-tokens as
its ids, which `bpe.train.learn_merges` merges as it does bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bpe.byte_level import from_byte_level
from bpe.encode.encoder import Encoder, EncoderTables
from bpe.errors import TrainingError
from bpe.formats.hf_read import TokenizerFiles
from bpe.formats.hf_write import config_json
from bpe.parallel import run_in_order
from bpe.split.patterns import to_huggingface
from bpe.tokenizer import Tokenizer
from bpe.train.counts import Arrays
from bpe.vocabulary import AddedToken, Vocabulary

_PART = 1 << 22  # bytes of pre-tokens that one thread encodes at a time

Encoded = tuple[NDArray[np.int32], NDArray[np.int64]]  # ids, and how many each pre-token has


class TokenizedCounts(NamedTuple):
    """Unique pre-tokens as the ids of a tokenizer."""

    ids: NDArray[np.int32]  # int32[n], those of all pre-tokens
    ends: NDArray[np.int64]  # int64[n_pretokens + 1], offsets of pre-tokens in them
    # Bytes of all tokens by id, and int64[size + 1], their offsets; none for an id without a token.
    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, tokenizer: Tokenizer, counts: Arrays, workers: int) -> TokenizedCounts:
        """Encode the pre-tokens of counts, with merges alone: they are not normalized."""
        buffer, offsets, _ = counts
        tables = EncoderTables(tokenizer.vocabulary, tokenizer.pattern)
        n = len(offsets) - 1
        cuts = np.searchsorted(offsets, np.arange(0, len(buffer) + _PART, _PART)).tolist()
        parts = pairwise([*dict.fromkeys([*(min(cut, n) for cut in cuts), n])])

        def make_work() -> Callable[[tuple[int, int]], Encoded]:
            encoder = Encoder(tables)

            def encode(part: tuple[int, int]) -> Encoded:
                begins = offsets[part[0] : part[1] + 1]
                text = buffer[begins[0] : begins[-1]]
                ids, ends = encoder.encode_pretokens(text, begins - begins[0])
                return ids.astype(np.int32), np.diff(ends)

            return encode

        with closing(run_in_order(parts, make_work, workers)) as encoded:
            ids, sizes = zip(*encoded, strict=True)
        ends = np.append(0, np.cumsum(np.concatenate(sizes)))
        data, starts, _ = tokenizer.vocabulary.flat_by_id
        return cls(np.concatenate(ids), ends, data, np.append(starts, len(data)))


def added_texts(tokenizer: Tokenizer) -> list[str]:
    """Return the texts of all added tokens, which are cut out of text, as special tokens are."""
    return [token.text for token in tokenizer.vocabulary.added_tokens]


def new_special_tokens(tokenizer: Tokenizer, special_tokens: Sequence[str]) -> list[str]:
    """Return the special tokens that the tokenizer does not have, in order."""
    known = added_texts(tokenizer)
    return [text for text in special_tokens if text not in known]


def unmade_tokens(vocabulary: Vocabulary) -> dict[bytes, int]:
    """Return token -> id of those of several bytes that merges do not make; a new merge may.

    The merge of a token may never be reached: with b c before ab c, the bytes of abc become a bc.
    """
    table, flat = vocabulary.pair_table(), vocabulary.flat
    merges = np.stack([table.left_ids, table.right_ids], axis=1)
    alone = Vocabulary(flat, None if vocabulary.has_tiktoken_ranks else merges, ())
    encoder = Encoder(EncoderTables(alone, "gpt2"))
    # Text, and so what is made of it, has only bytes of UTF-8.
    outside = np.append(0, np.cumsum(np.isin(flat.data, [0xC0, 0xC1, *range(0xF5, 0x100)])))
    joined = flat.select((np.diff(flat.offsets) > 1) & (np.diff(outside[flat.offsets]) == 0))
    _, ends = encoder.encode_pretokens(joined.data, joined.offsets)
    unmade = joined.select(np.diff(ends) > 1)
    return {token: number for number, token in unmade.tokens().items()}


def extended_tokenizer(
    tokenizer: Tokenizer, merges: Iterable[tuple[int, int]], n_wanted: int,
    special_tokens: Sequence[str],
) -> Tokenizer:
    """Return a tokenizer with up to `n_wanted` tokens more, made by merges, and special tokens.

    In `merges` a number from the size of the tokenizer on is that of a merge before. A merge may
    make a token that others do not make and that has an id already (`unmade_tokens`).
    """
    vocabulary = tokenizer.vocabulary
    first, unmade = vocabulary.size, unmade_tokens(vocabulary)
    token_of, id_of = dict(vocabulary.tokens), {number: number for number in vocabulary.tokens}
    pairs, new = list[tuple[int, int]](), dict[int, bytes]()
    for number, (left, right) in enumerate(merges, first):
        if len(new) == n_wanted:
            break
        token = token_of[left] + token_of[right]
        pairs.append((id_of[left], id_of[right]))
        token_of[number] = token
        id_of[number] = unmade.pop(token, first + len(new))
        if id_of[number] == first + len(new):
            new[id_of[number]] = token
    table = vocabulary.pair_table()
    known = np.stack([table.left_ids, table.right_ids], axis=1)
    if vocabulary.has_tiktoken_ranks:
        ids = {token: number for number, token in vocabulary.tokens.items()}
        known = np.array([(ids[x], ids[y]) for x, y in vocabulary.merges], np.int32).reshape(-1, 2)
    added = [AddedToken(text, i) for i, text in enumerate(special_tokens, first + len(new))]
    extended = Vocabulary(
        vocabulary.tokens | new, np.concatenate([known, np.array(pairs, np.int32).reshape(-1, 2)]),
        [*vocabulary.added_tokens, *added],
        ignore_merges=vocabulary.ignore_merges, normal_forms=vocabulary.normal_forms,
    )
    # Added tokens have ids before the last, so a tokenizer.json has them in its model, where they
    # may be ordinary tokens, too: as it will be read.
    written = replace(tokenizer._parts, vocabulary=extended, outside=frozenset(), file_digest=None)
    files = TokenizerFiles(Path("tokenizer.json"), written.text.encode(), config_json(written))
    return Tokenizer.from_files(files)


def check_extension(
    tokenizer: Tokenizer, pattern: str, vocab_size: int, special_tokens: Sequence[str]
) -> None:
    """Raise TrainingError if the tokenizer cannot be extended in this way.

    Or VocabularyError or PatternError, if a tokenizer.json cannot say its ranks or its pattern.
    """
    tokenizer.vocabulary.check_expressible_as_merges()
    to_huggingface(tokenizer.pattern)
    if pattern != tokenizer.pattern:
        raise TrainingError(
            f"the text was split by the pattern {pattern!r:.100}; count it with that of the"
            f" tokenizer that is extended, {tokenizer.pattern!r:.100}"
        )
    texts = dict.fromkeys(special_tokens, -1)
    texts |= {token.text: token.id for token in tokenizer.vocabulary.added_tokens}
    for text, number in texts.items():
        ordinary = from_byte_level(text)
        known = None if ordinary is None else tokenizer.vocabulary.token_id(ordinary)
        if known not in (None, number):
            raise TrainingError(
                f"the special token {text!r} and the ordinary token {ordinary!r} of the tokenizer"
                " that is extended would be one in tokenizer.json; rename it, such as '<|name|>'"
            )
    if vocab_size < (least := tokenizer.vocab_size + len(special_tokens)):
        raise TrainingError(
            f"--vocab-size {vocab_size:,} is too small: it counts the {tokenizer.vocab_size:,} ids"
            f" of the tokenizer to extend and {len(special_tokens)} new special tokens; choose more"
            f" than {least:,}"
        )

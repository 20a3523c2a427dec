"""Smaller vocabularies of a trained tokenizer, without training again.

Training chooses one merge after the other, whatever the size of the vocabulary, so the merges of a
smaller vocabulary are the first ones of a larger one. Encoding makes the merges of a pre-token in
the order of their ranks, as a merge joins only what earlier ones made, and each merge leaves one
token less. So a text has one token more for each use of a merge that a smaller vocabulary lacks;
and as only one merge makes a token, the tokens of the text say how often each merge was used.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bpe.tokenizer import Tokenizer
from bpe.vocabulary import Vocabulary


def tokens_of_prefixes(tokenizer: Tokenizer, id_counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of tokens of a text with each number of the first merges.

    Args:
        tokenizer: A trained tokenizer.
        id_counts: int64[vocab_size], how often each of its ids occurs in the encoded text.

    Returns:
        int64[n_merges + 1]: at n the number of tokens with the first n merges; special ids in the
        text count in all.

    >>> vocabulary = Vocabulary.from_merges([(b"a", b"b"), (b"ab", b"c")])
    >>> tokenizer = Tokenizer.from_vocabulary(vocabulary)
    >>> counts = np.bincount(tokenizer.encode("ababc"), minlength=258)
    >>> tokens_of_prefixes(tokenizer, counts).tolist()
    [5, 3, 2]
    """
    lefts, rights, _, merged = tokenizer.vocabulary.pair_table()
    uses = id_counts.tolist()
    # Those of a merge are known once all merges of its token are: from the last to the first.
    parts = zip(merged.tolist(), lefts.tolist(), rights.tolist(), strict=True)
    for token, left, right in reversed([*parts]):
        uses[left] += uses[token]
        uses[right] += uses[token]
    more = np.cumsum([0, *(uses[token] for token in reversed(merged.tolist()))], dtype=np.int64)
    return int(id_counts.sum()) + more[::-1]


def cut_vocabulary(tokenizer: Tokenizer, vocab_size: int) -> Tokenizer:
    """Return the tokenizer that training to a smaller `vocab_size` gives."""
    vocabulary = tokenizer.vocabulary
    special_tokens = list(vocabulary.special_tokens)
    n_merges = vocab_size - 256 - len(special_tokens)
    merges = np.stack(vocabulary.pair_table()[:2], axis=1)[:n_merges]
    return Tokenizer.from_vocabulary(
        Vocabulary.from_merges(merges, special_tokens), pattern=tokenizer.pattern,
        tie_break=tokenizer.tie_break, eos_token=tokenizer.eos_token,
        bos_token=tokenizer.bos_token,
    )

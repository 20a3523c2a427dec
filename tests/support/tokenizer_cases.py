"""A tokenizer with special tokens that contain one another."""

from __future__ import annotations

import trained

from bpe import Tokenizer
from bpe.vocabulary import Vocabulary

SPECIAL = [
    "<|endoftext|>",
    "<|end",
    "<|",
    "|>",
    "<|endoftext|><|endoftext|>",
    " \n",
    "x<",
]


TOKENIZER = Tokenizer.from_vocabulary(Vocabulary.from_merges(trained.merges(), SPECIAL))

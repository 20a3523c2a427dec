"""Byte-level BPE: train a tokenizer, encode text exactly as tiktoken and Hugging Face would.

    from bpe import Tokenizer, train_bpe

    tokenizer = train_bpe("train.txt", vocab_size=32_000, special_tokens=["<|endoftext|>"])
    tokenizer.save("tokenizer.json")
    ids = Tokenizer.from_file("tokenizer.json").encode("some text")

Public names are imported at their first use (PEP 562), so `import bpe` is fast. Corpus formats and
processes belong to `preprocess`, on which this package does not depend.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

if sys.platform == "win32":
    raise ImportError("tokenmill does not run on Windows: use Linux, macOS, or Windows' WSL")

from bpe.errors import (
    ArgumentError,
    EncodingError,
    PatternError,
    TokenizerFileError,
    TokenmillError,
    TrainingError,
    UnsupportedTokenizerError,
    VocabularyError,
)

if TYPE_CHECKING:
    from bpe.huggingface import HuggingFaceTokenizer, load_tokenizer
    from bpe.tokenizer import Tokenizer
    from bpe.train.counts import PretokenCounts
    from bpe.train.trainer import train_bpe, train_from_counts
    from bpe.unicode_classes import UNICODE_VERSION
    from bpe.vocabulary import AddedToken, Vocabulary
    from bpe.word_level import WordLevelTokenizer

__all__ = [
    "UNICODE_VERSION", "AddedToken", "ArgumentError", "EncodingError", "HuggingFaceTokenizer",
    "PatternError", "PretokenCounts", "Tokenizer", "TokenizerFileError", "TokenmillError",
    "TrainingError", "UnsupportedTokenizerError", "Vocabulary", "VocabularyError",
    "WordLevelTokenizer", "load_tokenizer", "train_bpe", "train_from_counts",
]

_MODULE_OF = {
    "UNICODE_VERSION": "bpe.unicode_classes", "AddedToken": "bpe.vocabulary",
    "PretokenCounts": "bpe.train.counts", "Tokenizer": "bpe.tokenizer",
    "Vocabulary": "bpe.vocabulary", "HuggingFaceTokenizer": "bpe.huggingface",
    "WordLevelTokenizer": "bpe.word_level", "load_tokenizer": "bpe.huggingface",
    "train_bpe": "bpe.train.trainer", "train_from_counts": "bpe.train.trainer",
}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

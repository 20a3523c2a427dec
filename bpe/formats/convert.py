"""Convert vocabularies, tokenizer files, and tokenizers of others to `TokenizerParts`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bpe.errors import (
    ArgumentError,
    PatternError,
    TokenizerFileError,
    UnsupportedTokenizerError,
    VocabularyError,
    listed,
)
from bpe.files.temporary import temporary_directory
from bpe.formats import hf_read, rank_files
from bpe.formats.hf_write import TokenizerParts
from bpe.formats.hub import tiktoken_encoding
from bpe.formats.json_file import config_path, parse_json, read_json, read_text
from bpe.reference import TIE_BREAKS, Pair
from bpe.split.patterns import TIKTOKEN, pattern_name
from bpe.vocabulary import Vocabulary, number_tokens

if TYPE_CHECKING:
    import tiktoken

END_OF_TEXT: Final = "<|endoftext|>"


def check_parts(
    vocabulary: Vocabulary, pattern: str, tie_break: str | None, eos_token: str | None,
    bos_token: str | None = None,
) -> TokenizerParts:
    """Return parts after checking that tokens and settings are consistent."""
    for name, token in (("eos_token", eos_token), ("bos_token", bos_token)):
        if token is not None and token not in vocabulary.special_tokens:
            raise VocabularyError(
                f"{name} {token!r} is not a special token of this tokenizer: expected one of"
                f" {listed(vocabulary.special_tokens)}"
            )
    if tie_break is not None and tie_break not in TIE_BREAKS:
        raise VocabularyError(
            f"unknown tie_break {tie_break!r}: expected None or one of {listed(TIE_BREAKS)}"
        )
    name = pattern_name(pattern)
    return TokenizerParts(vocabulary, name, tie_break, eos_token, bos_token=bos_token)


def make_vocabulary(
    vocab: Mapping[int, bytes], merges: Iterable[Pair],
    special_tokens: Mapping[str, int] | Iterable[str],
) -> Vocabulary:
    """Make a vocabulary, see `Tokenizer`; special tokens without ids get those after the last."""
    merges = list(merges)
    made = {left + right for left, right in merges}
    unmade = {x: number for number, x in vocab.items() if len(x) > 1 and x not in made}
    special = _special_ids(special_tokens, max(vocab, default=-1) + 1, unmade)
    tokens = dict(vocab)
    for text, token_id in special.items():
        if tokens.get(token_id) == text.encode("utf-8", "surrogatepass"):
            del tokens[token_id]
    return Vocabulary(tokens, merges, special)


def read_gpt2_files(
    vocab_path: str | os.PathLike[str], merges_path: str | os.PathLike[str],
    special_tokens: Iterable[str] | None, eos_token: str | None,
) -> TokenizerParts:
    """Read vocab.json and merges.txt, see `Tokenizer.from_gpt2_files`."""
    tokens, merges, others = rank_files.load_gpt2_files(vocab_path, merges_path)
    if special_tokens is None:
        there = END_OF_TEXT.encode() in tokens.values()
        special_tokens = [END_OF_TEXT, *others] if there else list(others)
    vocab = tokens | {token_id: text.encode() for text, token_id in others.items()}
    try:
        vocabulary = make_vocabulary(vocab, merges, special_tokens)
        return check_parts(vocabulary, "gpt2", None, eos_token)
    except VocabularyError as error:
        paths = f"{os.fspath(vocab_path)} with {os.fspath(merges_path)}"
        raise TokenizerFileError(f"{paths}: {error}") from error


def from_tiktoken(
    source: tiktoken.Encoding | str | os.PathLike[str], pattern: str | None,
    special_tokens: Mapping[str, int] | Iterable[str] | None, eos_token: str | None,
) -> TokenizerParts:
    """Convert an encoding or a .tiktoken file, see `Tokenizer.from_tiktoken`."""
    if isinstance(source, str) and not os.path.exists(source):
        source = tiktoken_encoding(source)
    if isinstance(source, str | os.PathLike):
        ranks = rank_files.load_tiktoken_ranks(source)
        if pattern is None:
            raise PatternError(
                f"{os.fspath(source)}: a file of ranks does not say how text is split: "
                "pass pattern=, for example pattern='gpt2'"
            )
    else:
        if not hasattr(source, "_mergeable_ranks"):
            raise ArgumentError(
                "source: should be an encoding of tiktoken, its name, or a path; got"
                f" {source!r:.100}"
            )
        # The README of tiktoken uses these attributes to extend an encoding.
        check_longest_special(source)
        ranks = source._mergeable_ranks
        pattern = TIKTOKEN + source._pat_str if pattern is None else pattern
        special_tokens = source._special_tokens if special_tokens is None else special_tokens
    special = _special_ids(special_tokens or (), max(ranks.values(), default=-1) + 1, {})
    try:
        vocabulary = Vocabulary.from_ranks(ranks, special)
    except VocabularyError as error:
        if not isinstance(source, str | os.PathLike):
            raise
        raise TokenizerFileError(f"{os.fspath(source)}: {error}") from error
    return check_parts(vocabulary, pattern, None, eos_token)


def check_longest_special(encoding: tiktoken.Encoding) -> tiktoken.Encoding:
    """Return an encoding; raise VocabularyError if it takes a special token for a shorter one.

    Of special tokens that begin alike, tiktoken takes the first in the order of a hash table.
    """
    for text, token_id in encoding._special_tokens.items():
        if (found := encoding.encode(text, allowed_special="all")) != [token_id]:
            raise VocabularyError(
                f"the special token {text!r} has the id {token_id}, and tiktoken gives {found} for"
                " it, as it finds one that it begins with: expected special tokens of which none"
                " begins with another; use it through tokenizer.json instead"
            )
    return encoding


def files_of(source: Any) -> hf_read.TokenizerFiles:
    """Return the files of a tokenizer of `tokenizers` or `transformers`.

    Without truncation and padding, which calls of the tokenizer set, and which change documents;
    with the chat template in the configuration.
    """
    name, config = Path(type(source).__name__), None
    if hasattr(source, "save_pretrained"):
        # Saved, as its backend lacks some special tokens and the chat template.
        with temporary_directory() as directory:
            source.save_pretrained(str(directory))
            path = directory / "tokenizer.json"
            if not path.exists():
                raise UnsupportedTokenizerError(
                    f"{name}: expected a fast tokenizer of transformers, found one that saves"
                    " no tokenizer.json; load it with use_fast=True"
                )
            text, config = read_text(path), read_json(config_path(path))
        if template := getattr(source, "chat_template", None):
            if isinstance(template, dict):
                template = [{"name": x, "template": y} for x, y in template.items()]
            config["chat_template"] = template
    else:
        try:
            text = source.to_str(pretty=True)  # as `save` writes it
        except AttributeError:
            raise TokenizerFileError(
                f"{name}: expected a tokenizers.Tokenizer, a fast tokenizer of transformers, a"
                " directory or a name on the hub"
            ) from None
    document = parse_json(text, name)
    if document.get("padding") or document.get("truncation"):
        document |= {"padding": None, "truncation": None}
        text = json.dumps(document, ensure_ascii=False, indent=2)
    return hf_read.TokenizerFiles(name, text, None if config is None else json.dumps(config))


def _special_ids(
    special_tokens: Mapping[str, int] | Iterable[str], first: int, known: Mapping[bytes, int]
) -> dict[str, int]:
    """Return text -> id: given ids, else known ones, else new ones from `first` on."""
    if isinstance(special_tokens, Mapping):
        return dict(special_tokens)
    if isinstance(special_tokens, str):
        raise VocabularyError(
            f"special_tokens is the text {special_tokens!r}: expected a list, [{special_tokens!r}]"
        )
    return number_tokens(special_tokens, first, known)

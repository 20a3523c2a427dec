"""Tokenizers that are not byte-level BPE, run by Hugging Face's own library; and `load_tokenizer`.

The law here: what our engine does not implement is run by its owner's, or not at all.  It is
slower, and that is said once.  Only the `tokenizers` library is used, which runs no code of a
repository.

`encode` gives the ids of the library's `encode(text, add_special_tokens=False)`.  With its
`encode_special_tokens` it gives those of `encode_ordinary`, but for one thing: where the model
itself has a special token among its entries, as those of T5 and BERT do, the library takes text
that spells it for that token all the same, and a document could forge its own end.  As in
SentencePiece, such text is ordinary text here.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from bpe.errors import (
    EncodingError,
    PatternError,
    TokenbinError,
    TokenizerFileError,
    UnsupportedTokenizerError,
    VocabularyError,
)
from bpe.files import write_atomically
from bpe.hf_read import parse_tokenizer_json
from bpe.hub import huggingface_hub_file
from bpe.json_file import config_path, parse_json, read_text
from bpe.locations import local_path
from bpe.text_tokenizer import AnyTokenizer, TextTokenizer
from bpe.tokenizer import Tokenizer
from bpe.word_level import WordLevelTokenizer

_logger = logging.getLogger("bpe")


# What such a name ends in was meant to be a file.
_FILE_SUFFIXES = frozenset({".json", ".tiktoken", ".model", ".bin", ".txt"})


def load_tokenizer(
    name: str | os.PathLike[str],
    *,
    pattern: str | None = None,
    special_tokens: Iterable[str] = (),
) -> AnyTokenizer:
    """Read a tokenizer of any kind.

    Args:
        name: What is tried, in this order: the path of a tokenizer.json, of a directory that holds
            one, or of a .tiktoken file; the name of one of tiktoken's encodings; a name on Hugging
            Face's hub.
        pattern: The split pattern of a .tiktoken file, which does not say it.
        special_tokens: The special tokens of a .tiktoken file, which has none: they get the ids
            behind its last one.

    Returns:
        A `Tokenizer` for a byte-level BPE, a `WordLevelTokenizer` for one of ours, else a
        `HuggingFaceTokenizer`.

    Raises:
        TokenizerFileError: It cannot be found or read, or is damaged.
        LocationError: It is a URL.
        PatternError: There is no pattern for a .tiktoken file, or there is one for another.
    """
    path = Path(local_path(name))
    if path.suffix == ".tiktoken" and path.exists():
        return Tokenizer.from_tiktoken(path, pattern=pattern, special_tokens=special_tokens)
    if pattern is not None:
        raise PatternError(
            f"{name}: a pattern ({pattern!r}) is only for a .tiktoken file; this tokenizer says"
            " itself how text is split: leave the pattern out"
        )
    if not path.exists():
        return _load_named(str(name))
    return _load_file(huggingface_hub_file(path))


def _load_named(name: str) -> AnyTokenizer:
    import tiktoken

    encodings = tiktoken.list_encoding_names()
    if name in encodings:
        return Tokenizer.from_tiktoken(name)
    # A path that was mistyped is no name on the hub.
    if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) is None or Path(name).suffix in _FILE_SUFFIXES:
        raise TokenizerFileError(
            f"{name}: No such file or directory: expected a tokenizer.json, a directory that"
            " holds one, a .tiktoken file, or a name known to tiktoken or Hugging Face"
        )
    try:
        path = huggingface_hub_file(name)
    except TokenizerFileError as error:
        raise TokenizerFileError(
            f"{error}; nor is it an encoding of tiktoken's, which are {', '.join(encodings)}"
        ) from error
    return _load_file(path)


def _load_file(path: Path) -> AnyTokenizer:
    try:
        return Tokenizer.from_file(path)
    except UnsupportedTokenizerError as error:
        if _is_byte_level(path):
            # What our engine lacks is not the matter: tokenizer_config.json contradicts the file.
            raise
        try:
            return WordLevelTokenizer.from_file(path)
        except UnsupportedTokenizerError:
            return HuggingFaceTokenizer(path, reason=str(error))


def _is_byte_level(path: Path) -> bool:
    try:
        parse_tokenizer_json(read_text(path), path)
    except UnsupportedTokenizerError:
        return False
    return True


# Fingerprints of the tokenizers of which it was said that they are slow.
_said_slower: set[str] = set()


@contextmanager
def _errors_as(kind: type[TokenbinError], beginning: str) -> Iterator[None]:
    """Turn what the library raises into an error of ours; a panic of it is no `Exception`."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise kind(f"{beginning}: {' '.join(str(error).split())}") from error


class HuggingFaceTokenizer(TextTokenizer):
    """Any tokenizer.json, run by Hugging Face's `tokenizers`.

    Args:
        path: The tokenizer.json; a tokenizer_config.json beside it names the special tokens.
        reason: Why our own engine does not run it, for the warning.

    Attributes:
        eos_token: The special token that ends a document, None if there is none.
        bos_token: The special token that begins a document, None if there is none.
        pattern: How text is split: "huggingface:" and the kind of the model.
        fingerprint: The SHA-256 of the text of the file, in hexadecimal.
        unicode_version: "": which Unicode decides is the library's to know.

    Raises:
        TokenizerFileError: The library is missing, or cannot read the file.
    """

    unicode_version = ""

    def __init__(self, path: str | os.PathLike[str], reason: str = "") -> None:
        path = Path(path)
        self._text = read_text(path)
        top = parse_json(self._text, path)
        model = top.get("model")
        if not isinstance(model, dict):
            raise TokenizerFileError(f"{path}: it has no 'model': expected a tokenizer.json")
        if model.get("dropout"):
            raise UnsupportedTokenizerError(
                f"{path}: model.dropout is {model['dropout']}, with which the same text has other"
                " ids each time: set it to null"
            )
        try:
            import tokenizers
        except ImportError as error:
            raise TokenizerFileError(
                f"{reason or path}; Hugging Face's library could run it, but is not installed:"
                " pip install 'tokenbin[hf]'"
            ) from error
        cannot = f"{reason or path}; Hugging Face's library cannot read it either"
        with _errors_as(TokenizerFileError, cannot):
            self._engine = tokenizers.Tokenizer.from_str(self._text)
            ordinary = _without_special_entries(top)
            self._ordinary = tokenizers.Tokenizer.from_str(json.dumps(ordinary))
        self._ordinary.encode_special_tokens = True
        for engine in (self._engine, self._ordinary):
            engine.no_truncation()
            engine.no_padding()
        kind = model.get("type") or type(self._engine.model).__name__
        self.pattern = f"huggingface:{kind}"
        self.fingerprint = hashlib.sha256(self._text.encode()).hexdigest()
        if self.fingerprint not in _said_slower:
            _said_slower.add(self.fingerprint)
            self._say_what_is_different(reason or f"{path} is named for it", top)
        vocab = self._engine.get_vocab(with_added_tokens=True)
        self._spelled = dict(sorted((number, text) for text, number in vocab.items()))
        added = sorted(self._engine.get_added_tokens_decoder().items())
        self._special_tokens = {t.content: token_id for token_id, t in added if t.special}
        _refuse_other_numbers(path, top, vocab)
        beside = config_path(path)
        self._config = read_text(beside) if beside.exists() else ""
        config = parse_json(self._config, beside) if self._config else {}
        self.eos_token = _content(config, "eos_token")
        if self.eos_token is not None and self.eos_token not in self._special_tokens:
            raise TokenizerFileError(
                f"{beside}: eos_token is {self.eos_token!r}, which is no special token of {path}:"
                f" expected one of {', '.join(map(repr, self._special_tokens)) or '(none)'}"
            )
        bos_token = _content(config, "bos_token")
        self.bos_token = bos_token if bos_token in self._special_tokens else None

    def _say_what_is_different(self, reason: str, top: Mapping[str, Any]) -> None:
        _logger.warning(
            "%s; so Hugging Face's library runs this tokenizer: the same ids, but slower", reason
        )
        for name in ("truncation", "padding"):
            if top.get(name) is not None:
                _logger.warning("its %s is switched off, for it would change documents", name)

    @property
    def vocab(self) -> dict[int, bytes]:
        """Id -> UTF-8 of every token, as the library spells it, in the order of ids; a copy."""
        return {token_id: text.encode() for token_id, text in self._spelled.items()}

    @property
    def vocab_size(self) -> int:
        """The largest id plus one."""
        return max(self._spelled, default=-1) + 1

    @property
    def special_tokens(self) -> dict[str, int]:
        """Text -> id of the special tokens, in the order of ids; a copy."""
        return dict(self._special_tokens)

    @property
    def _known_ids(self) -> Collection[int]:
        return self._spelled.keys()

    def _encode_texts(
        self, texts: list[str], allowed_special: frozenset[str] | None
    ) -> list[list[int]]:
        if allowed_special is None:
            engine = self._engine
        elif not allowed_special:
            engine = self._ordinary
        else:
            raise VocabularyError(
                "Hugging Face's library recognises all special tokens or none: expected"
                " allowed_special='all' or ()"
            )
        with _errors_as(EncodingError, "Hugging Face's library cannot encode this text"):
            batch = engine.encode_batch_fast(texts, add_special_tokens=False)
            return [encoding.ids for encoding in batch]

    def _decode(self, ids: list[int]) -> str:
        return str(self._engine.decode(ids, skip_special_tokens=False))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write tokenizer.json and its configuration, as they were read."""
        path = Path(path)
        plain = '{"tokenizer_class": "PreTrainedTokenizerFast"}\n'
        write_atomically(config_path(path), (self._config or plain).encode())
        write_atomically(path, self._text.encode())

    def __repr__(self) -> str:
        names = json.dumps(list(self._special_tokens)[:5], ensure_ascii=False)
        return f"HuggingFaceTokenizer({self.pattern!r}, vocab_size={self.vocab_size}, {names}...)"


def _content(config: Mapping[str, Any], role: str) -> str | None:
    token = config.get(role)
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _refuse_other_numbers(path: Path, top: Mapping[str, Any], vocab: Mapping[str, int]) -> None:
    """Refuse a file whose added tokens the library numbers anew, without a word."""
    for added in top.get("added_tokens") or []:
        found = vocab.get(added["content"])
        if found != added["id"]:
            raise TokenizerFileError(
                f"{path}: the added token {added['content']!r} has the id {added['id']}, and"
                f" Hugging Face's library gives it {found}: expected an id that both agree on"
            )


def _without_special_entries(top: Mapping[str, Any]) -> dict[str, Any]:
    """The file with special tokens no longer among the entries of its model.

    Each keeps its place under a name that no text spells, so that all other ids stay the same; the
    unknown token keeps its name, too, where the model looks for it by that name.  So do those that
    merges make, which are ordinary tokens as well.
    """
    model = dict(top["model"])
    vocab, merges = model.get("vocab"), model.get("merges") or []
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]
    ordinary = {*chain.from_iterable(pairs), *map("".join, pairs), model.get("unk_token")}
    special = {
        added["content"]
        for added in top.get("added_tokens") or []
        if added.get("special") and added["content"] not in ordinary
    }
    # No document can know these, and so spell them.
    names = {text: f"{secrets.token_hex(16)} {index}" for index, text in enumerate(special)}
    if isinstance(vocab, dict):
        inside = special & vocab.keys()
        model["vocab"] = {names.get(text, text): token_id for text, token_id in vocab.items()}
    elif isinstance(vocab, list):
        inside = special & {entry[0] for entry in vocab}
        model["vocab"] = [[names.get(text, text), score] for text, score in vocab]
    else:
        return dict(top)
    # Those that the model does not know any more would be numbered anew.
    added_tokens = [t for t in top.get("added_tokens") or [] if t["content"] not in inside]
    return {**top, "added_tokens": added_tokens, "model": model}

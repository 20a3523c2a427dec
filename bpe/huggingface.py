"""Load a tokenizer of any kind; what our own cannot run exactly, Hugging Face's library runs.

No file that the `tokenizers` library can read is refused, unless its ids depend on chance. The
library is slower, which is reported once per tokenizer, with the reason. It runs no code of a
repository.

`encode` gives the ids of the library's `encode(text, add_special_tokens=False)`, `encode_ordinary`
those with its `encode_special_tokens`, except if a special token is an entry of the model, as in T5
and BERT. There the library still recognises it in text, so that a document could forge its end;
here, as in SentencePiece, it is ordinary text.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from bpe.arguments import checked
from bpe.errors import (
    ArgumentError,
    EncodingError,
    PatternError,
    TokenizerFileError,
    TokenmillError,
    VocabularyError,
)
from bpe.files.locations import local_path
from bpe.formats.hf_read import AddedEntry, NamedTokens, TokenizerFiles
from bpe.formats.hub import huggingface_files, huggingface_hub_file
from bpe.formats.json_file import config_path, dumps, has_ranks, parse_json
from bpe.text_tokenizer import AnyTokenizer, TextTokenizer
from bpe.tokenizer import Tokenizer

_logger = logging.getLogger("bpe")

# A name with one of these suffixes is a path.
_FILE_SUFFIXES = frozenset({".json", ".tiktoken", ".model", ".bin", ".txt"})


@checked
def load_tokenizer(
    name: str | os.PathLike[str] | Any, *, pattern: str | None = None,
    special_tokens: Iterable[str] = (),
) -> AnyTokenizer:
    """Read a tokenizer of any kind.

    Args:
        name: Path of a tokenizer.json, of its directory, or of a .tiktoken file; or the name of an
            encoding of tiktoken, also without its "_base"; or a name on Hugging Face's hub; or a
            tokenizer: of this package, a `tokenizers.Tokenizer`, a fast tokenizer of transformers,
            a `tiktoken.Encoding`.
        pattern: Split pattern of a .tiktoken file, which does not contain it.
        special_tokens: Special tokens of a .tiktoken file; their ids follow its largest id.

    Returns:
        A `Tokenizer` for a byte-level BPE that it runs exactly, a `WordLevelTokenizer` for one of
        ours, else a `HuggingFaceTokenizer`.

    Raises:
        TokenizerFileError: The file is missing, unreadable or damaged.
        LocationError: The name is a URL.
        PatternError: No pattern for a .tiktoken file, or a pattern for another file.
    """
    if not isinstance(name, str | os.PathLike):
        return _convert(name)
    path = Path(local_path(name))
    if path.suffix == ".tiktoken" and os.path.exists(path):
        return Tokenizer.from_tiktoken(path, pattern=pattern, special_tokens=special_tokens)
    if pattern is not None:
        if path.is_dir():
            huggingface_hub_file(path)  # raises if it has no tokenizer.json
        why = "this tokenizer says itself how text is split: leave the pattern out"
        if has_ranks(path):
            why = "this is one under another name: copy it to NAME.tiktoken, and give that"
        raise PatternError(f"{name}: a pattern ({pattern!r}) is only for a .tiktoken file; {why}")
    if os.path.exists(path):  # False for a name that is too long
        return _load_file(huggingface_hub_file(path))
    import tiktoken

    name, encodings = str(name), tiktoken.list_encoding_names()
    for encoding in (name, f"{name}_base"):
        if encoding in encodings:
            return Tokenizer.from_tiktoken(encoding)
    # A mistyped path is not looked up on the hub.
    is_name = re.fullmatch(r"[\w.-]{1,96}(/[\w.-]{1,96})?", name) is not None
    if not is_name or Path(name).suffix in _FILE_SUFFIXES:
        raise TokenizerFileError(
            f"{name:.200}: No such file or directory: expected a tokenizer.json, a directory that"
            " holds one, a .tiktoken file, or a name known to tiktoken or Hugging Face"
        )
    try:
        path = huggingface_hub_file(name)
    except TokenizerFileError as error:
        raise TokenizerFileError(
            f"{error}; nor is it an encoding of tiktoken's, which are {', '.join(encodings)}"
        ) from error
    return _load_file(path)


def _convert(tokenizer: Any) -> AnyTokenizer:
    """Return a tokenizer of another library as one of ours."""
    if isinstance(tokenizer, type):
        raise ArgumentError(f"name: should be a path, a name or a tokenizer; got {tokenizer!r}")
    if isinstance(tokenizer, Tokenizer | TextTokenizer):
        return tokenizer
    if type(tokenizer).__module__.partition(".")[0] == "tiktoken":
        return Tokenizer.from_tiktoken(tokenizer)
    files = huggingface_files(tokenizer, "name")
    try:
        return Tokenizer.from_files(files)
    except TokenizerFileError as error:
        return HuggingFaceTokenizer(files, reason=str(error))


def _load_file(path: Path) -> AnyTokenizer:
    try:
        return Tokenizer.from_file(path)
    except TokenizerFileError as error:
        reason = str(error)
    from bpe.word_level import WordLevelTokenizer

    try:
        return WordLevelTokenizer.from_file(path)
    except TokenizerFileError:
        return HuggingFaceTokenizer(path, reason)


_reported_slower: set[str] = set()  # fingerprints


@contextmanager
def errors_as(kind: type[TokenmillError], beginning: str) -> Iterator[None]:
    """Convert errors of the library; its `PanicException` is a `BaseException`."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise kind(f"{beginning}: {' '.join(str(error).split())}") from error


@checked
class HuggingFaceTokenizer(TextTokenizer):
    """Any tokenizer.json, run by Hugging Face's `tokenizers`.

    Args:
        path: A tokenizer.json; tokenizer_config.json in its directory names special tokens. Or
            the text of both.
        reason: Reason in the warning, why the library runs it.

    Attributes:
        pattern: "huggingface:" and the kind of the model.
        unicode_version: "", as the library does not report it.

    Raises:
        TokenizerFileError: The library is not installed, cannot read the file, or gives ids by
            chance.
    """

    unicode_version = ""

    def __init__(
        self, path: str | os.PathLike[str] | TokenizerFiles, reason: str = ""
    ) -> None:
        files = path if isinstance(path, TokenizerFiles) else TokenizerFiles.read(path)
        path, self._text = files.path, files.text
        self.config_json = files.config or '{"tokenizer_class": "PreTrainedTokenizerFast"}\n'
        beside = config_path(path)
        named = NamedTokens.of(parse_json(self.config_json, beside), beside)
        top = parse_json(self._text, path)
        model = top.get("model")
        if not isinstance(model, dict):
            raise TokenizerFileError(f"{path}: it has no 'model': expected a tokenizer.json")
        try:
            import tokenizers  # noqa: F401 (it may not be installed)
        except ImportError as error:
            raise TokenizerFileError(
                f"{reason or path}; Hugging Face's library could run it, but is not installed:"
                " pip install 'tokenmill[hf]'"
            ) from error
        dropout = model.get("dropout")
        cannot = f"{reason or path}; Hugging Face's library cannot read it either"
        with errors_as(TokenizerFileError, cannot):
            self._engine = _engine_of(top)
            added = msgspec.convert(top.get("added_tokens") or [], list[AddedEntry])
            vocab = model["vocab"]  # of Unigram a list of texts with scores
            ids = vocab if isinstance(vocab, dict) else {x: i for i, (x, _) in enumerate(vocab)}
            tokens = named.added_to(added, ids)
            if tokens != added:
                top["added_tokens"] = msgspec.to_builtins(tokens)
                self._text = dumps(top)
                self._engine = _engine_of(top)
            if alike := _alike(self._engine):
                top["added_tokens"] = [
                    each | {"normalized": each["normalized"] and each["content"] not in alike}
                    for each in top["added_tokens"]
                ]
                self._engine = _engine_of(top)
            self._ordinary = _engine_of(without_special_entries(top))
        self._ordinary.encode_special_tokens = True
        self.pattern = f"huggingface:{model.get('type') or type(self._engine.model).__name__}"
        vocab = self._engine.get_vocab(with_added_tokens=True)
        if self.fingerprint not in _reported_slower:
            _reported_slower.add(self.fingerprint)
            _logger.warning(
                "%s; so Hugging Face's library runs this tokenizer: the same ids, but slower",
                reason or f"{path} is named for it",
            )
            for text, other in alike.items():
                _logger.warning(
                    "its added tokens %a and %a are one text when they are normalized, of which"
                    " the library finds one by chance; here %a is found as it is spelled alone",
                    other, text, text,
                )
            off = {"truncation": top.get("truncation"), "padding": top.get("padding")}
            for name in (name for name, value in (off | {"dropout": dropout}).items() if value):
                _logger.warning("its %s is switched off, for it would change documents", name)
            for entry in tokens:
                if entry.content and vocab[entry.content] != entry.id:
                    message = "its added token %r has the id %d, not %d as in the file"
                    _logger.warning(message, entry.content, vocab[entry.content], entry.id)
                    break
        self._text_of_id = dict(sorted((number, text) for text, number in vocab.items()))
        found = sorted(self._engine.get_added_tokens_decoder().items())
        self._special_ids = {token.content: number for number, token in found if token.special}
        self.eos_token = named.text("eos_token", self._special_ids)
        self.bos_token = named.text("bos_token", self._special_ids)

    def _encode_texts(
        self, texts: list[str], allowed_special: frozenset[str] | None
    ) -> list[list[int]]:
        if allowed_special:
            raise VocabularyError(
                "Hugging Face's library recognises all special tokens or none: expected"
                " allowed_special='all' or ()"
            )
        engine = self._engine if allowed_special is None else self._ordinary
        with errors_as(EncodingError, "Hugging Face's library cannot encode this text"):
            batch = engine.encode_batch_fast(texts, add_special_tokens=False)
            return [encoding.ids for encoding in batch]

    def to_json(self) -> str:
        """Return the text of tokenizer.json."""
        return self._text

    def _decode(self, ids: list[int]) -> str:
        return str(self._engine.decode(ids, skip_special_tokens=False))

    def __repr__(self) -> str:
        names = json.dumps(list(self._special_ids)[:5], ensure_ascii=False)
        return f"HuggingFaceTokenizer({self.pattern!r}, vocab_size={self.vocab_size}, {names}...)"


def _engine_of(top: dict[str, Any]) -> Any:
    """Return the library's tokenizer, without what would change documents."""
    import tokenizers

    model = top["model"] | ({"dropout": None} if top["model"].get("dropout") else {})
    engine = tokenizers.Tokenizer.from_str(json.dumps(top | {"model": model}))
    engine.no_truncation()
    engine.no_padding()
    return engine


def _alike(engine: Any) -> dict[str, str]:
    """Return added token -> another one that is the same text when both are normalized."""
    change = str if engine.normalizer is None else engine.normalizer.normalize_str
    added = dict(sorted(engine.get_added_tokens_decoder().items())).values()
    normal = {token.content: change(token.content) for token in added if token.normalized}
    first: dict[str, str] = {}
    for text in sorted(normal, key=lambda text: normal[text] != text):
        first.setdefault(normal[text], text)
    return {text: first[changed] for text, changed in normal.items() if first[changed] != text}


def without_special_entries(top: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of the file with special tokens in the model renamed.

    Each has a random name, which no text contains, and its id. The unknown token and the tokens of
    bytes, which the model looks up by name, and characters and results of merges, which are
    ordinary tokens, too, keep their names.
    """
    model = dict(top["model"])
    vocab, merges = model.get("vocab"), model.get("merges") or []
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]
    ordinary = {*chain.from_iterable(pairs), *map("".join, pairs), model.get("unk_token")}
    if model.get("byte_fallback"):
        ordinary.update(f"<0x{byte:02X}>" for byte in range(256))
    special = {
        added["content"]
        for added in top.get("added_tokens") or []
        if added.get("special") and len(added["content"]) > 1 and added["content"] not in ordinary
    }
    names = {text: f"{os.urandom(16).hex()} {index}" for index, text in enumerate(special)}
    if isinstance(vocab, dict):
        inside = special & vocab.keys()
        model["vocab"] = {names.get(text, text): token_id for text, token_id in vocab.items()}
    elif isinstance(vocab, list):
        inside = special & {entry[0] for entry in vocab}
        model["vocab"] = [[names.get(text, text), score] for text, score in vocab]
    else:
        return dict(top)
    # The library renumbers added tokens that are missing from the model.
    added_tokens = [t for t in top.get("added_tokens") or [] if t["content"] not in inside]
    return {**top, "added_tokens": added_tokens, "model": model}

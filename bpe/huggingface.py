"""Tokenizers that are not byte-level BPE, run by Hugging Face's own library; and `load_tokenizer`.

The law here: what our engine does not implement is run by its owner's, or not at all.  It is slower,
and that is said once.  Only the `tokenizers` library is used, which runs no code of a repository.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Collection
from pathlib import Path

from bpe.errors import TokenizerFileError, UnsupportedTokenizerError, VocabularyError
from bpe.tokenizer import Tokenizer, huggingface_hub_file
from bpe.tokenizer_file import config_path, parse_json, read_text, write_atomically
from bpe.text_tokenizer import AnyTokenizer, TextTokenizer
from bpe.word_level import WordLevelTokenizer

_logger = logging.getLogger("bpe")


def load_tokenizer(name: str | os.PathLike[str], *, pattern: str | None = None) -> AnyTokenizer:
    """Read a tokenizer of any kind.

    Args:
        name: What is tried, in this order: the path of a tokenizer.json, of a directory that holds
            one, or of a .tiktoken file; the name of one of tiktoken's encodings; a name on Hugging
            Face's hub.
        pattern: The split pattern of a .tiktoken file.

    Returns:
        A `Tokenizer` for a byte-level BPE, a `WordLevelTokenizer` for one of ours, else a
        `HuggingFaceTokenizer`.

    Raises:
        TokenizerFileError: It cannot be found or read, or is damaged.
    """
    path = Path(name)
    if path.suffix == ".tiktoken" and path.exists():
        return Tokenizer.from_tiktoken(path, pattern=pattern)
    if not path.exists():
        import tiktoken

        if str(name) in tiktoken.list_encoding_names():
            return Tokenizer.from_tiktoken(str(name))
        # A path that was mistyped is no name on the hub.
        if path.suffix or path.is_absolute() or len(path.parts) > 2:
            raise TokenizerFileError(
                f"{name}: No such file or directory: expected a tokenizer.json, a directory that holds"
                " one, a .tiktoken file, or a name known to tiktoken or Hugging Face"
            )
    path = huggingface_hub_file(name)
    try:
        return Tokenizer.from_file(path)
    except UnsupportedTokenizerError as error:
        try:
            return WordLevelTokenizer.from_file(path)
        except UnsupportedTokenizerError:
            return HuggingFaceTokenizer(path, reason=str(error))


# Fingerprints of the tokenizers of which it was said that they are slow.
_said_slower: set[str] = set()


class HuggingFaceTokenizer(TextTokenizer):
    """Any tokenizer.json, run by Hugging Face's `tokenizers`.

    Args:
        path: The tokenizer.json; a tokenizer_config.json beside it names the special tokens.
        reason: Why our own engine does not run it, for the warning.

    Raises:
        TokenizerFileError: The library is missing, or cannot read the file.
    """

    def __init__(self, path: str | os.PathLike[str], reason: str = "") -> None:
        path = Path(path)
        self._text = read_text(path)
        top = parse_json(self._text, path)
        try:
            import tokenizers
        except ImportError as error:
            raise TokenizerFileError(
                f"{reason or path}; Hugging Face's library could run it, but is not installed:"
                " pip install 'tokenbin[hf]'"
            ) from error
        try:
            self._encoder = tokenizers.Tokenizer.from_str(self._text)
            self._ordinary = tokenizers.Tokenizer.from_str(self._text)
        except Exception as error:
            # The library raises nothing more special.
            raise TokenizerFileError(
                f"{reason or path}; Hugging Face's library cannot read it either: {error}"
            ) from error
        for engine in (self._encoder, self._ordinary):
            # They would cut documents off, or fill them up.
            engine.no_truncation()
            engine.no_padding()
        self._ordinary.encode_special_tokens = True
        model = top.get("model")
        kind = model.get("type") if isinstance(model, dict) else None
        self.pattern = f"huggingface:{kind or type(self._encoder.model).__name__}"
        self.fingerprint = hashlib.sha256(self._text.encode()).hexdigest()
        if self.fingerprint not in _said_slower:
            _said_slower.add(self.fingerprint)
            _logger.warning(
                "%s; so this tokenizer runs in Hugging Face's library, with the same ids but"
                " slower",
                reason or f"{path} is not run by tokenbin's own engine",
            )
        vocab = self._encoder.get_vocab(with_added_tokens=True)
        self._spelled = dict(sorted((number, text) for text, number in vocab.items()))
        self._special_tokens = {
            token.content: token_id
            for token_id, token in sorted(self._encoder.get_added_tokens_decoder().items())
            if token.special
        }
        beside = config_path(path)
        self._config = read_text(beside) if beside.exists() else ""
        config = parse_json(self._config, beside) if self._config else {}
        self.eos_token = self._named(config, "eos_token")
        self.bos_token = self._named(config, "bos_token")

    def _named(self, config: dict[str, object], role: str) -> str | None:
        token = config.get(role)
        text = token.get("content") if isinstance(token, dict) else token
        return text if isinstance(text, str) and text in self._special_tokens else None

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
    def unicode_version(self) -> str:
        """Which Unicode decides is the library's to know: ""."""
        return ""

    @property
    def _known_ids(self) -> Collection[int]:
        return self._spelled.keys()

    def _encode_texts(
        self, texts: list[str], allowed_special: frozenset[str] | None
    ) -> list[list[int]]:
        if allowed_special is None:
            engine = self._encoder
        elif not allowed_special:
            engine = self._ordinary
        else:
            raise VocabularyError(
                "Hugging Face's library recognises all special tokens or none: expected"
                " allowed_special='all' or ()"
            )
        batch = engine.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in batch]

    def _decode(self, ids: list[int]) -> str:
        return str(self._encoder.decode(ids, skip_special_tokens=False))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write tokenizer.json and its configuration, as they were read."""
        path = Path(path)
        plain = '{"tokenizer_class": "PreTrainedTokenizerFast"}\n'
        write_atomically(config_path(path), self._config or plain)
        write_atomically(path, self._text)

    def __repr__(self) -> str:
        names = json.dumps(list(self._special_tokens)[:5], ensure_ascii=False)
        return f"HuggingFaceTokenizer({self.pattern!r}, vocab_size={self.vocab_size}, {names}...)"

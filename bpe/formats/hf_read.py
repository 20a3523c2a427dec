"""Read tokenizer.json and tokenizer_config.json, the files of Hugging Face's tokenizers.

No setting is ignored: a file is refused unless ids are exactly those of Hugging Face's engine, by
which `bpe.load_tokenizer` then has the file run. The types of `_File` are what is implemented.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np
from msgspec.structs import replace as with_values
from numpy.typing import NDArray

from bpe.errors import (
    PatternError,
    TokenizerFileError,
    UnsupportedTokenizerError,
    VocabularyError,
)
from bpe.files.locations import local_path
from bpe.formats.hf_write import (
    FLAGS,
    KEPT_OF_MODEL,
    STEPS,
    TokenizerParts,
    default_config,
    default_settings,
)
from bpe.formats.json_file import (
    check_depth,
    config_path,
    decode_text,
    dumps,
    parse_json,
    read_content,
    read_text,
    refuse,
    refuse_value,
    unsupported,
)
from bpe.formats.rank_files import VocabJson, tokens_by_id
from bpe.split.patterns import from_huggingface, to_huggingface
from bpe.text.normalize import normalized
from bpe.unicode_classes import UNICODE_VERSION, WHITE_SPACE, class_table
from bpe.vocabulary import AddedToken, FlatTokens, Vocabulary

_LARGEST = 2**21 - 2  # id, and number of a merge, that the encoder takes


class AddedEntry(msgspec.Struct, kw_only=True, frozen=True):
    """An entry of `added_tokens`, or a token in tokenizer_config.json."""

    id: int = -1
    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False
    special: bool = False


class _Model(msgspec.Struct):
    """A byte-level BPE. As every byte of text has a token, some settings have no effect."""

    vocab: VocabJson
    merges: list[tuple[str, str] | str]  # before tokenizers 0.20 one text, with a space
    type: Literal["BPE"] = "BPE"
    dropout: int | float | None = None
    unk_token: str | None = None
    continuing_subword_prefix: Literal["", None] = None
    end_of_word_suffix: Literal["", None] = None
    fuse_unk: bool = False
    byte_fallback: bool = False
    ignore_merges: bool = False
    unicode_version: str | None = None
    pattern: str | None = None
    tie_break: Literal["greatest-bytes", "huggingface", None] = None
    ranked_by: Literal["merges", "bytes", None] = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    model: _Model
    version: Literal["1.0"] = "1.0"
    truncation: Any = None
    padding: Any = None
    added_tokens: list[AddedEntry] | None = None
    normalizer: Any = None
    pre_tokenizer: Any = None
    post_processor: Any = None
    decoder: Any = None


class _ByteLevel(msgspec.Struct):
    """The last step of a pre_tokenizer, with Hugging Face's defaults."""

    add_prefix_space: bool = True
    use_regex: bool = True


_Named: TypeAlias = str | AddedEntry | None


class NamedTokens(msgspec.Struct):
    """Tokens that are named in a tokenizer_config.json."""

    bos_token: _Named = None
    eos_token: _Named = None
    unk_token: _Named = None
    sep_token: _Named = None
    pad_token: _Named = None
    cls_token: _Named = None
    mask_token: _Named = None
    added_tokens_decoder: dict[str, AddedEntry] | None = None
    extra_special_tokens: str | list[_Named] | dict[str, _Named] | None = None
    additional_special_tokens: str | list[_Named] | dict[str, _Named] | None = None

    @classmethod
    def of(cls, config: Mapping[str, Any], path: Path) -> NamedTokens:
        """Return what the configuration says; raise TokenizerFileError for something else."""
        try:
            return msgspec.convert(config, cls)
        except msgspec.ValidationError as error:
            refuse_value(path, error)

    def added_to(self, given: Sequence[AddedEntry], ids: Mapping[str, int]) -> list[AddedEntry]:
        """Return the added tokens with those named here; `ids` are those of the model.

        As in transformers: the settings in `added_tokens_decoder` count, tokens with a role, such
        as `eos_token`, are special, and new tokens have the ids after the last.
        """
        entries, decoder = {x.content: x for x in given}, self.added_tokens_decoder or {}
        in_order = (decoder[number] for number in sorted(decoder, key=lambda x: (len(x), x)))
        named = {token.content: token for token in in_order}
        for token in self._special():
            text = token.content
            said = named.get(text) or entries.get(text) or token
            named[text] = with_values(said, special=True)
        tokens = [with_values(named.get(x.content, x), id=x.id) for x in given]
        next_id = max([len(ids), *(x.id + 1 for x in tokens)])
        for text in named:
            if text and text not in entries:
                number = ids.get(text, next_id)
                next_id = max(next_id, number + 1)
                tokens.append(with_values(named[text], id=number))
        return tokens

    def _special(self) -> list[AddedEntry]:
        """Return the tokens with a role, in the order of transformers."""
        extra = self.extra_special_tokens or self.additional_special_tokens or []
        if not isinstance(extra, list):
            extra = [*extra.values()] if isinstance(extra, dict) else [extra]
        roles = [getattr(self, name) for name in self.__struct_fields__[:7]]
        tokens = (AddedEntry(content=x) if isinstance(x, str) else x for x in [*roles, *extra])
        return [token for token in tokens if token is not None and token.content]

    def text(self, role: str, special_tokens: Collection[str]) -> str | None:
        """Return the special token with a role, such as "bos_token", None if there is none."""
        token = getattr(self, role)
        text = token.content if isinstance(token, AddedEntry) else token
        return text if text in special_tokens else None


class TokenizerFiles(NamedTuple):
    """Content of a tokenizer.json, and text of the configuration in its directory, if any."""

    path: Path
    content: bytes
    config: str | None

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> TokenizerFiles:
        """Read the files; raise TokenizerFileError if one is unreadable or empty."""
        path = Path(local_path(path))
        content, beside = read_content(path), config_path(path)
        return cls(path, content, read_text(beside) if beside.exists() else None)

    @property
    def text(self) -> str:
        """The text of the tokenizer.json; raises TokenizerFileError if it is not UTF-8."""
        return decode_text(self.content, self.path)

    def parts(self) -> TokenizerParts:
        """Parse the files.

        Raises:
            TokenizerFileError: A file is damaged, is not of a byte-level BPE, or has a setting that
                is not implemented.
        """
        for files, found in _last:
            if (files.content, files.config) == (self.content, self.config):
                return found
        found = _parts_of(self)
        _last[:] = [(self, found)]
        return found


# A process that builds several datasets parses their tokenizer once.
_last: list[tuple[TokenizerFiles, TokenizerParts]] = []


def _parts_of(files: TokenizerFiles) -> TokenizerParts:
    """Parse files; raises as `TokenizerFiles.parts`."""
    path, beside = files.path, config_path(files.path)
    file = parse_json(files.text, path, _File)
    check_depth(path, [getattr(file, name) for name in STEPS])
    config = {} if files.config is None else parse_json(files.config, beside)
    named = NamedTokens.of(config, beside)
    tokens = named.added_to(file.added_tokens or [], file.model.vocab)
    parts = _parts(path, file, tokens)
    # Some classes of transformers change the tokenizer by this setting, others do not.
    if (prefix := config.get("add_prefix_space")) not in (None, parts.add_prefix_space):
        own = f"{path} has {dumps(parts.add_prefix_space)}"
        unsupported(beside, f"add_prefix_space is {dumps(prefix)}", f"{own}, which counts")
    special, digest = parts.vocabulary.special_tokens, hashlib.sha256(files.content).hexdigest()
    parts = replace(
        parts, eos_token=named.text("eos_token", special),
        bos_token=named.text("bos_token", special),
        file_digest=digest if tokens == (file.added_tokens or []) else None,
    )
    is_default = files.config is None or config == default_config(parts)
    return parts if is_default else replace(parts, config=dumps(config))


def _parts(path: Path, file: _File, entries: list[AddedEntry]) -> TokenizerParts:
    """Convert the content of a tokenizer.json; `path` is its name in errors."""
    model = file.model
    for name, found, accepted in (
        ("truncation", file.truncation, None), ("padding", file.padding, None),
        ("model.dropout", model.dropout, 0),
        ("model.unicode_version", model.unicode_version, UNICODE_VERSION),
    ):
        if found not in (None, accepted):
            setting, expected = f"the setting {name} is {dumps(found)}", dumps(accepted)
            unsupported(path, setting, f"only {expected} is implemented")
    sections = {name: getattr(file, name) for name in STEPS}
    steps = {name: _steps(path, name, [x] * (x is not None)) for name, x in sections.items()}
    if len(steps["decoder"]) != 1:
        expected = "expected one ByteLevel, for this must be a byte-level BPE"
        unsupported(path, f"decoder is {dumps(file.decoder)}", expected)
    normal_forms = tuple(step["type"] for step in steps["normalizer"])
    pattern, add_prefix_space = _pattern_of(path, steps["pre_tokenizer"])
    pattern = _named_pattern(path, model.pattern, pattern)
    ids = model.vocab
    added_tokens = _added_tokens(path, entries, ids)
    _check_normalized(path, added_tokens, normal_forms)
    tokens, others = tokens_by_id(path, ids, "model.vocab")
    texts = {token.text for token in added_tokens}
    for text in sorted(others.keys() - texts):
        found = f"in model.vocab, {text!r} is not spelled in GPT-2's byte-level alphabet"
        expected = "expected a byte-level BPE, or this token among the added_tokens"
        unsupported(path, found, expected)
    pairs = _merge_ids(path, model.merges, ids, {*others, ""})
    if not model.ignore_merges or model.ranked_by is not None:
        # An added token is an ordinary token, too, by merges, or as a whole pre-token.
        longer = [text for text in (texts & ids.keys()) - others.keys() if len(text) != 1]
        tokens = tokens.select(~np.isin(tokens.ids, _ids_in_no_merge(longer, pairs, tokens, ids)))
    try:
        if model.ranked_by == "bytes":
            ranks = {token: token_id for token_id, token in tokens.tokens().items()}
            vocabulary = Vocabulary.from_ranks(ranks, added_tokens, normal_forms)
        else:
            vocabulary = Vocabulary(
                tokens, pairs, added_tokens,
                ignore_merges=model.ignore_merges, normal_forms=normal_forms,
            )
    except VocabularyError as error:
        raise TokenizerFileError(f"{path}: {error}") from error
    largest = max(vocabulary.size, len(pairs)) - 1
    if largest > _LARGEST:
        found = f"an id, or the number of a merge, is {largest:,}"
        unsupported(path, found, f"expected at most {_LARGEST:,}")
    parts = TokenizerParts(
        vocabulary, pattern, model.tie_break, add_prefix_space=add_prefix_space,
        outside=frozenset(texts - ids.keys()),
    )
    settings = {**sections, "model": {name: getattr(model, name) for name in KEPT_OF_MODEL}}
    is_default = settings == default_settings(parts)
    return replace(parts, settings="" if is_default else dumps(settings))


def _steps(path: Path, section: str, values: list[Any]) -> list[dict[str, Any]]:
    """Return the steps of a section of tokenizer.json, a key of `STEPS`; sequences flattened."""
    inner, kinds = STEPS[section]
    steps: list[dict[str, Any]] = []
    for value in values:
        kind = value.get("type") if isinstance(value, dict) else value
        inside = value.get(inner) if isinstance(value, dict) else None
        if kind == "Sequence" and isinstance(inside, list):
            steps += _steps(path, section, inside)
        elif isinstance(value, dict) and kind in kinds:
            steps.append(value)
        else:
            expected = f"only {', '.join(kinds)} are implemented"
            unsupported(path, f"{section} is {dumps(kind)}", expected)
    return steps


def _pattern_of(path: Path, steps: list[dict[str, Any]]) -> tuple[str, bool]:
    """Return the split pattern and add_prefix_space of the steps of the pre_tokenizer."""
    kinds = [step["type"] for step in steps]
    if kinds.count("ByteLevel") != 1 or kinds[-1] != "ByteLevel":
        expected = "only Split and Digits are implemented, with one ByteLevel as the last step"
        unsupported(path, f"pre_tokenizer has the steps {dumps(kinds)}", expected)
    try:
        byte_level = msgspec.convert(steps.pop(), _ByteLevel)
    except msgspec.ValidationError as error:
        refuse_value(path, error)
    if byte_level.add_prefix_space and steps:
        found = "pre_tokenizer has steps before a ByteLevel with add_prefix_space"
        unsupported(path, found, "only a ByteLevel alone may have it")
    splits: list[str | dict[str, Any]] = [*steps]
    if byte_level.use_regex:
        splits.append("gpt2")
    elif not steps:
        # Without a split, the text is one pre-token.
        splits.append({"type": "Split", "pattern": {"Regex": r"[\s\S]+"}, "behavior": "Isolated"})
    try:
        return from_huggingface(splits), byte_level.add_prefix_space
    except PatternError as error:
        raise UnsupportedTokenizerError(f"{path}: pre_tokenizer: {error}") from error


def _named_pattern(path: Path, named: str | None, pattern: str) -> str:
    """Return `model.pattern` if given, after comparing it with the pre-tokenizer."""
    if named is None:
        return pattern
    try:
        same = to_huggingface(pattern) == to_huggingface(named)
    except PatternError as error:
        raise TokenizerFileError(f"{path}: model.pattern: {error}") from error
    if not same:
        refuse(path, f"model.pattern is {dumps(named)}", f"expected {pattern!r}, as pre_tokenizer")
    return named


def _added_tokens(
    path: Path, entries: list[AddedEntry], ids: Mapping[str, int]
) -> list[AddedToken]:
    added_tokens: dict[str, AddedToken] = {}
    next_id = len(ids)
    for index, entry in enumerate(entries):
        text, name = entry.content, f"added_tokens[{index}] {entry.content!r}"
        if not text:
            continue  # as in Hugging Face's engine
        if text in added_tokens:
            refuse(path, f"{name} appears twice", "expected each token once")
        # Hugging Face assigns ids to tokens that are not in the model, from its size on.
        expected_id = ids.get(text, next_id)
        if entry.id != expected_id:
            expected = f"expected {expected_id}, as Hugging Face would number it"
            refuse(path, f"{name} has the id {entry.id}", expected)
        next_id += text not in ids
        flags = {name: getattr(entry, name) for name in FLAGS}
        added_tokens[text] = AddedToken(text, expected_id, **flags)
    for late in (False, True):
        alike = [token for token in added_tokens.values() if token.normalized == late]
        stripping = [token.text for token in alike if token.rstrip]
        beginning = [x.text for x in alike if class_table()[ord(x.text[0])] & WHITE_SPACE]
        # Hugging Face's engine encodes that white space twice, or panics.
        if stripping and beginning:
            unsupported(
                path,
                f"the added token {stripping[0]!r} has rstrip and {beginning[0]!r} begins with"
                " white space",
                "what follows the one may be taken for the other, which Hugging Face's engine"
                " does not tell apart either; remove rstrip",
            )
    return list(added_tokens.values())


def _check_normalized(path: Path, tokens: list[AddedToken], forms: tuple[str, ...]) -> None:
    """Raise TokenizerFileError if two added tokens are one text when they are normalized."""
    seen: dict[bytes, str] = {}
    for text in (token.text for token in tokens if token.normalized):
        if (other := seen.setdefault(normalized(text.encode(), forms), text)) != text:
            refuse(
                path,
                f"the added tokens {other!a} and {text!a} are one text when they are normalized",
                "expected texts that differ; set 'normalized' to false for one of them",
            )


def _merge_ids(
    path: Path, merges: Sequence[tuple[str, str] | str], ids: Mapping[str, int],
    excluded: Collection[str],
) -> NDArray[np.int32]:
    """Return the ids of merges, int32[n, 2]; `excluded` are texts that no merge joins."""
    pairs: Sequence[Sequence[str]] = merges
    sizes = {2}
    if str in {*map(type, merges)}:
        pairs = [x.split(" ") if isinstance(x, str) else x for x in merges]
        sizes = {*map(len, pairs)}
    if sizes == {2}:
        with suppress(KeyError):
            flat = map(ids.__getitem__, chain.from_iterable(pairs))
            numbers = np.fromiter(flat, np.int32, 2 * len(pairs)).reshape(-1, 2)
            if not np.isin(numbers, [ids[text] for text in excluded if text in ids]).any():
                return numbers
    known = ids.keys() - excluded
    index = next(i for i, x in enumerate(pairs) if len(x) != 2 or not known >= {*x})
    expected = "expected two tokens of model.vocab, in the byte-level alphabet"
    refuse(path, f"model.merges[{index}] is {dumps(merges[index])}", expected)


def _ids_in_no_merge(
    texts: list[str], pairs: NDArray[np.int32], tokens: FlatTokens, ids: Mapping[str, int]
) -> list[int]:
    """Return the ids of the texts that are neither a part nor the result of a merge."""
    # Only into lengths of tokens, so a long token of a hostile file is not copied for each length.
    lengths = {*np.diff(tokens.offsets).tolist()}
    places = [(text, n) for text in texts for n in lengths if len(text) - n in lengths]
    splits = ((text[:n], text[n:], text) for text, n in places)
    made = {(ids[a], ids[b]): ids[text] for a, b, text in splits if a in ids and b in ids}
    near = pairs[np.isin(pairs[:, 0], [left for left, _ in made])].tolist()
    numbers = np.array([ids[text] for text in texts], np.int32)
    parts = pairs[np.isin(pairs, numbers)].tolist()
    return [*{*numbers.tolist()}.difference(parts, map(made.get, map(tuple, near)))]

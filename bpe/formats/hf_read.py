"""Read tokenizer.json and tokenizer_config.json, the files of Hugging Face's tokenizers.

No setting is ignored: a file is refused unless ids are exactly those of Hugging Face's engine, by
which `bpe.load_tokenizer` then has the file run.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from bpe.byte_level import from_byte_level
from bpe.errors import (
    PatternError,
    TokenizerFileError,
    UnsupportedTokenizerError,
    VocabularyError,
    listed,
    shown,
)
from bpe.formats import hf_write
from bpe.formats.hf_write import FLAGS, STEPS, TokenizerParts
from bpe.formats.json_file import (
    canonical,
    check_depth,
    config_path,
    dumps,
    expect,
    object_at,
    parse_json,
    read_text,
    refuse,
    unsupported,
)
from bpe.formats.rank_files import ids_of_vocab, tokens_by_id
from bpe.reference import TIE_BREAKS, Pair
from bpe.split.patterns import from_huggingface, to_huggingface
from bpe.text.normalize import normalized
from bpe.unicode_classes import UNICODE_VERSION, WHITE_SPACE, class_table
from bpe.vocabulary import AddedToken, FlatTokens, Vocabulary

# Entries of tokenizer_config.json that name special tokens, in the order of transformers.
_ROLES = tuple(f"{role}_token" for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_TOP_LEVEL_KEYS = ("version", "truncation", "padding", "added_tokens", *STEPS, "model")

# Settings of `model` -> implemented values, the default first. As every byte of text has a token,
# unk_token, fuse_unk and byte_fallback have no effect.
_ACCEPTED_OF_MODEL: dict[str, tuple[Any, ...]] = {
    "dropout": (None, 0), "continuing_subword_prefix": (None, ""), "end_of_word_suffix": (None, ""),
    "byte_fallback": (False, True), "ignore_merges": (False, True),
    "unicode_version": (None, UNICODE_VERSION), "tie_break": (None, *TIE_BREAKS),
    "ranked_by": (None, "merges", "bytes"),
}
# The file with a vocabulary and merges as they should be, and anything for settings. Before
# tokenizers 0.20 a merge was one text, with a space.
_MODEL = msgspec.defstruct("_MODEL", [
    ("vocab", dict[str, int]), ("merges", list[tuple[str, str] | str]),
    *((name, Any, msgspec.UNSET) for name in ("type", "pattern")),
    *((name, Any, msgspec.UNSET) for name in {**_ACCEPTED_OF_MODEL, **hf_write.KEPT_OF_MODEL}),
])  # fmt: skip
_FILE: Any = msgspec.defstruct("_FILE", [
    ("model", _MODEL), *((name, Any, msgspec.UNSET) for name in _TOP_LEVEL_KEYS[:-1])
], forbid_unknown_fields=True)  # fmt: skip


@dataclass(frozen=True)
class TokenizerFiles:
    """Text of a tokenizer.json, and of the configuration in its directory, if any."""

    path: Path
    text: str
    config: str | None

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> TokenizerFiles:
        """Read the files; raise TokenizerFileError if one is unreadable, empty, or not UTF-8."""
        path = Path(path)
        text, beside = read_text(path), config_path(path)
        return cls(path, text, read_text(beside) if beside.exists() else None)

    def parts(self) -> TokenizerParts:
        """Parse the files.

        Raises:
            TokenizerFileError: A file is damaged, is not of a byte-level BPE, or has a setting that
                is not implemented.
        """
        path, beside = self.path, config_path(self.path)
        config = None if self.config is None else parse_json(self.config, beside)
        top = _parse_large(self.text, path)
        if config is None:
            return _parse_tokenizer_json(top, path)
        parts = _parse_tokenizer_json(with_named_tokens(top, config, beside), path)
        # Some classes of transformers change the tokenizer by this setting, others do not.
        if (prefix := config.get("add_prefix_space")) not in (None, parts.add_prefix_space):
            own = f"{path} has {dumps(parts.add_prefix_space)}"
            unsupported(beside, f"add_prefix_space is {dumps(prefix)}", f"{own}, which counts")
        special = parts.vocabulary.special_tokens
        parts = replace(
            parts, eos_token=_token_text(config, "eos_token") or None,
            bos_token=special_token(config, "bos_token", special),
        )
        kept = "" if config == hf_write.default_config(parts) else canonical(beside, config)
        return replace(parts, config=kept)


def _parse_large(text: str, path: Path) -> dict[str, Any]:
    """Parse a tokenizer.json: a sound one at once into `_FILE`, any other as `parse_json` does.

    Only in a sound one are merges tuples.
    """
    try:
        file = msgspec.json.decode(text, type=_FILE)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return parse_json(text, path)
    top, model = (
        {name: x for name, x in msgspec.structs.asdict(each).items() if x is not msgspec.UNSET}
        for each in (file, file.model)
    )
    check_depth(path, [x for name, x in top.items() if name != "model"])
    check_depth(path, [x for name, x in model.items() if name not in ("vocab", "merges")])
    return top | {"model": model}


def with_named_tokens(
    top: dict[str, Any], config: Mapping[str, Any], beside: Path
) -> dict[str, Any]:
    """Return the content of a tokenizer.json, with the added tokens that its configuration names.

    As in transformers: the settings in `added_tokens_decoder` count, tokens with a role, such as
    `eos_token`, are special, and new tokens have the ids after the last.

    Raises:
        TokenizerFileError: The configuration (`beside`) has something else for a token.
    """
    given, ids = top.get("added_tokens") or [], _ids_of_model(top.get("model"))
    if not isinstance(given, list) or not all(map(_is_token, given)):
        return top  # refused when it is parsed
    entries = {entry["content"]: entry for entry in given}
    decoder = config.get("added_tokens_decoder") or {}
    if not isinstance(decoder, dict) or not all(map(_is_token, decoder.values())):
        found = f"added_tokens_decoder is {shown(decoder)}"
        refuse(beside, found, "expected an object of objects with 'content'")
    in_order = (decoder[number] for number in sorted(decoder, key=lambda x: (len(x), x)))
    named = {token["content"]: _flags_of(token) for token in in_order}
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or ()
    extra = list(extra.values()) if isinstance(extra, dict) else extra
    extra = extra if isinstance(extra, list) else [extra] * bool(extra)
    roles = [(role, config.get(role)) for role in _ROLES]
    for role, token in [*roles, *(("extra_special_tokens", token) for token in extra)]:
        text = token.get("content") if isinstance(token, dict) else token
        if text is not None and not isinstance(text, str):
            refuse(beside, f"{role} is {dumps(token)}", "expected text or null")
        if text:
            said = named.get(text) or entries.get(text) or token
            named[text] = _flags_of(said) | {"special": True}
    tokens = [entry | named.get(entry["content"], {}) for entry in given]
    next_id = max([len(ids), *(entry.get("id", 0) + 1 for entry in tokens)])
    for text in named:
        if text and text not in entries:
            number = ids.get(text, next_id)
            next_id = max(next_id, number + 1)
            tokens.append({"id": number, "content": text, **named[text]})
    return top if tokens == given else {**top, "added_tokens": tokens}


def _is_token(entry: Any) -> bool:
    """Return True if an entry of `added_tokens` or `added_tokens_decoder` can be one."""
    is_named = isinstance(entry, dict) and isinstance(entry.get("content"), str)
    return is_named and type(entry.get("id", 0)) is int


def _flags_of(token: Any) -> dict[str, Any]:
    return {flag: token.get(flag, False) if isinstance(token, dict) else False for flag in FLAGS}


def _ids_of_model(model: Any) -> dict[str, int]:
    """Return text -> id of the vocabulary of any model, without what is invalid."""
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocab, list):  # of Unigram: texts with scores
        vocab = {str(x[0]): i for i, x in enumerate(vocab) if isinstance(x, list) and x}
    if not isinstance(vocab, dict) or {*map(type, vocab.values())} <= {int}:
        return vocab if isinstance(vocab, dict) else {}
    return {text: x for text, x in vocab.items() if type(x) is int}


def _token_text(config: Mapping[str, Any], role: str) -> Any:
    """Return the text of a token in a configuration, which may be in an object."""
    token = config.get(role)
    return token.get("content") if isinstance(token, dict) else token


def special_token(
    config: Mapping[str, Any], role: str, special_tokens: Collection[str]
) -> str | None:
    """Return the special token with a role, such as "bos_token", in a configuration, or None."""
    text = _token_text(config, role)
    return text if isinstance(text, str) and text in special_tokens else None


def _parse_tokenizer_json(top: dict[str, Any], path: Path) -> TokenizerParts:
    """Convert the content of a tokenizer.json; `path` is its name in errors."""
    model, pattern, add_prefix_space, normal_forms = _parse_settings(top, path)
    options = {
        name: expect(path, f"model.{name}", model.get(name, accepted[0]), *accepted)
        for name, accepted in _ACCEPTED_OF_MODEL.items()
    }
    ignore_merges, ranked_by = bool(options["ignore_merges"]), options["ranked_by"]
    pattern = _named_pattern(path, model.get("pattern"), pattern)
    ids = ids_of_vocab(path, object_at(path, model, "vocab"), "model.vocab")
    added_tokens = _added_tokens(path, top.get("added_tokens") or [], ids)
    _check_normalized(path, added_tokens, normal_forms)
    merges = _merges(path, model["merges"])
    tokens, others = tokens_by_id(path, ids, "model.vocab")
    texts = {token.text for token in added_tokens}
    for text in sorted(others.keys() - texts):
        found = f"in model.vocab, {text!r} is not spelled in GPT-2's byte-level alphabet"
        expected = "expected a byte-level BPE, or this token among the added_tokens"
        unsupported(path, found, expected)
    pairs = _as_ids(path, merges, model["merges"], ids, others)
    if not ignore_merges or ranked_by is not None:
        # An added token is an ordinary token, too, by merges, or as a whole pre-token.
        longer = {text for text in (texts & ids.keys()) - others.keys() if len(text) != 1}
        alone = longer - _in_merges(longer, pairs, tokens, ids)
        tokens = tokens.select(~np.isin(tokens.ids, np.array([ids[x] for x in alone], np.int32)))
    try:
        # Merges that have no ids are refused, also where ranks alone count.
        if ranked_by == "bytes" and isinstance(pairs, np.ndarray):
            ranks = {token: token_id for token_id, token in tokens.tokens().items()}
            vocabulary = Vocabulary.from_ranks(ranks, added_tokens, normal_forms)
        else:
            vocabulary = Vocabulary(
                tokens, pairs, added_tokens,
                ignore_merges=ignore_merges, normal_forms=normal_forms,
            )
    except VocabularyError as error:
        raise TokenizerFileError(f"{path}: {error}") from error
    parts = TokenizerParts(
        vocabulary, pattern, options["tie_break"], add_prefix_space=add_prefix_space,
        outside=frozenset(texts - ids.keys()),
    )
    settings = {name: top.get(name) for name in STEPS}
    kept_of_model = hf_write.KEPT_OF_MODEL.items()
    settings["model"] = {name: model.get(name, default) for name, default in kept_of_model}
    kept = "" if settings == hf_write.default_settings(parts) else canonical(path, settings)
    return replace(parts, settings=kept)


def _parse_settings(
    top: dict[str, Any], path: Path
) -> tuple[dict[str, Any], str, bool, tuple[str, ...]]:
    """Return the model, split pattern, add_prefix_space and normal forms of a byte-level BPE."""
    if "model" not in top:
        refuse(path, f"it has no 'model' (its keys are {listed(top)})", "expected a tokenizer.json")
    model = object_at(path, top, "model")
    kind = model.get("type", "BPE" if "merges" in model else None)
    if kind != "BPE" or "merges" not in model:
        unsupported(path, f"model.type is {kind!r}", "expected 'BPE' with 'vocab' and 'merges'")
    for key in top:
        if key not in _TOP_LEVEL_KEYS:
            refuse(path, f"it has the unknown key {key!r}", f"expected {listed(_TOP_LEVEL_KEYS)}")
    expect(path, "version", top.get("version", "1.0"), "1.0")
    for setting in ("truncation", "padding"):
        expect(path, setting, top.get(setting), None)
    _steps(path, "post_processor", top.get("post_processor"))
    decoder = top.get("decoder")
    if len(_steps(path, "decoder", decoder)) != 1:
        expected = "expected one ByteLevel, for this must be a byte-level BPE"
        unsupported(path, f"decoder is {dumps(decoder)}", expected)
    normal_forms = tuple(step["type"] for step in _steps(path, "normalizer", top.get("normalizer")))
    canonical(path, top.get("pre_tokenizer"))
    return model, *_pattern_of(path, top.get("pre_tokenizer")), normal_forms


def _named_pattern(path: Path, named: Any, pattern: str) -> str:
    """Return `model.pattern` if given, after comparing it with the pre-tokenizer."""
    if named is None:
        return pattern
    try:
        same = to_huggingface(pattern) == to_huggingface(str(named))
    except PatternError as error:
        raise TokenizerFileError(f"{path}: model.pattern: {error}") from error
    if not same:
        refuse(path, f"model.pattern is {dumps(named)}", f"expected {pattern!r}, as pre_tokenizer")
    return str(named)


def _steps(path: Path, section: str, value: object, name: str = "") -> list[dict[str, Any]]:
    """Return the steps of a section of tokenizer.json, with sequences flattened.

    `section` is a key of `STEPS`; `name` is the path of `value` in the file.
    """
    if value is None and not name:
        return []
    name = name or section
    inner, kinds = STEPS[section]
    kind = value.get("type") if isinstance(value, dict) else value
    if isinstance(value, dict) and kind == "Sequence":
        inside = value.get(inner)
        if not isinstance(inside, list):
            refuse(path, f"{name}.{inner} is {dumps(inside)}", "expected a list")
        steps = (_steps(path, section, x, f"{name}.{inner}[{i}]") for i, x in enumerate(inside))
        return list(chain.from_iterable(steps))
    if not isinstance(value, dict) or kind not in kinds:
        unsupported(path, f"{name} is {dumps(kind)}", f"only {', '.join(kinds)} are implemented")
    return [value]


def _pattern_of(path: Path, pre_tokenizer: object) -> tuple[str, bool]:
    """Return the split pattern and add_prefix_space."""
    steps = _steps(path, "pre_tokenizer", pre_tokenizer)
    kinds = [step["type"] for step in steps]
    if kinds.count("ByteLevel") != 1 or kinds[-1] != "ByteLevel":
        expected = "only Split and Digits are implemented, with one ByteLevel as the last step"
        unsupported(path, f"pre_tokenizer has the steps {dumps(kinds)}", expected)
    byte_level = steps.pop()
    # Hugging Face's default for both is True; trim_offsets has no effect on ids.
    prefix, use_regex = (
        expect(path, f"pre_tokenizer ByteLevel.{name}", byte_level.get(name, True), False, True)
        for name in ("add_prefix_space", "use_regex")
    )
    if prefix and steps:
        found = "pre_tokenizer has steps before a ByteLevel with add_prefix_space"
        unsupported(path, found, "only a ByteLevel alone may have it")
    splits: list[str | dict[str, Any]] = [*steps]
    if use_regex:
        splits.append("gpt2")
    elif not steps:
        # Without a split, the text is one pre-token.
        splits.append({"type": "Split", "pattern": {"Regex": r"[\s\S]+"}, "behavior": "Isolated"})
    try:
        return from_huggingface(splits), bool(prefix)
    except PatternError as error:
        raise UnsupportedTokenizerError(f"{path}: pre_tokenizer: {error}") from error


def _added_tokens(path: Path, entries: object, ids: Mapping[str, int]) -> list[AddedToken]:
    if not isinstance(entries, list):
        refuse(path, f"added_tokens is a {type(entries).__name__}", "expected a list")
    added_tokens: dict[str, AddedToken] = {}
    next_id = len(ids)
    for index, added in enumerate(entries):
        name = f"added_tokens[{index}]"
        if not isinstance(added, dict) or not isinstance(added.get("content"), str):
            refuse(path, f"{name} is {dumps(added)}", "expected an object with 'id' and 'content'")
        text = added["content"]
        if not text:
            continue  # as in Hugging Face's engine
        flags = {
            flag: expect(path, f"{name}.{flag} (of {text!r})", added.get(flag, False), False, True)
            for flag in FLAGS
        }
        if text in added_tokens:
            refuse(path, f"{name} {text!r} appears twice", "expected each token once")
        # Hugging Face assigns ids to tokens that are not in the model, from its size on.
        expected_id = ids.get(text, next_id)
        if added.get("id") != expected_id or isinstance(added["id"], bool):
            found = f"{name} {text!r} has the id {added.get('id')!r}"
            refuse(path, found, f"expected {expected_id}, as Hugging Face would number it")
        next_id += text not in ids
        added_tokens[text] = AddedToken(text, expected_id, **flags)
    for late in (False, True):
        alike = [token for token in added_tokens.values() if token.normalized == late]
        stripping = next((token for token in alike if token.rstrip), None)
        beginning = next((token for token in alike if _begins_with_white_space(token)), None)
        # Hugging Face's engine encodes that white space twice, or panics.
        if stripping and beginning:
            unsupported(
                path,
                f"the added token {stripping.text!r} has rstrip and {beginning.text!r} begins with"
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


def _begins_with_white_space(token: AddedToken) -> bool:
    return token.text != "" and bool(class_table()[ord(token.text[0])] & WHITE_SPACE)


def _merges(path: Path, value: object) -> list[Any]:
    """Return the two texts of each merge; refuse what is no such pair."""
    if not isinstance(value, list):
        refuse(path, f"model.merges is a {type(value).__name__}", "expected a list")
    kinds = {*map(type, value)}
    pairs = [x.split(" ") if isinstance(x, str) else x for x in value] if str in kinds else value
    # `_parse_large` returns tuples, and has checked that each is two texts.
    if not kinds <= {tuple, str} or (str in kinds and not {*map(len, pairs)} <= {2}):
        _merges_as_bytes(path, pairs, value)
    return pairs


def _merges_as_bytes(path: Path, merges: list[Any], given: list[Any]) -> list[Pair]:
    """Return the bytes of merges, `given` as such in the file; refuse what is no such pair."""
    pairs: list[Pair] = []
    for index, pair in enumerate(merges):
        match pair:
            case [str(first), str(second)]:
                left, right = from_byte_level(first), from_byte_level(second)
                if left and right:
                    pairs.append((left, right))
                    continue
        found = f"model.merges[{index}] is {dumps(given[index])}"
        refuse(path, found, "expected two tokens of the byte-level alphabet")
    return pairs


def _as_ids(
    path: Path, merges: list[Any], given: list[Any], ids: Mapping[str, int],
    others: Mapping[str, int],
) -> NDArray[np.int32] | list[Pair]:
    """Return the ids of merges, int32[n, 2]; their bytes if one has no id.

    `given` are the merges as such in the file, `others` the texts that are not in the byte-level
    alphabet, with their ids.
    """
    with suppress(KeyError, OverflowError):
        flat = map(ids.__getitem__, chain.from_iterable(merges))
        pairs = np.fromiter(flat, np.int32, 2 * len(merges)).reshape(-1, 2)
        if not np.isin(pairs, [*others.values(), ids.get("", -1)]).any():
            return pairs
    return _merges_as_bytes(path, merges, given)


def _in_merges(
    texts: set[str], pairs: Any, tokens: FlatTokens, ids: Mapping[str, int]
) -> set[str]:
    """Return the texts that are a part or the result of a merge; `pairs` are from `_as_ids`."""
    if not texts or not isinstance(pairs, np.ndarray):  # others are refused
        return texts
    parts = {*pairs[np.isin(pairs, [ids[text] for text in texts])].tolist()}
    found = {text for text in texts if ids[text] in parts}
    # Only into lengths of tokens, so a long token of a hostile file is not copied for each length.
    lengths = {*np.diff(tokens.offsets).tolist()}
    places = [(text, n) for text in texts for n in lengths if len(text) - n in lengths]
    splits = ((text[:n], text[n:], text) for text, n in places)
    made = {(ids[a], ids[b]): text for a, b, text in splits if a in ids and b in ids}
    near = np.isin(pairs[:, 0], [left for left, _ in made])
    return found | {made[pair] for pair in map(tuple, pairs[near].tolist()) if pair in made}

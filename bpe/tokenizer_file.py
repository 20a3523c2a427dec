"""Tokenizers as files: Hugging Face's tokenizer.json, vocab.json with merges.txt, tiktoken's ranks.

The law here: what is read is either encoded exactly as its own engine would, or refused with a
sentence that names the file, the setting, what was expected and what to do.  No setting is ever
overlooked.  What is written loads in `tokenizers` 0.23 and `transformers` 5 with the same ids,
depends on nothing but the tokenizer (the same tokenizer gives the same bytes), and takes its place
in one step: a reader sees the old file or the new one.

Special tokens stand in `model.vocab` and in `added_tokens`, in the order of their ids, because
Hugging Face numbers them anew where their ids leave a gap.  Our own additions (`unicode_version`,
`pattern`, `tie_break`, `ranked_by`) stand inside `model`, the only place where its reader takes
unknown keys.  `eos_token` stands in a second file, NAME_config.json beside NAME.json, which is
where `transformers` looks for it (`tokenizer_config.json` beside `tokenizer.json`).
"""

from __future__ import annotations

import base64
import binascii
import json
import operator
import os
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, starmap
from pathlib import Path
from typing import Any, NoReturn

from bpe.errors import (
    PatternError,
    TokenizerFileError,
    UnsupportedTokenizerError,
    VocabularyError,
)
from bpe.files import write_atomically
from bpe.normalize import NORMAL_FORMS, normalized
from bpe.patterns import from_huggingface, to_huggingface
from bpe.reference import TIE_BREAKS, Pair
from bpe.unicode_classes import UNICODE_VERSION, WHITE_SPACE, class_table
from bpe.vocabulary import (
    AddedToken,
    Vocabulary,
    all_from_byte_level,
    from_byte_level,
    to_byte_level,
)


@dataclass(frozen=True)
class TokenizerParts:
    """What a tokenizer file says.

    Attributes:
        vocabulary: Tokens, merges and special tokens.
        pattern: The name of the split pattern.
        tie_break: How training decided ties, None if not known.
        eos_token: The special token that ends a document, None if not known.
        normal_forms: The Unicode normal forms that text is brought into first, one after the other.
        add_prefix_space: A space is put in front of text that begins with none.
        outside: Added tokens that do not stand in `model.vocab`.
        settings: What else a tokenizer.json says, as JSON, to be written back as it was; "" for
            what we write ourselves.
        config: The same of a tokenizer_config.json.
    """

    vocabulary: Vocabulary
    pattern: str
    tie_break: str | None = None
    eos_token: str | None = None
    normal_forms: tuple[str, ...] = ()
    add_prefix_space: bool = False
    outside: frozenset[str] = frozenset()
    settings: str = ""
    config: str = ""


# --- tokenizer.json ------------------------------------------------------------------------------

# Lists and objects inside one another; those in use have ten.
_DEEPEST = 100


def config_path(path: Path) -> Path:
    """Return where the configuration of a tokenizer file is: NAME_config.json beside NAME.json."""
    return path.with_name(f"{path.stem}_config.json")


def tokenizer_json(parts: TokenizerParts) -> str:
    """Return the text of tokenizer.json: one line for each token and each merge.

    Raises:
        VocabularyError: The vocabulary has tiktoken's ranks, and no list of merges says the same.
    """
    vocabulary = parts.vocabulary
    vocabulary.check_merges_say_all()
    tokens = vocabulary.tokens
    spelled = {token: to_byte_level(token) for token in tokens.values()}
    inside = {
        token.id: token.text for token in vocabulary.added_tokens if token.text not in parts.outside
    }
    for token_id, text in inside.items():
        token = from_byte_level(text)
        if token is not None and vocabulary.token_id(token) not in (None, token_id):
            raise VocabularyError(
                f"the special token {text!r} is spelled like the ordinary token"
                f" {token!r} in tokenizer.json, where both would be one:"
                " choose a text that no token has, such as '<|name|>', or save ranks (.tiktoken)"
            )
    # Read by `parse_tokenizer_json`.
    ordinary = {tokens[token_id] for token_id in inside.keys() & tokens.keys()}
    both = not vocabulary.ranked_by_bytes and any(
        len(token) > 1 for token in ordinary - _in_merges(ordinary, vocabulary.merges)
    )
    texts = {token_id: spelled[token] for token_id, token in tokens.items()} | inside
    order = sorted(texts)
    settings = json.loads(parts.settings) if parts.settings else _default_settings(parts)
    top: dict[str, object] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": Lines([_added_token(token) for token in vocabulary.added_tokens]),
        **{name: settings[name] for name in _STEPS},
        "model": {
            "type": "BPE",
            **settings["model"],
            "ignore_merges": vocabulary.whole_first,
            "unicode_version": UNICODE_VERSION,
            "pattern": parts.pattern,
            "tie_break": parts.tie_break,
            "ranked_by": None if both else "bytes" if vocabulary.ranked_by_bytes else "merges",
            "vocab": Lines(dict(zip(map(texts.__getitem__, order), order, strict=True))),
            "merges": Lines(
                [f"{spelled[left]} {spelled[right]}" for left, right in vocabulary.merges],
                pairs=True,
            ),
        },
    }
    return layout(top) + "\n"


def _in_merges(tokens: set[bytes], merges: Collection[Pair]) -> set[bytes]:
    """Those of some tokens that a merge joins or makes."""
    if not tokens:
        return set()
    parts = chain.from_iterable(merges)
    return tokens.intersection(chain(parts, starmap(operator.add, merges)))


# Sections that have steps -> the key of those of a sequence, the kinds that are implemented.  What
# a post_processor adds around a text is not added here, and offsets do not matter.
_STEPS: dict[str, tuple[str, tuple[str, ...]]] = {
    "normalizer": ("normalizers", NORMAL_FORMS),
    "pre_tokenizer": ("pretokenizers", ("Split", "Digits", "ByteLevel")),
    "post_processor": (
        "processors",
        ("ByteLevel", "TemplateProcessing", "RobertaProcessing", "BertProcessing"),
    ),
    "decoder": ("decoders", ("ByteLevel",)),
}
_TOP_LEVEL_KEYS = ("version", "truncation", "padding", "added_tokens", *_STEPS, "model")
# Settings of `model` -> what is implemented, the default first.  unk_token and fuse_unk say nothing
# where every byte has a token.
_ACCEPTED_OF_MODEL: dict[str, tuple[Any, ...]] = {
    "dropout": (None, 0),
    "continuing_subword_prefix": (None, ""),
    "end_of_word_suffix": (None, ""),
    "byte_fallback": (False,),
    "ignore_merges": (False, True),
    "unicode_version": (None, UNICODE_VERSION),
    "tie_break": (None, *TIE_BREAKS),
    "ranked_by": (None, "merges", "bytes"),
}
_KEPT_OF_MODEL = {
    "dropout": None,
    "unk_token": None,
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "fuse_unk": False,
    "byte_fallback": False,
}
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def _added_token(token: AddedToken) -> dict[str, object]:
    flags = {name: getattr(token, name) for name in _FLAGS}
    return {"id": token.id, "content": token.text, **flags}


def _default_settings(parts: TokenizerParts) -> dict[str, Any]:
    """Return what tokenizer.json says beside vocabulary and merges, if a file says no other.

    Raises:
        PatternError: The pattern cannot be said there.
    """
    steps = to_huggingface(parts.pattern)
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": parts.add_prefix_space,
        "trim_offsets": False,
        "use_regex": steps is None,
    }
    return {
        "normalizer": _sequence("normalizer", [{"type": form} for form in parts.normal_forms]),
        "pre_tokenizer": _sequence("pre_tokenizer", [*(steps or ()), byte_level]),
        "post_processor": None,
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": False,
            "use_regex": True,
        },
        "model": _KEPT_OF_MODEL,
    }


def _sequence(section: str, steps: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the section of tokenizer.json of which `_steps` returns these."""
    if len(steps) > 1:
        return {"type": "Sequence", _STEPS[section][0]: steps}
    return steps[0] if steps else None


def _default_config(parts: TokenizerParts) -> dict[str, object]:
    """Return what tokenizer_config.json says, where `transformers` looks for special tokens."""
    eos_token = parts.eos_token
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": eos_token,
        "extra_special_tokens": [
            text for text in parts.vocabulary.special_tokens if text != eos_token
        ],
        "add_prefix_space": parts.add_prefix_space,
        "clean_up_tokenization_spaces": False,
    }


class Lines:
    """A list or an object that is written with one entry to the line.

    Args:
        entries: A list, an object of numbers, or a list of pairs of texts without a space, each
            spelled as one text with a space between.
        pairs: It is a list of pairs.
    """

    def __init__(self, entries: list[Any] | dict[str, int], *, pairs: bool = False) -> None:
        self.entries = entries
        self.pairs = pairs

    def spelled(self, between: str) -> str:
        """The entries as JSON, and what stands between them."""
        # All in one call: one for each of 100,000 entries takes ten times as long.
        if isinstance(self.entries, dict):
            return json.dumps(self.entries, ensure_ascii=False, separators=(between, ": "))[1:-1]
        if self.pairs:
            # In JSON no text has an end of line.
            whole = json.dumps(self.entries, ensure_ascii=False, separators=("\n", ": "))[1:-1]
            return f"[{whole}]".replace(" ", '", "').replace("\n", f"]{between}[")
        return between.join(map(_dumps, self.entries))


def layout(value: object, indent: str = "") -> str:
    """Return JSON with one entry to the line where `Lines` says so."""
    inner = indent + "  "
    if isinstance(value, Lines) and value.entries:
        opening, closing = "{}" if isinstance(value.entries, dict) else "[]"
        body = value.spelled(f",\n{inner}")
        return f"{opening}\n{inner}{body}\n{indent}{closing}"
    if isinstance(value, Lines):
        return _dumps(value.entries)
    if isinstance(value, dict):
        entries = [f"{_dumps(key)}: {layout(entry, inner)}" for key, entry in value.items()]
        return f"{{\n{inner}" + f",\n{inner}".join(entries) + f"\n{indent}}}"
    return _dumps(value)


# Made once: json.dumps with a setting makes a new encoder for each of 100,000 lines.
_dumps = json.JSONEncoder(ensure_ascii=False).encode


def save(path: str | os.PathLike[str], parts: TokenizerParts) -> str:
    """Write tokenizer.json and, beside it, its configuration; each takes its place in one step.

    Returns:
        The text of tokenizer.json.

    Raises:
        VocabularyError: The vocabulary cannot be written in this format.
        OSError: A file cannot be written; what was there before still is.
    """
    path = Path(path)
    text = tokenizer_json(parts)
    # The tokenizer comes last: whoever waits for it finds its configuration.
    # A configuration that was read is written as it was: one that names no eos_token leaves it open
    # to `transformers`, too.
    config = json.loads(parts.config) if parts.config else _default_config(parts)
    write_atomically(config_path(path), f"{layout(config)}\n".encode())
    write_atomically(path, text.encode())
    return text


@dataclass(frozen=True)
class TokenizerFiles:
    """The texts of a tokenizer.json, and of the configuration beside it if there is one."""

    path: Path
    text: str
    config: str | None

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> TokenizerFiles:
        """Read both.

        Raises:
            TokenizerFileError: One cannot be read, is empty, or is not UTF-8.
        """
        path = Path(path)
        text, beside = read_text(path), config_path(path)
        return cls(path, text, read_text(beside) if beside.exists() else None)

    def parts(self) -> TokenizerParts:
        """What they say.

        Raises:
            TokenizerFileError: One is damaged, is not of a byte-level BPE, has a setting that is
                not implemented, or contradicts the other.
        """
        parts = parse_tokenizer_json(self.text, self.path)
        if self.config is None:
            return parts
        beside = config_path(self.path)
        return with_config(parts, parse_json(self.config, beside), self.path, beside)


def with_config(
    parts: TokenizerParts, config: dict[str, Any], path: Path, beside: Path
) -> TokenizerParts:
    """Return the parts with what a tokenizer_config.json says.

    Args:
        parts: What tokenizer.json says.
        config: What the configuration says.
        path: What errors call the one file.
        beside: What they call the other.

    Raises:
        TokenizerFileError: They contradict one another.
    """
    eos_token = config.get("eos_token")
    if isinstance(eos_token, dict):
        eos_token = eos_token.get("content")
    if eos_token is not None and not isinstance(eos_token, str):
        _refuse(beside, f"eos_token is {_dumps(config['eos_token'])}", "expected text or null")
    if eos_token is not None and eos_token not in parts.vocabulary.special_tokens:
        raise TokenizerFileError(
            f"{beside}: eos_token is {eos_token!r}, which {path} lacks: "
            f"expected one of its special tokens {_listed(parts.vocabulary.special_tokens)}; "
            "correct eos_token, or remove this file if it belongs to another tokenizer"
        )
    # transformers would change the tokenizer by these.
    _expect(
        beside, "add_prefix_space", config.get("add_prefix_space"), None, parts.add_prefix_space
    )
    added = {str(token.id): token for token in parts.vocabulary.added_tokens}
    decoder = config.get("added_tokens_decoder") or {}
    if not isinstance(decoder, dict):
        _refuse(beside, "added_tokens_decoder is no object", "expected an object")
    for number, said in decoder.items():
        token = added.get(number)
        expected = None if token is None else _added_token(token)
        names = ("content", *_FLAGS)
        if (
            not isinstance(said, dict)
            or expected is None
            or any(said.get(name, False) != expected[name] for name in names)
        ):
            raise UnsupportedTokenizerError(
                f"{beside}: added_tokens_decoder has {_dumps(said)} for the id {number}, and {path}"
                f" has {_dumps(expected) if expected else 'no added token'}: expected the"
                " same in both; save the tokenizer anew with transformers, or remove the entry"
            )
    parts = replace(parts, eos_token=eos_token)
    if config == _default_config(parts):
        return parts
    return replace(parts, config=_canonical(beside, config))


def _canonical(path: Path, value: object) -> str:
    text = _dumps(value)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TokenizerFileError(
            f"{path}: it has a lone surrogate, {text[error.start]!r}: expected valid Unicode"
        ) from error
    return text


def parse_tokenizer_json(text: str, path: str | os.PathLike[str]) -> TokenizerParts:
    """Return what the text of a tokenizer.json says; `path` is what errors call it.

    Raises:
        TokenizerFileError: As in `TokenizerFiles.parts`.
    """
    path = Path(path)
    top = parse_json(text, path)
    if "model" not in top:
        _refuse(
            path, f"it has no 'model' (its keys are {_listed(top)})", "expected a tokenizer.json"
        )
    model = _object(path, top, "model")
    kind = model.get("type", "BPE")
    if kind != "BPE" or "merges" not in model:
        _unsupported(path, f"model.type is {kind!r}", "expected 'BPE' with 'vocab' and 'merges'")
    for key in top:
        if key not in _TOP_LEVEL_KEYS:
            _refuse(path, f"it has the unknown key {key!r}", f"expected {_listed(_TOP_LEVEL_KEYS)}")
    _expect(path, "version", top.get("version"), "1.0")
    for setting in ("truncation", "padding"):
        _expect(path, setting, top.get(setting), None)
    _steps(path, "post_processor", top.get("post_processor"))
    if len(_steps(path, "decoder", top.get("decoder"))) != 1:
        _unsupported(
            path,
            f"decoder is {_dumps(top.get('decoder'))}",
            "expected one ByteLevel, for this must be a byte-level BPE",
        )
    normal_forms = tuple(step["type"] for step in _steps(path, "normalizer", top.get("normalizer")))
    _canonical(path, top.get("pre_tokenizer"))
    pattern, add_prefix_space = _pattern_of(path, top.get("pre_tokenizer"))

    found = {
        name: _expect(path, f"model.{name}", model.get(name, accepted[0]), *accepted)
        for name, accepted in _ACCEPTED_OF_MODEL.items()
    }
    whole_first, ranked_by = bool(found["ignore_merges"]), found["ranked_by"]
    said = model.get("pattern")
    if said is not None and to_huggingface(pattern) != _steps_of(path, said):
        _refuse(path, f"model.pattern is {_dumps(said)}", f"expected {pattern!r}, as pre_tokenizer")
    pattern = pattern if said is None else said

    ids = _ids_of_vocab(path, _object(path, model, "vocab"), "model.vocab")
    added_tokens = _added_tokens(path, top.get("added_tokens") or [], ids)
    _check_normalized(path, added_tokens, normal_forms)
    byte_level = all_from_byte_level(ids)
    merges = _merges(path, model["merges"], byte_level)
    # Added tokens that are ordinary ones as well: merges reach them, or a whole pre-token does.
    spelled = {text: from_byte_level(text) for text in (token.text for token in added_tokens)}
    possible = {token for token in spelled.values() if token is not None}
    both = {token for token in possible if len(token) == 1} | _in_merges(possible, merges)
    if whole_first and ranked_by is None:
        both.update(token for text in ids.keys() & spelled if (token := spelled[text]) is not None)
    for text in sorted(ids.keys() - byte_level.keys() - spelled.keys()):
        _unsupported(
            path,
            f"in model.vocab, {text!r} is not spelled in GPT-2's byte-level alphabet",
            "expected a byte-level BPE, or this token among the added_tokens",
        )
    for text, token in spelled.items():
        if token not in both:
            byte_level.pop(text, None)
    tokens = _tokens(path, ids, byte_level, "model.vocab")
    try:
        vocabulary = Vocabulary(tokens, merges, added_tokens, whole_first=whole_first)
        if ranked_by == "bytes":
            ranks = {token: token_id for token_id, token in tokens.items()}
            vocabulary = Vocabulary.from_ranks(ranks, added_tokens)
    except VocabularyError as error:
        raise TokenizerFileError(f"{path}: {error}") from error
    parts = TokenizerParts(
        vocabulary,
        pattern,
        found["tie_break"],
        normal_forms=normal_forms,
        add_prefix_space=add_prefix_space,
        outside=frozenset(token.text for token in added_tokens if token.text not in ids),
    )
    settings = {name: top.get(name) for name in _STEPS}
    settings["model"] = {name: model.get(name, default) for name, default in _KEPT_OF_MODEL.items()}
    if settings == _default_settings(parts):
        return parts
    return replace(parts, settings=_canonical(path, settings))


def _steps(path: Path, section: str, value: object, name: str = "") -> list[dict[str, Any]]:
    """Return the steps of a section of tokenizer.json, those of sequences inside it in place.

    Args:
        path: What errors call the file.
        section: One of `_STEPS`.
        value: What the file says there; null has no steps.
        name: Where it is, if it is inside a sequence.
    """
    if value is None and not name:
        return []
    name = name or section
    inner, kinds = _STEPS[section]
    kind = value.get("type") if isinstance(value, dict) else value
    if isinstance(value, dict) and kind == "Sequence":
        listed = value.get(inner)
        if not isinstance(listed, list):
            _refuse(path, f"{name}.{inner} is {_dumps(listed)}", "expected a list")
        steps = (_steps(path, section, x, f"{name}.{inner}[{i}]") for i, x in enumerate(listed))
        return list(chain.from_iterable(steps))
    if not isinstance(value, dict) or kind not in kinds:
        _unsupported(path, f"{name} is {_dumps(kind)}", f"only {', '.join(kinds)} are implemented")
    return [value]


def _steps_of(path: Path, pattern: object) -> list[dict[str, Any]] | None:
    try:
        return to_huggingface(str(pattern))
    except PatternError as error:
        raise TokenizerFileError(f"{path}: model.pattern: {error}") from error


def _pattern_of(path: Path, pre_tokenizer: object) -> tuple[str, bool]:
    """The split pattern, and whether a space is put in front."""
    steps = _steps(path, "pre_tokenizer", pre_tokenizer)
    kinds = [step["type"] for step in steps]
    if kinds.count("ByteLevel") != 1 or kinds[-1] != "ByteLevel":
        _unsupported(
            path,
            f"pre_tokenizer has the steps {_dumps(kinds)}",
            "only Split and Digits are implemented, with one ByteLevel as the last step",
        )
    byte_level = steps.pop()
    # Hugging Face's default for both is True; trim_offsets says nothing about ids.
    name = "pre_tokenizer ByteLevel"
    prefix = _expect(
        path, f"{name}.add_prefix_space", byte_level.get("add_prefix_space", True), False, True
    )
    use_regex = _expect(path, f"{name}.use_regex", byte_level.get("use_regex", True), False, True)
    if prefix and steps:
        _unsupported(
            path,
            "pre_tokenizer has steps before a ByteLevel with add_prefix_space",
            "only a ByteLevel alone may have it",
        )
    listed: list[str | dict[str, Any]] = [*steps]
    if use_regex:
        listed.append("gpt2")
    elif not steps:
        # Nothing splits: all of the text is one pre-token.
        listed.append({"type": "Split", "pattern": {"Regex": r"[\s\S]+"}, "behavior": "Isolated"})
    try:
        return from_huggingface(listed), bool(prefix)
    except PatternError as error:
        raise UnsupportedTokenizerError(f"{path}: pre_tokenizer: {error}") from error


def _added_tokens(path: Path, listed: object, ids: Mapping[str, int]) -> list[AddedToken]:
    if not isinstance(listed, list):
        _refuse(path, f"added_tokens is a {type(listed).__name__}", "expected a list")
    added_tokens: dict[str, AddedToken] = {}
    next_id = len(ids)
    for index, added in enumerate(listed):
        name = f"added_tokens[{index}]"
        if not isinstance(added, dict) or not isinstance(added.get("content"), str):
            _refuse(
                path, f"{name} is {_dumps(added)}", "expected an object with 'id' and 'content'"
            )
        content = added["content"]
        flags = {
            flag: _expect(
                path, f"{name}.{flag} (of {content!r})", added.get(flag, False), False, True
            )
            for flag in _FLAGS
        }
        # What Hugging Face numbers a token that the model does not know.
        expected_id = ids.get(content, next_id)
        if added.get("id") != expected_id or isinstance(added["id"], bool):
            _refuse(
                path,
                f"{name} {content!r} has the id {added.get('id')!r}",
                f"expected {expected_id}, as Hugging Face would number it",
            )
        # Only tokens that the model does not know count, wherever the ids of the others are.
        next_id += content not in ids
        if content in added_tokens:
            _refuse(path, f"{name} {content!r} stands there twice", "expected each token once")
        added_tokens[content] = AddedToken(content, expected_id, **flags)
    for late in (False, True):
        alike = [token for token in added_tokens.values() if token.normalized == late]
        stripping = next((token for token in alike if token.rstrip), None)
        beginning = next((token for token in alike if _begins_with_white_space(token)), None)
        # There it encodes the white space twice, or ends in a panic.
        if stripping and beginning:
            _unsupported(
                path,
                f"the added token {stripping.text!r} has rstrip and {beginning.text!r} begins with"
                " white space",
                "what follows the one may be taken for the other, which Hugging Face's engine"
                " does not tell apart either; remove rstrip",
            )
    return list(added_tokens.values())


def _check_normalized(
    path: Path, added_tokens: Iterable[AddedToken], normal_forms: tuple[str, ...]
) -> None:
    seen: dict[bytes, str] = {}
    for token in added_tokens:
        if token.normalized:
            other = seen.setdefault(normalized(token.text.encode(), normal_forms), token.text)
            if other != token.text:
                _refuse(
                    path,
                    f"the added tokens {other!a} and {token.text!a} are one text when"
                    " they are normalized",
                    "expected texts that differ, for Hugging Face's engine takes one or the other"
                    " by chance; set 'normalized' to false for one of them",
                )


def _begins_with_white_space(token: AddedToken) -> bool:
    return token.text != "" and bool(class_table()[ord(token.text[0])] & WHITE_SPACE)


# --- vocab.json and merges.txt -------------------------------------------------------------------


def load_gpt2_files(
    vocab_path: str | os.PathLike[str], merges_path: str | os.PathLike[str]
) -> tuple[dict[int, bytes], list[Pair], dict[str, int]]:
    """Read vocab.json and merges.txt as GPT-2 published them.

    Returns:
        Id -> bytes of every entry that is spelled in the byte-level alphabet, the merges, and
        text -> id of the other entries.

    Raises:
        TokenizerFileError: A file cannot be read, is damaged, or is not what its name says.
    """
    vocab_path, merges_path = Path(vocab_path), Path(merges_path)
    ids = _ids_of_vocab(vocab_path, parse_json(read_text(vocab_path), vocab_path), "it")
    spelled = all_from_byte_level(ids)
    tokens = _tokens(vocab_path, ids, spelled, "it")
    others = {key: token_id for key, token_id in ids.items() if key not in spelled}
    # Not splitlines(), nor strip(): only the newline ends a line, and a space is what parts a
    # merge.
    lines = [line.removesuffix("\r") for line in read_text(merges_path).split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    if lines and lines[0].startswith("#version"):
        # A header, unless it is a merge of two tokens that there are.
        parts = lines[0].split(" ")
        if len(parts) != 2 or not all(part in ids for part in parts):
            lines[0] = ""
    merges: list[Pair] = []
    for number, line in enumerate(lines, start=1):
        if number == 1 and not line:
            continue
        pair = [from_byte_level(part) for part in line.split(" ")]
        if len(pair) != 2 or not pair[0] or not pair[1]:
            _refuse(
                merges_path,
                f"line {number} is {line!r}",
                "expected two tokens of the byte-level alphabet with one space between them",
            )
        merges.append((pair[0], pair[1]))
    return tokens, merges, others


# --- tiktoken ------------------------------------------------------------------------------------


def load_tiktoken_ranks(path: str | os.PathLike[str]) -> dict[bytes, int]:
    """Read a .tiktoken file: one token to the line, its bytes in base64, a space, its rank.

    Raises:
        TokenizerFileError: The file cannot be read, or a line is something else.
    """
    path = Path(path)
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        encoded, _, rank = line.strip().partition(" ")
        try:
            token = base64.b64decode(encoded, validate=True)
            ranks_as = int(rank)
        except (binascii.Error, ValueError):
            _refuse(
                path, f"line {number} is {line[:80]!r}", "expected base64, a space and a number"
            )
        if token in ranks:
            _refuse(path, f"line {number} repeats the token {token!r}", "expected each token once")
        ranks[token] = ranks_as
    if not ranks:
        _refuse(path, "it is empty", "expected lines of base64, a space and a number")
    return ranks


def tiktoken_ranks(ranks: Mapping[bytes, int]) -> str:
    """Return the text of a .tiktoken file."""
    lines = sorted((rank, base64.b64encode(token).decode()) for token, rank in ranks.items())
    return "".join(f"{token} {rank}\n" for rank, token in lines)


def gpt2_files(vocabulary: Vocabulary) -> tuple[str, str]:
    """Return the text of vocab.json and of merges.txt.

    Raises:
        VocabularyError: The vocabulary has something that these files cannot say.
    """
    vocabulary.check_merges_say_all()
    if vocabulary.whole_first and len(vocabulary.merges) + 256 < len(vocabulary.tokens):
        raise VocabularyError(
            "vocab.json and merges.txt cannot say that a whole pre-token comes first: expected"
            " every token to be made by a merge; use tokenizer.json"
        )
    ids: dict[str, int] = {}
    entries = [(to_byte_level(token), token_id) for token_id, token in vocabulary.tokens.items()]
    for token in vocabulary.added_tokens:
        plain = AddedToken(token.text, token.id)
        if token != plain or (token.text, token.id) in entries:
            raise VocabularyError(
                f"vocab.json cannot say what the added token {token.text!r} is: expected special"
                " tokens without further settings; use tokenizer.json"
            )
        entries.append((token.text, token.id))
    for text, token_id in sorted(entries, key=lambda entry: entry[1]):
        if text in ids:
            raise VocabularyError(
                f"{text!r} would stand in vocab.json twice, with the ids {ids[text]} and"
                f" {token_id}: use another format"
            )
        ids[text] = token_id
    merges = [f"{to_byte_level(a)} {to_byte_level(b)}\n" for a, b in vocabulary.merges]
    return _dumps(ids) + "\n", "#version: 0.2\n" + "".join(merges)


# --- what all of them need -----------------------------------------------------------------------


def _refuse(path: Path, found: str, expected: str) -> NoReturn:
    raise TokenizerFileError(f"{path}: {found}: {expected}")


def _unsupported(path: Path, found: str, expected: str) -> NoReturn:
    raise UnsupportedTokenizerError(f"{path}: {found}: {expected}")


def _expect(path: Path, name: str, found: Any, *accepted: Any) -> Any:
    # False == 0 and True == 1, but no file says `false` where it means a number, or the reverse.
    if not any(
        found == value and isinstance(found, bool) == isinstance(value, bool) for value in accepted
    ):
        shown = " or ".join(dict.fromkeys(_dumps(value) for value in accepted))
        _unsupported(path, f"the setting {name} is {_dumps(found)}", f"only {shown} is implemented")
    return found


def _listed(names: Any) -> str:
    return ", ".join(map(repr, names)) or "(none)"


def _object(path: Path, parent: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = parent.get(name)
    if not isinstance(value, dict):
        _refuse(
            path,
            f"{name!r} is {'missing' if value is None else 'not an object'}",
            "expected an object",
        )
    return value


def read_text(path: Path) -> str:
    """Return the text of a file; an error names it."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TokenizerFileError(
            f"{path}: cannot be read: {error.strerror or error}: expected a tokenizer file"
        ) from error
    if not data.strip():
        _refuse(path, "it is empty", "expected a tokenizer file; was writing it interrupted?")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TokenizerFileError(
            f"{path}: byte {error.start} is not UTF-8 ({error.reason}): "
            "expected a text file; it is damaged, or not a tokenizer"
        ) from error


def parse_json(text: str, path: Path) -> dict[str, Any]:
    """Return the object that a JSON text holds; an error names the file and the place."""

    def refuse_constant(constant: str) -> NoReturn:
        _refuse(path, f"it has the number {constant}", "expected JSON, which has none such")

    try:
        value = json.loads(text, parse_constant=refuse_constant)
    except RecursionError:
        _refuse_depth(path)
    except json.JSONDecodeError as error:
        # What is cut off fails at its end, in a string that begins before it, or in a word.
        rest = text[error.pos :].rstrip()
        if text.lstrip().startswith("{") and (
            error.msg.startswith("Unterminated")
            or any(word.startswith(rest) for word in ("null", "true", "false", "-"))
        ):
            raise TokenizerFileError(
                f"{path}: the file ends in the middle, after {len(text)} characters: "
                "it is truncated; copy or train it again"
            ) from error
        raise TokenizerFileError(
            f"{path}: not JSON: {error.msg} in line {error.lineno}, column {error.colno}: "
            "expected a tokenizer file of Hugging Face's format"
        ) from error
    except ValueError as error:  # a number of thousands of digits
        raise TokenizerFileError(f"{path}: not JSON: {error}: expected a tokenizer file") from error
    if not isinstance(value, dict):
        _refuse(path, f"it is a JSON {type(value).__name__}", "expected an object")
    # How deep `json` itself goes differs from one Python to the next.
    containers = {dict, list}
    inside: list[Any] = [value]
    for _ in range(_DEEPEST):
        entries = chain.from_iterable(
            outer.values() if type(outer) is dict else outer for outer in inside
        )
        inside = [entry for entry in entries if type(entry) in containers]
    if inside:
        _refuse_depth(path)
    return value


def _refuse_depth(path: Path) -> NoReturn:
    _refuse(
        path,
        f"its lists and objects stand too deep inside one another, more than {_DEEPEST}",
        "expected a tokenizer file of Hugging Face's format",
    )


def _ids_of_vocab(path: Path, vocab: Mapping[str, Any], name: str) -> dict[str, int]:
    if not set(map(type, vocab.values())) <= {int}:
        key, found = next((key, found) for key, found in vocab.items() if type(found) is not int)
        _refuse(path, f"in {name}, {key!r} has the id {_dumps(found)}", "expected a number")
    return dict(vocab)


def _tokens(
    path: Path, ids: Mapping[str, int], spelled: Mapping[str, bytes], name: str
) -> dict[int, bytes]:
    """Return id -> bytes of spelled tokens."""
    tokens = {ids[key]: token for key, token in spelled.items()}
    if len(tokens) < len(spelled):
        first: dict[int, str] = {}
        key = next(key for key in spelled if first.setdefault(ids[key], key) != key)
        _refuse(
            path,
            f"in {name}, {key!r} has the id {ids[key]}, which {first[ids[key]]!r} has already",
            "expected one id for each token",
        )
    return tokens


def _merges(path: Path, value: object, spelled: Mapping[str, bytes]) -> list[Pair]:
    if not isinstance(value, list):
        _refuse(path, f"model.merges is a {type(value).__name__}", "expected a list")
    # Before tokenizers 0.20 a merge was one text with a space in it.
    types = set(map(type, value))
    pairs = [x.split(" ") if isinstance(x, str) else x for x in value] if str in types else value
    # One loop without a question in it, where all is as it should be.
    if types <= {list, str} and "" not in spelled:
        with suppress(KeyError, TypeError, ValueError):
            return [(spelled[left], spelled[right]) for left, right in pairs]
    merges: list[Pair] = []
    for index, pair in enumerate(pairs):
        left = right = None
        match pair:
            case [str(first), str(second)]:
                left, right = from_byte_level(first), from_byte_level(second)
        if not left or not right:
            _refuse(
                path,
                f"model.merges[{index}] is {_dumps(value[index])}",
                "expected two tokens of the byte-level alphabet",
            )
        merges.append((left, right))
    return merges

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
import functools
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from bpe.errors import PatternError, TokenizerFileError, VocabularyError
from bpe.patterns import pattern_name
from bpe.reference import TIE_BREAKS, Pair
from bpe.unicode_classes import UNICODE_VERSION
from bpe.vocabulary import Vocabulary, from_byte_level, to_byte_level


@dataclass(frozen=True)
class TokenizerParts:
    """What a tokenizer file says.

    Attributes:
        vocabulary: Tokens, merges and special tokens.
        pattern: The name of the split pattern.
        tie_break: How training decided ties, None if not known.
        eos_token: The special token that ends a document, None if not known.
    """

    vocabulary: Vocabulary
    pattern: str
    tie_break: str | None = None
    eos_token: str | None = None


# --- tokenizer.json ------------------------------------------------------------------------------

_TOP_LEVEL_KEYS = (
    "version",
    "truncation",
    "padding",
    "added_tokens",
    "normalizer",
    "pre_tokenizer",
    "post_processor",
    "decoder",
    "model",
)


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
    spelled = {token: to_byte_level(token) for token in vocabulary.tokens.values()}
    keys = {token_id: spelled[token] for token_id, token in vocabulary.tokens.items()}
    keys |= {token_id: text for text, token_id in vocabulary.special_tokens.items()}
    added_tokens = [
        {
            "id": token_id,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for text, token_id in vocabulary.special_tokens.items()
    ]
    model: dict[str, object] = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": vocabulary.whole_first,
        "unicode_version": UNICODE_VERSION,
        "pattern": parts.pattern,
        "tie_break": parts.tie_break,
        "ranked_by": "bytes" if vocabulary.ranked_by_bytes else "merges",
    }
    top: dict[str, object] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _Lines(added_tokens),
        "normalizer": None,
        # With use_regex this is the pattern gpt2, the only one there is so far.
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": False,
            "use_regex": True,
        },
        "post_processor": None,
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": False,
            "use_regex": True,
        },
        "model": {
            **model,
            "vocab": _Lines({keys[token_id]: token_id for token_id in sorted(keys)}),
            "merges": _Lines(
                [[spelled[left], spelled[right]] for left, right in vocabulary.merges]
            ),
        },
    }
    return _layout(top) + "\n"


def tokenizer_config_json(parts: TokenizerParts) -> str:
    """Return the text of tokenizer_config.json, where `transformers` looks for special tokens."""
    eos_token = parts.eos_token
    config: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": eos_token,
        "extra_special_tokens": [
            text for text in parts.vocabulary.special_tokens if text != eos_token
        ],
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
    }
    return _layout(config) + "\n"


class _Lines:
    """A list or an object that is written with one entry to the line."""

    def __init__(self, entries: list[Any] | dict[str, int]) -> None:
        self.entries = entries


def _layout(value: object, indent: str = "") -> str:
    inner = indent + "  "
    if isinstance(value, _Lines) and value.entries:
        if isinstance(value.entries, dict):
            lines = [f"{_dumps(key)}: {number}" for key, number in value.entries.items()]
            opening, closing = "{", "}"
        else:
            lines = [_dumps(entry) for entry in value.entries]
            opening, closing = "[", "]"
        return f"{opening}\n{inner}" + f",\n{inner}".join(lines) + f"\n{indent}{closing}"
    if isinstance(value, _Lines):
        return _dumps(value.entries)
    if isinstance(value, dict):
        entries = [f"{_dumps(key)}: {_layout(entry, inner)}" for key, entry in value.items()]
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
    write_atomically(config_path(path), tokenizer_config_json(parts))
    write_atomically(path, text)
    return text


def write_atomically(path: Path, text: str) -> None:
    """Write UTF-8 text under a temporary name, have it on disk, then give it its name.

    Raises:
        OSError: The file cannot be written; nothing is left, and what had the name before still has
            it.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def load(path: str | os.PathLike[str]) -> TokenizerParts:
    """Read tokenizer.json, ours or Hugging Face's, and the configuration beside it if there is one.

    Raises:
        TokenizerFileError: The file cannot be read, is damaged, is not a byte-level BPE, or has a
            setting that is not implemented.
    """
    path = Path(path)
    parts = parse_tokenizer_json(_read_text(path), path)
    beside = config_path(path)
    if not beside.exists():
        return parts
    eos_token = _eos_token_of_config(_parse_json(_read_text(beside), beside), beside)
    if eos_token is not None and eos_token not in parts.vocabulary.special_tokens:
        raise TokenizerFileError(
            f"{beside}: eos_token is {eos_token!r}, which {path} lacks: "
            f"expected one of its special tokens {_listed(parts.vocabulary.special_tokens)}; "
            "correct eos_token, or remove this file if it belongs to another tokenizer"
        )
    return TokenizerParts(parts.vocabulary, parts.pattern, parts.tie_break, eos_token)


def parse_tokenizer_json(text: str, path: str | os.PathLike[str]) -> TokenizerParts:
    """Return what the text of a tokenizer.json says; `path` is what errors call it.

    Raises:
        TokenizerFileError: As in `load`.
    """
    path = Path(path)
    top = _parse_json(text, path)
    if "model" not in top:
        _refuse(
            path, f"it has no 'model' (its keys are {_listed(top)})", "expected a tokenizer.json"
        )
    model = _object(path, top, "model")
    kind = model.get("type", "BPE")
    if kind != "BPE" or "merges" not in model:
        _refuse(path, f"model.type is {kind!r}", "expected 'BPE' with 'vocab' and 'merges'")
    for key in top:
        if key not in _TOP_LEVEL_KEYS:
            _refuse(path, f"it has the unknown key {key!r}", f"expected {_listed(_TOP_LEVEL_KEYS)}")
    _expect(path, "version", top.get("version"), "1.0")
    for setting in ("truncation", "padding", "normalizer"):
        _expect(path, setting, top.get(setting), None)
    _check_post_processor(path, top.get("post_processor"))
    _check_decoder(path, top.get("decoder"))
    pattern = _pattern_of(path, top.get("pre_tokenizer"))

    _expect(path, "model.dropout", model.get("dropout"), None, 0)
    for setting in ("continuing_subword_prefix", "end_of_word_suffix"):
        _expect(path, f"model.{setting}", model.get(setting), None, "")
    # unk_token and fuse_unk say nothing where every byte has a token, which is checked below.
    _expect(path, "model.byte_fallback", model.get("byte_fallback", False), False)
    whole_first = _expect(
        path, "model.ignore_merges", model.get("ignore_merges", False), False, True
    )
    _expect(path, "model.unicode_version", model.get("unicode_version"), None, UNICODE_VERSION)
    _expect(path, "model.pattern", model.get("pattern"), None, pattern)
    tie_break = _expect(path, "model.tie_break", model.get("tie_break"), None, *TIE_BREAKS)
    ranked_by = _expect(path, "model.ranked_by", model.get("ranked_by"), None, "merges", "bytes")

    ids = _ids_of_vocab(path, _object(path, model, "vocab"), "model.vocab")
    special_tokens = _special_tokens(path, top.get("added_tokens") or [], ids)
    tokens = _ordinary_tokens(path, ids, special_tokens, "model.vocab")
    merges = _merges(path, model["merges"])
    try:
        vocabulary = Vocabulary(tokens, merges, special_tokens, whole_first=bool(whole_first))
        if ranked_by == "bytes":
            ranks = {token: token_id for token_id, token in tokens.items()}
            vocabulary = Vocabulary.from_ranks(ranks, special_tokens)
    except VocabularyError as error:
        raise TokenizerFileError(f"{path}: {error}") from error
    return TokenizerParts(vocabulary, pattern, tie_break)


def _pattern_of(path: Path, pre_tokenizer: object) -> str:
    expected = (
        "expected ByteLevel with use_regex, or a Sequence of Split by a known pattern and "
        "ByteLevel without use_regex"
    )
    if not isinstance(pre_tokenizer, dict):
        _refuse(path, f"pre_tokenizer is {_dumps(pre_tokenizer)}", expected)
    kind = pre_tokenizer.get("type")
    if kind == "ByteLevel":
        _check_byte_level(path, pre_tokenizer, "pre_tokenizer", use_regex=True)
        return "gpt2"
    steps = pre_tokenizer.get("pretokenizers")
    if (
        kind != "Sequence"
        or not isinstance(steps, list)
        or [isinstance(step, dict) and step.get("type") for step in steps] != ["Split", "ByteLevel"]
    ):
        shown = [step.get("type") for step in steps or [] if isinstance(step, dict)] or ""
        _refuse(path, f"pre_tokenizer is {kind!r} {shown}".rstrip(), expected)
    split, byte_level = steps
    _check_byte_level(path, byte_level, "pre_tokenizer.pretokenizers[1]", use_regex=False)
    _expect(path, "pre_tokenizer.pretokenizers[0].behavior", split.get("behavior"), "Isolated")
    _expect(path, "pre_tokenizer.pretokenizers[0].invert", split.get("invert", False), False)
    pattern = split.get("pattern")
    if not isinstance(pattern, dict) or list(pattern) != ["Regex"]:
        _refuse(
            path, f"pre_tokenizer.pretokenizers[0].pattern is {_dumps(pattern)}", "expected a Regex"
        )
    try:
        return pattern_name(pattern["Regex"])
    except PatternError as error:
        raise TokenizerFileError(f"{path}: pre_tokenizer: {error}") from error


def _check_byte_level(path: Path, value: dict[str, object], name: str, *, use_regex: bool) -> None:
    # Hugging Face's default for both is True; trim_offsets says nothing about ids.
    _expect(path, f"{name}.add_prefix_space", value.get("add_prefix_space", True), False)
    _expect(path, f"{name}.use_regex", value.get("use_regex", True), use_regex)


def _check_post_processor(path: Path, value: object) -> None:
    kind = value.get("type") if isinstance(value, dict) else value
    # ByteLevel only moves offsets; transformers 5 writes a template of nothing but the text.
    only_the_text = [{"Sequence": {"id": "A", "type_id": 0}}]
    if kind == "TemplateProcessing" and isinstance(value, dict):
        _expect(path, "post_processor.single", value.get("single"), only_the_text)
    elif kind not in (None, "ByteLevel"):
        _refuse(path, f"post_processor is {_dumps(kind)}", "expected null or ByteLevel")


def _check_decoder(path: Path, value: object) -> None:
    if not isinstance(value, dict) or value.get("type") != "ByteLevel":
        kind = value.get("type") if isinstance(value, dict) else value
        _refuse(
            path, f"decoder is {kind!r}", "expected ByteLevel, for this must be a byte-level BPE"
        )


def _special_tokens(path: Path, added_tokens: object, ids: Mapping[str, int]) -> dict[str, int]:
    if not isinstance(added_tokens, list):
        _refuse(path, f"added_tokens is a {type(added_tokens).__name__}", "expected a list")
    special_tokens: dict[str, int] = {}
    next_id = len(ids)
    for index, added in enumerate(added_tokens):
        name = f"added_tokens[{index}]"
        if not isinstance(added, dict) or not isinstance(added.get("content"), str):
            _refuse(
                path, f"{name} is {_dumps(added)}", "expected an object with 'id' and 'content'"
            )
        content = added["content"]
        _expect(path, f"{name}.special (of {content!r})", added.get("special", False), True)
        for setting in ("single_word", "lstrip", "rstrip"):
            _expect(path, f"{name}.{setting} (of {content!r})", added.get(setting, False), False)
        # Without a normalizer `normalized` changes nothing, but the tokens that have it are
        # looked for after all others, which matters where texts overlap.
        first = added_tokens[0].get("normalized", False)
        normalized = added.get("normalized", False)
        _expect(path, f"{name}.normalized (of {content!r})", normalized, first)
        # What Hugging Face numbers a token that the model does not know.
        expected_id = ids.get(content, next_id)
        if added.get("id") != expected_id:
            _refuse(
                path,
                f"{name} {content!r} has the id {added.get('id')!r}",
                f"expected {expected_id}, as Hugging Face would number it",
            )
        next_id = max(next_id, expected_id + 1)
        if content in special_tokens:
            _refuse(path, f"{name} {content!r} stands there twice", "expected each token once")
        special_tokens[content] = expected_id
    return special_tokens


def _eos_token_of_config(config: dict[str, Any], path: Path) -> str | None:
    eos_token = config.get("eos_token")
    if isinstance(eos_token, dict):
        eos_token = eos_token.get("content")
    if eos_token is not None and not isinstance(eos_token, str):
        _refuse(path, f"eos_token is {_dumps(config['eos_token'])}", "expected text or null")
    return eos_token


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
    ids = _ids_of_vocab(vocab_path, _parse_json(_read_text(vocab_path), vocab_path), "it")
    tokens: dict[int, bytes] = {}
    others: dict[str, int] = {}
    for key, token_id in ids.items():
        token = from_byte_level(key)
        if token is None:
            others[key] = token_id
        elif token_id in tokens:
            _refuse(
                vocab_path,
                f"{key!r} has the id {token_id}, "
                f"which {to_byte_level(tokens[token_id])!r} has already",
                "expected one id for each token",
            )
        else:
            tokens[token_id] = token
    # Not splitlines(), nor strip(): only the newline ends a line, and a space is what parts a
    # merge.
    lines = [line.removesuffix("\r") for line in _read_text(merges_path).split("\n")]
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
        spelled = line.split(" ")
        pair = [from_byte_level(part) for part in spelled]
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
    for number, line in enumerate(_read_text(path).split("\n"), start=1):
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


# --- what all of them need -----------------------------------------------------------------------


def _refuse(path: Path, found: str, expected: str) -> NoReturn:
    raise TokenizerFileError(f"{path}: {found}: {expected}")


def _expect(path: Path, name: str, found: Any, *accepted: Any) -> Any:
    # False == 0 and True == 1, but no file says `false` where it means a number, or the reverse.
    if not any(
        found == value and isinstance(found, bool) == isinstance(value, bool) for value in accepted
    ):
        shown = " or ".join(dict.fromkeys(_dumps(value) for value in accepted))
        _refuse(path, f"the setting {name} is {_dumps(found)}", f"only {shown} is implemented")
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


def _read_text(path: Path) -> str:
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


def _parse_json(text: str, path: Path) -> dict[str, Any]:
    try:
        value = json.loads(text)
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
    if not isinstance(value, dict):
        _refuse(path, f"it is a JSON {type(value).__name__}", "expected an object")
    return value


def _ids_of_vocab(path: Path, vocab: Mapping[str, Any], name: str) -> dict[str, int]:
    for key, token_id in vocab.items():
        if not isinstance(token_id, int) or isinstance(token_id, bool):
            _refuse(path, f"in {name}, {key!r} has the id {_dumps(token_id)}", "expected a number")
    return dict(vocab)


def _ordinary_tokens(
    path: Path, ids: Mapping[str, int], special_tokens: Mapping[str, int], name: str
) -> dict[int, bytes]:
    tokens: dict[int, bytes] = {}
    for key, token_id in ids.items():
        if key in special_tokens:
            continue
        token = from_byte_level(key)
        if token is None:
            _refuse(
                path,
                f"in {name}, {key!r} is not spelled in GPT-2's byte-level alphabet",
                "expected a byte-level BPE, or this token among the added_tokens",
            )
        if token_id in tokens:
            _refuse(
                path,
                f"in {name}, {key!r} has the id {token_id}, which "
                f"{to_byte_level(tokens[token_id])!r} has already",
                "expected one id for each token",
            )
        tokens[token_id] = token
    return tokens


def _merges(path: Path, value: object) -> list[Pair]:
    if not isinstance(value, list):
        _refuse(path, f"model.merges is a {type(value).__name__}", "expected a list")
    merges: list[Pair] = []
    # The same few parts recur in most merges.
    decode = functools.cache(from_byte_level)
    for index, entry in enumerate(value):
        # Before tokenizers 0.20 a merge was one text with a space in it.
        parts = entry.split(" ") if isinstance(entry, str) else entry
        pair = (
            [decode(part) if isinstance(part, str) else None for part in parts]
            if isinstance(parts, list)
            else []
        )
        if len(pair) != 2 or not pair[0] or not pair[1]:
            _refuse(
                path,
                f"model.merges[{index}] is {_dumps(entry)}",
                "expected two tokens of the byte-level alphabet",
            )
        merges.append((pair[0], pair[1]))
    return merges

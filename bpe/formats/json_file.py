"""Read JSON files with exact errors; write JSON with one entry per line."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import msgspec

from bpe.errors import TokenizerFileError, UnsupportedTokenizerError

_DEEPEST = 100  # nested lists and objects; published files have ten

# Files that are often given for a tokenizer: how they begin, what they are, and a remedy.
_NO_TEXT = (
    (r"version https://git-lfs", "it is a Git LFS pointer", "get the file it is for: git lfs pull"),
    (r"\n.\n.(?s:.*)\0", "it is a model of SentencePiece",
     "expected a tokenizer.json, as save_pretrained of transformers writes"),
)  # fmt: skip
_RANKS = r"[A-Za-z0-9+/]+=* [0-9]+\r?\n"
_NO_JSON = (
    (_RANKS, "it has tiktoken's ranks, as tokenizer.model of Llama 3",
     "copy it to NAME.tiktoken, and give the split pattern (llama3)"),
    (r"\s*<", "it is a web page (HTML) or XML",
     "download the file itself; on the hub, its address has resolve, not blob"),
)  # fmt: skip

# Created once: json.dumps with a setting creates an encoder for each of 100,000 lines.
dumps = json.JSONEncoder(ensure_ascii=False).encode


def config_path(path: Path) -> Path:
    """Return the path of the configuration of a tokenizer: NAME_config.json for NAME.json."""
    return path.with_name(f"{path.stem}_config.json")


def read_text(path: Path) -> str:
    """Read a text file; error messages have its path."""
    return decode_text(read_content(path), path)


def read_content(path: Path) -> bytes:
    """Read a file that should be text; error messages have its path."""
    try:
        if path.is_char_device():  # reading it might never end
            refuse(path, "it is a device", "expected a tokenizer file")
        data = path.read_bytes()
    except OSError as error:
        refuse(path, f"cannot be read: {error.strerror or error}", "expected a tokenizer file")
    if not data.strip():
        refuse(path, "it is empty", "expected a tokenizer file; was writing it interrupted?")
    _refuse_others(path, data[:1000].decode("latin-1"), _NO_TEXT)
    return data


def decode_text(data: bytes, path: Path) -> str:
    """Decode the content of a file; error messages have its path."""
    try:
        return decoded(data)
    except UnicodeDecodeError as error:
        found = f"byte {error.start} is not {error.encoding.upper()} ({error.reason})"
        refuse(path, found, "expected a text file; it is damaged, or not a tokenizer")


def decoded(data: bytes) -> str:
    """Decode a text file: UTF-8, or UTF-16 that begins with its mark, as PowerShell writes it."""
    is_utf_16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    is_utf_16 &= not data.startswith(codecs.BOM_UTF32_LE)  # which begins with the same two bytes
    return data.decode("utf-16" if is_utf_16 else "utf-8-sig")


def has_ranks(path: Path) -> bool:
    """Return True for a file of tiktoken's ranks, whatever its name."""
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return re.match(_RANKS, file.read(1000).decode("latin-1")) is not None


def _refuse_others(path: Path, text: str, others: Sequence[tuple[str, str, str]]) -> None:
    for beginning, found, remedy in others:
        if re.match(beginning, text):
            refuse(path, found, remedy)


def parse_json(text: str, path: Path, kind: Any = dict[str, Any]) -> Any:
    """Parse JSON of an object, or of another type of msgspec; errors name the file and place."""
    try:
        value = msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        refuse_value(path, error)
    except RecursionError:
        _refuse_depth(path)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        _refuse_others(path, text, _NO_JSON)
        found, expected = f"not JSON: {error}", "expected a tokenizer file of Hugging Face's format"
        if text.lstrip().startswith("{") and "truncated" in found:
            found = f"the file ends in the middle, after {len(text)} characters"
            expected = "it is truncated; copy or train it again"
        elif "trailing" in found:
            found = f"it is JSON Lines, or damaged: {error}"
        refuse(path, found, expected)
    if isinstance(value, dict):
        check_depth(path, [value])
    return value


def refuse_value(path: Path, error: msgspec.ValidationError) -> NoReturn:
    """Raise an error about a value that msgspec has found to be of another type."""
    found, _, place = str(error).partition(" - at ")
    place = re.sub(r"^`\$(\[.*\])?\.?", "", place).rstrip("`") or "its content"
    unsupported(path, f"{place} is not implemented or damaged", f"{found[0].lower()}{found[1:]}")


def check_depth(path: Path, values: list[Any]) -> None:
    """Raise an error if more than `_DEEPEST` lists and objects are inside one another.

    The depth at which parsers fail depends on the version of Python.
    """
    for _ in range(_DEEPEST + 1):
        inside = [x for x in values if isinstance(x, dict | list)]
        if not inside:
            return
        values = [*chain.from_iterable(x.values() if isinstance(x, dict) else x for x in inside)]
    _refuse_depth(path)


def _refuse_depth(path: Path) -> NoReturn:
    found = f"its lists and objects stand too deep inside one another, more than {_DEEPEST}"
    refuse(path, found, "expected a tokenizer file of Hugging Face's format")


def refuse(path: Path, found: str, expected: str) -> NoReturn:
    """Raise an error about a damaged or unexpected file."""
    raise TokenizerFileError(f"{path}: {found}: {expected}")


def unsupported(path: Path, found: str, expected: str) -> NoReturn:
    """Raise an error about a setting that is not implemented."""
    raise UnsupportedTokenizerError(f"{path}: {found}: {expected}")


class Lines(NamedTuple):
    """A list or an object that is written with one entry per line."""

    brackets: str
    entries: list[str]  # JSON

    @classmethod
    def of(cls, entries: list[Any] | dict[str, int]) -> Lines:
        """Write the entries of a list, or of an object of numbers."""
        if isinstance(entries, dict):
            return cls("{}", [f"{dumps(name)}: {x}" for name, x in entries.items()])
        return cls("[]", list(map(dumps, entries)))


def layout(value: object, indent: str = "") -> str:
    """Return indented JSON, in which `Lines` have one entry per line."""
    inner = indent + "  "
    if isinstance(value, dict):
        brackets = "{}"
        body = f",\n{inner}".join(f"{dumps(key)}: {layout(x, inner)}" for key, x in value.items())
    elif isinstance(value, Lines):
        if not value.entries:
            return value.brackets
        brackets, body = value.brackets, f",\n{inner}".join(value.entries)
    else:
        return dumps(value)
    return f"{brackets[0]}\n{inner}{body}\n{indent}{brackets[1]}"

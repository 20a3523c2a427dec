"""Read JSON files with exact errors; write JSON with one entry per line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import msgspec

from bpe.errors import TokenizerFileError, UnsupportedTokenizerError

_DEEPEST = 100  # nested lists and objects; published files have ten

# Created once: json.dumps with a setting creates an encoder for each of 100,000 lines.
dumps = json.JSONEncoder(ensure_ascii=False).encode


def config_path(path: Path) -> Path:
    """Return the path of the configuration of a tokenizer: NAME_config.json for NAME.json."""
    return path.with_name(f"{path.stem}_config.json")


def read_text(path: Path) -> str:
    """Read a text file; error messages have its path."""
    try:
        data = path.read_bytes()
    except OSError as error:
        refuse(path, f"cannot be read: {error.strerror or error}", "expected a tokenizer file")
    if not data.strip():
        refuse(path, "it is empty", "expected a tokenizer file; was writing it interrupted?")
    if data.startswith(b"version https://git-lfs.github.com/"):
        refuse(path, "it is a Git LFS pointer", "get the file that it stands for: git lfs pull")
    if re.match(rb"\n.\n.", data, re.DOTALL) and b"\0" in data:
        found = "it is a model of SentencePiece"
        refuse(path, found, "expected a tokenizer.json, as save_pretrained of transformers writes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        found = f"byte {error.start} is not UTF-8 ({error.reason})"
        refuse(path, found, "expected a text file; it is damaged, or not a tokenizer")


def parse_json(text: str, path: Path) -> dict[str, Any]:
    """Parse JSON of an object; errors name the file and the position."""

    def refuse_constant(constant: str) -> NoReturn:
        refuse(path, f"it has the number {constant}", "expected JSON, which has none such")

    try:
        value = _parse(text, refuse_constant)
    except RecursionError:
        _refuse_depth(path)
    except json.JSONDecodeError as error:
        # Truncated JSON fails at its end, in an unterminated string, or in a word.
        rest = text[error.pos :].rstrip()
        if text.lstrip().startswith("{") and (
            error.msg.startswith("Unterminated")
            or any(word.startswith(rest) for word in ("null", "true", "false", "-"))
        ):
            found = f"the file ends in the middle, after {len(text)} characters"
            refuse(path, found, "it is truncated; copy or train it again")
        if re.match(r"[A-Za-z0-9+/]+=* [0-9]+\n", text):
            found = "it has tiktoken's ranks, as tokenizer.model of Llama 3"
            refuse(path, found, "copy it to NAME.tiktoken, and give the split pattern (llama3)")
        if text.lstrip().startswith("<"):
            remedy = "download the file itself; on the hub, its address has resolve, not blob"
            refuse(path, "it is a web page (HTML) or XML", remedy)
        found = f"not JSON: {error.msg} in line {error.lineno}, column {error.colno}"
        if error.msg == "Extra data":
            found = f"it is JSON Lines, or damaged: another value begins in line {error.lineno}"
        elif "\0" in text:
            found = "it is a binary file"
        refuse(path, found, "expected a tokenizer file of Hugging Face's format")
    except ValueError as error:  # a number of thousands of digits
        refuse(path, f"not JSON: {error}", "expected a tokenizer file")
    if not isinstance(value, dict):
        refuse(path, f"it is a JSON {type(value).__name__}", "expected an object")
    check_depth(path, [value])
    return value


def _parse(text: str, refuse_constant: Callable[[str], NoReturn]) -> Any:
    """Parse JSON; the errors are those of `json`, which takes three times as long as msgspec."""
    with suppress(msgspec.DecodeError, UnicodeEncodeError):
        return msgspec.json.decode(text)
    return json.loads(text, parse_constant=refuse_constant)


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


def read_json(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file; errors name the file and the position."""
    return parse_json(read_text(path), path)


def canonical(path: Path, value: object) -> str:
    """Return a value as JSON; raise an error if it has a lone surrogate."""
    text = dumps(value)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        refuse(path, f"it has a lone surrogate, {text[error.start]!r}", "expected valid Unicode")
    return text


def refuse(path: Path, found: str, expected: str) -> NoReturn:
    """Raise an error about a damaged or unexpected file."""
    raise TokenizerFileError(f"{path}: {found}: {expected}")


def unsupported(path: Path, found: str, expected: str) -> NoReturn:
    """Raise an error about a setting that is not implemented."""
    raise UnsupportedTokenizerError(f"{path}: {found}: {expected}")


def expect(path: Path, name: str, found: Any, *accepted: Any) -> Any:
    """Return a setting that has one of the accepted values; raise an error otherwise."""
    # In Python False == 0 and True == 1; in JSON they differ.
    if not any(found == x and isinstance(found, bool) == isinstance(x, bool) for x in accepted):
        shown = " or ".join(dict.fromkeys(map(dumps, accepted)))
        unsupported(path, f"the setting {name} is {dumps(found)}", f"only {shown} is implemented")
    return found


def object_at(path: Path, parent: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the object at a key; raise an error if there is none."""
    value = parent.get(name)
    if not isinstance(value, dict):
        found = "missing" if value is None else "not an object"
        refuse(path, f"{name!r} is {found}", "expected an object")
    return value


class Lines(NamedTuple):
    """A list or an object that is written with one entry per line."""

    brackets: str
    entries: str  # the JSON of each, joined by newlines, of which JSON has none itself

    @classmethod
    def of(cls, entries: list[Any] | dict[str, int]) -> Lines:
        """Write the entries of a list, or of an object of numbers."""
        if isinstance(entries, dict):
            # One call: one for each of 100,000 entries takes ten times as long.
            text = json.dumps(entries, ensure_ascii=False, separators=("\n", ": "))
            return cls("{}", text[1:-1])
        return cls("[]", "\n".join(map(dumps, entries)))


def layout(value: object, indent: str = "") -> str:
    """Return indented JSON, in which `Lines` have one entry per line."""
    inner = indent + "  "
    if isinstance(value, dict):
        brackets = "{}"
        body = f",\n{inner}".join(f"{dumps(key)}: {layout(x, inner)}" for key, x in value.items())
    elif isinstance(value, Lines):
        if not value.entries:
            return value.brackets
        brackets, body = value.brackets, value.entries.replace("\n", f",\n{inner}")
    else:
        return dumps(value)
    return f"{brackets[0]}\n{inner}{body}\n{indent}{brackets[1]}"

"""Read the special tokens that the post-processor of a tokenizer.json puts around a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bpe.files.json_file import parse_json, read_text, refuse

Ids = tuple[int, ...]


def read_special_ids(tokenizer: Any) -> tuple[Ids, Ids]:
    """Return the ids (before, after) a text, as `add_special_tokens=True` of transformers.

    Args:
        tokenizer: A tokenizer.json, or a loaded tokenizer.

    Raises:
        TokenizerFileError: The file cannot be read, or its post-processor is of another kind.
    """
    if isinstance(tokenizer, Path):
        path, text = tokenizer, read_text(tokenizer)
    else:
        path, text = Path("tokenizer.json"), tokenizer.to_json()
    top = parse_json(text, path)
    try:
        return _around(path, top.get("post_processor"))
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        found = f"post_processor cannot be read ({type(error).__name__}: {error})"
        refuse(path, found, "expected what tokenizers writes")


def _around(path: Path, section: Any) -> tuple[Ids, Ids]:
    before, after = list[int](), list[int]()
    for step in _steps(section):
        kind = step.get("type")
        if kind == "TemplateProcessing":
            first, last = _of_template(path, step)
        elif kind in ("BertProcessing", "RobertaProcessing"):
            first, last = [_id(step["cls"][1])], [_id(step["sep"][1])]
        elif kind == "ByteLevel":  # changes offsets alone
            continue
        else:
            refuse(path, f"post_processor is {kind!r}", "expected TemplateProcessing")
        before, after = first + before, after + last
    return tuple(before), tuple(after)


def _steps(section: Any) -> list[dict[str, Any]]:
    if section is None:
        return []
    if section.get("type") == "Sequence":
        return [step for each in _list(section["processors"]) for step in _steps(each)]
    return [section]


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is no list")
    return value


def _id(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is no id")
    return value


def _of_template(path: Path, step: dict[str, Any]) -> tuple[list[int], list[int]]:
    before, after = list[int](), list[int]()
    seen = False
    for part in _list(step["single"]):
        if "Sequence" in part:
            seen = True
            continue
        name = part.get("SpecialToken", {}).get("id")
        known = step.get("special_tokens", {})
        if name not in known:
            refuse(path, f"post_processor names {name!r}", "expected one of its special_tokens")
        (after if seen else before).extend(map(_id, _list(known[name]["ids"])))
    return before, after

"""Read what a tokenizer.json and its configuration say of chats and of whole sequences.

They are chat templates, names of special tokens, and the special tokens that the post-processor
puts around a text.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from bpe.formats.json_file import config_path, parse_json, read_text, refuse

TEMPLATE_FILE, MORE_TEMPLATES = "chat_template.jinja", "additional_chat_templates"
_logger = logging.getLogger("bpe")

Ids = tuple[int, ...]


def read_chat_templates(tokenizer: Any) -> dict[str, str]:
    """Return name -> chat template of a tokenizer, as transformers reads them; {}: it has none.

    They are chat_template.jinja, which is "default", and additional_chat_templates/NAME.jinja; else
    `chat_template` in tokenizer_config.json: a text, a list of objects with name and template, or
    an object of name -> template.

    Args:
        tokenizer: Path of a tokenizer.json or its directory, or a name on Hugging Face's hub; or
            a loaded tokenizer, which has the template in its configuration.

    Raises:
        TokenizerFileError: A file cannot be read, or no template is named "default".
    """
    path, config = _files_of(tokenizer)
    if path is not None and not os.path.exists(tokenizer):
        _download_chat_templates(tokenizer, path)
    found = dict[str, str]()
    if path is not None:
        files = sorted(path.with_name(MORE_TEMPLATES).glob("*.jinja"))
        found = {each.stem: read_text(each) for each in files}
        if (default := path.with_name(TEMPLATE_FILE)).exists():
            found["default"] = read_text(default)
    given, beside = config.get("chat_template"), config_path(path or Path("tokenizer.json"))
    if not found and isinstance(given, str):
        found = {"default": given}
    elif not found and given is not None:
        try:
            read = msgspec.convert(given, list[_Named] | dict[str, str])
            found = read if isinstance(read, dict) else {x.name: x.template for x in read}
        except msgspec.ValidationError:
            refuse(beside, "chat_template is no text", "expected a Jinja template, a list of"
                   " objects with name and template, or an object of names and templates")
    if found and "default" not in found:
        refuse(beside, f"its chat templates are named {', '.join(map(repr, found))}", "expected one"
                " that is named default; choose the file of a template: --chat-template")
    return found


class _Named(Struct):
    name: str
    template: str


@cache
def _download_chat_templates(name: str, path: Path) -> None:
    """Download the chat templates of a name on the hub to where its tokenizer.json is, `path`.

    They are of the same commit. What the hub does not give is left as it is on this machine, and a
    warning says why.
    """
    import huggingface_hub
    from huggingface_hub import errors

    commit = path.parent.name if path.parent.parent.name == "snapshots" else None
    try:
        files = [TEMPLATE_FILE]
        with suppress(errors.EntryNotFoundError):
            listed = huggingface_hub.list_repo_tree(name, MORE_TEMPLATES, revision=commit)
            files += [each.path for each in listed if each.path.endswith(".jinja")]
        for file in files:
            try:
                huggingface_hub.hf_hub_download(name, file, revision=commit)
            except errors.EntryNotFoundError as error:  # it has none
                if isinstance(error, errors.LocalEntryNotFoundError):  # or is not reached
                    raise
    # Any error of the network, the hub or its library.
    except Exception as error:  # noqa: BLE001 (a warning says what it was)
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        _logger.warning(
            "%s: Hugging Face's hub gave no chat templates (%.200s); those on this machine count",
            name, reason,
        )


def read_token_names(tokenizer: Any) -> dict[str, str]:
    """Return name -> token of the entries of tokenizer_config.json such as `bos_token`."""
    found = {}
    for name, value in _files_of(tokenizer)[1].items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found


def _files_of(tokenizer: Any) -> tuple[Path | None, dict[str, Any]]:
    """Return (path of a tokenizer.json, None for other kinds of tokenizers; the configuration)."""
    from bpe.formats.hub import huggingface_hub_file

    if not isinstance(tokenizer, str):
        return None, parse_json(tokenizer.config_json or "{}", Path("tokenizer_config.json"))
    path = Path(tokenizer)
    if path.suffix == ".tiktoken" or not (path.exists() or "/" in tokenizer):
        return None, {}
    path = huggingface_hub_file(path if path.exists() else tokenizer)
    beside = config_path(path)
    return path, parse_json(read_text(beside), beside) if beside.exists() else {}


class _Token(Struct):
    ids: Ids


class _Step(Struct):
    """A step of a post-processor, as tokenizers writes it; each kind has some of the keys."""

    type: str
    processors: list[_Step] | None = None
    single: list[dict[str, dict[str, str | int]]] | None = None
    special_tokens: dict[str | int, _Token] = {}
    cls: tuple[str, int] | None = None
    sep: tuple[str, int] | None = None

    def around(self) -> tuple[Ids, Ids]:
        """Return the ids (before, after) a text; a LookupError names what is unknown."""
        before: Ids = ()
        after: Ids = ()
        if self.type in ("BertProcessing", "RobertaProcessing") and self.cls and self.sep:
            before, after = (self.cls[1],), (self.sep[1],)
        elif self.type == "Sequence" and self.processors is not None:
            for first, last in map(_Step.around, self.processors):
                before, after = first + before, after + last
        elif self.type == "TemplateProcessing" and self.single is not None:
            is_after = False
            for part in self.single:
                is_after = is_after or "Sequence" in part  # the text
                if "Sequence" not in part:
                    ids = self.special_tokens[part["SpecialToken"]["id"]].ids
                    before, after = (before, after + ids) if is_after else (before + ids, after)
        elif self.type != "ByteLevel":  # which changes offsets alone
            raise LookupError(self.type)
        return before, after


def read_special_ids(tokenizer: Any) -> tuple[Ids, Ids]:
    """Return the ids (before, after) a text, as `add_special_tokens=True` of transformers.

    Args:
        tokenizer: A tokenizer.json, or a loaded tokenizer.

    Raises:
        TokenizerFileError: The file cannot be read, or its post-processor is of another kind.
    """
    path = tokenizer if isinstance(tokenizer, Path) else Path("tokenizer.json")
    text = read_text(path) if isinstance(tokenizer, Path) else tokenizer.to_json()
    try:
        step = msgspec.convert(parse_json(text, path).get("post_processor"), _Step | None)
        return step.around() if step is not None else ((), ())
    except (msgspec.ValidationError, LookupError) as error:
        what = "cannot be read" if isinstance(error, msgspec.ValidationError) else "is not known"
        refuse(path, f"post_processor {what} ({error})", "expected what tokenizers writes")

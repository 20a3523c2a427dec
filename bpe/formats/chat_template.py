"""Read the chat template beside a tokenizer.json, and the names of its special tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bpe.files.json_file import config_path, parse_json, read_text, refuse

_TEMPLATE_FILE, _MORE_TEMPLATES = "chat_template.jinja", "additional_chat_templates"


def read_chat_templates(tokenizer: Any) -> dict[str, str]:
    """Return name -> chat template of a tokenizer, as transformers reads them; {}: it has none.

    They are chat_template.jinja, which is "default", and additional_chat_templates/NAME.jinja; else
    `chat_template` in tokenizer_config.json, a text or a list of objects with name and template.

    Args:
        tokenizer: Path of a tokenizer.json or its directory, or a name on Hugging Face's hub; or
            a loaded tokenizer, which has the template in its configuration.

    Raises:
        TokenizerFileError: A file cannot be read, or no template is named "default".
    """
    path, config = _files_of(tokenizer)
    given = config.get("chat_template")
    beside = config_path(path or Path("tokenizer.json"))
    files = []
    if path is not None:
        files = [path.with_name(_TEMPLATE_FILE), *path.with_name(_MORE_TEMPLATES).glob("*.jinja")]
    found = {
        "default" if each.name == _TEMPLATE_FILE else each.stem: read_text(each)
        for each in sorted(files) if each.exists()
    }
    if not found:
        if given is None:
            return {}
        listed = given if isinstance(given, list) else [{"name": "default", "template": given}]
        found = {x["name"]: x["template"] for x in listed if isinstance(x, dict)
                 and isinstance(x.get("name"), str) and isinstance(x.get("template"), str)}
        if len(found) < len(listed):
            refuse(beside, "chat_template is no text", "expected a Jinja template, or a list of"
                   " objects with name and template")
    if "default" not in found:
        refuse(beside, f"its chat templates are named {', '.join(map(repr, found))}", "expected one"
                " that is named default; choose the file of a template: --chat-template")
    return found


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

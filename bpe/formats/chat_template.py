"""Read the chat template beside a tokenizer.json, and the names of its special tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bpe.files.json_file import config_path, parse_json, read_text, refuse

_TEMPLATE_FILE = "chat_template.jinja"


def read_chat_template(tokenizer: str) -> str | None:
    """Return the chat template of a tokenizer, as transformers reads it; None: it has none.

    It is chat_template.jinja, else `chat_template` in tokenizer_config.json; of several with names
    the one named "default".

    Args:
        tokenizer: Path of a tokenizer.json or its directory, or a name on Hugging Face's hub.

    Raises:
        TokenizerFileError: A file cannot be read.
    """
    path = _file_of(tokenizer)
    if path is None:
        return None
    if (beside := path.with_name(_TEMPLATE_FILE)).exists():
        return read_text(beside)
    found = _config(path).get("chat_template")
    if isinstance(found, list):
        named = [each for each in found if isinstance(each, dict)]
        found = next((x.get("template") for x in named if x.get("name") == "default"), None)
    if found is not None and not isinstance(found, str):
        refuse(config_path(path), "chat_template is no text", "expected a Jinja template")
    return found


def read_token_names(tokenizer: str) -> dict[str, str]:
    """Return name -> token of the entries of tokenizer_config.json such as `bos_token`."""
    path = _file_of(tokenizer)
    found = {}
    for name, value in ({} if path is None else _config(path)).items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found


def _file_of(tokenizer: str) -> Path | None:
    """Return the path of a tokenizer.json; None for other kinds of tokenizers."""
    from bpe.formats.hub import huggingface_hub_file

    path = Path(tokenizer)
    if path.suffix == ".tiktoken" or not (path.exists() or "/" in tokenizer):
        return None
    return huggingface_hub_file(path if path.exists() else tokenizer)


def _config(path: Path) -> dict[str, Any]:
    beside = config_path(path)
    return parse_json(read_text(beside), beside) if beside.exists() else {}

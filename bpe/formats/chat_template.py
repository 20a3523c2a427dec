"""Read the chat template beside a tokenizer.json, and the names of its special tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bpe.files.json_file import config_path, parse_json, read_text, refuse

_TEMPLATE_FILE = "chat_template.jinja"


def read_chat_template(tokenizer: Any) -> str | None:
    """Return the chat template of a tokenizer, as transformers reads it; None: it has none.

    It is chat_template.jinja, else `chat_template` in tokenizer_config.json; of several with names
    the one named "default".

    Args:
        tokenizer: Path of a tokenizer.json or its directory, or a name on Hugging Face's hub; or
            a loaded tokenizer, which has the template in its configuration.

    Raises:
        TokenizerFileError: A file cannot be read.
    """
    path, config = _files_of(tokenizer)
    if path is not None and (beside := path.with_name(_TEMPLATE_FILE)).exists():
        return read_text(beside)
    found = config.get("chat_template")
    if isinstance(found, list):
        named = [each for each in found if isinstance(each, dict)]
        found = next((x.get("template") for x in named if x.get("name") == "default"), None)
    if found is not None and not isinstance(found, str):
        beside = config_path(path or Path("tokenizer.json"))
        refuse(beside, "chat_template is no text", "expected a Jinja template")
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

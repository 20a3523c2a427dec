"""Read a tokenizer at a URL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from bpe.errors import TokenizerFileError
from bpe.files.locations import LOCAL, LocationError, shown_url
from preprocess.locations import split_location
from preprocess.storage.files import UrlFiles

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer


def load_tokenizer_at(url: str) -> AnyTokenizer:
    """Load a tokenizer.json at a URL, or in the directory there, with its configuration.

    A chat_template.jinja beside it is in the configuration of what is returned.

    Raises:
        LocationError: The URL is that of a .tiktoken file.
        TokenizerFileError: There is none, or it is damaged.
        RemoteError: The URL cannot be used, or the server does not answer.
    """
    from bpe import load_tokenizer

    if url.endswith(".tiktoken"):
        raise LocationError(f"{shown_url(url)}: {LOCAL}")
    directory, name = split_location(url)
    if not name.endswith(".json"):
        directory, name = url, "tokenizer.json"
    files = UrlFiles(directory)
    config, template = f"{Path(name).stem}_config.json", "chat_template.jinja"
    found = {each: files.get(each) for each in (name, config, template)}
    if found[name] is None:
        raise TokenizerFileError(
            f"{files.where(name)}: there is no such tokenizer; give the URL of a tokenizer.json, or"
            " of the directory that has it"
        )
    try:
        for each, content in found.items():
            if content is not None:
                (files.spool / each).write_bytes(content)
        _put_template(files.spool / config, files.spool / template)
        return load_tokenizer(files.spool / name)
    except TokenizerFileError as error:
        raise TokenizerFileError(str(error).replace(str(files.spool), files.where())) from error
    finally:
        files.close()


def _put_template(config: Path, template: Path) -> None:
    """Write a chat template into the configuration of its tokenizer."""
    if template.exists():
        from bpe.formats.json_file import parse_json, read_text

        settings = parse_json(read_text(config), config) if config.exists() else {}
        config.write_text(json.dumps({**settings, "chat_template": read_text(template)}))

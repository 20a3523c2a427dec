"""Get the files of Hugging Face's tokenizers: of an object, a directory, a name on the hub."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from bpe.errors import TokenizerFileError, UnsupportedTokenizerError
from bpe.files.temporary import temporary_directory
from bpe.formats.hf_read import TokenizerFiles
from bpe.formats.json_file import config_path, has_ranks, parse_json, read_text


def huggingface_files(source: Any, argument: str = "source") -> TokenizerFiles:
    """Return the files of a tokenizer of `tokenizers` or `transformers`.

    Without truncation and padding, which calls of the tokenizer set, and which change documents;
    with the chat template in the configuration. `argument` is what messages call it.
    """
    name, config = Path(type(source).__name__), None
    if hasattr(source, "save_pretrained"):
        # Saved, as its backend lacks some special tokens and the chat template.
        with temporary_directory() as directory:
            source.save_pretrained(str(directory))
            path = directory / "tokenizer.json"
            if not path.exists():
                raise UnsupportedTokenizerError(
                    f"{name}: expected a fast tokenizer of transformers, found one that saves"
                    " no tokenizer.json; load it with use_fast=True"
                )
            files = TokenizerFiles.read(path)
        text, config = files.text, parse_json(files.config or "{}", config_path(path))
        if template := getattr(source, "chat_template", None):
            if isinstance(template, dict):
                template = [{"name": x, "template": y} for x, y in template.items()]
            config["chat_template"] = template
    elif hasattr(source, "to_str"):
        text = source.to_str(pretty=True)  # as `save` writes it
    else:
        raise TokenizerFileError(
            f"{argument}: should be a tokenizers.Tokenizer, a fast tokenizer of transformers, a"
            f" path or a name on the hub; got {source!r:.100}"
        )
    document = parse_json(text, name)
    if document.get("padding") or document.get("truncation"):
        document |= {"padding": None, "truncation": None}
        text = json.dumps(document, ensure_ascii=False, indent=2)
    return TokenizerFiles(name, text.encode(), None if config is None else json.dumps(config))


def huggingface_hub_file(name: str | os.PathLike[str]) -> Path:
    """Return the path of the tokenizer.json of a directory or of a name on Hugging Face's hub.

    The configuration is downloaded to the same directory.

    Raises:
        TokenizerFileError: The file does not exist, or cannot be downloaded.
    """
    path = Path(name)
    if path.is_dir():
        path /= "tokenizer.json"
        if not path.exists():
            _check_is_no_code(path.parent, config_path(path))
            if has_ranks(ranks := path.with_name("tokenizer.model")):
                raise TokenizerFileError(
                    f"{ranks}: it has tiktoken's ranks, and there is no tokenizer.json beside it:"
                    " copy it to NAME.tiktoken, and give that file with its split pattern (llama3)"
                )
            raise TokenizerFileError(
                f"{path.parent}: there is no tokenizer.json in this directory: expected one, which"
                " save_pretrained of transformers writes; a vocab.json and a merges.txt are read by"
                " Tokenizer.from_gpt2_files"
            )
    if path.exists():
        return path
    try:
        import huggingface_hub
        from huggingface_hub import errors
    except ImportError as error:
        raise TokenizerFileError(
            f"{name}: no such file or directory; if it is a name on Hugging Face's hub, install"
            " huggingface_hub: pip install 'tokenmill[hf]'"
        ) from error
    found: dict[str, object] = {}
    for file in ("tokenizer.json", "tokenizer_config.json"):
        try:
            # A path, None if not cached, or a marker that the hub has no such file.
            cached = huggingface_hub.try_to_load_from_cache(str(name), file)
            found[file] = _download(str(name), file) if cached is None else cached
        except errors.EntryNotFoundError as error:
            # Only a configuration may be missing, which names special tokens; and only if the hub
            # says so.
            if isinstance(error, errors.LocalEntryNotFoundError):
                raise _no_file(name, file, error) from error
            found[file] = error
        except Exception as error:  # any of the network, the hub or its library
            raise _no_file(name, file, error) from error
    if not isinstance(found["tokenizer.json"], str):
        if isinstance(config := found["tokenizer_config.json"], str):
            _check_is_no_code(name, Path(config))
        if isinstance(missing := found["tokenizer.json"], Exception):
            raise _no_file(name, "tokenizer.json", missing) from missing
        raise TokenizerFileError(
            f"{name}: No such file or directory, and on Hugging Face's hub it has no tokenizer.json"
        )
    return Path(found["tokenizer.json"])


def _check_is_no_code(name: object, config: Path) -> None:
    """Raise UnsupportedTokenizerError if a configuration says that its tokenizer is code."""
    if config.exists() and "auto_map" in parse_json(read_text(config), config):
        raise UnsupportedTokenizerError(
            f"{name}: there is no tokenizer.json, and {config.name} names code (auto_map) that"
            " would be needed instead, and none is run; expected a tokenizer.json, which"
            " save_pretrained of a fast tokenizer of transformers writes"
        )


def _download(name: str, file: str) -> str:
    """Download a file of a repository, and return its path."""
    import huggingface_hub
    from huggingface_hub import errors

    # Without a network the library would try for half a minute: ask twice for the file's size.
    for may_fail in (True, False):
        try:
            huggingface_hub.get_hf_file_metadata(huggingface_hub.hf_hub_url(name, file))
            break
        except errors.HfHubHTTPError:
            break  # the hub answered; the download raises the error with its reason
        except Exception:
            if not may_fail:
                raise
    return str(huggingface_hub.hf_hub_download(name, file))


def _no_file(name: object, file: str, error: Exception) -> TokenizerFileError:
    return TokenizerFileError(
        f"{name}: No such file or directory, and Hugging Face's hub gave no"
        f" {file}: {type(error).__name__}: {' '.join(str(error).split())}"
    )

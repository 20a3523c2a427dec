"""Load published tokenizers by name: encodings of tiktoken, repositories of Hugging Face's hub."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from bpe.errors import TokenizerFileError

if TYPE_CHECKING:
    import tiktoken


def tiktoken_encoding(name: str) -> tiktoken.Encoding:
    """Load an encoding of tiktoken, from its cache or the network, or raise TokenizerFileError."""
    import tiktoken

    known = tiktoken.list_encoding_names()
    if name not in known:
        raise TokenizerFileError(
            f"{name}: No such file or directory, and no encoding of tiktoken's has this name:"
            f" expected a path, or one of {', '.join(known)}"
        )
    try:
        return tiktoken.get_encoding(name)
    except (OSError, ValueError) as error:
        raise TokenizerFileError(
            f"{name}: tiktoken cannot load this encoding: {error}; it downloads the ranks once,"
            " and finds them again where TIKTOKEN_CACHE_DIR says"
        ) from error


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
            found[file] = huggingface_hub.try_to_load_from_cache(str(name), file)
            if found[file] is None:
                found[file] = _download(str(name), file)
        except Exception as error:
            # Any error of the network, the hub or its library. A configuration, which names special
            # tokens, may be missing only if the hub says so.
            if (
                file == "tokenizer_config.json"
                and isinstance(error, errors.EntryNotFoundError)
                and not isinstance(error, errors.LocalEntryNotFoundError)
            ):
                continue
            raise TokenizerFileError(
                f"{name}: No such file or directory, and Hugging Face's hub gave no"
                f" {file}: {type(error).__name__}: {' '.join(str(error).split())}"
            ) from error
    if not isinstance(found["tokenizer.json"], str):
        raise TokenizerFileError(
            f"{name}: No such file or directory, and on Hugging Face's hub it has no tokenizer.json"
        )
    return Path(found["tokenizer.json"])

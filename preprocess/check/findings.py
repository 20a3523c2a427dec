"""Findings of checks, and loading of the tokenizer that checks need."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bpe.errors import TokenizerFileError
from preprocess.run.outputs import TOKENIZER_FILE
from preprocess.settings import StrPath

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer


class Finding(NamedTuple):
    """Result of one check of a file; `blocks` are the damaged ones, `sources` their sources."""

    path: Path | str  # a URL is text
    sound: bool
    text: str
    blocks: tuple[int, ...] = ()
    sources: tuple[str, ...] = ()


def reason_of(error: Exception, path: Path | str) -> str:
    """Return the text of an error about a file, without its path."""
    return str(error).removeprefix(f"{path}: ")


def load_tokenizer_of(path: Path, given: StrPath | None) -> AnyTokenizer:
    """Load the given tokenizer, else tokenizer.json beside a token file; raise if missing."""
    from bpe import load_tokenizer

    beside = path.parent / TOKENIZER_FILE
    if given is None and not beside.exists():
        raise TokenizerFileError(
            f"{path}: no {TOKENIZER_FILE} in its directory; give the tokenizer that it was built"
            " with (--tokenizer)"
        )
    return load_tokenizer(beside if given is None else given)

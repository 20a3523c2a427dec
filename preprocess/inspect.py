"""What a file is: token files, tokenizers and directories of outputs, in words.

Law: nothing is changed, and a file is only called what it was checked to be.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bpe.errors import TokenbinError, TokenizerFileError
from preprocess import inspect_tokenizer
from preprocess.journal import JournalError, read_entries
from preprocess.outputs import TOKENIZER_FILE, stats_in
from preprocess.progress import Stage, line_of
from preprocess.quality import (
    document_hashes,
    duplicate_line,
    length_line,
    look_alike_line,
    occurrences,
    sample_lines,
    shared_line,
    vocabulary_lines,
)
from preprocess.storage import JOURNAL_FILE, unfinished
from preprocess.token_file import FORMAT, TokenFile, TokenFileError, open_tokens

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer

_TOKENS_AT_A_TIME = 1 << 20


def tokenizer_of(path: Path, given: Path | None) -> AnyTokenizer:
    """The tokenizer of a token file: the one given, else tokenizer.json beside it.

    Raises:
        TokenizerFileError: There is none, or it cannot be read.
    """
    from bpe import load_tokenizer

    beside = path.parent / TOKENIZER_FILE
    if given is None and not beside.exists():
        raise TokenizerFileError(
            f"{path}: there is no {TOKENIZER_FILE} beside it; name the tokenizer that it was built"
            " with (--tokenizer)"
        )
    return load_tokenizer(given or beside)


def decoded(
    path: Path, tokenizer_path: Path | None = None, start: int = 0, count: int | None = None
) -> Iterator[bytes]:
    """The text of tokens [start, start + count) of a token file, piece by piece.

    A piece may end inside a character; joined they are what the tokens say.

    Raises:
        TokenFileError: The token file is not sound, was built with another tokenizer, or is too
            short.
        TokenizerFileError: There is no tokenizer, or it cannot be read.
    """
    from bpe import Tokenizer

    tokenizer = tokenizer_of(path, tokenizer_path)
    file = open_tokens(path, tokenizer=tokenizer)
    if start > len(file):
        raise TokenFileError(
            f"{file.path}: has {len(file):,} tokens, so none begins at {start:,}; choose a smaller"
            " start (--start)"
        )
    stop = len(file) if count is None else min(start + count, len(file))
    if isinstance(tokenizer, Tokenizer):
        bounds = [*range(start, stop, _TOKENS_AT_A_TIME), stop]
    else:
        # What stands between words is theirs to say, so a document is decoded as a whole.
        first, last = np.searchsorted(file.document_ends, [start, stop], side="left")
        ends = file.document_ends[first:last].astype(np.int64).tolist()
        bounds = list(dict.fromkeys([start, *ends, stop]))
    for place, next_place in pairwise(bounds):
        yield tokenizer.decode_bytes(file[place:next_place])


def tokenizer_facts(path: Path, pattern: str | None = None) -> dict[str, Any]:
    """What there is to say about a tokenizer, ready for JSON.

    Raises:
        TokenbinError: There is no such file, or it is no tokenizer.
    """
    from bpe import load_tokenizer

    if path.exists() and (path.suffix not in ("", ".json", ".tiktoken") or is_manifest(path)):
        raise TokenFileError(f"{path}: --json is for tokenizers; name a tokenizer.json")
    return inspect_tokenizer.facts(path, load_tokenizer(path, pattern=pattern))


def description(path: Path, pattern: str | None = None) -> list[str]:
    """Lines about a .bin, a tokenizer or a directory of outputs.

    Args:
        path: What to look at; a tokenizer may be a name, as `bpe.load_tokenizer` takes it.
        pattern: The split pattern of a .tiktoken file.

    Raises:
        TokenbinError: There is no such file, or it is none of these, or it is damaged.
    """
    from bpe import load_tokenizer

    if path.is_dir():
        return _of_directory(path)
    if not path.exists():
        if path.suffix in (".bin", ".json"):
            raise TokenFileError(f"{path}: no such file or directory; check the path")
        return inspect_tokenizer.lines(path, load_tokenizer(path, pattern=pattern))
    if path.suffix == ".bin" or (path.suffix == ".json" and is_manifest(path)):
        return _of_token_file(open_tokens(path))
    if path.suffix in (".json", ".tiktoken"):
        return inspect_tokenizer.lines(path, load_tokenizer(path, pattern=pattern))
    raise TokenFileError(
        f"{path}: a .bin, its manifest, a tokenizer.json or a directory of them is expected"
    )


def is_manifest(path: Path) -> bool:
    """Whether a .json calls itself a manifest; whether it is a good one is another question."""
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, OSError):
        return False
    return isinstance(content, dict) and content.get("format") == FORMAT


def manifests_in(directory: Path) -> list[Path]:
    """The manifests in a directory, sorted by name."""
    return [path for path in sorted(directory.glob("*.json")) if is_manifest(path)]


def _of_directory(directory: Path) -> list[str]:
    from bpe import load_tokenizer

    lines: list[str] = []
    tokenizer_path = directory / TOKENIZER_FILE
    if tokenizer_path.exists():
        lines += inspect_tokenizer.lines(tokenizer_path, load_tokenizer(tokenizer_path))
    hashes = {}
    for path in manifests_in(directory):
        file = open_tokens(path)
        lines += _of_token_file(file)
        hashes[path.stem] = document_hashes(file)
        lines.append(duplicate_line(hashes[path.stem]))
    for name, of_val in hashes.items():
        train = f"{name.removesuffix('val')}train"
        if name.endswith("val") and train in hashes:
            lines.append(shared_line(hashes[train], of_val))
    for path in sorted(directory.glob("*stats.json")):
        stats = stats_in(path)
        if stats is not None and "look_alikes" in stats:
            lines.append(look_alike_line(stats))
    lines += [f"{path}: not finished: {_how_far(path)}" for path in unfinished(directory)]
    if not lines:
        raise TokenFileError(f"{directory}: no tokenizer and no token file in this directory")
    return lines


def _how_far(work: Path) -> str:
    """What the journal of an unfinished run says of it."""
    try:
        content = (work / JOURNAL_FILE).read_bytes()
        entries = [entry for entry, _, _ in read_entries(content, str(work / JOURNAL_FILE))]
    except FileNotFoundError:
        return "nothing was done yet"
    except JournalError as error:
        return str(error)
    sources = list(entries[0]["made_from"]["sources"].items()) if entries else []
    for entry in reversed(entries):
        if entry["kind"] == "finishing":
            return "complete, only final names are missing"
        if entry["kind"] not in ("counted", "encoded"):
            continue
        is_counting = entry["kind"] == "counted"
        name, files = sources[0 if is_counting else entry["number"]]
        title = "counting" if is_counting else f"encoding {name}"
        stage = Stage(title, sum(n_bytes for _, n_bytes, _ in files), "B", entry["bytes"])
        return (
            f"{line_of(stage, entry['seconds'])}; {entry['source']:,} of {len(files):,} files done"
        )
    return "nothing was done yet"


def _of_token_file(file: TokenFile) -> list[str]:
    manifest = file.manifest
    ends = file.document_ends.astype(np.int64)
    lengths = ends - np.append(np.int64(0), ends[:-1])
    counts = occurrences(file)
    n_shards = f", {len(manifest.shards):,} shards" if manifest.shards else ""
    lines = [
        f"{file.path}: {file.n_tokens:,} tokens ({file.dtype.name}), {file.n_documents:,}"
        f" documents{n_shards}",
        f"  {manifest.n_bytes:,} bytes of text, {manifest.n_bytes / max(file.n_tokens, 1):.2f} to"
        " the token",
        f"  vocabulary {file.vocab_size:,}, of which {np.count_nonzero(counts):,} occur; end of"
        f" text {manifest.end_of_text_id}, begin of text {manifest.begin_of_text_id}",
        f"  sources: {_sources(manifest.sources)}",
    ]
    if len(lengths):
        lines.append(f"  tokens per document: {lengths.mean():,.1f} on average")
        lines.append(length_line(lengths))
    try:
        tokenizer = tokenizer_of(file.path, None)
        open_tokens(file.path, tokenizer=tokenizer)
    except TokenbinError as error:
        return [*lines, f"  no sample, for its tokenizer is not beside it: {error}"]
    return [*lines, *vocabulary_lines(counts, tokenizer), *sample_lines(file, tokenizer)]


def _sources(sources: tuple[object, ...]) -> str:
    named = [str(source["name"]) for source in sources[:3] if isinstance(source, dict)]
    more = f" and {len(sources) - 3:,} more" if len(sources) > 3 else ""
    return f"{', '.join(map(os.fspath, named))}{more}"

"""Files of directories; `.gitignore` is respected, and what is beside data is skipped.

What tokenmill writes is skipped, too: outputs may lie beside the text.
"""

from __future__ import annotations

import codecs
import fnmatch
import os
import re
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

from bpe.errors import CorpusError
from preprocess.sources.base import import_library, open_file
from preprocess.sources.own_files import own_files_in

# Files that Hugging Face `datasets` writes beside its Arrow files, in directories with these.
_DESCRIPTIONS = {"dataset_info.json", "dataset_dict.json"}
_BESIDE_ARROW = (*_DESCRIPTIONS, "state.json", "cache-*.arrow", "*.lock")


def files_below(directory: Path) -> Iterator[Path]:
    """Yield the files below a directory, depth first, sorted by name.

    Names that begin with a dot are skipped, and what a `.gitignore` in the directory or below it
    excludes. Symbolic links are followed, once.

    Raises:
        CorpusError: A directory cannot be listed.
    """
    return _files_below(directory, (directory.resolve(),), ())


def encoding_of(begins: bytes) -> str:
    """Return the encoding of UTF-16 or UTF-32 text by its first bytes, as iconv calls it, or "".

    Text without a mark is recognised by the zero bytes of its ASCII characters.
    """
    marks = {b"\xff\xfe\0\0": "UTF-32", b"\0\0\xfe\xff": "UTF-32", b"\xff\xfe": "UTF-16",
             b"\xfe\xff": "UTF-16"}
    name = next((marks[mark] for mark in marks if begins.startswith(mark)), "")
    if not name and begins.count(0) > len(begins) // 4:
        name = "UTF-16LE" if begins[::2].count(0) < begins[1::2].count(0) else "UTF-16BE"
    try:
        text = codecs.getincrementaldecoder(name or "UTF-8")().decode(begins)
    except UnicodeDecodeError:
        return ""
    return "" if re.search(r"[\0-\x08\x0e-\x1f]", text) else name


def is_beside_data(name: str, names: Set[str]) -> bool:
    """Return True for what `datasets` writes beside its data; `names` are all in the directory."""
    beside = _BESIDE_ARROW if names & _DESCRIPTIONS else ()
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in beside)


def _files_below(
    directory: Path, seen: tuple[Path, ...], ignored: tuple[tuple[Path, Any], ...]
) -> Iterator[Path]:
    """Yield files; `seen` are the ancestors, `ignored` the .gitignore files that apply."""
    try:
        entries = sorted(directory.iterdir(), key=lambda entry: os.fsencode(entry.name))
    except OSError as error:
        raise CorpusError(
            f"{directory}: cannot be listed: {error.strerror}; make it readable or leave it out"
        ) from error
    names = {entry.name for entry in entries}
    own = own_files_in(directory)
    if ".gitignore" in names:
        ignored = (*ignored, (directory, _read_gitignore(directory / ".gitignore")))
    for entry in entries:
        is_directory = entry.is_dir()
        if (
            entry.name.startswith(".")
            or entry.name in own
            or is_beside_data(entry.name, names)
            or _is_ignored(entry, is_directory, ignored)
        ):
            continue
        if not is_directory:
            yield entry
        elif (resolved := entry.resolve()) not in seen:
            yield from _files_below(entry, (*seen, resolved), ignored)


def _read_gitignore(path: Path) -> Any:
    pathspec = import_library("pathspec", ".gitignore")
    file = open_file(path)
    text = file.read(0, file.n_bytes).tobytes().decode("utf-8", "replace")
    return pathspec.GitIgnoreSpec.from_lines(text.splitlines())


def _is_ignored(path: Path, is_directory: bool, ignored: tuple[tuple[Path, Any], ...]) -> bool:
    """Return True if the innermost .gitignore that has a pattern for a path excludes it."""
    for base, spec in reversed(ignored):
        name = path.relative_to(base).as_posix() + "/" * is_directory
        if (found := spec.check_file(name).include) is not None:
            return bool(found)
    return False

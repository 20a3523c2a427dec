"""Files of tokenmill in a directory with text: outputs are not read as text.

Manifests and statistics name them. A run that was interrupted while it gave files their final names
is known by its journal, and a removal by its list, so the same command finds the same text again.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from bpe.errors import CorpusError
from preprocess.dataset import columns as table
from preprocess.dataset.manifest import FORMAT, spellings_of
from preprocess.sources.text_file import InputFile, new_array, open_file
from preprocess.storage import JOURNAL_FILE
from preprocess.storage.local import LOCK_FILE, PARTIAL, REMOVAL_FILE

LOG_BEGINS = "# Log of tokenmill, which does not read it as text.\n"
_BEGIN_BYTES = 4096  # of a file, which name its format
_OF_ROWS = "tokenization_stats.json"  # has times, so the manifest of rows does not list it
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
# Opens a file by its path from the directory; None: it is not there, or cannot be read.
OpenFile = Callable[[str], InputFile | None]
logger = logging.getLogger("preprocess")


class _Described(Struct):
    """What JSON files of tokenmill say about others; each kind has some of the keys."""

    format: str
    manifests: dict[str, Any] = {}
    rejects: dict[str, Any] = {}
    beside: dict[str, Any] = {}
    shards: list[dict[str, Any]] = []
    files: list[dict[str, Any]] | int = 0
    fingerprint: str | None = None


class _Published(Struct):
    names: list[str] = []
    last: list[str] = []
    gone: list[str] = []


class _Entry(Struct):
    value: _Published


class _Line(Struct):
    """The last line of a journal, of a run that gives files their final names."""

    entry: _Entry


def own_files(names: Collection[str], journals: Iterable[str], opened: OpenFile) -> set[str]:
    """Return the names of files of tokenmill in a directory.

    Args:
        names: The names of all files there.
        journals: Paths of the journals of runs, from the directory.
        opened: Opens a file there.
    """
    own, stems = set[str](), set[str]()
    for path in journals:
        last = _content(opened(path), False).rstrip(b"\n").rpartition(b"\n")[2]
        with suppress(msgspec.MsgspecError):  # not complete, so nothing follows from it
            published = msgspec.json.decode(last, type=_Line).entry.value
            own |= {*published.names, *published.last, *published.gone}
    if REMOVAL_FILE in names:
        with suppress(msgspec.MsgspecError):
            removal = _content(opened(REMOVAL_FILE), False)
            own |= {*msgspec.json.decode(removal, type=dict[str, Any])}
    todo = [name for name in names if _may_describe(name, names)]
    for name in todo:  # manifests that others list are appended
        found = _described(_content(opened(name), True))
        if found is None:
            continue
        stem, listed = name.removesuffix(".json"), found.shards
        listed = [*listed, *(found.files if isinstance(found.files, list) else ())]
        own |= {name, *found.rejects, *found.beside, *(str(each.get("name")) for each in listed)}
        if stem == "rows":
            own.add(_OF_ROWS)
        elif stem.endswith("stats"):
            own |= {*_TOKENIZER}
            if found.fingerprint is not None:  # of the tokenizer that `train` wrote
                trained = stem.removesuffix("stats").rstrip("_")
                own |= {f"{trained}.json", f"{trained}_config.json"}
            stems |= {each.removesuffix(".json") for each in found.manifests}
            todo += [x for x in found.manifests if x in names and x not in todo]
        else:
            stems.add(stem)
    if stems:
        suffixes = [column.name for column in table.COLUMNS]
        suffixes.append(r"[a-z_]+-\d+-[0-9a-f]{16}\.plan(\.partial(\.\d+)?)?")
        of_stem = rf"({'|'.join(map(re.escape, stems))})(_\d{{5,}})?\.({'|'.join(suffixes)})"
        of_stem = rf"(\.(?=.*\.partial))?{of_stem}"  # a plan that is being made
        own |= {name for name in names if re.fullmatch(of_stem, name)}
    return own


def own_files_in(directory: Path) -> set[str]:
    """Return the names of files of tokenmill in a local directory, and of the log files there.

    Those of a run that was interrupted are among them.
    """

    def open_regular(path: str) -> InputFile | None:
        place = directory / path
        with suppress(CorpusError):  # reported if it is text
            return open_file(place) if place.is_file() else None  # a pipe would block
        return None

    try:
        names = {*os.listdir(directory)}
    except OSError:
        return set()  # likewise
    runs = [name for name in names if name.startswith(".") and name.endswith(PARTIAL)]
    own = own_files(names, [f"{run}/{JOURNAL_FILE}" for run in runs], open_regular)
    own |= {*runs, *names & {LOCK_FILE}}
    logs = (Path(x.baseFilename) for x in logger.handlers if isinstance(x, logging.FileHandler))
    return own | {log.name for log in logs if log.parent.resolve() == directory.resolve()}


def is_log(file: InputFile) -> bool:
    """Return True for a file that `--log-file` began."""
    begins = LOG_BEGINS.encode()
    return file.read(0, file.clip(len(begins)), new_array).tobytes() == begins


def _content(file: InputFile | None, is_json: bool) -> bytes:
    """Return the content of a file, b"" if it is JSON of others, which may be large."""
    if file is None:
        return b""
    begins = file.read(0, file.clip(_BEGIN_BYTES), new_array).tobytes()
    if is_json and not any(f'"format": "{x}'.encode() in begins for x in spellings_of(FORMAT)):
        return b""
    return file.read(0, file.n_bytes, new_array).tobytes()


def _may_describe(name: str, names: Collection[str]) -> bool:
    """Return True for names of descriptions, so that other JSON files are not read for this."""
    stem, suffix = os.path.splitext(name)
    is_described = stem.endswith(("stats", "rows", "export", "config"))
    data = f"{stem}.bin", f"{table.shard_name(stem, 0)}.bin"
    return suffix == ".json" and (is_described or any(each in names for each in data))


def _described(content: bytes) -> _Described | None:
    """Decode a JSON file; None if it is not of tokenmill."""
    with suppress(msgspec.MsgspecError):
        found = msgspec.json.decode(content, type=_Described)
        if found.format.startswith(spellings_of(FORMAT)):
            return found
    return None

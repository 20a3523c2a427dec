"""Describe token files, tokenizers and directories of outputs; decode token files.

Nothing is changed, and a file is only called what it was checked to be.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bpe.errors import TokenbinError, TokenizerFileError
from preprocess.check import inspect_tokenizer, quality
from preprocess.dataset.columns import TokenFileError
from preprocess.dataset.manifest import FORMAT
from preprocess.dataset.reader import TokenFile, open_tokens
from preprocess.report.progress import Stage, line_of
from preprocess.run.journal import Entry, JournalError, journal_errors, read_entries
from preprocess.run.outputs import TOKENIZER_FILE, object_in, stats_in
from preprocess.settings.options import StrPath, convert
from preprocess.settings.schema import DecodeSettings, InspectSettings
from preprocess.storage import JOURNAL_FILE, REPAIR, open_storage

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer

_TOKENS_AT_A_TIME = 1 << 20
_OF_A_RUN = ("empty_documents", "skipped_documents", "replaced_sequences", "look_alikes")


def tokenizer_of(path: Path, given: StrPath | None) -> AnyTokenizer:
    """Load the tokenizer of a token file: the one given, else tokenizer.json beside it.

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
    return load_tokenizer(beside if given is None else given)


def decode_range(
    path: StrPath, *, tokenizer: StrPath | None = None, start: int = 0, count: int | None = None
) -> Iterator[bytes]:
    """Decode tokens [start, start + count) of a token file in pieces, cut between any two bytes.

    Raises:
        TokenFileError: The token file is not sound, was built with another tokenizer, or is too
            short.
        TokenizerFileError: There is no tokenizer, or it cannot be read.
    """
    settings = convert(locals(), DecodeSettings)
    from bpe import Tokenizer

    used = tokenizer_of(Path(settings.path), settings.tokenizer)
    file = open_tokens(settings.path, tokenizer=used)
    start, count = settings.start, settings.count
    if start > len(file):
        raise TokenFileError(
            f"{file.path}: has {len(file):,} tokens, so none begins at {start:,}; choose a smaller"
            " start (--start)"
        )
    stop = len(file) if count is None else min(start + count, len(file))
    cuts: Iterable[int] = range(start, stop, _TOKENS_AT_A_TIME)
    if not isinstance(used, Tokenizer):
        # What is between words depends on them, so a document is decoded as a whole. With another
        # type than that of the ends, all of them would be copied to float64.
        places = np.array([start, stop], file.document_ends.dtype)
        first, last = np.searchsorted(file.document_ends, places, side="left")
        cuts = file.document_ends[first:last].astype(np.int64).tolist()
    for first, end in pairwise(dict.fromkeys([start, *cuts, stop])):
        yield used.decode_bytes(file[first:end])


def facts(path: StrPath, *, pattern: str | None = None) -> dict[str, Any]:
    """Describe a .bin, a tokenizer or a directory of outputs, ready for JSON.

    Of a directory: "tokenizer" (or null), "token_files", "val_in_train", "runs" and "unfinished".

    Args:
        path: What to look at; a tokenizer may be a name, as `bpe.load_tokenizer` takes it.
        pattern: The split pattern of a .tiktoken file.

    Raises:
        TokenbinError: There is no such file, or it is none of these, or it is damaged.
    """
    place = Path(convert(locals(), InspectSettings).path)
    from bpe import load_tokenizer

    if place.is_dir():
        return _of_directory(place)
    if not place.exists() and place.suffix in (".bin", ".json"):
        raise TokenFileError(f"{place}: no such file or directory; check the path")
    files = open_storage(place.parent).finished
    is_manifest = place.suffix == ".json" and object_in(files, place.name, FORMAT)
    if place.suffix == ".bin" or is_manifest:
        file = open_tokens(place)
        return _of_token_file(file, quality.document_hashes(file))
    if place.exists() and place.suffix not in (".json", ".tiktoken"):
        raise TokenFileError(
            f"{place}: a .bin, its manifest, a tokenizer.json or a directory of them is expected"
        )
    return inspect_tokenizer.facts(place, load_tokenizer(place, pattern=pattern))


def lines(found: dict[str, Any]) -> list[str]:
    """Put what `facts` returns into lines for people."""
    if "kind" in found:
        return inspect_tokenizer.lines(found)
    if "dtype" in found:
        return quality.lines(found)
    parts = [found["tokenizer"]] if found["tokenizer"] else []
    return [
        *(line for part in (*parts, *found["token_files"]) for line in lines(part)),
        *(quality.shared_line(each) for each in found["val_in_train"]),
        *(quality.run_line(each) for each in found["runs"]),
        *(f"{each['path']}: not finished: {each['text']}" for each in found["unfinished"]),
    ]


def manifests_in(directory: Path) -> list[Path]:
    """List the files of a directory that call themselves manifests, sorted by name."""
    files = open_storage(directory).finished
    names = [name for name in files.names() if name.endswith(".json")]
    return [directory / name for name in names if object_in(files, name, FORMAT)]


def _of_directory(directory: Path) -> dict[str, Any]:
    from bpe import load_tokenizer

    path = directory / TOKENIZER_FILE
    tokenizer = inspect_tokenizer.facts(path, load_tokenizer(path)) if path.exists() else None
    files = {path.stem: open_tokens(path) for path in manifests_in(directory)}
    hashes = {name: quality.document_hashes(file) for name, file in files.items()}
    storage = open_storage(directory)
    there = [name for name in storage.finished.names() if name.endswith("stats.json")]
    runs = {name: stats_in(storage.finished, name) or {} for name in there}
    found: dict[str, Any] = {
        "path": str(directory),
        "tokenizer": tokenizer,
        "token_files": [_of_token_file(file, hashes[name]) for name, file in files.items()],
        "val_in_train": list(_shared(files, hashes)),
        "runs": [
            {"path": str(directory / name)} | {key: stats.get(key) for key in _OF_A_RUN}
            for name, stats in runs.items()
            if "look_alikes" in stats
        ],
        "unfinished": [how_far(directory, run) for run in storage.runs()],
    }
    if not any(found[key] for key in ("tokenizer", "token_files", "runs", "unfinished")):
        raise TokenFileError(f"{directory}: no tokenizer and no token file in this directory")
    return found


def _of_token_file(file: TokenFile, hashes: NDArray[np.uint64]) -> dict[str, Any]:
    tokenizer, more = None, {}
    try:
        tokenizer = tokenizer_of(file.path, None)
        open_tokens(file.path, tokenizer=tokenizer)
    except TokenbinError as error:
        tokenizer, more = None, {"no_tokenizer": str(error)}
    return {**quality.facts(file, tokenizer), **more, "copies": quality.copies(hashes)}


def _shared(
    files: dict[str, TokenFile], hashes: dict[str, NDArray[np.uint64]]
) -> Iterator[dict[str, Any]]:
    """Count the documents of each NAMEval that are in NAMEtrain beside it."""
    for name in files:
        train = f"{name.removesuffix('val')}train"
        if not name.endswith("val") or train not in files:
            continue
        found = {"val": name, "train": train, "documents": files[name].n_documents}
        manifests = (files[name].manifest, files[train].manifest)
        ids = [(m.tokenizer_fingerprint, m.end_of_text_id, m.begin_of_text_id) for m in manifests]
        if ids[0] == ids[1]:
            yield found | {"in_train": quality.shared(hashes[name], hashes[train])}
        else:
            why = "they were built with different tokenizers or special tokens"
            yield found | {"not_compared": why}


def how_far(location: Path, run: str) -> dict[str, Any]:
    """Describe an unfinished run, whose outputs would be at `location`, by its journal.

    Returns:
        "path" and "text", a line for people. If a stage was begun also "stage", "share" of its
        bytes that is done, "bytes" and "bytes_total", "files" and "files_total", "seconds",
        "bytes_per_second" and "seconds_left"; the last two are null if unknown.
    """
    storage = open_storage(location, run)
    said: dict[str, Any] = {"path": storage.where(), "text": "nothing was done yet"}
    if run == REPAIR:
        return said | {"text": "a repair; the next one clears it away (verify --repair)"}
    content = storage.get(JOURNAL_FILE)
    if content is None:
        return said
    try:
        entries = [entry for entry, _, _ in read_entries(content, storage.where(JOURNAL_FILE))]
        with journal_errors():
            return said | _last_stage(entries)
    except JournalError as error:
        return said | {"text": str(error)}


def _last_stage(entries: list[Entry]) -> dict[str, Any]:
    """Describe the last stage in the entries of a journal."""
    begun = [entry for entry in entries if entry["kind"] in ("counted", "encoded", "finishing")]
    if not begun:
        return {}
    entry = begun[-1]
    if entry["kind"] == "finishing":
        return {"stage": "finishing", "text": "complete, only final names are missing"}
    is_counting = entry["kind"] == "counted"
    sources = list(entries[0]["made_from"]["sources"].items())
    name, files = sources[0 if is_counting else entry["number"]]
    title = "counting" if is_counting else f"encoding {name}"
    n_bytes = sum(n_bytes for _, n_bytes, *_ in files)
    stage = Stage(title, n_bytes, "B", entry["bytes"])
    seconds = float(entry["seconds"])
    rate = stage.done / seconds if seconds > 0 and stage.done else None
    return {
        "text": f"{line_of(stage, seconds)}; {entry['source']:,} of {len(files):,} files done",
        "stage": title,
        "share": stage.done / n_bytes if n_bytes else 1.0,
        "bytes": stage.done,
        "bytes_total": n_bytes,
        "files": entry["source"],
        "files_total": len(files),
        "seconds": seconds,
        "bytes_per_second": rate,
        "seconds_left": None if rate is None else (n_bytes - stage.done) / rate,
    }

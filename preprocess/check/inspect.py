"""Describe token files, tokenizers and directories of outputs; decode token files.

Read-only; the kind of a file is checked before the file is described.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bpe.errors import TokenizerFileError, TokenmillError
from bpe.files.locations import is_bucket, is_url, shown_url
from preprocess.check import inspect_rows, inspect_tokenizer, quality, verify_rows
from preprocess.check.findings import noted
from preprocess.dataset.columns import TokenFileError
from preprocess.dataset.manifest import FORMAT
from preprocess.dataset.reader import TokenFile, check_tokenizer, open_tokens
from preprocess.options import DecodeSettings, InspectSettings
from preprocess.report.progress import Stage, line_of
from preprocess.run.finished import (
    STATS_FORMAT,
    find_manifests,
    find_token_files,
    read_object,
)
from preprocess.run.journal import Entry, JournalError, journal_errors, read_entries
from preprocess.run.outputs import TOKENIZER_FILE
from preprocess.run.run import PUBLISHING
from preprocess.settings import StrPath, takes
from preprocess.storage import JOURNAL_FILE, REPAIR, open_storage

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer

_TOKENS_AT_A_TIME = 1 << 20
_OF_A_RUN = ("empty_documents", "skipped_documents", "replaced_sequences", "look_alikes")


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


@takes(DecodeSettings)
def decode_range(settings: DecodeSettings) -> Iterator[bytes]:
    """Decode tokens [start, start + count) of a token file; pieces may end inside a character.

    Raises:
        TokenFileError: The token file is damaged, was built with another tokenizer, or has fewer
            than `start` tokens.
        TokenizerFileError: The tokenizer is missing or cannot be read.
    """
    from bpe import Tokenizer

    if is_url(settings.path):
        file = open_tokens(settings.path)
        used = _tokenizer_at(file, settings.tokenizer)
    else:
        used = load_tokenizer_of(_bin_file(Path(settings.path)), settings.tokenizer)
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
        # White space between words depends on both, so documents are decoded whole. The dtype is
        # that of the ends, or searchsorted would copy them to float64.
        bounds = np.array([start, stop], file.document_ends.dtype)
        first, last = np.searchsorted(file.document_ends, bounds, side="left")
        cuts = file.document_ends[first:last].astype(np.int64).tolist()
    for first, end in pairwise(dict.fromkeys([start, *cuts, stop])):
        yield used.decode_bytes(file[first:end])


def _bin_file(path: Path) -> Path:
    """Return the path of a token file; raise TokenFileError for a directory."""
    if path.is_dir():
        found = [str(each.with_suffix(".bin")) for each in find_manifests(path)]
        raise TokenFileError(
            f"{path}: is a directory, and a .bin is expected; give one of those in it:"
            f" {', '.join(found) or 'there is none'}"
        )
    return path


def _tokenizer_at(file: TokenFile, given: StrPath | None = None) -> AnyTokenizer:
    """Load the given tokenizer, else that beside a token file at a URL; it is compared."""
    from bpe import load_tokenizer

    path, where = (given, "") if given is not None else file.tokenizer_file()
    if path is None:
        raise TokenizerFileError(
            f"{where}: there is no such file; give the tokenizer that the token file was built with"
            " (--tokenizer)"
        )
    tokenizer = load_tokenizer(path)
    check_tokenizer(file.path, file.manifest, tokenizer.fingerprint)
    return tokenizer


@takes(InspectSettings)
def facts(settings: InspectSettings) -> dict[str, Any]:
    """Describe a .bin, a tokenizer or a directory of outputs as a dictionary for JSON.

    A directory has "bad_files": path and text of those that cannot be described; "unfinished"; and
    "tokenizer" (or None), "token_files", "val_in_train" and "runs", or "rows", as of
    `inspect_rows.describe`; that of a corpus has "places", as of directories.

    Options: docs/options.md or `tokenmill inspect --help`.

    Raises:
        TokenmillError: The file is missing, of another kind, or damaged.
    """
    from bpe import load_tokenizer

    if is_url(settings.path):
        return _describe_url(settings.path)
    place = Path(settings.path)
    if place.is_dir():
        places, bad = verify_rows.find_places(place), list[dict[str, str]]()
        if places == [place]:
            return _describe_directory(place, bad) | {"bad_files": bad}
        described = list[dict[str, Any]]()
        for each in places:
            with noted(bad, each):
                described.append(_describe_directory(each, bad))
        return {"path": str(place), "places": described, "bad_files": bad}
    if not place.exists() and place.suffix in (".bin", ".json"):
        raise TokenFileError(f"{place}: no such file or directory; check the path")
    files = open_storage(place.parent).final
    is_manifest = place.suffix == ".json" and read_object(files, place.name, FORMAT)
    if place.suffix == ".bin" or is_manifest:
        file = open_tokens(place)
        return _describe_token_file(file, quality.document_hashes(file))
    if place.exists() and place.suffix not in (".json", ".tiktoken"):
        raise TokenFileError(
            f"{place}: a .bin, its manifest, a tokenizer.json or a directory of them is expected"
        )
    return inspect_tokenizer.describe(place, load_tokenizer(place, pattern=settings.pattern))


def format_lines(found: dict[str, Any]) -> list[str]:
    """Format the result of `facts` for people."""
    if "kind" in found:
        return inspect_tokenizer.format_lines(found)
    if "dtype" in found:
        return quality.format_lines(found)
    get = found.get
    parts = [get("tokenizer"), *get("token_files", ()), *get("places", ())]
    return [
        *(line for part in parts if part for line in format_lines(part)),
        *(line for each in get("rows", ()) for line in inspect_rows.format_lines(each)),
        *(quality.format_shared(each) for each in get("val_in_train", ())),
        *(quality.format_run(each) for each in get("runs", ())),
        *(f"{each['path']}: not finished: {each['text']}" for each in get("unfinished", ())),
        *(f"{each['path']}: BAD: {each['text']}" for each in get("bad_files", ())),
    ]


def _describe_directory(directory: Path, bad: list[dict[str, str]]) -> dict[str, Any]:
    """Describe the outputs in a directory; files that cannot be described are added to `bad`."""
    from bpe import load_tokenizer

    unfinished = [how_far(*each) for each in verify_rows.find_unfinished(directory)]
    manifests, n_bad = find_manifests(directory), len(bad)
    if not manifests and (rows := verify_rows.find_rows(directory)):
        described = [inspect_rows.describe(each, bad) for each in rows]
        return {"path": str(directory), "rows": described, "unfinished": unfinished}
    path, tokenizer = directory / TOKENIZER_FILE, None
    files, hashes = dict[str, TokenFile](), dict[str, NDArray[np.uint64]]()
    if path.exists():
        with noted(bad, path):
            tokenizer = inspect_tokenizer.describe(path, load_tokenizer(path))
    token_files = []
    for path in manifests:
        with noted(bad, path):
            file = open_tokens(path)
            hashes[path.stem] = quality.document_hashes(file)
            token_files.append(_describe_token_file(file, hashes[path.stem]))
            files[path.stem] = file
    storage = open_storage(directory)
    there = [name for name in storage.final.names() if name.endswith("stats.json")]
    runs = {name: read_object(storage.final, name, STATS_FORMAT) or {} for name in there}
    found: dict[str, Any] = {
        "path": str(directory),
        "tokenizer": tokenizer,
        "token_files": token_files,
        "val_in_train": list(_compare_val_with_train(files, hashes)),
        "runs": [
            {"path": str(directory / name)} | {key: stats.get(key) for key in _OF_A_RUN}
            for name, stats in runs.items()
            if "look_alikes" in stats
        ],
        "unfinished": unfinished,
    }
    keys = "tokenizer", "token_files", "runs", "unfinished"
    if len(bad) == n_bad and not any(found[key] for key in keys):
        raise TokenFileError(f"{directory}: no tokenizer and no token file in this directory")
    return found


def _describe_url(url: str) -> dict[str, Any]:
    """Describe the token file at a URL, or all token files in the directory there."""
    paths, bad, unfinished = find_token_files(url), list[dict[str, str]](), list[dict[str, Any]]()
    if paths == [url]:
        file = open_tokens(url)
        return _describe_token_file(file, quality.document_hashes(file))
    if is_bucket(url):
        unfinished = [how_far(url, run) for run in open_storage(url).runs()]
    token_files = []
    for each in paths:
        with noted(bad, shown_url(each)):
            file = open_tokens(each)
            token_files.append(_describe_token_file(file, quality.document_hashes(file)))
    return {
        "path": shown_url(url), "token_files": token_files, "unfinished": unfinished,
        "bad_files": bad,
    }


def _describe_token_file(file: TokenFile, hashes: NDArray[np.uint64]) -> dict[str, Any]:
    tokenizer, more = None, {}
    try:
        if isinstance(file.path, Path):
            tokenizer = load_tokenizer_of(file.path, None)
            open_tokens(file.path, tokenizer=tokenizer)
        else:
            tokenizer = _tokenizer_at(file)
    except TokenmillError as error:
        tokenizer, more = None, {"no_tokenizer": str(error)}
    return {**quality.describe(file, tokenizer), **more, "copies": quality.count_copies(hashes)}


def _compare_val_with_train(
    files: dict[str, TokenFile], hashes: dict[str, NDArray[np.uint64]]
) -> Iterator[dict[str, Any]]:
    """Count the documents of each NAMEval that are in NAMEtrain of the same directory, too."""
    for name in files:
        train = f"{name.removesuffix('val')}train"
        if not name.endswith("val") or train not in files:
            continue
        found = {"val": name, "train": train, "documents": files[name].n_documents}
        manifests = (files[name].manifest, files[train].manifest)
        ids = [(m.tokenizer_fingerprint, m.end_of_text_id, m.begin_of_text_id) for m in manifests]
        if ids[0] == ids[1]:
            yield found | {"in_train": quality.count_shared(hashes[name], hashes[train])}
        else:
            why = "they were built with different tokenizers or special tokens"
            yield found | {"not_compared": why}


def how_far(location: Path | str, run: str) -> dict[str, Any]:
    """Describe the progress of an unfinished run in `location`, from its journal.

    Returns:
        "path" and "text", a line for people; once a stage has begun also "stage", "share" (of its
        units), "done", "total", "unit" ("B" for bytes of sources), "seconds", "per_second" and
        "seconds_left"; the last two are None if unknown.
    """
    storage = open_storage(location, run)
    found: dict[str, Any] = {"path": storage.where(), "text": "no progress yet"}
    if run == REPAIR:
        return found | {"text": "a repair; the next one removes it (verify --repair)"}
    content = storage.get(JOURNAL_FILE)
    if content is None:
        return found
    try:
        entries = [entry for entry, _, _ in read_entries(content, storage.where(JOURNAL_FILE))]
        with journal_errors():
            return found | _describe_last_stage(entries)
    except JournalError as error:
        return found | {"text": str(error)}


def _describe_last_stage(entries: list[Entry]) -> dict[str, Any]:
    """Describe the last stage in the entries of a journal, as `how_far`."""
    if entries and entries[-1]["key"] == PUBLISHING:
        return {"stage": "finishing", "text": "complete, except for final names"}
    shown = next((entry["stage"] for entry in reversed(entries) if entry["stage"]), None)
    if shown is None:
        return {}
    stage = Stage(shown["name"], shown["total"], shown["unit"], shown["done"])
    seconds = float(shown["seconds"])
    rate = stage.done / seconds if seconds > 0 and stage.done else None
    return {
        "text": line_of(stage, seconds),
        "stage": stage.name,
        "share": stage.done / stage.total if stage.total else 1.0,
        "done": stage.done,
        "total": stage.total,
        "unit": stage.unit,
        "seconds": seconds,
        "per_second": rate,
        "seconds_left": None if rate is None else (stage.total - stage.done) / rate,
    }

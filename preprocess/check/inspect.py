"""Describe token files, tokenizers, rows and directories of outputs; decode token files.

Read-only; the kind of a file is checked before the file is described. Descriptions are dictionaries
for JSON; `format_lines` formats them for people.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bpe.errors import TokenizerFileError, TokenmillError
from bpe.files.locations import is_url
from preprocess.check import quality, rows
from preprocess.check.findings import reason_of
from preprocess.dataset.columns import TokenFileError
from preprocess.dataset.manifest import FORMAT
from preprocess.dataset.reader import TokenFile, check_tokenizer, open_tokens
from preprocess.locations import is_bucket, join_location
from preprocess.options import DecodeSettings, InspectSettings
from preprocess.report.progress import Stage, line_of, percent
from preprocess.report.summary import listed
from preprocess.run.finished import (
    STATS_FORMAT,
    find_token_files,
    manifests_in,
    read_object,
)
from preprocess.run.journal import Journal, JournalError, journal_errors
from preprocess.run.outputs import TOKENIZER_FILE
from preprocess.run.run import PUBLISHING
from preprocess.settings import StrPath, takes
from preprocess.storage import REPAIR, open_files, open_storage

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer

Facts = dict[str, Any]

_TOKENS_AT_A_TIME = 1 << 20
_LONGEST = 10  # tokens of a tokenizer
_SHOWN, _MOST_SHOWN = 5, 20  # of a list, and of special tokens
_WORDS = {
    "copies": "copies of other documents", "in_train": "of them in train, too",
    "look_alikes": "text that spelled special tokens", "replaced_sequences": "became U+FFFD",
    "skipped_documents": "documents that were not UTF-8",
    "no_tokenizer": "no samples, for lack of its tokenizer",
}  # of keys that do not say it themselves
_OF_A_RUN = ("empty_documents", "skipped_documents", "replaced_sequences", "look_alikes")


@takes(DecodeSettings)
def decode_range(settings: DecodeSettings) -> Iterator[bytes]:
    """Decode tokens [start, start + count) of a token file; pieces may end inside a character.

    Raises:
        TokenFileError: The token file is damaged, was built with another tokenizer, or has fewer
            than `start` tokens.
        TokenizerFileError: The tokenizer is missing or cannot be read.
    """
    from bpe import Tokenizer

    if not is_url(settings.path) and Path(settings.path).is_dir():
        names = manifests_in(open_files(settings.path))
        found = [str(Path(settings.path, name).with_suffix(".bin")) for name in names]
        raise TokenFileError(
            f"{settings.path}: is a directory, and a .bin is expected; give one of those in it:"
            f" {', '.join(found) or 'there is none'}"
        )
    file = open_tokens(settings.path)
    used, start, count = _tokenizer_of(file, settings.tokenizer), settings.start, settings.count
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


def _tokenizer_of(file: TokenFile, given: StrPath | None = None) -> AnyTokenizer:
    """Load the given tokenizer, else that beside a token file, and compare it."""
    from bpe import load_tokenizer

    path, where = (given, "") if given is not None else file.tokenizer_file()
    if path is None:
        raise TokenizerFileError(
            f"{where}: there is no such file; give the tokenizer that the token file was built"
            " with (--tokenizer)"
        )
    tokenizer = load_tokenizer(path)
    check_tokenizer(file.path, file.manifest, tokenizer.fingerprint)
    return tokenizer


# --- descriptions ---


@takes(InspectSettings)
def facts(settings: InspectSettings) -> Facts:
    """Describe a .bin, a tokenizer or a directory of outputs as a dictionary for JSON.

    A directory has "bad_files": path and text of those that cannot be described; "unfinished"; and
    "tokenizer" (or None), "token_files", "val_in_train" and "runs", or "rows", as of
    `preprocess.check.rows.describe`; that of a corpus has "places", as of directories.

    Options: docs/options.md or `tokenmill inspect --help`.

    Raises:
        TokenmillError: The file is missing, of another kind, or damaged.
    """
    from bpe import load_tokenizer

    given, bad = settings.path, list[Facts]()
    place = Path(given)
    if is_url(given) and find_token_files(given) != [given]:
        return _describe_directory(given, bad) | {"bad_files": bad}
    if place.is_dir():
        places = rows.find_places(place)
        if places == [place]:
            return _describe_directory(given, bad) | {"bad_files": bad}
        described = list[Facts]()
        for each in places:
            with _noted(bad, each):
                described.append(_describe_directory(str(each), bad))
        return {"path": given, "places": described, "bad_files": bad}
    if not is_url(given) and not place.exists() and place.suffix in (".bin", ".json"):
        raise TokenFileError(f"{place}: no such file or directory; check the path")
    if is_url(given) or place.suffix == ".bin" or (
        place.suffix == ".json" and read_object(open_files(place.parent), place.name, FORMAT)
    ):
        return _describe_token_file(open_tokens(given))[0]
    if place.exists() and place.suffix not in (".json", ".tiktoken"):
        raise TokenFileError(
            f"{place}: a .bin, its manifest, a tokenizer.json or a directory of them is expected"
        )
    return describe_tokenizer(place, load_tokenizer(place, pattern=settings.pattern))


@contextmanager
def _noted(bad: list[Facts], path: Path | str) -> Iterator[None]:
    """Add an error inside the `with` to a list, as path and text, instead of raising it."""
    try:
        yield
    except (TokenmillError, OSError) as error:
        bad.append({"path": str(path), "text": reason_of(error, path)})


def _describe_directory(location: str, bad: list[Facts]) -> Facts:
    """Describe the outputs in a directory; files that cannot be described are added to `bad`."""
    from bpe import load_tokenizer

    files, place, n_bad = open_files(location), Path(location), len(bad)
    runs: list[tuple[Path | str, str]] = []
    if not is_url(location):
        runs += rows.find_unfinished(place)
    elif is_bucket(location):
        runs += [(location, run) for run in open_storage(location).runs()]
    found: Facts = {
        "path": files.where(), "tokenizer": None, "token_files": [], "val_in_train": [], "runs": [],
        "unfinished": [how_far(*each) for each in runs],
    }
    names = manifests_in(files)
    if not names and not is_url(location) and (of_rows := rows.find_rows(place)):
        of_each = [rows.describe(each, bad) for each in of_rows]
        return {"path": found["path"], "rows": of_each, "unfinished": found["unfinished"]}
    if not is_url(location) and (path := place / TOKENIZER_FILE).exists():
        with _noted(bad, path):
            found["tokenizer"] = describe_tokenizer(path, load_tokenizer(path))
    opened: dict[str, tuple[TokenFile, NDArray[np.uint64]]] = {}
    for name in names:
        with _noted(bad, files.where(name)):
            file = open_tokens(join_location(location, name))
            described, hashes = _describe_token_file(file)
            found["token_files"].append(described)
            opened[name.removesuffix(".json")] = file, hashes
    found["val_in_train"] = [*quality.compare_val_with_train(opened)]
    for name in files.names():
        stats = read_object(files, name, STATS_FORMAT) if name.endswith("stats.json") else None
        if stats and "look_alikes" in stats:
            of_run = {key: stats.get(key) for key in _OF_A_RUN}
            found["runs"].append({"path": files.where(name), **of_run})
    if len(bad) == n_bad and not any(value for key, value in found.items() if key != "path"):
        raise TokenFileError(f"{location}: no tokenizer and no token file in this directory")
    return found


def _describe_token_file(file: TokenFile) -> tuple[Facts, NDArray[np.uint64]]:
    """Return (description of a token file, `quality.document_hashes`)."""
    tokenizer, more, hashes = None, {}, quality.document_hashes(file)
    try:
        tokenizer = _tokenizer_of(file)
    except TokenmillError as error:
        more = {"no_tokenizer": str(error)}
    found = quality.describe(file, tokenizer)
    return {**found, **more, "copies": quality.count_copies(hashes)}, hashes


def describe_tokenizer(path: Path, tokenizer: AnyTokenizer) -> Facts:
    """Describe a tokenizer from `path`."""
    from bpe import Tokenizer
    from bpe.split.patterns import PATTERNS

    special, vocab = tokenizer.special_tokens, tokenizer.vocab
    ordinary = [vocab[token_id] for token_id in vocab.keys() - special.values()]
    found: Facts = {
        "path": str(path), "kind": tokenizer.pattern, "vocab_size": tokenizer.vocab_size,
        "pattern": tokenizer.pattern, "unicode_version": tokenizer.unicode_version or None,
        "special_tokens": special, "eos_token": tokenizer.eos_token,
        "bos_token": tokenizer.bos_token,
        "ids_without_token": max(vocab, default=-1) + 1 - len(vocab),
        "longest": [_token_text(x) for x in sorted(ordinary, key=len, reverse=True)[:_LONGEST]],
    }
    if isinstance(tokenizer, Tokenizer):
        added = tokenizer.vocabulary.added_tokens
        found |= {
            "kind": "byte-level BPE",
            "pattern_text": PATTERNS.get(tokenizer.pattern, tokenizer.pattern),
            "merges": len(tokenizer.merges), "tie_break": tokenizer.tie_break,
            "normal_forms": list(tokenizer.normal_forms),
            "added_tokens_not_special": {x.text: x.id for x in added if not x.special},
        }
    return found | {"fingerprint": tokenizer.fingerprint}


def _token_text(token: bytes) -> str:
    """Format a token: its text, shortened, with unprintable characters escaped."""
    if len(token) > 8 and len(set(token)) == 1:
        return f"{_token_text(token[:1])} * {len(token)}"
    text = token[:80].decode("utf-8", "backslashreplace")
    return ascii(text)[1:-1] if not text.isprintable() else text


def how_far(location: Path | str, run: str) -> Facts:
    """Describe the progress of an unfinished run in `location`, from its journal.

    Returns:
        "path" and "text", a line for people; once a stage has begun also "stage", "share" (of its
        units), "done", "total", "unit" ("B" for bytes of sources), "seconds", "per_second" and
        "seconds_left"; the last two are None if unknown.
    """
    storage = open_storage(location, run)
    found: Facts = {"path": storage.where(), "text": "no progress yet"}
    if run == REPAIR:
        return found | {"text": "a repair; the next one removes it (verify --repair)"}
    try:
        with Journal(storage) as journal, journal_errors():
            if PUBLISHING in journal.keys:
                return found | {"stage": "finishing", "text": "complete, except for final names"}
            return found if journal.stage is None else found | _describe_stage(journal.stage)
    except JournalError as error:
        return found | {"text": str(error)}


def _describe_stage(shown: Facts) -> Facts:
    """Describe a stage, from an entry of a journal."""
    stage = Stage(shown["name"], shown["total"], shown["unit"], shown["done"])
    seconds = float(shown["seconds"])
    rate = stage.done / seconds if seconds > 0 and stage.done else None
    return {
        "text": line_of(stage, seconds), "stage": stage.name,
        "share": stage.done / stage.total if stage.total else 1.0,
        "done": stage.done, "total": stage.total, "unit": stage.unit, "seconds": seconds,
        "per_second": rate, "seconds_left": rate and (stage.total - stage.done) / rate,
    }


# --- text for people ---


def format_lines(found: Facts) -> list[str]:
    """Format what `facts` returns: a heading for each part, and a line for each fact."""
    if not {"unfinished", "bad_files"} & found.keys():
        return _format_part(found)
    parts = [found.get("tokenizer"), *found.get("token_files", ()), *found.get("places", ())]
    more = [*found.get("rows", ()), *found.get("val_in_train", ()), *found.get("runs", ())]
    return [
        *(line for part in [*parts, *more] if part for line in format_lines(part)),
        *(f"{each['path']}: not finished: {each['text']}" for each in found.get("unfinished", ())),
        *(f"{each['path']}: BAD: {each['text']}" for each in found.get("bad_files", ())),
    ]


def _format_part(found: Facts) -> list[str]:
    lines = [f"{found['path'] if 'path' in found else found['val'] + ' in ' + found['train']}:"]
    for key, value in found.items():
        if key not in ("path", "val", "train"):
            lines.append(f"  {_WORDS.get(key) or key.replace('_', ' ')}: {_shown(key, value)}")
    return lines


def _shown(key: str, value: Any) -> str:
    """Format the value of a fact in one line."""
    if value is None:
        return "none"
    if isinstance(value, float):
        return percent(value, 1) if key.endswith("share") else f"{value:,.2f}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, dict):
        pairs = [f"{name.replace('_', ' ')} {_shown(name, each)}" for name, each in value.items()]
        return listed(pairs, _MOST_SHOWN) or "none"
    if isinstance(value, list):
        return listed([_shown(key, each) for each in value], _SHOWN) or "none"
    return repr(value) if key in ("begins", "token", "longest") else str(value)

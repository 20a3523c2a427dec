"""Describe token files, tokenizers, rows and directories of outputs.

Descriptions are dictionaries for JSON; `format_lines` formats them for people. All tokens are read,
in chunks; nothing is estimated. `preprocess.check.scan` has the memory, and how copies are found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bpe.errors import TokenmillError
from bpe.files.locations import is_url
from preprocess.check import rows
from preprocess.check.rows import reason_of
from preprocess.check.scan import Scan
from preprocess.dataset.columns import TokenFileError, manifest_name
from preprocess.dataset.manifest import FORMAT
from preprocess.dataset.reader import TokenFile, open_tokens, read_bounds, tokenizer_of
from preprocess.locations import is_bucket, join_location
from preprocess.options import InspectSettings
from preprocess.report.progress import Stage, line_of, percent
from preprocess.report.summary import listed
from preprocess.run.journal import Journal, JournalError, journal_errors
from preprocess.run.outputs import (
    TOKENIZER_FILE,
    find_token_files,
    names_of_datasets,
    open_one,
    read_object,
)
from preprocess.run.run import PUBLISHING
from preprocess.settings import takes
from preprocess.storage import REPAIR, open_files, open_storage

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer

Facts = dict[str, Any]

_SHARES = (0, 1, 10, 50, 90, 99, 100)  # of documents, by their tokens
_SAMPLE_TOKENS = 24
_SHOWN, _MOST_SHOWN = 5, 20  # of a list, and of special tokens
_WORDS = {
    "copies": "copies of other documents", "in_train": "of them in train, too",
    "no_tokenizer": "no samples, for lack of its tokenizer",
}  # of keys that do not say it themselves


@takes(InspectSettings)
def facts(settings: InspectSettings) -> Facts:
    """Describe a .bin, a tokenizer or a directory of outputs as a dictionary for JSON.

    A directory has "bad_files": path and text of those that cannot be described; "unfinished"; and
    "tokenizer" (or None), "token_files" and "val_in_train", or "rows", as of
    `preprocess.check.rows.describe`; that of a corpus has "places", as of directories.

    Options: docs/options.md or `tokenmill inspect --help`.

    Raises:
        TokenmillError: The file is missing, of another kind, or damaged.
    """
    from bpe import load_tokenizer

    given, bad = settings.path, list[Facts]()
    place = Path(given)
    places = rows.find_places(place) if place.is_dir() else []
    if places == [place] or (is_url(given) and place.suffix not in (".bin", ".json")):
        return _describe_directory(given, bad) | {"bad_files": bad}
    if places:
        described = list[Facts]()
        for each in places:
            with noted(bad, each):
                described.append(_describe_directory(str(each), bad))
        return {"path": given, "places": described, "bad_files": bad}
    if is_url(given) or place.suffix == ".bin" or is_manifest(place):
        return _describe_token_file(open_one(given))[0]
    if place.exists() and not place.is_file():  # reading it might never end
        raise TokenFileError(f"{place}: is a pipe or a device, expected a file or a directory")
    if place.exists() and place.suffix not in (".json", ".tiktoken"):
        raise TokenFileError(
            f"{place}: a .bin, its manifest, a tokenizer.json or a directory of them is expected"
        )
    return describe_tokenizer(place, load_tokenizer(place, pattern=settings.pattern))


def is_manifest(place: Path) -> bool:
    """Return True for a JSON file that is a manifest, or a damaged one beside its files."""
    if place.suffix != ".json" or place.name == TOKENIZER_FILE:
        return False
    files = open_files(place.parent)
    is_sound = read_object(files, place.name, FORMAT) is not None
    return is_sound or place.stem in names_of_datasets(files)


@contextmanager
def noted(bad: list[Facts], path: Path | str) -> Iterator[None]:
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
        "path": files.where(), "tokenizer": None, "token_files": [], "val_in_train": [],
        "unfinished": [how_far(*each) for each in runs],
    }
    names = names_of_datasets(files)
    if not names and not is_url(location) and (of_rows := rows.find_rows(place)):
        of_each = [rows.describe(each, bad) for each in of_rows]
        return {"path": found["path"], "rows": of_each, "unfinished": found["unfinished"]}
    if not is_url(location) and (path := place / TOKENIZER_FILE).exists():
        with noted(bad, path):
            found["tokenizer"] = describe_tokenizer(path, load_tokenizer(path))
    scans: dict[str, Scan] = {}
    for name in names:
        manifest_file = manifest_name(name)
        with noted(bad, files.where(manifest_file)):
            file = open_tokens(join_location(location, manifest_file))
            described, scanned = _describe_token_file(file)
            found["token_files"].append(described)
            scans[name] = scanned
    found["val_in_train"] = [*compare_val_with_train(scans)]
    if len(bad) == n_bad and not any(value for key, value in found.items() if key != "path"):
        find_token_files(location)  # raises
    return found


def _describe_token_file(file: TokenFile) -> tuple[Facts, Scan]:
    """Return (description of a token file, what reading it found)."""
    scanned = Scan(file).run()
    found = describe_scan(scanned)
    try:
        found["samples"] = [*_decode_samples(file, tokenizer_of(file))]
    except TokenmillError as error:
        found["no_tokenizer"] = str(error)
    return found, scanned


def describe_scan(scanned: Scan) -> Facts:
    """Describe a token file that was read."""
    file, manifest = scanned.file, scanned.file.manifest
    lengths, around = scanned.lengths, 1 if manifest.begin_of_text_id is None else 2
    spread = None
    if file.n_documents:
        percentiles = dict(zip(map(str, _SHARES), lengths.percentiles(_SHARES), strict=True))
        spread = {"mean": file.n_tokens / file.n_documents, "percentiles": percentiles}
    found: Facts = {
        "path": str(file.path), "dtype": file.dtype.name, "tokens": file.n_tokens,
        "documents": file.n_documents, "shards": len(manifest.shards), "bytes": manifest.n_bytes,
        "bytes_per_token": manifest.n_bytes / max(file.n_tokens, 1), "vocab_size": file.vocab_size,
        "ids_that_occur": int(np.count_nonzero(scanned.counts)),
        "end_of_text_id": manifest.end_of_text_id, "begin_of_text_id": manifest.begin_of_text_id,
        "sources": [str(source.get("name")) for source in manifest.sources],
        "empty_documents": lengths.histogram((0, around + 1))[0], "copies": scanned.copies.shape[1],
        "tokens_per_document": spread,
    }
    if file.has_mask:
        found["trained_share"] = scanned.n_trained / max(file.n_tokens, 1)
    return found


def _decode_samples(file: TokenFile, tokenizer: AnyTokenizer) -> Iterator[Facts]:
    """Decode the beginnings of the first, the middle and the last document."""
    last = file.n_documents - 1
    for number in sorted({0, last // 2, last} if file.n_documents else ()):
        start, stop = read_bounds(file, number, number + 1).tolist()
        ids = file[start : min(stop, start + _SAMPLE_TOKENS)]
        text = tokenizer.decode_bytes(ids).decode("utf-8", "replace")
        yield {"document": number, "begins": text}


def compare_val_with_train(scans: Mapping[str, Scan]) -> Iterator[Facts]:
    """Count the documents of each NAMEval that are in NAMEtrain of the same directory, too."""
    for name, val in scans.items():
        other = f"{name.removesuffix('val')}train"
        if not name.endswith("val") or other not in scans:
            continue
        train = scans[other]
        found: Facts = {"val": name, "train": other, "documents": val.file.n_documents}
        ids = [
            (x.tokenizer_fingerprint, x.end_of_text_id, x.begin_of_text_id)
            for x in (val.file.manifest, train.file.manifest)
        ]
        if ids[0] == ids[1]:
            yield found | {"in_train": val.count_in(train)}
        else:
            why = "they were built with different tokenizers or special tokens"
            yield found | {"not_compared": why}


def describe_tokenizer(path: Path, tokenizer: AnyTokenizer) -> Facts:
    """Describe a tokenizer from `path`."""
    from bpe import Tokenizer
    from bpe.split.patterns import PATTERNS

    vocab = tokenizer.vocab
    found: Facts = {
        "path": str(path), "kind": tokenizer.pattern, "vocab_size": tokenizer.vocab_size,
        "pattern": tokenizer.pattern, "unicode_version": tokenizer.unicode_version or None,
        "special_tokens": tokenizer.special_tokens, "eos_token": tokenizer.eos_token,
        "bos_token": tokenizer.bos_token,
        "ids_without_token": max(vocab, default=-1) + 1 - len(vocab),
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
    more = [*found.get("rows", ()), *found.get("val_in_train", ())]
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
        return str(value) if key.endswith("_id") else f"{value:,}"
    if key in ("special_tokens", "added_tokens_not_special"):
        return listed([f"{text} {each}" for text, each in value.items()], _MOST_SHOWN) or "none"
    if isinstance(value, dict):
        pairs = [f"{name.replace('_', ' ')} {_shown(name, each)}" for name, each in value.items()]
        return listed(pairs, _MOST_SHOWN) or "none"
    if isinstance(value, list):
        return listed([_shown(key, each) for each in value], _SHOWN) or "none"
    return repr(value) if key == "begins" else str(value)

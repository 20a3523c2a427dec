"""Compare two datasets: tokenizers, sources, documents whatever their order, the first difference.

A document is compared by a digest of its ids without those around it, and of its loss mask if both
datasets have one; of its text alone, if the tokenizers differ. Digests are in temporary files, and
are compared in parts, so memory is bounded.
"""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from bpe.files.temporary import temporary_directory
from preprocess.check.scan import spans_of_documents
from preprocess.dataset.reader import TokenFile, open_tokens, read_bounds, read_ids, tokenizer_of
from preprocess.options import DiffSettings
from preprocess.report.progress import progress_of
from preprocess.run.outputs import find_token_files
from preprocess.settings import takes

Digests = NDArray[np.void]  # of `_DIGEST`

_DIGEST = np.dtype([("low", "<u8"), ("high", "<u8")])
_NONE = np.zeros(0, _DIGEST)
_BLOCK = 1 << 12  # documents whose bounds are read at a time
_ROWS = 1 << 20  # digests that are read at a time
_ROW_BYTES = 250  # memory that comparing takes for each document of a part
_MEMORY = 256 << 20
_SIDES = ("old", "new")


@takes(DiffSettings)
def diff(settings: DiffSettings) -> dict[str, Any]:
    """Compare two datasets, or those of one name in two directories.

    Options: docs/options.md or `tokenmill diff --help`; `progress=False` shows none.

    Returns:
        A dictionary for JSON: `same`; `datasets`, of each what docs/look.md describes; and
        `only_in_old` and `only_in_new`, the names of datasets that one directory lacks.

    Raises:
        TokenFileError: A dataset is missing or damaged.
        TokenmillError: The server of a URL does not answer.
    """
    progress = progress_of(settings.progress)
    progress.begin(None)
    sides = [_open_all(each) for each in (settings.old, settings.new)]
    if all(len(side) == 1 for side in sides):
        pairs = {next(iter(sides[1])): [next(iter(side.values())) for side in sides]}
    else:
        names = [name for name in sides[0] if name in sides[1]]
        pairs = {name: [side[name] for side in sides] for name in names}
    found: dict[str, Any] = {"same": True, "datasets": {}, "only_in_old": [], "only_in_new": []}
    if len(pairs) != 1 or len(sides[0]) > 1 or len(sides[1]) > 1:
        found |= {f"only_in_{x}": [*y.keys() - pairs] for x, y in zip(_SIDES, sides, strict=True)}
    for name, (old, new) in pairs.items():
        n_documents = old.n_documents + new.n_documents
        with progress.stage(f"comparing {name}", n_documents, "documents") as stage:
            found["datasets"][name] = _compare(old, new, settings.limit, stage.advance)
    found["same"] = not (found["only_in_old"] or found["only_in_new"]) and all(
        each["same"] for each in found["datasets"].values()
    )
    return found


def _open_all(location: str) -> dict[str, TokenFile]:
    files = map(open_tokens, find_token_files(location))
    return {os.path.splitext(os.path.basename(str(file.path)))[0]: file for file in files}


def _compare(
    old: TokenFile, new: TokenFile, limit: int, advance: Callable[[int], None]
) -> dict[str, Any]:
    """Compare two datasets; `advance` gets numbers of documents that were read."""
    files = dict(zip(_SIDES, (old, new), strict=True))
    manifests = {side: file.manifest for side, file in files.items()}
    tokenizers = {side: each.tokenizer_fingerprint for side, each in manifests.items()}
    columns = {side: [x.name for x in each.columns] for side, each in manifests.items()}
    counts = {
        side: {"documents": each.n_documents, "tokens": each.n_tokens, "bytes": each.n_bytes}
        for side, each in manifests.items()
    }
    is_alike = tokenizers["old"] == tokenizers["new"]
    found: dict[str, Any] = {
        "same": False, "tokenizers": tokenizers, "columns": columns, "counts": counts,
        "sources": _different_sources(manifests), "compared": "ids" if is_alike else "text",
    }
    decoders = [None if is_alike else tokenizer_of(file).decode_bytes for file in files.values()]
    has_mask = old.has_mask and new.has_mask and is_alike
    with temporary_directory() as directory:
        rows = []
        for (side, file), decode in zip(files.items(), decoders, strict=True):
            with open(directory / side, "wb") as out:
                out.writelines(_digests(file, decode, has_mask, advance))
            n_bytes = (directory / side).stat().st_size
            rows.append(np.memmap(directory / side, _DIGEST, "r") if n_bytes else _NONE)
        only_in = _only_in_one(*rows)
        place = _first_difference(*rows)
    for (side, file), only in zip(files.items(), only_in, strict=True):
        n_tokens = sum(
            int(spans_of_documents(file, only[start : start + _ROWS])[1].sum())
            for start in range(0, len(only), _ROWS)
        )
        first = only[:limit].tolist()
        found[f"only_in_{side}"] = {"documents": len(only), "tokens": n_tokens, "first": first}
    found["first_difference"] = place if place is None else _describe(place, is_alike, old, new)
    found["same"] = place is None and not found["sources"] and all(
        each["old"] == each["new"] for each in (tokenizers, columns, counts)
    )
    return found


def _different_sources(manifests: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the counts of sources that differ, by name; none where a dataset lacks them."""
    if any("documents" not in x for manifest in manifests.values() for x in manifest.sources):
        return []  # of shuffled documents
    sums: dict[str, dict[str, Any]] = {}
    for side, manifest in manifests.items():
        for source in manifest.sources:
            zeros = {x: {"documents": 0, "tokens": 0} for x in _SIDES}
            own = sums.setdefault(str(source.get("name")), zeros)[side]
            for what in own:
                own[what] += source.get(what) or 0
    return [{"name": x} | each for x, each in sums.items() if each["old"] != each["new"]]


def _inside(file: TokenFile, ids: NDArray[Any]) -> NDArray[Any]:
    """Return the ids of a document without those around it."""
    return ids[file.manifest.begin_of_text_id is not None : -1]


def _digests(
    file: TokenFile, decode: Callable[[NDArray[Any]], bytes] | None, has_mask: bool,
    advance: Callable[[int], None],
) -> Iterator[bytes]:
    """Yield the digest of each document, of its text if there is `decode`: 16 bytes."""
    for first in range(0, file.n_documents, _BLOCK):
        bounds = read_bounds(file, first, min(first + _BLOCK, file.n_documents)).tolist()
        for start, stop in pairwise(bounds):
            ids = _inside(file, read_ids(file, start, stop))
            digest = xxhash.xxh3_128(decode(ids) if decode else ids.astype("<u4").tobytes())
            if has_mask:
                digest.update(b"\0")
                digest.update(np.asarray(file.loss_mask[start:stop]).tobytes())
            yield digest.digest()
        advance(len(bounds) - 1)


def _only_in_one(old: Digests, new: Digests) -> list[NDArray[np.int64]]:
    """Return the numbers of the documents of each side that the other lacks, ascending.

    Of a document that one side has more often, the last ones are missing on the other.
    """
    n_parts = max(1, -(-(len(old) + len(new)) * _ROW_BYTES // _MEMORY))
    found = [array("q"), array("q")]  # of lists, each number takes five times the memory
    for part in range(n_parts):
        sides = [_part_of(rows, part, n_parts) for rows in (old, new)]
        counts = [Counter(digests) for _, digests in sides]
        for only, (numbers, digests), own, other in zip(
            found, sides, counts, counts[::-1], strict=True
        ):
            more = own - other
            for number, digest in zip(numbers[::-1], digests[::-1], strict=True) if more else ():
                if more.get(digest):
                    more[digest] -= 1
                    only.append(number)
    return [np.sort(np.asarray(each)) for each in found]


def _part_of(rows: Digests, part: int, n_parts: int) -> tuple[list[int], list[bytes]]:
    """Return the numbers and digests of documents whose digests are of a part."""
    numbers, digests = list[int](), list[bytes]()
    for start in range(0, len(rows), _ROWS):
        block = rows[start : start + _ROWS]
        here = np.flatnonzero(block["low"] % np.uint64(n_parts) == part)
        numbers += (here + start).tolist()
        digests += block[here].view("V16").tolist()
    return numbers, digests


def _first_difference(old: Digests, new: Digests) -> int | None:
    """Return the number of the first document that differs; None: there is none."""
    n = min(len(old), len(new))
    for start in range(0, n, _ROWS):
        stop = min(start + _ROWS, n)
        if (differs := old[start:stop] != new[start:stop]).any():
            return start + int(differs.argmax())
    return None if len(old) == len(new) else n


def _describe(document: int, is_alike: bool, old: TokenFile, new: TokenFile) -> dict[str, int]:
    """Return the place of the first difference; of documents of one tokenizer with the token."""
    found = {"document": document}
    if is_alike and document < min(old.n_documents, new.n_documents):
        first, second = (_inside(each, each.doc(document)) for each in (old, new))
        n = min(len(first), len(second))
        found["token"] = int(np.append(first[:n] != second[:n], True).argmax())
    return found


def format_lines(found: Mapping[str, Any]) -> list[str]:
    """Format a comparison for people."""
    lines = [f"{each} is only in {x}" for x in _SIDES for each in found[f"only_in_{x}"]]
    for name, each in found["datasets"].items():
        if each["same"]:
            counts = each["counts"]["old"]
            lines.append(f"{name}: the same {counts['documents']:,} documents in the same order")
            continue
        for what in ("tokenizers", "columns"):
            old, new = (each[what][x] for x in _SIDES)
            if old != new:
                lines.append(f"{name}: {what}: {old or 'none'} in old, {new or 'none'} in new")
        for what in ("documents", "tokens", "bytes"):
            old, new = (each["counts"][x][what] for x in _SIDES)
            lines.append(f"{name}: {what}: {old:,} in old, {new:,} in new ({new - old:+,})")
        for side in _SIDES:
            only = each[f"only_in_{side}"]
            numbers = ", ".join(f"{x:,}" for x in only["first"])
            more = " and more" * (only["documents"] > len(only["first"]))
            where = f": numbers {numbers}{more}" if numbers else ""
            lines.append(
                f"{name}: only in {side}: {only['documents']:,} documents,"
                f" {only['tokens']:,} tokens{where}"
            )
        for source in each["sources"]:
            old, new = (f"{source[x]['documents']:,}" for x in _SIDES)
            lines.append(f"{name}: documents of {source['name']}: {old} in old, {new} in new")
        if (first := each["first_difference"]) is not None:
            at = f", token {first['token']:,}" if "token" in first else ""
            lines.append(f"{name}: the first difference is in document {first['document']:,}{at}")
    return lines

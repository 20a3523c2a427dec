"""Compare two datasets: tokenizers, sources, documents whatever their order, the first difference.

A document is compared by a digest of its ids without those around it, and of its loss mask if both
datasets have one; of its text alone, if the tokenizers differ. Digests are in temporary files, and
are compared in parts, so memory is bounded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from bpe.files.temporary import temporary_directory
from preprocess.check.scan import spans_of_documents
from preprocess.dataset.reader import (
    TokenFile,
    open_tokens,
    read_bounds,
    read_ids,
    tokenizer_of,
)
from preprocess.options import DiffSettings
from preprocess.report.progress import progress_of
from preprocess.run.outputs import find_token_files
from preprocess.settings import takes

Digests = NDArray[np.uint64]  # uint64[n, 2]
Content = Callable[[NDArray[Any]], bytes]

_BLOCK = 1 << 12  # documents whose bounds are read at a time
_ROWS = 1 << 20  # digests that are read at a time
_ROW_BYTES = 100  # memory that comparing takes for each document of a part
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
    manifests = {name: file.manifest for name, file in zip(_SIDES, (old, new), strict=True)}
    tokenizers = {name: each.tokenizer_fingerprint for name, each in manifests.items()}
    columns = {name: [x.name for x in each.columns] for name, each in manifests.items()}
    counts = {
        name: {"documents": each.n_documents, "tokens": each.n_tokens, "bytes": each.n_bytes}
        for name, each in manifests.items()
    }
    contents = [_content_of(file, tokenizers["old"] != tokenizers["new"]) for file in (old, new)]
    found: dict[str, Any] = {
        "same": False, "tokenizers": tokenizers, "columns": columns, "counts": counts,
        "sources": _different_sources(manifests),
        "compared": "ids" if tokenizers["old"] == tokenizers["new"] else "text",
    }
    has_mask = old.has_mask and new.has_mask and tokenizers["old"] == tokenizers["new"]
    with temporary_directory() as directory:
        rows = []
        for name, file, content in zip(_SIDES, (old, new), contents, strict=True):
            with open(directory / name, "wb") as out:
                for digests in _digests(file, content, has_mask, advance):
                    out.write(digests)
            rows.append(_mapped(directory / name))
        for name, only in zip(_SIDES, _only_in_one(rows), strict=True):
            file = old if name == "old" else new
            n_tokens = sum(
                int(spans_of_documents(file, only[start : start + _ROWS])[1].sum())
                for start in range(0, len(only), _ROWS)
            )
            first = only[:limit].tolist()
            found[f"only_in_{name}"] = {
                "documents": len(only), "tokens": n_tokens, "first": first,
            }
        place = _first_difference(*rows)
    found["first_difference"] = place if place is None else _describe(place, old, new)
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
            own = sums.setdefault(str(source.get("name")), {x: [0, 0] for x in _SIDES})[side]
            for i, what in enumerate(("documents", "tokens")):
                own[i] += source.get(what) or 0
    return [
        {"name": name} | {x: dict(zip(("documents", "tokens"), each[x], strict=True))
                          for x in _SIDES}
        for name, each in sums.items() if each["old"] != each["new"]
    ]  # fmt: skip


def _content_of(file: TokenFile, has_other: bool) -> Content:
    """Return what makes the bytes to compare of the ids of a document."""
    if not has_other:
        return lambda ids: ids.astype("<u4").tobytes()
    return tokenizer_of(file).decode_bytes


def _inside(file: TokenFile, ids: NDArray[Any]) -> NDArray[Any]:
    """Return the ids of a document without those around it."""
    return ids[file.manifest.begin_of_text_id is not None : -1]


def _digests(
    file: TokenFile, content: Content, has_mask: bool, advance: Callable[[int], None]
) -> Iterator[bytes]:
    """Yield the digests of all documents, 16 bytes each."""
    for first in range(0, file.n_documents, _BLOCK):
        bounds = read_bounds(file, first, min(first + _BLOCK, file.n_documents)).tolist()
        digests = bytearray()
        for start, stop in pairwise(bounds):
            digest = xxhash.xxh3_128(content(_inside(file, read_ids(file, start, stop))))
            if has_mask:
                digest.update(b"\0")
                digest.update(np.asarray(file.loss_mask[start:stop]).tobytes())
            digests += digest.digest()
        advance(len(bounds) - 1)
        yield bytes(digests)


def _mapped(path: Path) -> Digests:
    if not path.stat().st_size:
        return np.empty((0, 2), np.uint64)
    return np.memmap(path, np.uint64, "r").reshape(-1, 2)


def _only_in_one(rows: list[Digests]) -> list[NDArray[np.int64]]:
    """Return the numbers of the documents of each side that the other lacks, ascending.

    Of a document that one side has more often, the last ones are missing on the other.
    """
    n_parts = max(1, -(-sum(map(len, rows)) * _ROW_BYTES // _MEMORY))
    found: list[list[NDArray[np.int64]]] = [[], []]
    for part in range(n_parts):
        numbers, digests, sides = list[Any](), list[Any](), list[Any]()
        for side, of in enumerate(rows):
            for start in range(0, len(of), _ROWS):
                block = of[start : start + _ROWS]
                here = np.flatnonzero(block[:, 0] % np.uint64(n_parts) == part)
                numbers.append(here + start)
                digests.append(block[here])
                sides.append(np.full(len(here), side, np.int8))
        if not numbers:
            break
        number, digest, side_of = map(np.concatenate, (numbers, digests, sides))
        # Stable: of equal documents the old ones come first, in order.
        order = np.lexsort((digest[:, 1], digest[:, 0]))
        number, digest, side_of = number[order], digest[order], side_of[order]
        is_new = np.append(True, (digest[1:] != digest[:-1]).any(axis=1))[: len(digest)]
        group = np.cumsum(is_new) - 1
        n_groups = int(group[-1]) + 1 if len(group) else 0
        counts = [np.bincount(group[side_of == x], minlength=n_groups) for x in (0, 1)]
        begins = np.flatnonzero(is_new)[group]
        rank = np.arange(len(group)) - begins
        for side, other in ((0, 1), (1, 0)):
            own = rank - (counts[0][group] if side else 0)
            found[side].append(number[(side_of == side) & (own >= counts[other][group])])
    return [np.sort(np.concatenate([np.empty(0, np.int64), *x])) for x in found]


def _first_difference(old: Digests, new: Digests) -> int | None:
    """Return the number of the first document that differs; None: there is none."""
    n = min(len(old), len(new))
    for start in range(0, n, _ROWS):
        stop = min(start + _ROWS, n)
        differs = old[start:stop] != new[start:stop]
        if differs.any():
            return start + int(differs.any(axis=1).argmax())
    return None if len(old) == len(new) else n


def _describe(document: int, old: TokenFile, new: TokenFile) -> dict[str, int]:
    """Return the place of the first difference; of documents of one tokenizer with the token."""
    found = {"document": document}
    fingerprints = {each.manifest.tokenizer_fingerprint for each in (old, new)}
    if len(fingerprints) == 1 and document < min(old.n_documents, new.n_documents):
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

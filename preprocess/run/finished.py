"""Finished outputs of earlier runs: find them, read their records, refuse to replace them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Set
from contextlib import suppress
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import xxhash
from msgspec import Struct

from bpe.files.locations import is_url
from preprocess.dataset.columns import (
    DOCUMENT_ENDS,
    IDS,
    TokenFileError,
    dataset_of_shard,
    manifest_name,
)
from preprocess.dataset.manifest import FORMAT, Manifest, spellings_of
from preprocess.dataset.reader import check_tokenizer
from preprocess.locations import how_to_repair, join_location
from preprocess.run.record import Record
from preprocess.storage import Files, OutputError, open_files, open_storage

STATS_FORMAT = "tokenmill-stats"
# Larger files of JSON are parsed only if the format is named near their start, as we write it.
_LARGE_BYTES, _BEGIN_BYTES = 1 << 20, 4096


class Stats(Struct, kw_only=True):
    """The keys of a stats.json that later runs read; files of earlier versions may lack some."""

    made_from: Record | None = None
    manifests: dict[str, str | None] = {}  # name of a manifest -> its xxh3_128
    rejects: dict[str, str | None] = {}  # name of a list of bad records -> its xxh3_128
    settings: dict[str, Any] | None = None
    fingerprint: str | None = None  # sha256 of the tokenizer file of `train`
    files: int = 1  # that the run read
    seconds: float = 0.0

    @property
    def joins_parts(self) -> bool:
        """Return True if the files are those of parts, joined."""
        given = self.settings or {}
        return given.get("task_count") is not None and given.get("task_index") is None


class _OfPart(Struct):
    files: str = ""


class _Shards(Struct):
    shards: list[_OfPart] = []


def read_object(files: Files, name: str, format_name: str) -> dict[str, Any] | None:
    """Read a JSON object with the given "format"; None if the file is missing or another one."""
    try:
        if not may_be_of(files, name, format_name):
            return None
        content = json.loads(files.get(name) or b"null")
    except (ValueError, OSError, OutputError, RecursionError):
        return None
    is_object = isinstance(content, dict)
    return content if is_object and content.get("format") in spellings_of(format_name) else None


def may_be_of(files: Files, name: str, format_name: str) -> bool:
    """Return False if a file is large and does not begin as our files with the "format" do."""
    if (files.size(name) or 0) <= _LARGE_BYTES:
        return True
    begins = files.read(name, 0, _BEGIN_BYTES)
    return any(each.encode() in begins for each in spellings_of(format_name))


def manifests_in(files: Files, format_name: str = FORMAT) -> list[str]:
    """List the names of manifests, sorted; only their "format" is checked.

    Those of parts are left out, if the manifest that joins them is there.
    """
    found, joined = _find_manifests(files, format_name)
    return [name for name in found if name not in joined]


def names_of_datasets(files: Files) -> list[str]:
    """List NAME of the datasets in a directory, also of damaged ones, sorted; no joined parts.

    A manifest is damaged or missing if its .bin and .docs exist, or if a stats.json lists it and
    one of its files exists, or it joins parts.
    """
    there = {*files.names()}
    bins, docs = (
        {
            manifest_name(stem if f"{stem}.json" in there else dataset_of_shard(stem))
            for stem in (name.removesuffix(suffix) for name in there if name.endswith(suffix))
        }
        for suffix in (IDS.suffix, DOCUMENT_ENDS.suffix)
    )
    manifests, joined = _find_manifests(files, FORMAT)
    found, of_files = {*manifests, *(bins & docs)}, {*bins, *docs, *there}
    for name in there:
        if name.endswith("stats.json") and (stats := read_stats(files, name)) is not None:
            found |= {x for x in stats.manifests if stats.joins_parts or x in of_files}
    return sorted(name.removesuffix(".json") for name in found - joined)


def _find_manifests(files: Files, format_name: str) -> tuple[list[str], set[str]]:
    """Return the names of (all JSON files of a format, sorted; those of parts that are joined)."""
    found, joined = list[str](), set[str]()
    for name in files.names():
        content = read_object(files, name, format_name) if name.endswith(".json") else None
        if content is not None:
            found.append(name)
            with suppress(msgspec.ValidationError):
                stems = (each.files for each in msgspec.convert(content, _Shards).shards)
                joined |= {manifest_name(dataset_of_shard(x)) for x in stems if x}
    return found, joined


def find_token_files(location: str) -> list[str]:
    """Return the token file at a path or URL, or the manifests of all those in a directory.

    Raises:
        TokenFileError: There are none.
    """
    place, is_remote = Path(location), is_url(location)
    is_dataset = place.suffix in (".bin", ".json")
    if place.is_dir() or (is_remote and not is_dataset):
        files = open_files(location)
        if not (names := manifests_in(files)):
            problem = f"{files.where()}: no finished token file in this directory"
            if open_storage(location).runs():
                raise TokenFileError(f"{problem}, but an unfinished run: run its command again")
            raise TokenFileError(
                f"{problem}; build one first: tokenmill build --train {files.where()}"
            )
        return [join_location(location, name) for name in names]
    if not is_remote and not place.exists() and not place.with_suffix(".json").exists():
        raise TokenFileError(f"{place}: no such file or directory; check the path")
    if not is_dataset:
        text = place if place.suffix in (".yaml", ".yml") else f"--train {place}"
        raise TokenFileError(
            f"{place}: is not a dataset; build one first: tokenmill build {text}"
        )
    return [location]


def read_stats(files: Files, name: str) -> Stats | None:
    """Read a stats.json as `Stats`; None if it is missing or cannot be read."""
    try:
        return msgspec.convert(read_object(files, name, STATS_FORMAT), Stats | None)
    except msgspec.ValidationError:
        return None


def find_run(files: Files, manifest_file: str) -> Stats | None:
    """Find the stats.json of the run that wrote a manifest; None if there is none."""
    digest = digest_of(files.get(manifest_file))
    for name in files.names():
        found = read_stats(files, name) if name.endswith("stats.json") else None
        if found is not None and found.manifests.get(manifest_file) == digest:
            return found
    return None


def newest_source(run: Stats) -> str | None:
    """Return the time of the source that was changed last, in UTC; None if it is not known."""
    sources = [] if run.made_from is None else chain.from_iterable(run.made_from.sources.values())
    stamps = (re.fullmatch(r"modified (\d+)", str(source.stamp)) for source in sources)
    newest = max((int(stamp[1]) for stamp in stamps if stamp), default=None)
    if newest is None:
        return None
    return f"{datetime.fromtimestamp(newest // 10**9, UTC):%Y-%m-%dT%H:%M:%SZ}"


def check_finished(files: Files, listed: Iterable[Any], again: str) -> None:
    """Raise OutputError if a file of a manifest, which has `name` and `bytes`, is not as written.

    `again` is what to do then.
    """
    sizes = files.sizes()
    for each in listed:
        if (size := sizes.get(each.name)) != each.bytes:
            state = "is missing" if size is None else f"has {size:,} bytes"
            raise OutputError(
                f"{files.where(each.name)}: {state}, expected {each.bytes:,} bytes as they were"
                f" written; {again}"
            )


def check_no_others(files: Files, names: Set[str], command: str) -> None:
    """Raise OutputError if files are there that a command would replace and did not write."""
    if there := names & {*files.names()}:
        raise OutputError(
            f"{files.where(min(there))}: exists and was not written by tokenmill {command}, so it"
            " is left alone; move it away or choose another directory (--out)"
        )


def sha256_of(content: bytes | None) -> str:
    """Return the fingerprint of a tokenizer with this content of its file."""
    return hashlib.sha256(content or b"").hexdigest()


def digest_of(content: bytes | None) -> str | None:
    """Return the digest of a small file that a stats.json lists: hexadecimal xxh3_128."""
    return None if content is None else xxhash.xxh3_128_hexdigest(content)


def open_published(
    files: Files, name: str, tokenizer: str = "", sizes: Mapping[str, int] | None = None
) -> Manifest:
    """Read the manifest of finished token files, and check their sizes.

    Args:
        files: Finished files.
        name: NAME of the token files.
        tokenizer: Fingerprint of the tokenizer that they should be of; "": of any.
        sizes: Sizes of all `files`, if they are known.

    Raises:
        TokenFileError: A file is missing or has another size, or is of another tokenizer.
    """
    where, sizes = files.where(manifest_name(name)), sizes or files.sizes()
    text = (files.get(manifest_name(name)) or b"").decode("utf-8", "replace")
    manifest = Manifest.from_json(text, where)
    if tokenizer:
        check_tokenizer(where, manifest, tokenizer)
    for file in manifest.files(name):
        found = sizes.get(file.name)
        if found != file.n_bytes:
            raise TokenFileError(
                f"{files.where(file.name)}: expected {file.n_bytes:,} bytes, as in its manifest"
                f" {where}, found {'no file' if found is None else f'{found:,}'}; restore or"
                f" repair it ({how_to_repair(where)}), or build all of them again (--overwrite)"
            )
    return manifest

"""Outputs of runs: find and read finished ones, refuse to replace others, write those of a run."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import xxhash
from msgspec import Struct

from bpe.errors import TokenizerFileError, TokenmillError
from bpe.files.locations import is_url
from preprocess.dataset import columns
from preprocess.dataset.columns import (
    DOCUMENT_ENDS,
    IDS,
    TokenFileError,
    dataset_of_shard,
    manifest_name,
)
from preprocess.dataset.manifest import FORMAT, Manifest, spellings_of
from preprocess.dataset.reader import TokenFile, check_tokenizer, open_tokens
from preprocess.documents.batch import Rejected
from preprocess.locations import how_to_repair, join_location
from preprocess.options import BuildSettings
from preprocess.run.record import Record, differences
from preprocess.run.run import Run
from preprocess.storage import Files, OutputError, Storage, open_files, open_storage, writing

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer

TOKENIZER_FILE = "tokenizer.json"
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


def manifests_in(files: Files) -> list[str]:
    """List the names of manifests, sorted; only their "format" is checked.

    Those of parts are left out, if the manifest that joins them is there.
    """
    found, joined = _find_manifests(files)
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
    manifests, joined = _find_manifests(files)
    found, of_files = {*manifests, *(bins & docs)}, {*bins, *docs, *there}
    for name in there:
        if name.endswith("stats.json") and (stats := read_stats(files, name)) is not None:
            found |= {x for x in stats.manifests if stats.joins_parts or x in of_files}
    return sorted(name.removesuffix(".json") for name in found - joined)


def _find_manifests(files: Files) -> tuple[list[str], set[str]]:
    """Return the names of (all manifests, sorted; those of parts that are joined)."""
    found, joined = list[str](), set[str]()
    for name in files.names():
        content = read_object(files, name, FORMAT) if name.endswith(".json") else None
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


def open_one(path: str) -> TokenFile:
    """Open the only dataset at a path or URL; raise TokenFileError if there are several."""
    found = find_token_files(path)
    if len(found) > 1:
        raise TokenFileError(
            f"{path}: has several datasets; give one of them: {', '.join(found)}"
        )
    return open_tokens(found[0])


def read_stats(files: Files, name: str) -> Stats | None:
    """Read a stats.json as `Stats`; None if it is missing or cannot be read."""
    try:
        return msgspec.convert(read_object(files, name, STATS_FORMAT), Stats | None)
    except msgspec.ValidationError:
        return None


def find_run(files: Files, manifest_file: str) -> Stats | None:
    """Find the stats.json of the run that wrote a manifest; None if there is none."""
    name = find_stats_file(files, manifest_file)
    return None if name is None else read_stats(files, name)


def find_stats_file(files: Files, manifest_file: str) -> str | None:
    """Return the name of the stats.json of the run that wrote a manifest; None if there is none."""
    digest = digest_of(files.get(manifest_file))
    for name in files.names():
        found = read_stats(files, name) if name.endswith("stats.json") else None
        if found is not None and found.manifests.get(manifest_file) == digest:
            return name
    return None


def newest_source(run: Stats) -> str | None:
    """Return the time of the source that was changed last, in UTC; None if it is not known."""
    sources = [] if run.made_from is None else chain.from_iterable(run.made_from.sources.values())
    stamps = (re.fullmatch(r"modified (\d+)", str(source.stamp)) for source in sources)
    newest = max((int(stamp[1]) for stamp in stamps if stamp), default=None)
    if newest is None:
        return None
    return f"{datetime.fromtimestamp(newest // 10**9, UTC):%Y-%m-%dT%H:%M:%SZ}"


def check_sizes(
    files: Files, expected: Mapping[str, int], again: str,
    error: type[TokenmillError] = OutputError, sizes: Mapping[str, int] | None = None,
) -> None:
    """Raise an error if a file does not have the `expected` size; `again` is what to do then.

    `sizes` are those of all `files`, if they are known.
    """
    sizes = sizes or files.sizes()
    for name, n_bytes in expected.items():
        if (size := sizes.get(name)) != n_bytes:
            state = "is missing" if size is None else f"has {size:,} bytes"
            raise error(
                f"{files.where(name)}: {state}, expected {n_bytes:,} bytes as they were written;"
                f" {again}"
            )


def check_no_others(
    files: Files, names: Iterable[str], writer: str = "this tokenmill", remedy: str = "or name",
    error: type[TokenmillError] = OutputError,
) -> None:
    """Raise an error if files are there that a run would replace, and `writer` did not write."""
    for name in sorted({*names} & {*files.names()}):
        if files.size(name) is not None:  # raises for a directory
            raise error(
                f"{files.where(name)}: exists and was not written by {writer}, so it is left"
                f" alone; move it away or choose another directory {remedy}"
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
    where = files.where(manifest_name(name))
    text = (files.get(manifest_name(name)) or b"").decode("utf-8", "replace")
    manifest = Manifest.from_json(text, where)
    if tokenizer:
        check_tokenizer(where, manifest, tokenizer)
    again = f"repair it ({how_to_repair(where)}), or build all of them again (--overwrite)"
    expected = {file.name: file.n_bytes for file in manifest.files(name)}
    check_sizes(files, expected, f"{where} has it; restore or {again}", TokenFileError, sizes)
    return manifest


# --- what a run writes beside columns ---


def add_token_file(run: Run, name: str, manifest: Manifest) -> None:
    """Register NAME.json, which is written, and its files, unless they are those of parts."""
    run.add(*manifest.own_files(name))
    run.add(manifest_name(name), last=True)
    if (text := run.storage.final.get(manifest_name(name))) is not None:
        # `check_free` found a manifest before the run began.
        replaced = Manifest.from_json(text.decode("utf-8", "replace"), manifest_name(name))
        run.gone |= {*replaced.own_files(name)}


def put_stats(
    run: Run, name: str, stats: Mapping[str, Any], rejects: Mapping[str, str | None] | None = None
) -> None:
    """Write a stats.json, with the digests of the manifests and of the lists of bad records.

    Token files that the one before lists, and that the run no longer makes, are removed.
    """
    files = run.storage.final
    for each in _left_over(run, name, run.manifests) if run.overwrite else ():
        stem = each.removesuffix(".json")
        manifest = Manifest.from_json(files.get(each) or b"", each)
        run.gone |= {each, *manifest.own_files(stem), *plans_of(files, stem)}
    content = {
        "format": STATS_FORMAT,
        "made_from": msgspec.to_builtins(run.made_from),
        "manifests": {each: digest_of(run.storage.get(each)) for each in run.manifests},
        "rejects": rejects or {},
        **stats,
    }
    run.put(name, (json.dumps(content, indent=2) + "\n").encode())


def _left_over(run: Run, stats_file: str, names: Sequence[str]) -> list[str]:
    """Return the manifests of an earlier run of the command that are there, beside `names`."""
    files, stats = run.storage.final, read_stats(run.storage.final, stats_file)
    if stats is None or stats.made_from is None or stats.made_from.command != run.made_from.command:
        return []
    listed = stats.manifests
    there = sorted({*files.names()} & listed.keys() - {*names})
    return [name for name in there if digest_of(files.get(name)) == listed[name]]


def plans_of(files: Files, name: str) -> list[str]:
    """Return the names of the plans of rows of a dataset, also of what is left of their making."""
    plan = re.compile(rf"\.?{re.escape(name)}\.{columns.PLAN}")
    return [each for each in files.names() if plan.fullmatch(each)]


def put_rejects(
    run: Run, name: str, rejected: Sequence[Rejected] | None
) -> dict[str, str | None]:
    """Write the records that were left out, a line each; None: remove an earlier list.

    Returns name of the list, if there is one -> its digest.
    """
    if rejected is None:
        run.gone |= {name} if run.storage.final.size(name) is not None else set()
        return {}
    lines = (json.dumps(msgspec.to_builtins(each)) for each in rejected)
    content = "".join(f"{line}\n" for line in lines).encode()
    run.put(name, content)
    return {name: digest_of(content)}


# --- tokenizer files ---


def put_tokenizer(storage: Storage, tokenizer: AnyTokenizer, file_name: str) -> None:
    """Write a tokenizer and its configuration into a storage; raise OutputError if it cannot be."""
    texts = tokenizer.to_config_json(), tokenizer.to_json()
    with writing(storage.final.where(file_name)):
        for name, text in zip(list_tokenizer_files(file_name), texts, strict=True):
            storage.put(name, text.encode())


def list_tokenizer_files(file_name: str) -> list[str]:
    """Return the file names of a tokenizer in publishing order: configuration, tokenizer."""
    return [f"{Path(file_name).stem}_config.json", file_name]


# --- what is there before a run begins ---


def is_up_to_date(
    run: Run, stats_file: str, stems: Sequence[str] = (), *, tokenizer: str = "",
    shards: bool = False, rejects_file: str = "", unknown: Sequence[str] = (),
    has_same_text: Callable[[Record], bool] = lambda before: False, compares: bool = False,
) -> bool:
    """Return True if all outputs are there, False if the run may write them.

    Args:
        run: The run, which has not begun.
        stats_file: Name of its stats.json.
        stems: NAME of each token file; manifests must have the digests in stats.json.
        tokenizer: File name of the tokenizer of `train`; must have the sha256 in stats.json.
        shards: True if the run writes shards.
        rejects_file: Name of its list of bad records; "": it writes none.
        unknown: Inputs that may differ, in words.
        has_same_text: Returns True if other inputs, those of the outputs, have the same text.
        compares: True if inputs with equal records may have other text.

    Raises:
        OutputError: A file is there that the run may not replace.
        TokenFileError: That is a token file.
    """
    files, why, before = run.storage.final, "", None
    if not run.resumed and not run.overwrite:
        before = record_of_finished(files, stats_file, stems, tokenizer)
    if before is not None:
        changed = [*differences(before, run.made_from), *unknown]
        is_same = not changed and not compares
        if is_same or (not unknown and has_same_text(before)):
            return True
        changed = changed or ["the documents of the program are others, or cannot be compared"]
        why = f"its inputs were different ({'; '.join(changed)}): "
    check_free(run, stats_file, stems, why, shards, rejects_file)
    if tokenizer:
        check_configuration_absent(files, tokenizer, run.overwrite)
        check_absent(files, [tokenizer], run.overwrite, why)
    return False


def record_of_finished(
    files: Files, stats_file: str, stems: Sequence[str], tokenizer: str = ""
) -> Record | None:
    """Return the inputs of the run that finished outputs, None without such a run."""
    stats = read_stats(files, stats_file)
    if stats is None or (tokenizer and stats.fingerprint != sha256_of(files.get(tokenizer))):
        return None
    for name in map(manifest_name, stems):
        content = files.get(name)
        if content is None or stats.manifests.get(name) != digest_of(content):
            return None
    return stats.made_from


def check_free(
    run: Run, stats_file: str, stems: Sequence[str] = (), why: str = "", shards: bool = False,
    rejects_file: str = "",
) -> None:
    """Check that a run may write its outputs, as `is_up_to_date`; `why`: how others differ."""
    files, suffixes = run.storage.final, [column.suffix for column in columns.COLUMNS]
    for stem in stems:
        manifest = manifest_name(stem)
        names = [manifest, *(f"{stem}{suffix}" for suffix in suffixes)]
        if shards:
            of_shard = rf"({re.escape(stem)}{columns.SHARD})({'|'.join(map(re.escape, suffixes))})"
            found = filter(None, map(re.compile(of_shard).fullmatch, files.names()))
            usual = len(columns.shard_name(stem, 0))
            # NAME_20240101, which has a manifest, is another dataset.
            names += (
                x[0] for x in found
                if len(x[1]) == usual or files.size(manifest_name(x[1])) is None
            )
        _check_manifests(run, [manifest])
        check_absent(files, names, run.overwrite, why, TokenFileError)
    stats = read_stats(files, stats_file)
    left_over = _left_over(run, stats_file, [*map(manifest_name, stems)])
    _check_manifests(run, left_over)
    check_absent(files, left_over, run.overwrite, why, TokenFileError)
    if stats is None:
        check_no_others(files, [stats_file])
    if rejects_file and not run.resumed:
        known = None if stats is None else stats.rejects.get(rejects_file)
        if digest_of(files.get(rejects_file)) != known:
            check_no_others(files, [rejects_file])


def _check_manifests(run: Run, names: Iterable[str]) -> None:
    """Raise TokenFileError for a file that is there, and no manifest of a dataset."""
    files = run.storage.final
    for name in names:
        try:
            text = files.get(name) if may_be_of(files, name, FORMAT) else b""
            Manifest.from_json((text or b"").decode("utf-8", "replace"), name)
        except TokenFileError:
            check_no_others(files, [name], error=TokenFileError)


def check_absent(
    files: Files, names: Sequence[str], overwrite: bool, why: str,
    error: type[TokenmillError] = OutputError,
) -> None:
    """Raise an error if files are there, without `overwrite`; or, also with it, a directory."""
    there = [name for name in names if files.size(name) is not None]
    if there and not overwrite:
        raise error(
            f"{files.where(there[0])}: exists; {why}choose another directory or name, or replace"
            " it (--overwrite)"
        )


def check_configuration_absent(files: Files, name: str, overwrite: bool) -> None:
    """Raise OutputError if `overwrite` is needed to replace a configuration without tokenizer."""
    if files.size(name) is None:
        why = f"it is without {name}, and would be replaced: "
        check_absent(files, list_tokenizer_files(name)[:1], overwrite, why)


def needs_tokenizer_file(
    files: Files, tokenizer: AnyTokenizer | None, settings: BuildSettings
) -> bool:
    """Return True if a build must write a tokenizer.json; `tokenizer` is None if it trains one.

    Of several tasks, which run at the same time, the first one writes it. Raises OutputError if
    another tokenizer or a configuration exists, without --overwrite.
    """
    from bpe import load_tokenizer

    writes = not settings.task_index
    if writes:
        check_configuration_absent(files, TOKENIZER_FILE, settings.overwrite)
    if files.size(TOKENIZER_FILE) is None:
        return writes
    where = files.where(TOKENIZER_FILE)
    if tokenizer is not None and settings.tokenizer is not None:
        config, text = (files.get(name) or b"" for name in list_tokenizer_files(TOKENIZER_FILE))
        is_same = config == tokenizer.to_config_json().encode()
        if is_same and sha256_of(text) == tokenizer.fingerprint:  # without reading it
            return False
        with suppress(TokenizerFileError):  # an unreadable file is another tokenizer
            if load_tokenizer(files.path(TOKENIZER_FILE)).fingerprint == tokenizer.fingerprint:
                return False
    if not settings.overwrite:
        raise OutputError(
            f"{where}: another tokenizer exists, and token files in its directory may need it; use"
            f" it (--tokenizer {where}), choose another directory, or replace it (--overwrite)"
        )
    return writes

"""Files of a dataset beside its columns: tokenizer, stats.json, bad records; are they there?"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from bpe.errors import TokenizerFileError, TokenmillError
from preprocess.dataset import columns
from preprocess.dataset.columns import TokenFileError, manifest_name
from preprocess.dataset.manifest import FORMAT, Manifest
from preprocess.documents.batch import Rejected
from preprocess.options import BuildSettings
from preprocess.run.finished import STATS_FORMAT, digest_of, may_be_of, read_stats, sha256_of
from preprocess.run.record import Record, differences
from preprocess.run.run import Run
from preprocess.storage import Files, OutputError, Storage, writing

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer

TOKENIZER_FILE = "tokenizer.json"


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
    has_same_text: Callable[[Record], bool] = lambda before: False,
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

    Raises:
        OutputError: A file is there that the run may not replace.
        TokenFileError: That is a token file.
    """
    files, why, before = run.storage.final, "", None
    if not run.resumed and not run.overwrite:
        before = _record_of_finished(files, stats_file, stems, tokenizer)
    if before is not None:
        changed = [*differences(before, run.made_from), *unknown]
        if not changed or (not unknown and has_same_text(before)):
            return True
        why = f"its inputs were different ({'; '.join(changed)}): "
    check_free(run, stats_file, stems, why, shards, rejects_file)
    if tokenizer:
        check_configuration_absent(files, tokenizer, run.overwrite)
        _check_absent(files, [tokenizer], run.overwrite, why)
    return False


def _record_of_finished(
    files: Files, stats_file: str, stems: Sequence[str], tokenizer: str
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
        _check_ours(files, {manifest: _is_manifest(files, manifest)}, TokenFileError)
        _check_absent(files, names, run.overwrite, why, TokenFileError)
    stats = read_stats(files, stats_file)
    left_over = _left_over(run, stats_file, [*map(manifest_name, stems)])
    _check_ours(files, {each: _is_manifest(files, each) for each in left_over}, TokenFileError)
    _check_absent(files, left_over, run.overwrite, why, TokenFileError)
    ours = {stats_file: stats is not None}
    if rejects_file and not run.resumed:
        digest = digest_of(files.get(rejects_file))
        ours[rejects_file] = stats is not None and stats.rejects.get(rejects_file) == digest
    _check_ours(files, ours)


def _is_manifest(files: Files, name: str) -> bool:
    """Return True if a file is a manifest of a dataset."""
    with suppress(TokenFileError):
        text = files.get(name) if may_be_of(files, name, FORMAT) else b""
        Manifest.from_json((text or b"").decode("utf-8", "replace"), name)
        return True
    return False


def _check_ours(
    files: Files, ours: Mapping[str, bool], error: type[TokenmillError] = OutputError
) -> None:
    """Raise an error if files are there that tokenmill did not write."""
    for name, is_ours in ours.items():
        if not is_ours and files.size(name) is not None:
            raise error(
                f"{files.where(name)}: exists and was not written by this tokenmill, so it is left"
                " alone; move it away or choose another directory or name"
            )


def _check_absent(
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
        _check_absent(files, list_tokenizer_files(name)[:1], overwrite, why)


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

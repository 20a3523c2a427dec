"""Files of a dataset beside its columns: tokenizer, stats.json, bad records."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from bpe.errors import TokenizerFileError
from bpe.files.temporary import temporary_directory
from preprocess.dataset.columns import manifest_name
from preprocess.dataset.manifest import Manifest
from preprocess.documents.batch import Rejected
from preprocess.options import BuildSettings
from preprocess.run.finished import (
    STATS_FORMAT,
    digest_of,
    read_stats,
)
from preprocess.run.run import Run
from preprocess.storage import (
    Files,
    OutputError,
    Storage,
    writing,
)

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer

TOKENIZER_FILE = "tokenizer.json"


def add_token_file(run: Run, name: str, manifest: Manifest) -> None:
    """Register NAME.json, which is written, and its files, unless they are those of parts."""
    run.add(*manifest.own_files(name))
    run.add(manifest_name(name), last=True)
    if (text := run.storage.final.get(manifest_name(name))) is not None:
        # `check_outputs_absent` found a manifest before the run began.
        replaced = Manifest.from_json(text.decode("utf-8", "replace"), manifest_name(name))
        run.gone |= {*replaced.own_files(name)}


def put_stats(
    run: Run, name: str, stats: Mapping[str, Any], rejects: Mapping[str, str | None] | None = None
) -> None:
    """Write a stats.json, with the digests of the manifests and of the lists of bad records."""
    content = {
        "format": STATS_FORMAT,
        "made_from": msgspec.to_builtins(run.made_from),
        "manifests": {each: digest_of(run.storage.get(each)) for each in run.manifests},
        "rejects": rejects or {},
        **stats,
    }
    run.put(name, (json.dumps(content, indent=2) + "\n").encode())


def put_rejects(
    run: Run, name: str, rejected: Sequence[Rejected] | None
) -> dict[str, str | None]:
    """Write the records that were left out, a line each; None: remove an earlier list.

    Returns:
        Name of the list, if there is one -> its digest.
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
    """Write a tokenizer and its configuration into a storage.

    Raises:
        OutputError: Writing to the storage or the temporary directory fails.
    """
    where = storage.final.where(file_name)
    with writing(where), temporary_directory() as directory:
        tokenizer.save(directory / file_name)
        for path in sorted(directory.glob("[!.]*")):
            storage.put(path.name, path.read_bytes())


def list_tokenizer_files(file_name: str) -> list[str]:
    """Return the file names of a tokenizer in publishing order: configuration, tokenizer."""
    return [f"{Path(file_name).stem}_config.json", file_name]


def check_rejects_absent(files: Files, name: str, stats_file: str) -> None:
    """Raise OutputError if a list of bad records was not written by the run of a stats.json."""
    content = files.get(name)
    stats = read_stats(files, stats_file)
    if content is not None and (stats is None or stats.rejects.get(name) != digest_of(content)):
        raise OutputError(
            f"{files.where(name)}: exists and was not written by tokenmill, so it is left alone;"
            " move it away or choose another directory or name"
        )


def check_configuration_absent(files: Files, name: str, overwrite: bool) -> None:
    """Raise OutputError if `overwrite` is needed to replace a configuration without tokenizer."""
    configuration, _ = list_tokenizer_files(name)
    is_alone = files.size(configuration) is not None and files.size(name) is None
    if is_alone and not overwrite:
        raise OutputError(
            f"{files.where(configuration)}: exists without {name} and would be replaced; move it"
            " away, choose another name or directory, or replace it (--overwrite)"
        )


def needs_tokenizer_file(
    files: Files, tokenizer: AnyTokenizer | None, settings: BuildSettings
) -> bool:
    """Return True if a build must write a tokenizer.json; `tokenizer` is None if it trains one.

    Of several tasks, which run at the same time, the first one writes it.

    Raises:
        OutputError: Another tokenizer or a configuration exists, without --overwrite.
    """
    from bpe import load_tokenizer

    writes = not settings.task_index
    if writes:
        check_configuration_absent(files, TOKENIZER_FILE, settings.overwrite)
    if files.size(TOKENIZER_FILE) is None:
        return writes
    path, where = files.path(TOKENIZER_FILE), files.where(TOKENIZER_FILE)
    if tokenizer is not None and settings.tokenizer is not None:
        given = settings.tokenizer if isinstance(settings.tokenizer, str) else ""
        is_same = os.path.exists(given) and os.path.samefile(path, given)
        # It may lack a special token that is given.
        if is_same and settings.end_of_text is None:
            return False
        with suppress(TokenizerFileError):  # an unreadable file is another tokenizer
            if load_tokenizer(path).fingerprint == tokenizer.fingerprint:
                return False
    if not settings.overwrite:
        raise OutputError(
            f"{where}: another tokenizer exists, and token files in its directory may need it; use"
            f" it (--tokenizer {where}), choose another directory, or replace it (--overwrite)"
        )
    return writes

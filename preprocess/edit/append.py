"""Append documents to a dataset, as new shards.

New files are complete before the manifest is replaced, in one step, so whoever opens the dataset
finds it with or without the new documents. A dataset without shards becomes one with shards: its
files get a second name, and lose their first when the manifest is replaced.
"""

from __future__ import annotations

import os

from msgspec import structs

from bpe.errors import CorpusError
from preprocess.dataset.columns import SOURCE, manifest_name, shard_name
from preprocess.dataset.manifest import APPENDED, Manifest
from preprocess.dataset.reader import open_tokens, tokenizer_of
from preprocess.options import AppendSettings, EncodeSettings
from preprocess.report.progress import logger, progress_of
from preprocess.report.summary import Report, check_has_text, counted
from preprocess.run.compiling import compile_encoding
from preprocess.run.encode_pass import EncodePass, SpecialIds
from preprocess.run.outputs import open_one, open_published, put_stats, record_of_finished
from preprocess.run.reading import Pass, make_read_options
from preprocess.run.record import Record, differences, record_sources, recorded_settings
from preprocess.run.run import Run
from preprocess.settings import SettingsError, options_of, takes
from preprocess.sources import check_fields_are_used, digest_of
from preprocess.sources.standard_input import has_standard_input
from preprocess.storage import OutputError


@takes(AppendSettings)
def append(settings: AppendSettings) -> Manifest:
    """Append documents to a dataset, as new shards, with its tokenizer.

    The same call resumes an interrupted one; after one that is finished it changes nothing.
    Options: docs/options.md or `tokenmill append --help`; `progress=False` shows none.

    Returns:
        The new manifest.

    Raises:
        CorpusError: Text is missing or cannot be read.
        TokenFileError: There is no dataset, or it was built with another tokenizer.
        OutputError: Files cannot be written.
        SettingsError: Options are invalid.
    """
    progress = progress_of(settings.progress)
    progress.begin(None)
    file = open_one(settings.path)
    path = os.path.splitext(str(file.path))[0] + ".json"
    directory, name = os.path.split(os.path.splitext(path)[0])
    tokenizer = tokenizer_of(file, settings.tokenizer)
    names = options_of(EncodeSettings).keys() & settings.given.keys() - {"progress", "path"}
    encoding = EncodeSettings(**{x: settings.given[x] for x in names} | {
        "paths": settings.train, "tokenizer": tokenizer, "out": os.path.join(directory, "new.bin"),
        "provenance": SOURCE in file.manifest.columns,
    })  # fmt: skip
    part = Pass(0, {name: f"{name}-new"}, settings.train, make_read_options(encoding, tokenizer))
    if has_standard_input(part.files):
        raise SettingsError(
            "documents that are read once, and standard input (-), are not appended; save them to a"
            " file, and give that"
        )
    check_has_text(part.files, name)
    check_fields_are_used(part.files, part.reading)
    has_mask = any(source.has_spans for source in part.files)
    if has_mask and not file.has_mask:
        raise CorpusError(
            f"{part.files[0].name}: has conversations, whose tokens have a loss mask, and the"
            " dataset has none; build them as a dataset of their own, and mix both"
        )
    record = Record(
        "append", recorded_settings(encoding, tokenizer), record_sources({name: part.recorded}),
        tokenizer.fingerprint,
    )
    stats_file = f"{name}_append_stats.json"
    with Run(directory or ".", f"{name}_append", record, overwrite=settings.overwrite) as run:
        if run.is_complete or (not run.resumed and _is_appended(run, stats_file, name, part)):
            manifest = open_tokens(path).manifest
            _remove_old(run, manifest, name)  # a run may have been killed before it did
            logger.info("%s: the documents are appended already", path)
            return manifest
        file = open_tokens(path)  # nobody changes it now
        run.begin()
        compile_encoding(tokenizer, progress)
        ids = SpecialIds(file.manifest.end_of_text_id, file.manifest.begin_of_text_id)
        passed = EncodePass(
            part, encoding, tokenizer, Report(), progress, run.journal, ids, file.has_mask,
            len(file.manifest.sources),
        )
        made = passed.fill()[name]
        joined = _join(file.manifest, made)
        _name_shards(run, file.manifest, made, name)
        run.put(manifest_name(name), joined.to_json().encode(), last=True)
        put_stats(run, stats_file, {
            "settings": settings.as_json(), "digest_before": file.manifest.digest,
            "digest_after": joined.digest, "documents": made.n_documents, "tokens": made.n_tokens,
        })  # fmt: skip
        run.publish(replaces=True)
        _remove_old(run, joined, name)
    logger.info("%s: appended %s", path, counted(made.n_documents, "document"))
    return joined


def _is_appended(run: Run, stats_file: str, name: str, part: Pass) -> bool:
    """Return True if the last thing that was done to the dataset is this run."""
    before = record_of_finished(run.storage.final, stats_file, [name])
    if before is None or differences(before, run.made_from):
        return False
    known = open_published(run.storage.final, name).sources[-len(part.files) :]
    return all(
        source.is_sized or digest_of(source).hexdigest() == each.get("digest")
        for source, each in zip(part.files, known, strict=True)
    )


def _join(old: Manifest, new: Manifest) -> Manifest:
    """Return the manifest of the documents of both."""
    before = {"digest": old.digest, "n_tokens": old.n_tokens, "n_documents": old.n_documents}
    sources = [*map(dict, old.sources), *map(dict, new.sources)]
    sources[len(old.sources)][APPENDED] = before
    return structs.replace(
        old, n_tokens=old.n_tokens + new.n_tokens, n_documents=old.n_documents + new.n_documents,
        n_bytes=old.n_bytes + new.n_bytes if old.n_bytes else 0, sources=tuple(sources),
        digests={}, shards=(*old.parts, *new.parts),
    )


def _name_shards(run: Run, old: Manifest, new: Manifest, name: str) -> None:
    """Give the new files, and those of a dataset without shards, the names of shards."""
    storage, first = run.storage, len(old.parts)
    stems = [] if old.shards else [(storage.final, name, 0)]
    stems += [(storage, x, i) for i, x in enumerate(new.stems(f"{name}-new"), start=first)]
    for files, stem, number in stems:
        for column in old.columns:
            final = f"{shard_name(name, number)}{column.suffix}"
            if storage.final.size(final) is not None:
                raise OutputError(
                    f"{storage.final.where(final)}: exists, and a new shard would have this name;"
                    " move it away"
                )
            storage.adopt(files, f"{stem}{column.suffix}", final)
            run.add(final)


def _remove_old(run: Run, manifest: Manifest, name: str) -> None:
    """Remove the names that the files of the first shard had before there were shards."""
    size, first = run.storage.final.size, shard_name(name, 0)
    suffixes = [column.suffix for column in manifest.columns]
    old = [
        f"{name}{x}" for x in suffixes
        if size(f"{name}{x}") is not None and size(f"{name}{x}") == size(f"{first}{x}")
    ]
    if old:
        run.storage.remove_finished(old)

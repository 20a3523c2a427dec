"""Join the parts that the tasks of a build wrote into one dataset, without copying data.

The joined manifest, NAME.json, names the files of the parts as its shards. The parts keep their
manifests: each remains a dataset, which its task would resume, find up to date, or repair.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import structs

from preprocess.dataset.columns import TokenFileError, manifest_name
from preprocess.dataset.manifest import Manifest
from preprocess.documents.batch import Rejected
from preprocess.locations import how_to_repair
from preprocess.options import BuildSettings, EncodeSettings, MergeSettings
from preprocess.report.summary import Counts, LeftOut, Report, listed
from preprocess.run.outputs import (
    Stats,
    add_token_file,
    check_free,
    digest_of,
    open_published,
    put_stats,
)
from preprocess.run.record import Record, differences
from preprocess.run.run import Run
from preprocess.settings import SettingsError, takes
from preprocess.storage import Files, OutputError, open_storage

_SHOWN = 5


class MergeError(OutputError):
    """Parts are missing, damaged, or not of the same build."""


class Part(Stats, kw_only=True):
    """A finished part, as its stats.json describes it."""

    stats_file: str = ""
    made_from: Record
    settings: dict[str, Any]
    outputs: dict[str, Counts]
    documents: int
    bytes: int
    tokens: int
    look_alikes: dict[str, int]
    left_out: LeftOut = msgspec.field(default_factory=LeftOut)

    @property
    def build(self) -> BuildSettings | EncodeSettings:
        """The settings of the task."""
        if self.made_from.command == "encode":
            return EncodeSettings(**self.settings)
        return BuildSettings(**self.settings)

    @property
    def record(self) -> Record:
        """What all parts of a build are made from, beside their files."""
        settings = {x: y for x, y in self.made_from.settings.items() if x != "task_index"}
        return structs.replace(self.made_from, settings=settings, sources={})


@takes(MergeSettings)
def merge_parts(settings: MergeSettings) -> dict[str, Manifest]:
    """Join the parts of all tasks of a build into one dataset, without copying data.

    `path` and `name` are `out` and `name` of the tasks. Options: docs/options.md or `tokenmill
    merge --help`.

    Returns:
        Name of an output ("train", "val") -> the joined manifest.

    Raises:
        MergeError: Parts are missing, damaged, or not of the same build.
        OutputError: Files of the same names exist, or cannot be written.
    """
    files = open_storage(settings.path).final
    parts = find_parts(files, settings.name)
    build = parts[0].build.replace(task_index=None)
    read = {
        each: [source for part in parts for source in part.made_from.sources[each]]
        for each in parts[0].made_from.sources
    }
    record = structs.replace(parts[0].record, sources=read)
    stats_file = build.named("stats.json")
    with Run(settings.path, build.named("merge"), record, settings.overwrite) as run:
        merged = join_parts(files, build.stems, parts)
        texts = {build.stems[x]: y.to_json().encode() for x, y in merged.items()}
        if all(files.get(manifest_name(x)) == text for x, text in texts.items()):
            run.storage.clear()
            return merged
        check_free(run, stats_file, list(texts))
        run.begin()
        put_joined(run, build, merged)
        _, stats = report_of(files, parts)
        put_stats(run, stats_file, {"settings": build.as_json(), **stats})
        run.publish()
    return merged


def join_parts(
    files: Files, outputs: Iterable[str], parts: Sequence[Part]
) -> dict[str, Manifest]:
    """Return name of an output -> the manifest that joins all parts."""
    return {name: _join(files, name, parts) for name in outputs}


def put_joined(
    run: Run, settings: BuildSettings | EncodeSettings, joined: Mapping[str, Manifest]
) -> None:
    """Write the manifests that join parts, and register them in `run`."""
    for name, manifest in joined.items():
        stem = settings.stems[name]
        run.storage.put(manifest_name(stem), manifest.to_json().encode())
        add_token_file(run, stem, manifest)


def find_parts(files: Files, name: str, count: int | None = None) -> list[Part]:
    """Return the parts in a directory, all of one build, in order; None: of any number."""
    where, found = files.where(), dict[int, dict[int, str]]()
    for each, (index, of) in files_of_parts(files, name).items():
        if each.endswith(f"-of-{of:05d}_stats.json"):
            found.setdefault(of, {})[index] = each
    if not found:
        raise MergeError(
            f"{where}: no finished part of a task is here; check the path, or build the parts first"
            " (--task-index, --task-count), and give the --name that they were given"
        )
    if count is None:
        _check_one_number(files, {*found})
        (count,) = found
    names = found.get(count, {})
    if missing := [str(i) for i in range(count) if i not in names]:
        raise MergeError(
            f"{where}: {len(missing):,} of {count:,} parts are not finished: those of task"
            f" {listed(missing, _SHOWN)}; run these tasks again, each resumes where it stopped"
        )
    parts = [_read_part(files, names[i]) for i in range(count)]
    for part in parts[1:]:
        # A digest of the files of all parts is one of the settings.
        if changed := differences(parts[0].record, part.record):
            raise MergeError(
                f"{files.where(part.stats_file)}: not of the same build as"
                f" {parts[0].stats_file}: {'; '.join(changed)}. Build one of the parts again"
                " (--overwrite), with the settings and text of the others"
            )
    return parts


def _check_one_number(files: Files, counts: set[int]) -> None:
    if len(counts) > 1:
        raise MergeError(
            f"{files.where()}: there are parts of builds with"
            f" {' and '.join(f'{n:,}' for n in sorted(counts))} tasks, expected one number; remove"
            " the others, or move them away"
        )


def files_of_parts(files: Files, name: str) -> dict[str, tuple[int, int]]:
    """Return name of each finished file of a part -> (its number, number of parts)."""
    part = r"part-(\d{5,})-of-(\d{5,})[_.].*"
    matches = map(re.compile(f"{re.escape(name)}{'_' * bool(name)}{part}").fullmatch, files.names())
    return {match[0]: (int(match[1]), int(match[2])) for match in matches if match}


def check_parts(files: Files, name: str, count: int, overwrite: bool) -> list[str]:
    """Return the files of parts of builds with another number of parts, which are to be removed.

    Raises:
        MergeError: There are some, without `overwrite`.
    """
    others = {x: n for x, (_, n) in files_of_parts(files, name).items() if n != count}
    if not overwrite:
        _check_one_number(files, {count, *others.values()})
    return [*others]


def _read_part(files: Files, name: str) -> Part:
    """Read the stats.json of a part."""
    content = files.get(name) or b""
    try:
        left_out = msgspec.json.decode(content, type=LeftOut)
        part = msgspec.json.decode(content, type=Part)
        _ = part.build
    except (msgspec.MsgspecError, RecursionError, SettingsError) as error:
        raise MergeError(
            f"{files.where(name)}: is not as a task wrote it ({error}); build this part again"
            " (--overwrite)"
        ) from error
    return structs.replace(part, stats_file=name, left_out=left_out)


def _join(files: Files, output: str, parts: Sequence[Part]) -> Manifest:
    """Return the manifest of an output of all parts."""
    manifests, shards, sizes = list[Manifest](), [], files.sizes()
    for part in parts:
        stem = part.build.stems[output]
        path = manifest_name(stem)
        content = files.get(path) or b""
        if digest_of(content) != part.manifests.get(path):
            raise MergeError(
                f"{files.where(path)}: does not have the digest in {part.stats_file}, so it is"
                " missing, damaged or of another run; repair the part"
                f" ({how_to_repair(files.where())}), or build it again (--overwrite)"
            )
        try:
            manifest = open_published(files, stem, sizes=sizes)
        except TokenFileError as error:
            raise MergeError(str(error)) from error
        named = zip(manifest.parts, manifest.stems(stem), strict=True)
        shards += [structs.replace(shard, stem=own) for shard, own in named]
        manifests.append(manifest)
    first = manifests[0]
    whole = structs.replace(
        first,
        n_tokens=sum(each.n_tokens for each in manifests),
        n_documents=sum(each.n_documents for each in manifests),
        n_bytes=sum(each.n_bytes for each in manifests),
        sources=tuple(source for each in manifests for source in each.sources),
        digests={}, shards=tuple(shards),
    )
    if not whole.n_documents:
        raise MergeError(
            f"{files.where()}: no part has a document of {output}, so it would be empty; give the"
            " tasks other text, or another --val-fraction (0: no validation file)"
        )
    return whole


def report_of(files: Files, parts: Sequence[Part]) -> tuple[Report, dict[str, Any]]:
    """Return (counts of all parts with their bad records, counts for the stats.json)."""
    report, total = Report(), Counts()
    for part in parts:
        total.add(Counts(part.documents, part.bytes, part.tokens))
        report.left_out.merge(part.left_out)
        report.look_alikes.update(part.look_alikes)
        for name, counts in part.outputs.items():
            report.outputs.setdefault(name, Counts()).add(counts)
        for name in part.rejects:
            lines = (files.get(name) or b"").splitlines()
            report.rejected += [msgspec.json.decode(line, type=Rejected) for line in lines]
    return report, {
        **total.with_ratios(), **structs.asdict(report.left_out),
        "look_alikes": dict(report.look_alikes),
        "seconds_of_tasks": sum(part.seconds for part in parts),
        "outputs": {name: counts.with_ratios() for name, counts in report.outputs.items()},
        "parts": [part.stats_file for part in parts],
    }

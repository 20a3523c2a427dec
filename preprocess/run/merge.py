"""Join the parts that the tasks of a build wrote into one dataset, without copying data.

The joined manifest, NAME.json, names the files of the parts as its shards. The parts keep their
manifests: each remains a dataset, which its task would resume, find up to date, or repair.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
from msgspec import Struct, structs

from bpe.arguments import checks_names
from preprocess.dataset.columns import manifest_name
from preprocess.dataset.manifest import Manifest
from preprocess.report.summary import Counts, LeftOut, listed
from preprocess.run.finished import check_outputs_absent, digest_of
from preprocess.run.outputs import Outputs
from preprocess.run.record import Record, differences
from preprocess.settings.options import SettingsError, StrPath, convert
from preprocess.settings.schema import BuildSettings, MergeSettings
from preprocess.storage import Files, OutputError, open_storage

_STATS = re.compile(r"(?:(.+)_)?part-(\d{5,})-of-(\d{5,})_stats\.json", re.DOTALL)
_SHOWN = 5


class MergeError(OutputError):
    """Parts are missing, damaged, or not of the same build."""


class _Part(Struct, frozen=True, kw_only=True):
    """A finished part, as its stats.json describes it."""

    stats_file: str = ""
    made_from: Record
    manifests: dict[str, str]
    settings: dict[str, Any]
    seconds: float
    outputs: dict[str, Counts]
    documents: int
    bytes: int
    tokens: int
    look_alikes: dict[str, int]
    left_out: LeftOut = msgspec.field(default_factory=LeftOut)

    @property
    def build(self) -> BuildSettings:
        """The settings of the task."""
        return convert(self.settings, BuildSettings)

    @property
    def record(self) -> Record:
        """What all parts of a build are made from, beside their files."""
        settings = {x: y for x, y in self.made_from.settings.items() if x != "task_index"}
        return structs.replace(self.made_from, settings=settings, sources={})


@checks_names
def merge_parts(
    path: StrPath, *, name: str = "", overwrite: bool = False
) -> dict[str, Manifest]:
    """Join the parts of all tasks of a build into one dataset, without copying data.

    Args:
        path: The directory with the parts, or its URL in a bucket: `out` of the tasks.
        name: The `name` that was given to the tasks.
        overwrite: True to replace a dataset of the same name.

    Returns:
        Name of an output ("train", "val") -> the joined manifest.

    Raises:
        MergeError: Parts are missing, damaged, or not of the same build.
        OutputError: Files of the same names exist, or cannot be written.
    """
    settings = convert(locals(), MergeSettings)
    files = open_storage(settings.path).final
    parts = _find_parts(files, settings.name)
    build = replace(parts[0].build, task_index=None)
    read = {
        each: [source for part in parts for source in part.made_from.sources[each]]
        for each in parts[0].made_from.sources
    }
    record = structs.replace(parts[0].record, sources=read)
    run, stats_file = build.named("merge"), build.named("stats.json")
    with Outputs(settings.path, run, record, settings.overwrite) as outputs:
        outputs.commit_again()
        names = ("train", "val") if build.val or build.validation_fraction else ("train",)
        merged = {each: _join(files, each, parts) for each in names}
        stems = {each: build.named(each) for each in names}
        texts = {stems[each]: merged[each].to_json().encode() for each in names}
        if all(files.get(manifest_name(x)) == text for x, text in texts.items()):
            outputs.storage.clear()
            return merged
        check_outputs_absent(files, list(texts), stats_file, settings.overwrite)
        outputs.begin()
        for stem, text in texts.items():
            outputs.storage.put(manifest_name(stem), text)
        for each in names:
            outputs.add_token_file(stems[each], merged[each])
        outputs.add_stats(stats_file, {"settings": build.as_json(), **_sum_stats(parts)})
        outputs.commit()
    return merged


def join_again(files: Files, settings: BuildSettings, stem: str) -> Manifest:
    """Return the manifest that `merge_parts` wrote as `stem`, from the parts; raises as it does."""
    output = next(each for each in ("train", "val") if settings.named(each) == stem)
    return _join(files, output, _find_parts(files, settings.name))


def _find_parts(files: Files, name: str) -> list[_Part]:
    """Return the parts in a directory, all of one build, in order."""
    where, found = files.where(), dict[int, dict[int, str]]()
    for each in files.names():
        match = _STATS.fullmatch(each)
        if match and (match[1] or "") == name:
            found.setdefault(int(match[3]), {})[int(match[2])] = each
    if not found:
        raise MergeError(
            f"{where}: no finished part of a task is in this directory; build the parts first"
            " (--task-index, --task-count), and give the --name that they were given"
        )
    if len(found) > 1:
        counts = " and ".join(f"{n:,}" for n in sorted(found))
        raise MergeError(
            f"{where}: there are parts of builds with {counts} tasks, expected one number; remove"
            " the others, or move them away"
        )
    ((count, names),) = found.items()
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


def _read_part(files: Files, name: str) -> _Part:
    """Read the stats.json of a part."""
    content = files.get(name) or b""
    try:
        left_out = msgspec.json.decode(content, type=LeftOut)
        part = msgspec.json.decode(content, type=_Part)
        convert(part.settings, BuildSettings)
    except (msgspec.MsgspecError, SettingsError) as error:
        raise MergeError(
            f"{files.where(name)}: is not as a task wrote it ({error}); build this part again"
            " (--overwrite)"
        ) from error
    return structs.replace(part, stats_file=name, left_out=left_out)


def _join(files: Files, output: str, parts: Sequence[_Part]) -> Manifest:
    """Return the manifest of an output of all parts."""
    manifests, shards, sizes = list[Manifest](), [], files.sizes()
    for part in parts:
        stem = part.build.named(output)
        path = manifest_name(stem)
        content = files.get(path) or b""
        if digest_of(content) != part.manifests.get(path):
            raise MergeError(
                f"{files.where(path)}: does not have the digest in {part.stats_file}, so it is"
                " missing, damaged or of another run; repair the part (verify --repair), or build"
                " it again (--overwrite)"
            )
        manifest = Manifest.from_json(content.decode("utf-8", "replace"), files.where(path))
        for file in manifest.files(stem):
            if (found := sizes.get(file.name)) != file.n_bytes:
                raise MergeError(
                    f"{files.where(file.name)}: {file.n_bytes:,} bytes are expected, as in its"
                    f" manifest, found {'no file' if found is None else f'{found:,}'}; repair the"
                    " part (verify --repair), or build it again (--overwrite)"
                )
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


def _sum_stats(parts: Sequence[_Part]) -> dict[str, Any]:
    """Return the counts of all parts together, as in the stats.json of a build."""
    total, left_out, look_alikes = Counts(), LeftOut(), Counter[str]()
    outputs: dict[str, Counts] = {}
    for part in parts:
        total.add(part.documents, part.bytes, part.tokens)
        left_out.merge(part.left_out)
        look_alikes.update(part.look_alikes)
        for name, counts in part.outputs.items():
            outputs.setdefault(name, Counts()).add(counts.documents, counts.bytes, counts.tokens)
    return {
        **total.with_ratios(), **structs.asdict(left_out), "look_alikes": dict(look_alikes),
        "seconds_of_tasks": sum(part.seconds for part in parts),
        "outputs": {name: counts.with_ratios() for name, counts in outputs.items()},
        "parts": [part.stats_file for part in parts],
    }

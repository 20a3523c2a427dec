"""Run a plan: train on the first pass, encode all, commit; on Ray, each part is run so."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from bpe.errors import spelled
from preprocess.dataset.manifest import Manifest
from preprocess.options import BuildSettings, TrainFileSettings, TrainSettings
from preprocess.report import summary
from preprocess.report.progress import Progress, logger
from preprocess.run.compiling import compile_encoding, compile_training
from preprocess.run.count_pass import train_tokenizer
from preprocess.run.encode_pass import EncodePass
from preprocess.run.journal import Journal, JournalError, journal_errors
from preprocess.run.merge import join_parts, put_joined, report_of
from preprocess.run.outputs import (
    TOKENIZER_FILE,
    add_token_file,
    list_tokenizer_files,
    needs_tokenizer_file,
    open_published,
    put_rejects,
    put_stats,
    put_tokenizer,
    sha256_of,
)
from preprocess.run.parts import DividedRun, Parts, open_parts
from preprocess.run.plan import Plan, check_disk_space
from preprocess.run.reading import load_given_tokenizer, make_passes
from preprocess.run.run import Run
from preprocess.run.selection import select_documents
from preprocess.run.vocab_curve import choose_size
from preprocess.storage import Files, Storage

if TYPE_CHECKING:
    from bpe import Tokenizer
    from bpe.text_tokenizer import AnyTokenizer


class Trained(Struct, forbid_unknown_fields=True):
    """Checkpoint: the tokenizer is trained and saved."""

    fingerprint: str  # sha256 of its file
    left_out: summary.LeftOut  # of the count pass
    stages: list[dict[str, Any]]  # completed so far, as `Stage.facts`


def run_plan(
    plan: Plan, progress: Progress
) -> tuple[AnyTokenizer, dict[str, Manifest], dict[str, Any], list[str]]:
    """Run a plan that encodes: train unless a tokenizer is given, encode, commit.

    Returns:
        (the tokenizer, name of an output -> its manifest, content of stats.json, closing lines).
    """
    settings, lines = plan.settings, list[str]()
    assert not isinstance(settings, TrainFileSettings)
    is_part = settings.task_index is not None
    with Run(
        plan.directory, plan.run_name, plan.record, settings.overwrite, own_lock=is_part
    ) as run:
        finished, tokenizer = run.storage.final, plan.tokenizer
        if what := plan.describe_finished(run):
            return _read_finished(finished, plan, what)
        saves = isinstance(settings, BuildSettings) and plan.has_tokenizer_file and (
            needs_tokenizer_file(finished, tokenizer, settings)
        )
        if settings.executor != "ray":  # each part checks its own
            check_disk_space(plan, run.storage, tokenizer)
        run.begin()
        left_out = plan.prepare(run.journal, progress)
        with open_parts(plan, run, progress) as parts:
            if tokenizer is None:
                tokenizer = train_on_plan(plan, run, progress, summary.LeftOut(), parts)
                if parts is None:
                    check_disk_space(plan, run.storage, tokenizer)
            elif saves:
                put_tokenizer(run.storage, tokenizer, plan.tokenizer_file)
                run.add(*list_tokenizer_files(plan.tokenizer_file))
            if parts is None:
                report = summary.Report(left_out=left_out)
                manifests = encode_passes(plan, tokenizer, run, progress, report)
                counts = report.stats(progress, progress.seconds())
            else:
                made = parts.make(tokenizer, make_part)
                manifests = join_parts(finished, settings.stems, made)
                put_joined(run, settings, manifests)
                report, counts = report_of(finished, made)
                counts |= summary.run_stats(progress, report.left_out, progress.seconds())
        binary_files = [file for each in plan.passes for file in each.binary_files]
        stats = {
            "settings": settings.as_json(), "binary_files": len(binary_files), **counts,
            "files": sum(len(each.recorded) for each in plan.passes),
        }
        skips = settings.on_bad_record == "skip"
        rejects = put_rejects(run, plan.rejects_file, report.rejected if skips else None)
        put_stats(run, plan.stats_file, stats, rejects)
        run.publish()
    if isinstance(settings, BuildSettings):
        lines.append(f"tokenizer: {summary.format_tokenizer(tokenizer)}")
    if binary_files:
        lines.append(summary.format_skipped(binary_files))
    lines += report.lines(progress, stats)
    return tokenizer, manifests, stats, [*map(spelled, lines)]


def _read_finished(
    finished: Files, plan: Plan, what: str
) -> tuple[AnyTokenizer, dict[str, Manifest], dict[str, Any], list[str]]:
    """Return the result of a finished run; opening its outputs checks their sizes."""
    from bpe import load_tokenizer

    tokenizer = plan.tokenizer or load_tokenizer(finished.path(TOKENIZER_FILE))
    manifests = {
        name: open_published(finished, file_name, tokenizer.fingerprint)
        for name, file_name in plan.names.items()
    }
    stats = json.loads(finished.get(plan.stats_file) or b"{}")
    lines = [
        f"{name}: {what} ({each.n_documents:,} documents, {each.n_tokens:,} tokens)"
        for name, each in manifests.items()
    ]
    return tokenizer, manifests, stats, lines


def make_part(run: DividedRun, number: int, minutes: float | None) -> int:
    """Make a part of the outputs, in a worker; return its bytes of the sources."""
    more: dict[str, Any] = {"task_index": number, "task_count": run.n_parts}
    if getattr(run.settings, "tokenizer", None) is None:  # it is trained
        more["tokenizer"] = run.tokenizer
    with run.here():
        plan, progress = run.plan(minutes, **more), Progress()
        progress.begin(minutes)
        run_plan(plan, progress)
        return sum(source.n_bytes for each in plan.passes for source in each.files)


def train_on_plan(
    plan: Plan, run: Run, progress: Progress, left_out: summary.LeftOut, parts: Parts | None
) -> Tokenizer:
    """Train a tokenizer on the first pass, or load the one that the resumed run trained."""
    from bpe import Tokenizer

    settings, journal, storage = plan.settings, run.journal, run.storage
    assert isinstance(settings, TrainSettings)
    n_before, name = len(progress.stages), plan.tokenizer_file
    run.add(*list_tokenizer_files(name))
    entry = journal.value("trained", Trained)
    if entry is None:
        encodes = parts is None and not isinstance(settings, TrainFileSettings)
        compile_training(settings.pattern, progress, encodes)
        # On Ray, sources only give their names to messages.
        counted = None if parts is None else parts.count()
        sources = plan.training_files
        if counted is None:
            sources = [source for each in plan.training_passes for source in each.sources]
        tokenizer = train_tokenizer(sources, settings, journal, progress, left_out, counted)
        tokenizer = choose_size(tokenizer, plan.passes[-1], settings, progress)
        put_tokenizer(storage, tokenizer, name)
        stages = [stage.facts() for stage in progress.stages[n_before:]]
        journal.save("trained", Trained(tokenizer.fingerprint, left_out, stages))
    else:
        with journal_errors():
            for stage in entry.stages:
                progress.add_stage_before(**stage)
        left_out.merge(entry.left_out)
        if sha256_of(storage.get(name)) != entry.fingerprint:
            raise JournalError(
                f"{storage.where(name)}: the trained tokenizer is damaged or missing; start over"
                " (--overwrite)"
            )
        tokenizer = Tokenizer.from_file(storage.path(name))
    if parts is not None:
        parts.forget_counts()
    return tokenizer


def encode_passes(
    plan: Plan, tokenizer: AnyTokenizer, run: Run, progress: Progress, report: summary.Report
) -> dict[str, Manifest]:
    """Encode every pass into token files, count in `report`, register the files in `run`."""
    compile_encoding(tokenizer, progress)
    settings, manifests = plan.settings, dict[str, Manifest]()
    assert not isinstance(settings, TrainFileSettings)
    for part in plan.passes:
        made = EncodePass(part, settings, tokenizer, report, progress, run.journal).fill()
        for name, manifest in made.items():
            add_token_file(run, part.names[name], manifest)
            _warn_large_shards(manifest, part.names[name], settings.shard_tokens)
        manifests |= made
    return manifests


def _warn_large_shards(manifest: Manifest, file_name: str, most: int | None) -> None:
    """Warn of documents that are larger than a shard, each in its own one."""
    large = [
        f"{stem} ({shard.n_tokens:,} tokens)"
        for stem, shard in zip(manifest.stems(file_name), manifest.shards, strict=False)
        if most is not None and shard.n_tokens > most
    ]
    if large:
        which = "1 document is" if len(large) == 1 else f"{len(large):,} documents are"
        logger.warning(
            "%s larger than %s tokens, each with a shard of its own: %s; --split-documents divides"
            " them", which, f"{most:,}", summary.listed(large),
        )


def reload_tokenizer(settings: BuildSettings, storage: Storage, progress: Progress) -> AnyTokenizer:
    """Load the tokenizer given to a build, or train it again; counts are saved in `storage`."""
    if settings.tokenizer is not None:
        return load_given_tokenizer(settings)
    passes = make_passes(settings, None)
    with Journal(storage) as journal:
        select_documents(passes, settings, settings, journal, progress)
        left_out = summary.LeftOut()
        tokenizer = train_tokenizer(passes[0].sources, settings, journal, progress, left_out)
        return choose_size(tokenizer, passes[-1], settings, progress)

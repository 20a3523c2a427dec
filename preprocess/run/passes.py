"""Run the passes of a plan: train on the first, encode all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preprocess.dataset.manifest import Manifest
from preprocess.report import summary
from preprocess.report.progress import logger
from preprocess.run.compiling import KernelCompiler
from preprocess.run.count_pass import train_tokenizer
from preprocess.run.journal import journal_errors
from preprocess.run.outputs import Outputs, Trained
from preprocess.run.plan import Plan
from preprocess.run.units import Executor
from preprocess.settings.schema import BuildSettings, TrainFileSettings, TrainSettings

if TYPE_CHECKING:
    from bpe import Tokenizer
    from bpe.text_tokenizer import AnyTokenizer


def train_on_plan(
    plan: Plan, outputs: Outputs, compiler: KernelCompiler, left_out: summary.LeftOut,
    executor: Executor,
) -> Tokenizer:
    """Train a tokenizer on the first pass, or load the one that the resumed run trained."""
    settings, progress, journal = plan.settings, compiler.progress, outputs.journal
    assert isinstance(settings, TrainSettings)
    n_before = len(progress.stages)
    entry = journal.last(Trained)
    if entry is not None:
        with journal_errors():
            for stage in entry.stages:
                progress.add_stage_before(**stage)
        left_out.merge(entry.left_out)
        return outputs.load_trained(plan.tokenizer_file, entry.fingerprint)
    compiler.compile_training(settings.pattern, encodes=isinstance(settings, BuildSettings))
    tokenizer = train_tokenizer(
        plan.training_sources, settings, journal, progress, left_out, executor
    )
    outputs.add_tokenizer(tokenizer, plan.tokenizer_file)
    stages = [stage.facts() for stage in progress.stages[n_before:]]
    journal.append(Trained(tokenizer.fingerprint, left_out, stages))
    return tokenizer


def encode_passes(
    plan: Plan, tokenizer: AnyTokenizer, outputs: Outputs, compiler: KernelCompiler,
    report: summary.Report, executor: Executor,
) -> dict[str, Manifest]:
    """Encode every pass into token files, count in `report`, register the files in `outputs`."""
    compiler.compile_encoding(tokenizer)
    settings, manifests = plan.settings, dict[str, Manifest]()
    assert not isinstance(settings, TrainFileSettings)
    for part in plan.passes:
        manifests |= part.fill(
            settings, tokenizer, report, compiler.progress, outputs.journal, executor
        )
        for name, file_name in part.names.items():
            outputs.add_token_file(file_name, manifests[name])
            _warn_large_shards(manifests[name], file_name, settings.shard_tokens)
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

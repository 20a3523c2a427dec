"""From text to token files: plan, train, encode, commit. `build` shows the whole way on one page.

Law: the outputs depend on the sources and the settings, never on the number of workers or the size
of units. Everything lands under temporary names and gets its final name when all of it is complete.
A run that is cut off leaves what was there before, and says where it was: the same command goes on
there.

The module is not called build.py because `preprocess.build` is the function.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence, Set
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from preprocess.config import (
    BuildSettings,
    CountSettings,
    EncodeSettings,
    ReadSettings,
    ShardSettings,
    TrainFileSettings,
    TrainSettings,
    checked,
)
from preprocess.count_pass import train_tokenizer
from preprocess.documents import Reading
from preprocess.encode_pass import SpecialIds, encode_into, encode_units, encoded_again
from preprocess.inputs import Record, made_from
from preprocess.journal import Journal, understanding
from preprocess.limits import check_has_text
from preprocess.memory import fitted
from preprocess.outputs import (
    TOKENIZER_FILE,
    Outputs,
    finished_before,
    may_have_the_same_text,
    refuse_configuration,
    refuse_outputs_in_the_way,
    saves_tokenizer,
    trained_before,
)
from preprocess.progress import Progress, logger
from preprocess.report import (
    LeftOut,
    Report,
    left_out_lines,
    run_stats,
    time_line,
    tokenizer_in_words,
)
from preprocess.sources import Source, find_sources
from preprocess.sources.standard_library import StandardLibrary
from preprocess.storage import OutputError, Storage
from preprocess.token_file import Manifest, open_tokens, token_dtype

# More bytes of text than a token has on average, whatever the text and the vocabulary.
_FEW_TOKENS = 6.0
_SOURCES_LOOKED_AT = 4

if TYPE_CHECKING:
    from bpe import Tokenizer
    from bpe.text_tokenizer import AnyTokenizer


@dataclass(frozen=True)
class BuildResult:
    """What a build left behind.

    Attributes:
        directory: Where the outputs are.
        tokenizer: The tokenizer that was trained or given.
        manifests: Name of an output ("train", "val") -> its manifest.
        stats: What stats.json says.
        lines: The closing lines.
    """

    directory: Path
    tokenizer: AnyTokenizer
    manifests: dict[str, Manifest]
    stats: dict[str, Any]
    lines: list[str]


# --- the whole way ---


def build(*, progress: Progress | None = None, **options: Any) -> BuildResult:
    """Train a tokenizer unless one is given, encode train and validation text, put all in place.

    Args:
        progress: Shows what goes on; None shows nothing.
        **options: Fields of `preprocess.config.BuildSettings`: train, val, val_fraction, out, name,
            vocab_size, tokenizer, pattern, special_tokens, workers and so on.

    Raises:
        SettingsError: An option is of no use.
        CorpusError: Text is missing or cannot be read, or an output would have no documents.
        OutputError: Outputs exist already, or cannot be written.
        TokenbinError: Whatever else is refused on purpose is one.
    """
    settings = fitted(checked(BuildSettings, options))
    progress = progress or Progress()
    progress.limit(settings.max_minutes)
    started = time.perf_counter()
    plan = _plan(settings, options.keys())
    with Outputs(settings.out, settings.named("build"), plan.record, settings.overwrite) as outputs:
        if what := _nothing_to_do(outputs, plan):
            return _what_is_there(plan, what)
        saves = saves_tokenizer(
            settings.out, plan.tokenizer, settings.tokenizer, settings.overwrite
        )
        _refuse_full_disk(plan, outputs, plan.tokenizer, settings)
        outputs.begin()
        tokenizer = plan.tokenizer or _trained(
            plan.passes[0].sources, settings, outputs, TOKENIZER_FILE, progress, LeftOut()
        )
        if plan.tokenizer is None:
            _refuse_full_disk(plan, outputs, tokenizer, settings)
        elif saves:
            outputs.add_tokenizer(plan.tokenizer, TOKENIZER_FILE)
        report, manifests = _encoded(plan, tokenizer, settings, outputs, progress)
        stats = _stats(report, settings, progress, started)
        outputs.add_stats(plan.stats_file, stats)
        outputs.commit()
    lines = [
        f"tokenizer: {tokenizer_in_words(tokenizer)}",
        *report.lines(progress, stats["seconds"]),
    ]
    return BuildResult(settings.out, tokenizer, manifests, stats, lines)


@dataclass(frozen=True)
class _Pass:
    """Sources that are read once and the outputs that they fill, two if documents are divided.

    Attributes:
        sources: In order.
        names: Name of an output -> NAME of its files.
    """

    sources: Sequence[Source]
    names: dict[str, str]


@dataclass(frozen=True)
class _Plan:
    """Everything that will be read and written.

    Attributes:
        directory: Where outputs land.
        passes: Over the text, in order.
        tokenizer: The one that is given; None: one is trained.
        stats_file: The name of what says how the run went.
        record: What all of it is made from.
        shards: How token files are divided.
    """

    directory: Path
    passes: list[_Pass]
    tokenizer: AnyTokenizer | None
    stats_file: str
    record: Record
    shards: ShardSettings

    @property
    def names(self) -> dict[str, str]:
        """Name of an output -> NAME of its files."""
        return {name: files for each in self.passes for name, files in each.names.items()}


def _plan(settings: BuildSettings, given: Set[str]) -> _Plan:
    """Find everything that will be read, and refuse now whatever can be refused now.

    Args:
        settings: Those of the run.
        given: Names of the settings that are not there by default.
    """
    tokenizer: AnyTokenizer | None = None
    if settings.tokenizer:
        is_ranks = settings.tokenizer.suffix == ".tiktoken"
        pattern = settings.pattern if is_ranks and "pattern" in given else None
        tokenizer = _load(settings.tokenizer, pattern, settings)
        SpecialIds.of(tokenizer, settings)
        _say_unused(settings, given, tokenizer)
    reading = _reading(settings, tokenizer, settings.validation_fraction)
    train = _train_sources(settings, reading)
    names = ("train", "val") if settings.validation_fraction else ("train",)
    passes = [_Pass(train, {name: settings.named(name) for name in names})]
    if settings.val:
        val = find_sources(settings.val, reading)
        passes.append(_Pass(val, {"val": settings.named("val")}))
    for part in passes:
        check_has_text(part.sources, next(iter(part.names)))
    sources = {" and ".join(part.names): part.sources for part in passes}
    record = made_from("build", settings, sources, tokenizer)
    return _Plan(settings.out, passes, tokenizer, settings.named("stats.json"), record, settings)


def sources_of(
    settings: BuildSettings | EncodeSettings, tokenizer: AnyTokenizer, file_name: str
) -> tuple[list[str], Sequence[Source]]:
    """What a token file of a run is made from.

    Args:
        settings: Those of the run.
        tokenizer: The one that was trained or given.
        file_name: NAME of the token file.

    Returns:
        NAMEs of the token files that these sources fill, this one among them, and the sources.
    """
    if isinstance(settings, EncodeSettings):
        return [settings.name], find_sources(settings.paths, _reading(settings, tokenizer))
    reading = _reading(settings, tokenizer, settings.validation_fraction)
    if settings.val and file_name == settings.named("val"):
        return [file_name], find_sources(settings.val, reading)
    divided = ("train", "val") if settings.validation_fraction else ("train",)
    names = [settings.named(name) for name in divided]
    return names, _train_sources(settings, reading)


def _train_sources(settings: BuildSettings, reading: Reading) -> Sequence[Source]:
    """The text that is given, else the default corpus."""
    return find_sources(settings.train, reading) if settings.train else [StandardLibrary(reading)]


def tokenizer_again(settings: BuildSettings, storage: Storage, progress: Progress) -> AnyTokenizer:
    """The tokenizer of a build, as it was given or trained once more.

    The storage takes in what is counted on the way.
    """
    if settings.tokenizer is not None:
        is_ranks = settings.tokenizer.suffix == ".tiktoken"
        return _load(settings.tokenizer, settings.pattern if is_ranks else None, settings)
    sources = _train_sources(settings, _reading(settings, None, settings.validation_fraction))
    with Journal(storage) as journal:
        return train_tokenizer(sources, settings, storage, journal, progress, LeftOut())


def encoded_anew(
    settings: BuildSettings | EncodeSettings,
    tokenizer: AnyTokenizer,
    file_name: str,
    storage: Storage,
    progress: Progress,
) -> None:
    """Put a token file of a run into a storage once more, and the one that shares its sources."""
    names, sources = sources_of(settings, tokenizer, file_name)
    ids = SpecialIds.of(tokenizer, settings)
    with Journal(storage) as journal:
        encode_into(
            0,
            sources,
            {name: name for name in names},
            tokenizer,
            ids,
            settings.workers,
            storage,
            journal,
            Report(),
            progress,
            settings,
        )


def _nothing_to_do(outputs: Outputs, plan: _Plan) -> str:
    """Say why nothing is left to be done; "" if something is.

    Raises:
        TokenbinError: Something else is in the way.
    """
    if outputs.finishing:
        outputs.commit_again()
        return "was complete, and has its final names now"
    why = ""
    if not outputs.resumed and not outputs.overwrite:
        names = list(plan.names.values())
        changed = finished_before(plan.directory, names, plan.stats_file, plan.record)
        if changed is not None and (not changed or _has_the_same_text(plan)):
            return "up to date"
        if changed:
            why = f"it was made from something else ({'; '.join(changed)}): "
    refuse_outputs_in_the_way(
        plan.directory,
        list(plan.names.values()),
        plan.stats_file,
        outputs.overwrite,
        why,
        plan.shards.shard_tokens is not None,
    )
    return ""


def _has_the_same_text(plan: _Plan) -> bool:
    """Whether files were only touched or moved: all else is the same, and so is each text."""
    if not may_have_the_same_text(plan.directory / plan.stats_file, plan.record):
        return False
    for part in plan.passes:
        file = open_tokens(plan.directory / f"{next(iter(part.names.values()))}.bin")
        for source, known in zip(part.sources, file.manifest.sources, strict=True):
            digest = xxhash.xxh3_128()
            for unit in source.units():
                digest.update(unit.content().data)
            if digest.hexdigest() != known.get("digest"):
                return False
    return True


def _what_is_there(plan: _Plan, what: str) -> BuildResult:
    """The result of a run whose outputs are all there; opening them checks their sizes."""
    from bpe import load_tokenizer

    tokenizer = plan.tokenizer or load_tokenizer(plan.directory / TOKENIZER_FILE)
    files = {
        name: open_tokens(plan.directory / f"{file_name}.bin", tokenizer=tokenizer)
        for name, file_name in plan.names.items()
    }
    stats = json.loads((plan.directory / plan.stats_file).read_bytes())
    lines = [
        f"{name}: {what} ({file.n_documents:,} documents, {file.n_tokens:,} tokens)"
        for name, file in files.items()
    ]
    manifests = {name: file.manifest for name, file in files.items()}
    return BuildResult(plan.directory, tokenizer, manifests, stats, lines)


def _trained(
    sources: Sequence[Source],
    settings: TrainSettings,
    outputs: Outputs,
    file_name: str,
    progress: Progress,
    left_out: LeftOut,
) -> Tokenizer:
    """The tokenizer that is trained on sources, by this run or by the one that it goes on with."""
    entry = outputs.journal.last("trained")
    if entry is not None:
        with understanding():
            for stage in entry["stages"]:
                progress.add_stage_before(**stage)
            left_out.take_over(LeftOut(**entry["left_out"]))
        return outputs.trained(file_name)
    tokenizer = train_tokenizer(
        sources, settings, outputs.storage, outputs.journal, progress, left_out
    )
    outputs.add_tokenizer(tokenizer, file_name)
    outputs.journal.append(
        {
            "kind": "trained",
            "fingerprint": tokenizer.fingerprint,
            "left_out": asdict(left_out),
            "stages": [stage.facts() for stage in progress.stages],
        }
    )
    return tokenizer


def _refuse_full_disk(
    plan: _Plan,
    outputs: Outputs,
    tokenizer: AnyTokenizer | None,
    settings: BuildSettings | EncodeSettings,
) -> None:
    """Refuse a disk that the token files do not fit on, before hours of work and not after.

    A file of bytes has at most as many tokens. Only where that might not fit is the text looked at:
    its first units are encoded. Where the tokenizer is not known yet, few tokens are taken for
    granted, so that nothing is refused that may be possible.

    Raises:
        OutputError: That is so.
    """
    if tokenizer is not None:
        vocab_size = tokenizer.vocab_size
    else:
        assert isinstance(settings, BuildSettings)
        vocab_size = settings.vocab_size
    itemsize = token_dtype(vocab_size).itemsize
    n_bytes = sum(source.n_bytes for part in plan.passes for source in part.sources)
    free, used = outputs.storage.space()
    if n_bytes * itemsize <= free + used:
        return
    per_token = _FEW_TOKENS
    if tokenizer is not None:
        seen = tokens = 0
        for source in plan.passes[0].sources[:_SOURCES_LOOKED_AT]:
            again = encoded_again(source, tokenizer, SpecialIds.of(tokenizer, settings), 1)
            with closing(again) as units:
                for part in next(units, []):
                    seen, tokens = seen + part.n_bytes, tokens + len(part.ids)
        per_token = seen / tokens if tokens else per_token
    needed = round(n_bytes / per_token * itemsize)
    if needed > free + used:
        raise OutputError(
            f"{plan.directory}: the token files will have about {needed / 1e9:,.1f} GB"
            f" ({per_token:.1f} bytes of text to the token), and {(free + used) / 1e9:,.1f} GB are"
            " free; free the space or choose another directory (--out)"
        )


def _encoded(
    plan: _Plan,
    tokenizer: AnyTokenizer,
    settings: BuildSettings | EncodeSettings,
    outputs: Outputs,
    progress: Progress,
) -> tuple[Report, dict[str, Manifest]]:
    """Every pass of encoding, finished in the storage."""
    ids = SpecialIds.of(tokenizer, settings)
    report, manifests = Report(), dict[str, Manifest]()
    for number, part in enumerate(plan.passes):
        manifests |= encode_into(
            number,
            part.sources,
            part.names,
            tokenizer,
            ids,
            settings.workers,
            outputs.storage,
            outputs.journal,
            report,
            progress,
            settings,
        )
        for name, file_name in part.names.items():
            outputs.add_token_file(file_name, manifests[name])
            _say_large_shards(manifests[name], file_name, settings)
    return report, manifests


def _say_large_shards(manifest: Manifest, file_name: str, settings: ShardSettings) -> None:
    """Name documents that have a shard of their own, for they are larger than one."""
    most = settings.shard_tokens
    large = [
        f"{file_name} ({shard.n_tokens:,} tokens)"
        for file_name, shard in zip(manifest.stems(file_name), manifest.shards, strict=False)
        if most is not None and shard.n_tokens > most
    ]
    if large:
        logger.warning(
            "%s larger than %s tokens, each with a shard of its own: %s%s; --split-documents"
            " divides them",
            "1 document is" if len(large) == 1 else f"{len(large):,} documents are",
            f"{most:,}",
            ", ".join(large[:3]),
            f" and {len(large) - 3:,} more" if len(large) > 3 else "",
        )


def _stats(
    report: Report, settings: ReadSettings, progress: Progress, started: float
) -> dict[str, Any]:
    seconds = time.perf_counter() - started + progress.seconds_before
    return {"settings": settings.as_json(), **report.stats(progress, seconds)}


def _say_unused(settings: BuildSettings, given: Set[str], tokenizer: AnyTokenizer) -> None:
    """Name the settings that have no effect because nothing is trained."""
    only_for_training = {"vocab_size", "pattern", "special_tokens", "tie_break", "min_frequency"}
    if settings.tokenizer and settings.tokenizer.suffix == ".tiktoken":
        only_for_training -= {"pattern", "special_tokens"}
    unused = sorted(given & only_for_training)
    if unused:
        logger.warning(
            "a tokenizer is given, so nothing is trained and these settings are not used: %s"
            " (it has %s tokens)",
            ", ".join(unused),
            f"{tokenizer.vocab_size:,}",
        )


def _load(name: Path, pattern: str | None, settings: BuildSettings | CountSettings) -> AnyTokenizer:
    """The tokenizer that is given; a .tiktoken file gets the special tokens that are asked for."""
    from bpe import load_tokenizer

    return load_tokenizer(name, pattern=pattern, special_tokens=settings.all_special_tokens)


def _reading(
    settings: ReadSettings, tokenizer: AnyTokenizer | None, validation_fraction: float = 0.0
) -> Reading:
    """How sources are read for a tokenizer, or for the one that is going to be trained."""
    from bpe.pretokenize import Pretokenizer

    if tokenizer is None:
        assert isinstance(settings, TrainSettings)
        safe_cut, uncut = Pretokenizer(settings.pattern).safe_cut, settings.all_special_tokens
    else:
        safe_cut, uncut = tokenizer.safe_cut, tokenizer.uncut_tokens
    return Reading(
        separator=settings.separator.encode(),
        unit_size=settings.unit_size,
        on_invalid_utf8=settings.on_invalid_utf8,
        validation_fraction=validation_fraction,
        safe_cut=safe_cut,
        uncut=tuple(token.encode() for token in uncut),
    )


# --- the other commands ---


def train(*, progress: Progress | None = None, **options: Any) -> tuple[Tokenizer, list[str]]:
    """Train a tokenizer on text files and save it.

    Args:
        progress: Shows what goes on; None shows nothing.
        **options: Fields of `preprocess.config.TrainFileSettings`: paths, out, vocab_size, ...

    Returns:
        The tokenizer and the closing lines.

    Raises:
        TokenbinError: As `build`.
    """
    from bpe import Tokenizer

    settings = fitted(checked(TrainFileSettings, options))
    progress = progress or Progress()
    progress.limit(settings.max_minutes)
    started = time.perf_counter()
    sources = find_sources(settings.paths, _reading(settings, None))
    check_has_text(sources, "train")
    record = made_from("train", settings, {"train": sources}, None)
    directory, stem = settings.out.parent, settings.out.stem
    stats_file, left_out = f"{stem}_stats.json", LeftOut()
    with Outputs(directory, stem, record, settings.overwrite) as outputs:
        if what := _no_training_to_do(outputs, settings.out, stats_file, record):
            tokenizer = Tokenizer.from_file(settings.out)
            return tokenizer, [f"{settings.out}: {what}, {tokenizer_in_words(tokenizer)}"]
        outputs.begin()
        tokenizer = _trained(sources, settings, outputs, settings.out.name, progress, left_out)
        seconds = time.perf_counter() - started + progress.seconds_before
        outputs.add_stats(
            stats_file,
            {
                "settings": settings.as_json(),
                "fingerprint": tokenizer.fingerprint,
                **run_stats(progress, left_out, seconds),
            },
        )
        outputs.commit()
    lines = [f"{settings.out}: {tokenizer_in_words(tokenizer)}", *left_out_lines(left_out)]
    return tokenizer, [*lines, time_line(progress, seconds)]


def _no_training_to_do(outputs: Outputs, path: Path, stats_file: str, record: Record) -> str:
    """As `_nothing_to_do`, for a tokenizer alone."""
    if outputs.finishing:
        outputs.commit_again()
        return "was complete, and has its final name now"
    refuse_outputs_in_the_way(path.parent, [], stats_file, outputs.overwrite)
    refuse_configuration(path, outputs.overwrite)
    if not path.exists() or outputs.overwrite:
        return ""
    changed = None
    if not outputs.resumed and trained_before(path, stats_file):
        changed = finished_before(path.parent, [], stats_file, record)
    if changed == []:
        return "up to date"
    why = f"it was made from something else ({'; '.join(changed)}): " if changed else ""
    raise OutputError(f"{path}: exists; {why}choose another name, or replace it (--overwrite)")


def encode(*, progress: Progress | None = None, **options: Any) -> BuildResult:
    """Encode text files with a tokenizer into one token file.

    Args:
        progress: Shows what goes on; None shows nothing.
        **options: Fields of `preprocess.config.EncodeSettings`: paths, tokenizer, out and so on.

    Raises:
        TokenbinError: As `build`.
    """
    settings = fitted(checked(EncodeSettings, options))
    progress = progress or Progress()
    progress.limit(settings.max_minutes)
    started = time.perf_counter()
    tokenizer = _load(settings.tokenizer, settings.pattern, settings)
    SpecialIds.of(tokenizer, settings)
    sources = find_sources(settings.paths, _reading(settings, tokenizer))
    name, directory = settings.name, settings.out.parent
    check_has_text(sources, name)
    record = made_from("encode", settings, {name: sources}, tokenizer)
    passes = [_Pass(sources, {name: name})]
    plan = _Plan(directory, passes, tokenizer, f"{name}_stats.json", record, settings)
    with Outputs(directory, name, record, settings.overwrite) as outputs:
        if what := _nothing_to_do(outputs, plan):
            return _what_is_there(plan, what)
        _refuse_full_disk(plan, outputs, tokenizer, settings)
        outputs.begin()
        report, manifests = _encoded(plan, tokenizer, settings, outputs, progress)
        stats = _stats(report, settings, progress, started)
        outputs.add_stats(plan.stats_file, stats)
        outputs.commit()
    return BuildResult(
        directory, tokenizer, manifests, stats, report.lines(progress, stats["seconds"])
    )


def count(*, progress: Progress | None = None, **options: Any) -> Report:
    """Count documents and tokens of text files without writing anything.

    Args:
        progress: Shows what goes on; None shows nothing.
        **options: Fields of `preprocess.config.CountSettings`: paths, tokenizer and so on.

    Returns:
        A report whose `sources` has an entry for each file. No tokens stand around the documents.

    Raises:
        TokenbinError: As `build`.
    """
    settings = checked(CountSettings, options)
    tokenizer = _load(settings.tokenizer, settings.pattern, settings)
    sources = find_sources(settings.paths, _reading(settings, tokenizer))
    report = Report()
    nothing_around = SpecialIds(end_of_text=-1, begin_of_text=None)
    encode_units(
        sources, {}, tokenizer, nothing_around, settings.workers, report, progress or Progress()
    )
    return report

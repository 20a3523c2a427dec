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
from collections.abc import Iterable, Sequence, Set
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from preprocess.compiling import KernelCompiler
from preprocess.count_pass import train_tokenizer
from preprocess.dataset.columns import token_dtype
from preprocess.dataset.manifest import Manifest
from preprocess.dataset.reader import open_tokens
from preprocess.documents import Reading
from preprocess.encode_pass import EncodePass, SpecialIds, encoded_again
from preprocess.inputs import Record, made_from
from preprocess.journal import Journal, understanding
from preprocess.limits import check_has_text
from preprocess.memory import fit_to_memory
from preprocess.outputs import (
    TOKENIZER_FILE,
    Outputs,
    Trained,
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
    listed,
    run_stats,
    time_line,
    tokenizer_in_words,
)
from preprocess.settings.options import StrPath, convert, options_of
from preprocess.settings.schema import (
    END_OF_TEXT,
    BuildSettings,
    CountSettings,
    EncodeSettings,
    ReadSettings,
    ShardSettings,
    TrainFileSettings,
    TrainSettings,
    VocabularySettings,
)
from preprocess.sinks import TokenFiles
from preprocess.sources import Source, digest_of, find_sources
from preprocess.sources.standard_library import StandardLibrary
from preprocess.storage import Files, OutputError, Storage

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


def build(
    *,
    train: StrPath | Iterable[StrPath] = (),
    val: StrPath | Iterable[StrPath] = (),
    val_fraction: float | None = None,
    out: StrPath = "data",
    name: str = "",
    tokenizer: StrPath | None = None,
    vocab_size: int = 32_000,
    pattern: str | None = None,
    special_tokens: Iterable[str] = (),
    tie_break: Literal["greatest-bytes", "huggingface"] = "greatest-bytes",
    min_frequency: int = 2,
    end_of_text: str | None = None,
    begin_of_text: str | None = None,
    separator: str = END_OF_TEXT,
    on_invalid_utf8: Literal["error", "replace", "skip"] = "error",
    unit_size: int | str = 4 * 1024 * 1024,
    workers: int | None = None,
    shard_tokens: int | None = None,
    split_documents: bool = False,
    max_minutes: float | None = None,
    memory_limit: int | str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> BuildResult:
    """Train a tokenizer unless one is given, encode train and validation text, put all in place.

    Every option is described in docs/options.md and by `tokenbin build --help`. `progress` shows
    what is done; None shows nothing.

    Raises:
        SettingsError: An option is of no use.
        CorpusError: Text is missing or cannot be read, or an output would have no documents.
        OutputError: Outputs exist already, or cannot be written.
        TokenbinError: Whatever else is refused on purpose is one.
    """
    options = {**locals()}
    progress = options.pop("progress") or Progress()
    settings = fit_to_memory(convert(options, BuildSettings))
    progress.limit(settings.max_minutes)
    started = time.perf_counter()
    training = options_of(VocabularySettings).values()
    compiler = KernelCompiler(progress)
    given_options = {
        each.name
        for each in training
        if options[each.name] is not None and getattr(settings, each.name) != each.default
    }
    plan = _plan(settings, given_options, compiler)
    run_name = settings.named("build")
    with (
        compiler,
        Outputs(settings.out, run_name, plan.record, settings.overwrite) as outputs,
    ):
        if what := _nothing_to_do(outputs, plan):
            return _what_is_there(outputs.storage.finished, plan, what)
        given = None if settings.tokenizer is None else Path(settings.tokenizer)
        saves = saves_tokenizer(outputs.storage.finished, plan.tokenizer, given, settings.overwrite)
        _refuse_full_disk(plan, outputs, plan.tokenizer, settings)
        outputs.begin()
        used = plan.tokenizer or _trained(
            plan.passes[0].sources, settings, outputs, TOKENIZER_FILE, compiler, LeftOut()
        )
        if plan.tokenizer is None:
            _refuse_full_disk(plan, outputs, used, settings)
        elif saves:
            outputs.add_tokenizer(plan.tokenizer, TOKENIZER_FILE)
        report, manifests = _encoded(plan, used, settings, outputs, compiler)
        stats = _stats(report, settings, progress, started)
        outputs.add_stats(plan.stats_file, stats)
        outputs.commit()
    lines = [
        f"tokenizer: {tokenizer_in_words(used)}",
        *report.lines(progress, stats["seconds"]),
    ]
    return BuildResult(plan.directory, used, manifests, stats, lines)


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


def _plan(settings: BuildSettings, given: Set[str], compiler: KernelCompiler) -> _Plan:
    """Find everything that will be read, and refuse now whatever can be refused now.

    Args:
        settings: Those of the run.
        given: Names of the options of training whose values are not the defaults.
        compiler: Compiles what a given tokenizer needs.
    """
    tokenizer: AnyTokenizer | None = None
    if settings.tokenizer:
        pattern = settings.pattern if _is_ranks(settings) and "pattern" in given else None
        tokenizer = _load(settings.tokenizer, pattern, settings)
        compiler.encoding(tokenizer)
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
    stats_file = settings.named("stats.json")
    return _Plan(Path(settings.out), passes, tokenizer, stats_file, record, settings)


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
        pattern = settings.pattern if _is_ranks(settings) else None
        return _load(settings.tokenizer, pattern, settings)
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
        encoding = EncodePass(
            0, sources, tokenizer, ids, settings.workers, Report(), progress, journal
        )
        encoding.fill({name: name for name in names}, _token_files(storage, tokenizer, settings))


def _nothing_to_do(outputs: Outputs, plan: _Plan) -> str:
    """Say why nothing is left to be done; "" if something is.

    Raises:
        TokenbinError: Something else is in the way.
    """
    if outputs.commit_again():
        return "was complete, and has its final names now"
    why, files = "", outputs.storage.finished
    if not outputs.resumed and not outputs.overwrite:
        names = list(plan.names.values())
        changed = finished_before(files, names, plan.stats_file, plan.record)
        if changed is not None and (not changed or _has_the_same_text(files, plan)):
            return "up to date"
        if changed:
            why = f"it was made from something else ({'; '.join(changed)}): "
    refuse_outputs_in_the_way(
        files,
        list(plan.names.values()),
        plan.stats_file,
        outputs.overwrite,
        why,
        plan.shards.shard_tokens is not None,
    )
    return ""


def _has_the_same_text(files: Files, plan: _Plan) -> bool:
    """Whether files were only touched or moved: all else is the same, and so is each text."""
    if not may_have_the_same_text(files, plan.stats_file, plan.record):
        return False
    for part in plan.passes:
        file = open_tokens(files.path(f"{next(iter(part.names.values()))}.bin"))
        for source, known in zip(part.sources, file.manifest.sources, strict=True):
            if digest_of(source).hexdigest() != known.get("digest"):
                return False
    return True


def _what_is_there(there: Files, plan: _Plan, what: str) -> BuildResult:
    """The result of a run whose outputs are all there; opening them checks their sizes."""
    from bpe import load_tokenizer

    tokenizer = plan.tokenizer or load_tokenizer(there.path(TOKENIZER_FILE))
    files = {
        name: open_tokens(there.path(f"{file_name}.bin"), tokenizer=tokenizer)
        for name, file_name in plan.names.items()
    }
    stats = json.loads(there.get(plan.stats_file) or b"{}")
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
    compiler: KernelCompiler,
    left_out: LeftOut,
) -> Tokenizer:
    """The tokenizer that is trained on sources, by this run or by the one that it goes on with."""
    progress = compiler.progress
    entry = outputs.journal.last(Trained)
    if entry is not None:
        with understanding():
            for stage in entry.stages:
                progress.add_stage_before(**stage)
        left_out.take_over(entry.left_out)
        return outputs.trained(file_name)
    compiler.training(settings.pattern, encodes=isinstance(settings, BuildSettings))
    tokenizer = train_tokenizer(
        sources, settings, outputs.storage, outputs.journal, progress, left_out
    )
    outputs.add_tokenizer(tokenizer, file_name)
    outputs.journal.append(
        Trained(tokenizer.fingerprint, left_out, [stage.facts() for stage in progress.stages])
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
            ids, n_outputs = SpecialIds.of(tokenizer, settings), len(plan.passes[0].names)
            again = encoded_again(source, tokenizer, ids, 1, n_outputs)
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
    compiler: KernelCompiler,
) -> tuple[Report, dict[str, Manifest]]:
    """Every pass of encoding, finished in the storage."""
    compiler.encoding(tokenizer)
    ids = SpecialIds.of(tokenizer, settings)
    report, manifests = Report(), dict[str, Manifest]()
    for number, part in enumerate(plan.passes):
        encoding = EncodePass(
            number,
            part.sources,
            tokenizer,
            ids,
            settings.workers,
            report,
            compiler.progress,
            outputs.journal,
        )
        manifests |= encoding.fill(part.names, _token_files(outputs.storage, tokenizer, settings))
        for name, file_name in part.names.items():
            outputs.add_token_file(file_name, manifests[name])
            _say_large_shards(manifests[name], file_name, settings)
    return report, manifests


def _token_files(storage: Storage, tokenizer: AnyTokenizer, settings: ShardSettings) -> TokenFiles:
    return TokenFiles(
        storage, tokenizer.vocab_size, settings.shard_tokens, settings.split_documents
    )


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
            "%s larger than %s tokens, each with a shard of its own: %s; --split-documents"
            " divides them",
            "1 document is" if len(large) == 1 else f"{len(large):,} documents are",
            f"{most:,}",
            listed(large),
        )


def _stats(
    report: Report, settings: ReadSettings, progress: Progress, started: float
) -> dict[str, Any]:
    seconds = time.perf_counter() - started + progress.seconds_before
    return {"settings": settings.as_json(), **report.stats(progress, seconds)}


def _say_unused(settings: BuildSettings, given: Set[str], tokenizer: AnyTokenizer) -> None:
    """Name the settings that have no effect because nothing is trained."""
    unused = sorted(given - ({"pattern", "special_tokens"} if _is_ranks(settings) else set()))
    if unused:
        logger.warning(
            "a tokenizer is given, so nothing is trained and these settings are not used: %s"
            " (it has %s tokens)",
            ", ".join(unused),
            f"{tokenizer.vocab_size:,}",
        )


def _is_ranks(settings: BuildSettings) -> bool:
    """Whether the tokenizer that is given does not say how it splits text."""
    return settings.tokenizer is not None and settings.tokenizer.endswith(".tiktoken")


def _load(name: str, pattern: str | None, settings: BuildSettings | CountSettings) -> AnyTokenizer:
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


def train(
    *,
    paths: StrPath | Iterable[StrPath],
    out: StrPath = "tokenizer.json",
    vocab_size: int = 32_000,
    pattern: str | None = None,
    special_tokens: Iterable[str] = (),
    tie_break: Literal["greatest-bytes", "huggingface"] = "greatest-bytes",
    min_frequency: int = 2,
    end_of_text: str | None = None,
    begin_of_text: str | None = None,
    separator: str = END_OF_TEXT,
    on_invalid_utf8: Literal["error", "replace", "skip"] = "error",
    unit_size: int | str = 4 * 1024 * 1024,
    workers: int | None = None,
    max_minutes: float | None = None,
    memory_limit: int | str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> tuple[Tokenizer, list[str]]:
    """Train a tokenizer on text files and save it.

    Every option is described in docs/options.md and by `tokenbin train --help`. `progress` shows
    what is done; None shows nothing.

    Returns:
        The tokenizer and the closing lines.

    Raises:
        TokenbinError: As `build`.
    """
    options = {**locals()}
    progress = options.pop("progress") or Progress()
    settings = fit_to_memory(convert(options, TrainFileSettings))
    from bpe import Tokenizer

    progress.limit(settings.max_minutes)
    started = time.perf_counter()
    sources = find_sources(settings.paths, _reading(settings, None))
    check_has_text(sources, "train")
    record = made_from("train", settings, {"train": sources}, None)
    path = Path(settings.out)
    directory, stem = path.parent, path.stem
    stats_file, left_out = f"{stem}_stats.json", LeftOut()
    with Outputs(str(directory), stem, record, settings.overwrite) as outputs:
        if what := _no_training_to_do(outputs, path.name, stats_file, record):
            tokenizer = Tokenizer.from_file(outputs.storage.finished.path(path.name))
            return tokenizer, [f"{path}: {what}, {tokenizer_in_words(tokenizer)}"]
        outputs.begin()
        compiler = KernelCompiler(progress)
        tokenizer = _trained(sources, settings, outputs, path.name, compiler, left_out)
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
    lines = [f"{path}: {tokenizer_in_words(tokenizer)}", *left_out_lines(left_out)]
    return tokenizer, [*lines, time_line(progress, seconds)]


def _no_training_to_do(outputs: Outputs, name: str, stats_file: str, record: Record) -> str:
    """As `_nothing_to_do`, for a tokenizer alone."""
    if outputs.commit_again():
        return "was complete, and has its final name now"
    files = outputs.storage.finished
    refuse_outputs_in_the_way(files, [], stats_file, outputs.overwrite)
    refuse_configuration(files, name, outputs.overwrite)
    if files.size(name) is None or outputs.overwrite:
        return ""
    changed = None
    if not outputs.resumed and trained_before(files, name, stats_file):
        changed = finished_before(files, [], stats_file, record)
    if changed == []:
        return "up to date"
    why = f"it was made from something else ({'; '.join(changed)}): " if changed else ""
    raise OutputError(
        f"{files.where(name)}: exists; {why}choose another name, or replace it (--overwrite)"
    )


def encode(
    *,
    paths: StrPath | Iterable[StrPath],
    tokenizer: StrPath,
    pattern: str | None = None,
    out: StrPath = "train.bin",
    end_of_text: str | None = None,
    begin_of_text: str | None = None,
    separator: str = END_OF_TEXT,
    on_invalid_utf8: Literal["error", "replace", "skip"] = "error",
    unit_size: int | str = 4 * 1024 * 1024,
    workers: int | None = None,
    shard_tokens: int | None = None,
    split_documents: bool = False,
    max_minutes: float | None = None,
    memory_limit: int | str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> BuildResult:
    """Encode text files with a tokenizer into one token file.

    Every option is described in docs/options.md and by `tokenbin encode --help`. `progress` shows
    what is done; None shows nothing.

    Raises:
        TokenbinError: As `build`.
    """
    options = {**locals()}
    progress = options.pop("progress") or Progress()
    settings = fit_to_memory(convert(options, EncodeSettings))
    progress.limit(settings.max_minutes)
    started = time.perf_counter()
    given = _load(settings.tokenizer, settings.pattern, settings)
    compiler = KernelCompiler(progress)
    compiler.encoding(given)
    SpecialIds.of(given, settings)
    sources = find_sources(settings.paths, _reading(settings, given))
    name, directory = settings.name, Path(settings.out).parent
    check_has_text(sources, name)
    record = made_from("encode", settings, {name: sources}, given)
    passes = [_Pass(sources, {name: name})]
    plan = _Plan(directory, passes, given, f"{name}_stats.json", record, settings)
    with Outputs(str(directory), name, record, settings.overwrite) as outputs:
        if what := _nothing_to_do(outputs, plan):
            return _what_is_there(outputs.storage.finished, plan, what)
        _refuse_full_disk(plan, outputs, given, settings)
        outputs.begin()
        report, manifests = _encoded(plan, given, settings, outputs, compiler)
        stats = _stats(report, settings, progress, started)
        outputs.add_stats(plan.stats_file, stats)
        outputs.commit()
    return BuildResult(directory, given, manifests, stats, report.lines(progress, stats["seconds"]))


def count(
    *,
    paths: StrPath | Iterable[StrPath],
    tokenizer: StrPath,
    pattern: str | None = None,
    separator: str = END_OF_TEXT,
    on_invalid_utf8: Literal["error", "replace", "skip"] = "error",
    unit_size: int | str = 4 * 1024 * 1024,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Count documents and tokens of text files without writing anything.

    Every option is described in docs/options.md and by `tokenbin count --help`. `progress` shows
    what is done; None shows nothing.

    Returns:
        A report whose `sources` has an entry for each file. No tokens stand around the documents.

    Raises:
        TokenbinError: As `build`.
    """
    options = {**locals()}
    progress = options.pop("progress") or Progress()
    settings = convert(options, CountSettings)
    given = _load(settings.tokenizer, settings.pattern, settings)
    sources = find_sources(settings.paths, _reading(settings, given))
    report = Report()
    nothing_around = SpecialIds(end_of_text=-1, begin_of_text=None)
    EncodePass(0, sources, given, nothing_around, settings.workers, report, progress).run({})
    return report

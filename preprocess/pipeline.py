"""From text to token files: plan, train, encode, commit; `_carry_out` shows all of it.

Outputs depend only on sources and settings, never on the number of workers or the size of units.
Files are written under temporary names and renamed once all are complete; an interrupted run leaves
existing outputs untouched and is resumed by the same command.

The module is not called build.py because `preprocess.build` is the function.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence, Set
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from preprocess.compiling import KernelCompiler
from preprocess.count_pass import train_tokenizer
from preprocess.dataset.columns import token_dtype
from preprocess.dataset.manifest import Manifest
from preprocess.dataset.reader import open_tokens
from preprocess.documents import Reading
from preprocess.encode_pass import EncodePass, SpecialIds, encoded_again
from preprocess.inputs import Record, differences, made_from, of_content_alone
from preprocess.journal import Journal, understanding
from preprocess.limits import check_has_text
from preprocess.memory import fit_to_memory
from preprocess.outputs import (
    TOKENIZER_FILE,
    Outputs,
    Trained,
    check_configuration_absent,
    check_outputs_absent,
    finished_from,
    saves_tokenizer,
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
    TrainFileSettings,
    TrainSettings,
    VocabularySettings,
)
from preprocess.sinks import TokenFiles
from preprocess.sources import Source, digest_of, find_sources
from preprocess.sources.standard_library import StandardLibrary
from preprocess.storage import Files, OutputError, Storage

# Upper bound on mean bytes per token, for any text and vocabulary.
_MOST_BYTES_PER_TOKEN = 6.0
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
    progress.begin(settings.max_minutes)
    used: AnyTokenizer | None = None
    with KernelCompiler(progress) as compiler:
        if settings.tokenizer is not None:
            given = {
                each.name
                for each in options_of(VocabularySettings).values()
                if options[each.name] is not None and getattr(settings, each.name) != each.default
            }
            pattern = settings.pattern if _is_ranks(settings) and "pattern" in given else None
            used = _load(settings.tokenizer, pattern, settings)
            compiler.encoding(used)
            SpecialIds.of(used, settings)
            _warn_unused(settings, given, used)
        plan = _plan("build", settings, used, Path(settings.out), settings.named("stats.json"))
        return _carry_out(plan, settings.named("build"), compiler)


@dataclass(frozen=True)
class _Pass:
    """Sources that are read once and the outputs that they fill, two if documents are divided.

    Attributes:
        names: Name of an output -> NAME of its files.
        paths: What is read, in order; (): the default corpus.
        reading: How.
    """

    names: dict[str, str]
    paths: Sequence[StrPath]
    reading: Reading

    @cached_property
    def sources(self) -> Sequence[Source]:
        """What `paths` name, in order."""
        if not self.paths:
            return [StandardLibrary(self.reading)]
        return find_sources(self.paths, self.reading)


@dataclass(frozen=True)
class _Plan:
    """Everything that will be read and written.

    Attributes:
        settings: Those of the run.
        directory: Where outputs land.
        passes: Over the text, in order.
        tokenizer: The one that is given; None: one is trained.
        stats_file: The name of the stats.json.
        record: What all of it is made from.
    """

    settings: BuildSettings | EncodeSettings
    directory: Path
    passes: list[_Pass]
    tokenizer: AnyTokenizer | None
    stats_file: str
    record: Record

    @property
    def names(self) -> dict[str, str]:
        """Name of an output -> NAME of its files."""
        return {name: files for each in self.passes for name, files in each.names.items()}


def _plan(
    command: str,
    settings: BuildSettings | EncodeSettings,
    tokenizer: AnyTokenizer | None,
    directory: Path,
    stats_file: str,
) -> _Plan:
    """Find everything that will be read, and refuse sources without text."""
    passes = _passes(settings, tokenizer)
    sources = {" and ".join(each.names): each.sources for each in passes}
    for each in passes:
        check_has_text(each.sources, next(iter(each.names)))
    record = made_from(command, settings, sources, tokenizer)
    return _Plan(settings, directory, passes, tokenizer, stats_file, record)


def _passes(
    settings: BuildSettings | EncodeSettings, tokenizer: AnyTokenizer | None
) -> list[_Pass]:
    """Return the passes over the text, for a tokenizer or for one that is going to be trained."""
    reading = _reading(settings, tokenizer)
    if isinstance(settings, EncodeSettings):
        return [_Pass({settings.name: settings.name}, settings.paths, reading)]
    names = ("train", "val") if settings.validation_fraction else ("train",)
    passes = [_Pass({name: settings.named(name) for name in names}, settings.train, reading)]
    if settings.val:
        passes.append(_Pass({"val": settings.named("val")}, settings.val, reading))
    return passes


def _carry_out(plan: _Plan, run_name: str, compiler: KernelCompiler) -> BuildResult:
    """Train unless a tokenizer is given, encode, and give the outputs their names."""
    settings, progress, lines = plan.settings, compiler.progress, list[str]()
    with Outputs(str(plan.directory), run_name, plan.record, settings.overwrite) as outputs:
        finished = outputs.storage.finished
        if what := _nothing_to_do(outputs, plan):
            return _what_is_there(finished, plan, what)
        saves = isinstance(settings, BuildSettings) and saves_tokenizer(
            finished, plan.tokenizer, settings
        )
        _check_disk_space(plan, outputs, plan.tokenizer)
        outputs.begin()
        tokenizer = plan.tokenizer
        if tokenizer is None:
            assert isinstance(settings, BuildSettings)
            sources = plan.passes[0].sources
            tokenizer = _train(sources, settings, outputs, TOKENIZER_FILE, compiler, LeftOut())
            _check_disk_space(plan, outputs, tokenizer)
        elif saves:
            outputs.add_tokenizer(tokenizer, TOKENIZER_FILE)
        report, manifests = _encode_passes(plan, tokenizer, outputs, compiler)
        stats = {"settings": settings.as_json(), **report.stats(progress, progress.seconds())}
        outputs.add_stats(plan.stats_file, stats)
        outputs.commit()
    if isinstance(settings, BuildSettings):
        lines.append(f"tokenizer: {tokenizer_in_words(tokenizer)}")
    lines += report.lines(progress, stats)
    return BuildResult(plan.directory, tokenizer, manifests, stats, lines)


def _nothing_to_do(outputs: Outputs, plan: _Plan) -> str:
    """Say why nothing is left to be done; "" if something is.

    Raises:
        TokenbinError: Something else is in the way.
    """
    if outputs.commit_again():
        return "was complete, and has its final names now"
    why, files, names = "", outputs.storage.finished, list(plan.names.values())
    if not outputs.resumed and not outputs.overwrite:
        before = finished_from(files, plan.stats_file, names)
        if before is not None:
            changed = differences(before, plan.record)
            if not changed or _has_the_same_text(files, plan, before):
                return "up to date"
            why = f"it was made from something else ({'; '.join(changed)}): "
    shards = plan.settings.shard_tokens is not None
    check_outputs_absent(files, names, plan.stats_file, outputs.overwrite, why, shards)
    return ""


def _has_the_same_text(files: Files, plan: _Plan, before: Record) -> bool:
    """Return True if files were only touched or moved: settings and text are the same."""
    if differences(of_content_alone(before), of_content_alone(plan.record)):
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


def _train(
    sources: Sequence[Source],
    settings: TrainSettings,
    outputs: Outputs,
    file_name: str,
    compiler: KernelCompiler,
    left_out: LeftOut,
) -> Tokenizer:
    """Train a tokenizer on sources, or take the one of the run that is resumed."""
    progress, journal = compiler.progress, outputs.journal
    entry = journal.last(Trained)
    if entry is not None:
        with understanding():
            for stage in entry.stages:
                progress.add_stage_before(**stage)
        left_out.take_over(entry.left_out)
        return outputs.trained(file_name, entry.fingerprint)
    compiler.training(settings.pattern, encodes=isinstance(settings, BuildSettings))
    tokenizer = train_tokenizer(sources, settings, outputs.storage, journal, progress, left_out)
    outputs.add_tokenizer(tokenizer, file_name)
    stages = [stage.facts() for stage in progress.stages]
    journal.append(Trained(tokenizer.fingerprint, left_out, stages))
    return tokenizer


def _check_disk_space(plan: _Plan, outputs: Outputs, tokenizer: AnyTokenizer | None) -> None:
    """Refuse a disk that the token files do not fit on, before hours of work and not after.

    A file of bytes has at most as many tokens. Only where that might not fit are the first units of
    the text encoded. If the tokenizer is not known yet, few tokens are assumed, so that nothing is
    refused that may be possible.

    Raises:
        OutputError: That is so.
    """
    settings = plan.settings
    if tokenizer is not None:
        vocab_size = tokenizer.vocab_size
    else:
        assert isinstance(settings, BuildSettings)
        vocab_size = settings.vocab_size
    itemsize = token_dtype(vocab_size).itemsize
    n_bytes = sum(source.n_bytes for part in plan.passes for source in part.sources)
    room = sum(outputs.storage.space())
    if n_bytes * itemsize <= room:
        return
    per_token = _MOST_BYTES_PER_TOKEN
    if tokenizer is not None:
        seen = tokens = 0
        ids, first = SpecialIds.of(tokenizer, settings), plan.passes[0]
        for source in first.sources[:_SOURCES_LOOKED_AT]:
            with closing(encoded_again(source, tokenizer, ids, 1, len(first.names))) as units:
                for part in next(units, []):
                    seen, tokens = seen + part.n_bytes, tokens + len(part.ids)
        per_token = seen / tokens if tokens else per_token
    needed = round(n_bytes / per_token * itemsize)
    if needed > room:
        raise OutputError(
            f"{plan.directory}: the token files will have about {needed / 1e9:,.1f} GB"
            f" ({per_token:.1f} bytes of text to the token), and {room / 1e9:,.1f} GB are"
            " free; free the space or choose another directory (--out)"
        )


def _encode_passes(
    plan: _Plan, tokenizer: AnyTokenizer, outputs: Outputs, compiler: KernelCompiler
) -> tuple[Report, dict[str, Manifest]]:
    """Encode every pass and finish its token files in the storage."""
    compiler.encoding(tokenizer)
    report, manifests = Report(), dict[str, Manifest]()
    storage, journal = outputs.storage, outputs.journal
    for number, part in enumerate(plan.passes):
        manifests |= _fill(
            number, part, tokenizer, plan.settings, report, compiler.progress, storage, journal
        )
        for name, file_name in part.names.items():
            outputs.add_token_file(file_name, manifests[name])
            _warn_large_shards(manifests[name], file_name, plan.settings.shard_tokens)
    return report, manifests


def _fill(
    number: int,
    part: _Pass,
    tokenizer: AnyTokenizer,
    settings: BuildSettings | EncodeSettings,
    report: Report,
    progress: Progress,
    storage: Storage,
    journal: Journal,
) -> dict[str, Manifest]:
    """Encode one pass into token files; name of an output -> its manifest."""
    ids, shard_tokens = SpecialIds.of(tokenizer, settings), settings.shard_tokens
    sinks = TokenFiles(storage, tokenizer.vocab_size, shard_tokens, settings.split_documents)
    encoding = EncodePass(
        number, part.sources, tokenizer, ids, settings.workers, report, progress, journal
    )
    return encoding.fill(part.names, sinks)


def _warn_large_shards(manifest: Manifest, file_name: str, most: int | None) -> None:
    """Name documents that have a shard of their own, for they are larger than one."""
    large = [
        f"{stem} ({shard.n_tokens:,} tokens)"
        for stem, shard in zip(manifest.stems(file_name), manifest.shards, strict=False)
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


def _warn_unused(settings: BuildSettings, given: Set[str], tokenizer: AnyTokenizer) -> None:
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
    """Return True if the given tokenizer does not state how it splits text."""
    return settings.tokenizer is not None and settings.tokenizer.endswith(".tiktoken")


def _load(name: str, pattern: str | None, settings: BuildSettings | CountSettings) -> AnyTokenizer:
    """Load the tokenizer that is given; a .tiktoken file gets the special tokens of `settings`."""
    from bpe import load_tokenizer

    return load_tokenizer(name, pattern=pattern, special_tokens=settings.all_special_tokens)


def _reading(settings: ReadSettings, tokenizer: AnyTokenizer | None) -> Reading:
    """Return how sources are read for a tokenizer, or for the one that is going to be trained."""
    from bpe.pretokenize import Pretokenizer

    if tokenizer is None:
        assert isinstance(settings, TrainSettings)
        safe_cut, uncut = Pretokenizer(settings.pattern).safe_cut, settings.all_special_tokens
    else:
        safe_cut, uncut = tokenizer.safe_cut, tokenizer.uncut_tokens
    fraction = settings.validation_fraction if isinstance(settings, BuildSettings) else 0.0
    return Reading(
        separator=settings.separator.encode(),
        unit_size=settings.unit_size,
        on_invalid_utf8=settings.on_invalid_utf8,
        validation_fraction=fraction,
        safe_cut=safe_cut,
        uncut=tuple(token.encode() for token in uncut),
    )


# --- outputs that are made again ---


def sources_of(
    settings: BuildSettings | EncodeSettings, tokenizer: AnyTokenizer, file_name: str
) -> tuple[list[str], Sequence[Source]]:
    """Return the NAMEs of the token files that share the sources of this one, and the sources."""
    part = _pass_of(settings, tokenizer, file_name)
    return list(part.names.values()), part.sources


def _pass_of(
    settings: BuildSettings | EncodeSettings, tokenizer: AnyTokenizer, file_name: str
) -> _Pass:
    passes = _passes(settings, tokenizer)
    return next(each for each in passes if file_name in each.names.values())


def tokenizer_again(settings: BuildSettings, storage: Storage, progress: Progress) -> AnyTokenizer:
    """Load the tokenizer of a build, or train it once more; the storage takes in the counts."""
    if settings.tokenizer is not None:
        pattern = settings.pattern if _is_ranks(settings) else None
        return _load(settings.tokenizer, pattern, settings)
    sources = _passes(settings, None)[0].sources
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
    part = _pass_of(settings, tokenizer, file_name)
    with Journal(storage) as journal:
        _fill(0, part, tokenizer, settings, Report(), progress, storage, journal)


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

    progress.begin(settings.max_minutes)
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
        tokenizer = _train(sources, settings, outputs, path.name, compiler, left_out)
        seconds = progress.seconds()
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
    check_outputs_absent(files, [], stats_file, outputs.overwrite)
    check_configuration_absent(files, name, outputs.overwrite)
    if files.size(name) is None or outputs.overwrite:
        return ""
    why = ""
    before = None if outputs.resumed else finished_from(files, stats_file, tokenizer=name)
    if before is not None:
        changed = differences(before, record)
        if not changed:
            return "up to date"
        why = f"it was made from something else ({'; '.join(changed)}): "
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
    progress.begin(settings.max_minutes)
    given = _load(settings.tokenizer, settings.pattern, settings)
    compiler = KernelCompiler(progress)
    compiler.encoding(given)
    SpecialIds.of(given, settings)
    name, directory = settings.name, Path(settings.out).parent
    plan = _plan("encode", settings, given, directory, f"{name}_stats.json")
    return _carry_out(plan, name, compiler)


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

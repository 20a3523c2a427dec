"""From text to token files: plan, train, encode, commit. `build` shows the whole way on one page.

Law: the outputs depend on the sources and the settings, never on the number of workers or the size
of units. Everything lands under temporary names and gets its final name when all of it is complete;
a run that ends in any other way leaves what was there before, and nothing new.

The module is not called build.py because `preprocess.build` is the function.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from preprocess.config import (
    BuildSettings,
    CountSettings,
    EncodeSettings,
    ReadSettings,
    TrainFileSettings,
    TrainSettings,
    checked,
)
from preprocess.documents import Reading
from preprocess.outputs import (
    OutputError,
    Outputs,
    refuse_directory,
    refuse_outputs_in_the_way,
    saves_tokenizer,
    writing,
)
from preprocess.passes import (
    SpecialIds,
    encode_into,
    encode_units,
    refuse_no_text,
    train_tokenizer,
)
from preprocess.progress import Progress, logger
from preprocess.report import LeftOut, Report, left_out_lines, time_line, tokenizer_in_words
from preprocess.sources import Source, find_sources
from preprocess.sources.standard_library import StandardLibrary
from preprocess.token_file import Manifest

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
    settings = checked(BuildSettings, options)
    progress = progress or Progress()
    started = time.perf_counter()
    plan = _plan(settings)
    with Outputs(settings.out, settings.named("build"), settings.overwrite) as outputs:
        tokenizer = plan.tokenizer or train_tokenizer(
            plan.passes[0].sources, settings, progress, LeftOut()
        )
        if plan.saves_tokenizer:
            outputs.add_tokenizer(tokenizer)
        ids = SpecialIds.of(tokenizer, settings)
        report, manifests = Report(), dict[str, Manifest]()
        for part in plan.passes:
            writers = {
                name: outputs.add_token_file(settings.named(name), tokenizer.vocab_size)
                for name in part.names
            }
            manifests |= encode_into(
                part.sources, writers, tokenizer, ids, settings.workers, report, progress
            )
        stats = report.stats(progress, time.perf_counter() - started)
        outputs.add_stats(
            settings.named("stats.json"), {"settings": settings.model_dump(mode="json"), **stats}
        )
        outputs.commit()
    lines = [
        f"tokenizer: {tokenizer_in_words(tokenizer)}",
        *report.lines(progress, time.perf_counter() - started),
    ]
    return BuildResult(settings.out, tokenizer, manifests, stats, lines)


@dataclass(frozen=True)
class _Pass:
    """Sources that are read once and the outputs that they fill, two if documents are divided."""

    sources: Sequence[Source]
    names: tuple[str, ...]


@dataclass(frozen=True)
class _Plan:
    passes: list[_Pass]
    tokenizer: AnyTokenizer | None
    saves_tokenizer: bool


def _plan(settings: BuildSettings) -> _Plan:
    """Find everything that will be read, and refuse now whatever can be refused now."""
    tokenizer: AnyTokenizer | None = None
    if settings.tokenizer:
        given = settings.pattern if "pattern" in settings.model_fields_set else None
        is_ranks = settings.tokenizer.suffix == ".tiktoken"
        tokenizer = _load(settings.tokenizer, given if is_ranks else None, settings)
        SpecialIds.of(tokenizer, settings)
        _say_unused(settings, tokenizer)
    reading = _reading(settings, tokenizer, settings.validation_fraction)
    train: Sequence[Source] = (
        find_sources(settings.train, reading) if settings.train else [StandardLibrary(reading)]
    )
    names = ("train", "val") if settings.validation_fraction else ("train",)
    passes = [_Pass(train, names)]
    if settings.val:
        passes.append(_Pass(find_sources(settings.val, reading), ("val",)))
    for part in passes:
        refuse_no_text(part.sources, part.names[0])
    token_files = [settings.named(name) for part in passes for name in part.names]
    refuse_outputs_in_the_way(
        settings.out, token_files, settings.named("stats.json"), settings.overwrite
    )
    saves = saves_tokenizer(settings.out, tokenizer, settings.tokenizer, settings.overwrite)
    return _Plan(passes, tokenizer, saves)


def _say_unused(settings: BuildSettings, tokenizer: AnyTokenizer) -> None:
    """Name the settings that have no effect because nothing is trained."""
    only_for_training = {"vocab_size", "pattern", "special_tokens", "tie_break", "min_frequency"}
    if settings.tokenizer and settings.tokenizer.suffix == ".tiktoken":
        only_for_training -= {"pattern", "special_tokens"}
    unused = sorted(settings.model_fields_set & only_for_training)
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
    settings = checked(TrainFileSettings, options)
    progress = progress or Progress()
    started = time.perf_counter()
    if settings.out.exists() and not settings.overwrite:
        raise OutputError(
            f"{settings.out}: exists; choose another name, or replace it (--overwrite)"
        )
    refuse_directory(settings.out.parent)
    sources = find_sources(settings.paths, _reading(settings, None))
    refuse_no_text(sources, "train")
    left_out = LeftOut()
    tokenizer = train_tokenizer(sources, settings, progress, left_out)
    with writing(settings.out):
        settings.out.parent.mkdir(parents=True, exist_ok=True)
        tokenizer.save(settings.out)
    lines = [f"{settings.out}: {tokenizer_in_words(tokenizer)}", *left_out_lines(left_out)]
    return tokenizer, [*lines, time_line(progress, time.perf_counter() - started)]


def encode(*, progress: Progress | None = None, **options: Any) -> BuildResult:
    """Encode text files with a tokenizer into one token file.

    Args:
        progress: Shows what goes on; None shows nothing.
        **options: Fields of `preprocess.config.EncodeSettings`: paths, tokenizer, out and so on.

    Raises:
        TokenbinError: As `build`.
    """
    settings = checked(EncodeSettings, options)
    progress = progress or Progress()
    started = time.perf_counter()
    tokenizer = _load(settings.tokenizer, settings.pattern, settings)
    ids = SpecialIds.of(tokenizer, settings)
    sources = find_sources(settings.paths, _reading(settings, tokenizer))
    refuse_no_text(sources, settings.name)
    directory, stats_file = settings.out.parent, f"{settings.name}_stats.json"
    refuse_outputs_in_the_way(directory, [settings.name], stats_file, settings.overwrite)
    with Outputs(directory, settings.name, settings.overwrite) as outputs:
        writers = {settings.name: outputs.add_token_file(settings.name, tokenizer.vocab_size)}
        report = Report()
        manifests = encode_into(
            sources, writers, tokenizer, ids, settings.workers, report, progress
        )
        stats = report.stats(progress, time.perf_counter() - started)
        outputs.add_stats(stats_file, {"settings": settings.model_dump(mode="json"), **stats})
        outputs.commit()
    lines = report.lines(progress, time.perf_counter() - started)
    return BuildResult(directory, tokenizer, manifests, stats, lines)


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
        sources, [], tokenizer, nothing_around, settings.workers, report, progress or Progress()
    )
    return report

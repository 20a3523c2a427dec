"""Build token files from text, and rows from them: plan, train, encode, commit.

Outputs depend only on sources and settings, never on the number of workers or the size of units.
Files are written under temporary names and renamed once all are complete; an interrupted run leaves
existing outputs untouched and is resumed by the same command.

The module is not called build.py because `preprocess.build` is the function.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from msgspec import structs

from bpe.arguments import checked
from bpe.errors import CorpusError, spelled
from bpe.files.locations import is_url, shown_url
from preprocess.config import (
    CORPUS_FORMAT,
    Corpus,
    DatasetConfig,
    DatasetPlan,
    Key,
    PipelineConfig,
    SaveStageConfig,
    TextToRowsSettings,
    TokenizeStageConfig,
    read_corpus,
    spell_in_python,
    those_of,
)
from preprocess.dataset.columns import MASK, manifest_name
from preprocess.dataset.manifest import Manifest
from preprocess.locations import split_location
from preprocess.options import (
    BuildSettings,
    CountSettings,
    EncodeSettings,
    TrainFileSettings,
    VocabularySettings,
)
from preprocess.report import summary
from preprocess.report.progress import Progress, logger, progress_of
from preprocess.run.compiling import compile_encoding
from preprocess.run.encode_pass import EncodePass, SpecialIds
from preprocess.run.memory_limit import apply_profile, fit_to_memory
from preprocess.run.merge import files_of_parts
from preprocess.run.outputs import check_no_others, manifests_in, plans_of, put_stats, read_object
from preprocess.run.parts import open_parts
from preprocess.run.passes import run_plan, train_on_plan
from preprocess.run.plan import Plan
from preprocess.run.reading import (
    Pass,
    load_given_tokenizer,
    make_read_options,
    read_options,
    settings_of_extension,
    settings_of_words,
    with_superwords,
)
from preprocess.run.record import end_of_text_token
from preprocess.run.run import Run
from preprocess.settings import SettingsError, is_ranks_file, options_of, takes
from preprocess.sources import check_fields_are_used, find_sources, looks_into
from preprocess.sources.parts import count_parts
from preprocess.sources.standard_input import has_standard_input, standard_input_in_a_file
from preprocess.storage import open_storage

if TYPE_CHECKING:
    from bpe import Tokenizer
    from bpe.text_tokenizer import AnyTokenizer
    from preprocess.rows.write import RowsResult

_CONFIG_FILE = "config.json"  # of a corpus
_TOKENS = "tokens"  # name and directory of the dataset of `tokenize_and_save`

Settings = TypeVar("Settings", BuildSettings, TrainFileSettings, EncodeSettings, CountSettings)


@dataclass(frozen=True)
class BuildResult:
    """Result of `build`.

    Attributes:
        directory: Output directory; if it is in a bucket, its URL as text.
        tokenizer: The tokenizer that was trained or given.
        manifests: Name of an output ("train", "val") -> its manifest.
        stats: Content of stats.json.
        lines: Closing lines, for people.
        datasets: Name of a dataset of a configuration -> its result. The other attributes are of
            all then: outputs are "NAME/train" and so on, `stats` has the stats of each dataset.
        rows: Name of a dataset of a configuration -> the rows of its outputs.
    """

    directory: Path | str
    tokenizer: AnyTokenizer
    manifests: dict[str, Manifest]
    stats: dict[str, Any]
    lines: list[str]
    datasets: Mapping[str, BuildResult] = field(default_factory=dict)
    rows: Mapping[str, list[RowsResult]] = field(default_factory=dict)

    def __repr__(self) -> str:
        counts = ", ".join(f"{x}: {y.n_tokens:,} tokens" for x, y in self.manifests.items())
        return f"BuildResult({str(self.directory)!r}, {counts})"


# --- one dataset ---


@takes(BuildSettings)
def build(settings: BuildSettings) -> BuildResult:
    """Train a tokenizer unless one is given, and encode train and validation text.

    Options: docs/options.md or `tokenmill build --help`; `progress=False` shows none. With a
    configuration, options that are given win over its own, whatever their value, unless it is None.

    Raises:
        SettingsError: An option has a value that cannot work.
        CorpusError: Text is missing or cannot be read, or an output would have no documents.
        OutputError: Outputs exist already, or cannot be written.
        TokenmillError: Any other expected error.
    """
    if settings.given.get("train") == ():  # whoever computed it would not expect a default corpus
        default = options_of(BuildSettings)["train"].default_text
        raise SettingsError(f"train: should not be empty; leave it out for {default}")
    if settings.config is not None:
        return _build_corpus(read_corpus(settings), progress_of(settings.progress))
    return _build(*_begin(settings))


def _build(settings: BuildSettings, progress: Progress) -> BuildResult:
    """Build one dataset."""
    given = None if settings.tokenizer is None else _load_for_build(settings)
    return _encode(settings, given, progress)


def _encode(
    settings: BuildSettings | EncodeSettings, given: AnyTokenizer | None, progress: Progress
) -> BuildResult:
    """Run a plan that encodes; on Ray, in as many parts as its sources make, if none is given."""
    on_ray = settings.executor == "ray"
    if not on_ray and settings.task_count and settings.task_index is None:
        raise SettingsError(
            "--task-count divides the text; say which part this task makes (--task-index), or make"
            " all of them on Ray (--executor ray)"
        )
    if given is not None and not on_ray:
        compile_encoding(given, progress)
    plan = Plan(settings, given)
    if on_ray and settings.task_count is None:
        n_parts = count_parts(plan.passes[0].all_files)
        plan = structs.replace(plan, settings=settings.replace(task_count=n_parts))
    return BuildResult(plan.place, *run_plan(plan, progress))


def _begin(settings: Settings) -> tuple[Settings, Progress]:
    """Return the settings, fitted to the machine, without their progress, whose clock starts."""
    progress = progress_of(settings.progress)
    settings = fit_to_memory(apply_profile(settings.replace(progress=None)))
    progress.begin(getattr(settings, "max_minutes", None))
    return settings, progress


def _load_for_build(settings: BuildSettings) -> AnyTokenizer:
    """Load the given tokenizer; warn of training settings, which have no effect."""
    options = options_of(VocabularySettings)
    given = {x for x, y in settings.given.items() if x in options and y != options[x].default}
    used = {"pattern", "special_tokens"} if is_ranks_file(settings.tokenizer) else set()
    tokenizer = load_given_tokenizer(settings)
    if unused := sorted(given - used):
        shown = ", ".join(options[x].flag for x in unused)
        logger.warning(
            "a tokenizer is given, so nothing is trained and these settings are not used: %s"
            " (it has %s tokens)", shown, f"{tokenizer.vocab_size:,}",
        )
    return tokenizer


@takes(TrainFileSettings)
def train(settings: TrainFileSettings) -> tuple[Tokenizer, list[str]]:
    """Train a tokenizer on text files and save it.

    Options: docs/options.md or `tokenmill train --help`; `progress=False` shows none.

    Returns:
        (tokenizer, closing lines for people).

    Raises:
        TokenmillError: As `build`.
    """
    settings, progress = _begin(settings)
    if settings.superwords is not None:
        # Its file makes a rerun continue after it.
        words, _ = _train_file(settings_of_words(settings), progress.part())
        settings = settings.replace(superwords=None, extend=with_superwords(words))
    if settings.extend is not None:
        settings = settings_of_extension(settings)
    return _train_file(settings, progress)


def _train_file(
    settings: TrainFileSettings, progress: Progress,
    datasets: Mapping[str, BuildSettings] | None = None,
) -> tuple[Tokenizer, list[str]]:
    """Train a tokenizer and save it, as `train`; on `datasets`, if there are any."""
    from bpe import Tokenizer

    plan, left_out = Plan(settings, datasets=datasets or {}), summary.LeftOut()
    name = plan.tokenizer_file
    with Run(plan.directory, plan.run_name, plan.record, settings.overwrite) as run:
        finished, where = run.storage.final, run.storage.final.where(name)
        if what := plan.describe_finished(run):
            tokenizer = Tokenizer.from_file(finished.path(name))
            return tokenizer, [f"{where}: {what}, {summary.format_tokenizer(tokenizer)}"]
        run.begin()
        selected = plan.prepare(run.journal, progress)
        with open_parts(plan, run, progress) as parts:
            tokenizer = train_on_plan(plan, run, progress, left_out, parts)
        left_out.merge(selected)
        stats = summary.run_stats(progress, left_out, progress.seconds())
        made = {"settings": settings.as_json(), "fingerprint": tokenizer.fingerprint}
        put_stats(run, plan.stats_file, made | stats)
        run.publish()
    lines = [f"{where}: {summary.format_tokenizer(tokenizer)}", *summary.format_left_out(left_out)]
    return tokenizer, [*map(spelled, lines), summary.format_times(progress, stats["seconds"])]


@takes(EncodeSettings)
def encode(settings: EncodeSettings) -> BuildResult:
    """Encode text files with a tokenizer into one token file.

    Options: docs/options.md or `tokenmill encode --help`; `progress=False` shows none.

    Raises:
        TokenmillError: As `build`.
    """
    settings, progress = _begin(settings)
    return _encode(settings, load_given_tokenizer(settings), progress)


@takes(CountSettings)
def count(settings: CountSettings) -> summary.Report:
    """Count documents and tokens of text files without writing anything.

    Options: docs/options.md or `tokenmill count --help`; `progress=False` shows none.

    Returns:
        A report whose `sources` has an entry for each file. Special ids are not counted.

    Raises:
        TokenmillError: As `build`.
    """
    settings, progress = _begin(settings)
    given, report = load_given_tokenizer(settings), summary.Report()
    reading = make_read_options(settings, given)
    part = Pass(0, {}, settings.paths, reading)
    with standard_input_in_a_file(part.files):
        check_fields_are_used(part.files, reading)
        EncodePass(part, settings, given, report, progress).count()
    return report


# --- several datasets, and their rows ---


def _build_corpus(corpus: Corpus, progress: Progress, has_rows: bool = True) -> BuildResult:
    """Build the datasets of a configuration, one after another; each is a run of its own.

    The same call resumes: datasets that are finished are up to date.
    """
    from preprocess.rows.write import write_all

    progress.begin(corpus.max_minutes)
    _check_corpus(corpus)  # before hours of work
    for note in corpus.notes:
        logger.warning("%s", note)
    tokenizer, results = None, dict[str, BuildResult]()
    rows: dict[str, list[RowsResult]] = {}
    if corpus.training is not None:
        training = fit_to_memory(apply_profile(corpus.training))
        tokenizer, lines = _train_file(training, progress.part(), corpus.untrained)
        logger.info("%s", lines[0])
    lines = []
    for number, (name, plan) in enumerate(corpus.plans.items(), start=1):
        logger.info("dataset %s, %d of %d", name, number, len(corpus.plans))
        settings = _with_special_ids(plan, tokenizer)
        if settings.tokenizer is None and tokenizer is not None:
            trained = corpus.tokenizer_file
            settings = settings.replace(tokenizer=tokenizer if is_url(trained) else trained)
            _check_padding(plan, tokenizer)
        result = _build(fit_to_memory(apply_profile(settings)), progress.part())
        if plan.rows is not None and has_rows:
            has_mask = any(MASK in each.columns for each in result.manifests.values())
            of_rows = plan.rows.replace(columns=plan.columns(plan.rows, has_mask))
            rows[name] = write_all(of_rows, progress.part())
        results[name] = result
        lines += [f"{name}: {x}" for x in (*result.lines, *(y.line for y in rows.get(name, ())))]
    _save_configuration(corpus)
    used = corpus.output_path if corpus.uses_output_path else plan.build.out
    return BuildResult(
        shown_url(used) if is_url(used) else Path(used), tokenizer or result.tokenizer,
        {f"{x}/{y}": z for x, each in results.items() for y, z in each.manifests.items()},
        {x: each.stats for x, each in results.items()}, lines, results, rows,
    )


def _save_configuration(corpus: Corpus) -> None:
    """Write config.json, unless the output path has that of rows."""
    from preprocess.rows.manifest import MANIFEST_FILE

    if not corpus.uses_output_path:
        return
    content = json.dumps(corpus.as_json(), ensure_ascii=False, indent=2) + "\n"
    with open_storage(corpus.output_path, "config", own_lock=True) as storage:
        if storage.final.size(MANIFEST_FILE) is None:
            storage.put(_CONFIG_FILE, content.encode())
            storage.publish([_CONFIG_FILE])
        storage.clear()


def _check_corpus(corpus: Corpus) -> None:
    """Raise TokenmillError if text is missing, or config.json is of another program."""
    from preprocess.rows.manifest import MANIFEST_FILE
    from preprocess.rows.write import columns_of, compression_of

    plans = corpus.plans.values()
    outputs = [out for x in plans for out in (x.build.out, *([x.rows.out] if x.rows else ()))]
    outputs += [corpus.output_path] * corpus.uses_output_path
    for plan in plans:
        given = None
        with corpus.at((*plan.key, "tokenizer")):
            if plan.build.tokenizer is not None:
                given = load_given_tokenizer(plan.build)
        for option, paths in (("data_files", plan.build.train), ("val_files", plan.build.val)):
            with corpus.at((*plan.key, option)):
                _check_text(plan.build, paths, given, outputs)
        with corpus.at(("save" if plan.pack is None else "pack",)):
            if given is not None:
                SpecialIds.of(given, _with_special_ids(plan, given))
                _check_padding(plan, given)
        with corpus.at(("save",)):
            if plan.rows is not None:
                columns_of(plan.rows)
                compression_of(plan.rows)
    storage = open_storage(corpus.output_path)
    place = storage.final
    has_file = place.size(_CONFIG_FILE) is not None and place.size(MANIFEST_FILE) is None
    is_known = not has_file or read_object(place, _CONFIG_FILE, CORPUS_FORMAT) is not None
    if not is_known and "rows" not in storage.runs():  # which were being given their names
        check_no_others(place, [_CONFIG_FILE], "tokenmill", "(output_path)")


def _check_text(
    build: BuildSettings, paths: Sequence[str], given: AnyTokenizer | None, outputs: Sequence[str]
) -> None:
    """Raise TokenmillError if text of a dataset is missing, or is where outputs would be."""
    for path, out in product(paths, outputs):
        if looks_into(path, out):
            raise SettingsError(
                f"outputs would be in {out}, where {path} is looked for, and be text of the next"
                " run; choose another directory (save_path or output_path)"
            )
    if given is None:
        reading = structs.replace(read_options(build, None, ()), chat=build.chat)
    else:
        reading = make_read_options(build, given)
    sources = find_sources(paths, reading)
    if has_standard_input(sources):
        raise SettingsError(
            "standard input (-) cannot be one of several datasets, which are read more than once;"
            " save it to a file"
        )
    places = {x.rstrip("/") if is_url(x) else os.path.realpath(x): x for x in outputs}
    for path in (str(source.file.path) for source in sources if source.location):
        directory = split_location(path)[0]
        if place := places.get(directory if is_url(path) else os.path.realpath(directory)):
            raise SettingsError(
                f"outputs would be in {place}, from which {path} is read; choose another directory"
                " (save_path or output_path)"
            )


def _with_special_ids(plan: DatasetPlan, trained: AnyTokenizer | None) -> BuildSettings:
    """Return the settings of a dataset with the special tokens that its packed rows should have.

    Rows without the end of text need none: then, any special token of the tokenizer ends documents.

    Raises:
        SettingsError: An id is no special token of the tokenizer.
    """
    settings, end_id = plan.build, (plan.pack or {}).get("eos_token_id")
    tokenizer, rows = trained, plan.rows
    drops_end = rows is not None and (rows.add_special_tokens or rows.drop_end_of_text)
    drops_end &= settings.end_of_text is None
    if end_id is None and not plan.adds_special_tokens and not drops_end:
        return settings
    if settings.tokenizer is not None:
        tokenizer = load_given_tokenizer(settings)
    if tokenizer is None:  # not trained yet
        return settings
    from preprocess.documents.tokenizer_files import read_special_ids

    texts = {token_id: text for text, token_id in tokenizer.special_tokens.items()}
    if drops_end and end_of_text_token(settings, tokenizer) not in tokenizer.special_tokens:
        last = [texts[x] for x in read_special_ids(tokenizer)[1][-1:] if x in texts]
        return settings.replace(end_of_text=next(iter([*last, *texts.values()]), None))
    before, after = read_special_ids(tokenizer) if plan.adds_special_tokens else ((), ())
    found = {"begin_of_text": before, "end_of_text": after if end_id is None else (end_id,)}
    for option, ids in found.items():
        if len(ids) > 1 or not texts.keys() >= {*ids}:
            raise SettingsError(
                f"{option} of packed rows would be {ids}, expected the id of one special token of"
                f" {tokenizer.special_tokens}, as ordinary ones are in documents, too; correct"
                " eos_token_id, or leave out add_special_tokens"
            )
    of_ids = {x: texts[ids[0]] for x, ids in found.items() if ids and getattr(settings, x) is None}
    return settings.replace(**of_ids)


def _check_padding(plan: DatasetPlan, tokenizer: AnyTokenizer) -> None:
    """Raise SettingsError if the padding of the rows of a dataset is not in its vocabulary."""
    from preprocess.rows.write import pad_id_of

    rows, token = plan.rows, None if plan.rows is None else plan.rows.pad_token
    if rows is not None and token is not None and (rows.is_padded or isinstance(token, int)):
        option = "--pad-token" if plan.pack is None else "pad_token_id"
        known, where = tokenizer.special_tokens, "the tokenizer"
        pad_id_of(token, tokenizer.vocab_size, known, where, option)


@takes(TextToRowsSettings)
def tokenize_and_save(settings: TextToRowsSettings) -> BuildResult:
    """Encode text, and write rows of its tokens.

        tokenize_and_save(data_files="data/*.jsonl", tokenizer="tokenizer.json",
                          output_path="out", max_length=2048)

    The rows are in OUTPUT_PATH, with val_files or val_fraction in its `train` and `val`; the
    dataset is in OUTPUT_PATH/tokens. The same call resumes an interrupted one.

    Without the dataset (`keep_tokens=False`), which only its tokenizer remains of, rows cannot be
    cut again or repaired, and the same call builds it again. Options are as of `build`,
    `write_rows` and `DatasetConfig`; the tokenizer may be trained (`TokenizerConfig`).

    Raises:
        TokenmillError: As `build` and `write_rows`.
    """
    given = settings.given
    tokenizer, place = given.pop("tokenizer"), given.pop("output_path")
    dataset = those_of(DatasetConfig, given)
    others = {name: value for name, value in given.items() if name not in dataset}
    corpus = Corpus({
        "datasets": [dataset | {"name": _TOKENS, "save_path": place}], "tokenizer": tokenizer,
        "tokenize": those_of(TokenizeStageConfig, others),
        "save": those_of(SaveStageConfig, others) | {"format": settings.output_format},
    }, _name_argument)  # fmt: skip
    try:
        result = _build_corpus(corpus, progress_of(settings.progress))
    except CorpusError as error:
        if settings.format in ("parquet", "arrow") and "output_format" not in given:
            told = "format is that of the text, and output_format that of the rows"
            raise type(error)(f"{error}; {told}") from error
        raise
    if not settings.keep_tokens:
        built = result.datasets[_TOKENS]
        _remove_dataset(str(built.directory), built.manifests)
    return result


def _name_argument(key: Key) -> str:
    """Spell the place of an option, which is an argument, to begin a message."""
    is_argument = key[0] == "tokenizer" or (len(key) > 1 and isinstance(key[-1], str))
    return f"{key[-1]}: " if is_argument else ""


def _remove_dataset(location: str, manifests: Mapping[str, Manifest]) -> None:
    """Remove the files of a dataset but the tokenizer."""
    gone = [*map(manifest_name, manifests)]
    with open_storage(location, "removal") as storage:
        is_last = {*manifests_in(storage.final)} <= {*gone}
        # Manifests of parts before the others.
        gone += sorted(files_of_parts(storage.final, ""), key=lambda x: x[-5:] != ".json")
        for name, manifest in manifests.items():
            gone += [*(x.name for x in manifest.files(name)), *plans_of(storage.final, name)]
        storage.remove_finished(gone + ["stats.json"] * is_last)


# --- stages ---


@checked
class Pipeline:
    """The stages of a `PipelineConfig`, enabled one by one.

        Pipeline.from_config(config).source().tokenize().pack().save().build()

    Each method enables the stage of its name, whose options are in the configuration; `build` runs
    the enabled stages.
    """

    def __init__(self, config: PipelineConfig, stages: tuple[str, ...] = ()) -> None:
        self._config, self._stages = config, stages

    @classmethod
    def from_config(cls, config: PipelineConfig) -> Self:
        """Return the pipeline of a configuration, with no stage enabled."""
        return cls(config)

    def source(self) -> Self:
        """Read the files of the datasets."""
        return self._with("source", "datasets")

    def tokenize(self) -> Self:
        """Encode the text into datasets."""
        return self._with("tokenize", "tokenizer", "tokenize")

    def pack(self) -> Self:
        """Make rows across documents."""
        return self._with("pack", "pack")

    def save(self) -> Self:
        """Write rows."""
        return self._with("save", "save")

    def __repr__(self) -> str:
        return f"Pipeline({', '.join(self._stages)})"

    def build(self, progress: Progress | bool | None = None) -> BuildResult:
        """Run the enabled stages; raise SettingsError if one before them is missing."""
        needed = ["source", "tokenize", *["save"] * ("pack" in self._stages)]
        if missing := [stage for stage in needed if stage not in self._stages]:
            raise SettingsError(
                f"the stage {missing[0]} is not enabled, and build needs it; call {missing[0]}()"
            )
        values = self._config.given
        for name, enabled in (("save", True), ("pack", "pack" in self._stages)):
            if section := values.get(name):
                values[name] = {**getattr(section, "given", section), "enabled": enabled}
        corpus = Corpus(values, spell_in_python)
        return _build_corpus(corpus, progress_of(progress), "save" in self._stages)

    def _with(self, stage: str, *sections: str) -> Self:
        plans = self._config.plans.values()
        has_own = stage == "tokenize" and any(each.build.tokenizer for each in plans)
        if not has_own and not self._config.given.keys() & {*sections}:
            raise SettingsError(
                f"{stage}() has no configuration; set {' or '.join(sections)} of PipelineConfig"
            )
        return type(self)(self._config, (*self._stages, stage))

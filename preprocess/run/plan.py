"""Plan a run: passes over the text, output files, work left to do, disk space.

A repair reads the same passes (`find_pass`, `reload_tokenizer`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from bpe.files.locations import is_url, shown_url
from preprocess.dataset.manifest import Manifest
from preprocess.documents.batch import ReadOptions
from preprocess.options import (
    BuildSettings,
    EncodeSettings,
    ReadSettings,
    RunSettings,
    TextSettings,
    TrainFileSettings,
    TrainSettings,
)
from preprocess.report.progress import Progress, logger
from preprocess.report.summary import LeftOut, Report, check_has_text, listed
from preprocess.run.encode_pass import EncodePass, SpecialIds, TokenFiles
from preprocess.run.finished import open_published
from preprocess.run.given_tokenizer import load_given_tokenizer
from preprocess.run.journal import Journal
from preprocess.run.outputs import (
    TOKENIZER_FILE,
    is_up_to_date,
)
from preprocess.run.record import Record, differences, record_inputs, without_locations
from preprocess.run.run import Run
from preprocess.run.selection import select_documents
from preprocess.run.standard_input import keep_standard_input
from preprocess.settings import SettingsError, StrPath
from preprocess.sources import Source, check_fields_are_used, digest_of, find_sources
from preprocess.sources.parts import sources_of_task
from preprocess.sources.standard_input import (
    StandardInput,
    has_standard_input,
    replace_standard_input,
)
from preprocess.sources.standard_library import StandardLibrary
from preprocess.storage import Files, Storage

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer
    from preprocess.sources.text_file import SafeCut


class Pass(Struct, dict=True):
    """Sources that are read together and the outputs they fill; counted first to train on them.

    Attributes:
        number: Index of the pass in its run.
        names: Output, "train" or "val" -> stem of its files; {} if only a tokenizer is trained.
        paths: Files and directories to read, in order; (): the default corpus.
        reading: How sources are read.
        selects: True if documents are selected before they are read.
        selected: The sources with their selected documents; None: they are not selected yet.
        task: (index, number of tasks) of the task that reads its part; index None: all parts are
            read, one after another. None: the text is not divided.
    """

    number: int
    names: dict[str, str]
    paths: Sequence[StrPath]
    reading: ReadOptions
    selects: bool = False
    selected: Sequence[Source] | None = None
    task: tuple[int | None, int] | None = None

    @cached_property
    def binary_files(self) -> list[Path | str]:
        """The files that were skipped when `all_files` were found."""
        return []

    @cached_property
    def files(self) -> list[Source]:
        """The sources in `paths`, in order; of a task, those of its part."""
        if self.task is None:
            return self.all_files
        index, count = self.task
        indices = range(count) if index is None else [index]
        return [x for i in indices for x in sources_of_task(self.all_files, i, count)]

    @property
    def decisive(self) -> tuple[list[Source], int]:
        """The sources that decide which documents are selected, and how many precede `files`.

        They are those of all tasks, and a task has all documents of earlier tasks before its own.
        """
        if self.task is None or self.task[0] is None:
            return self.files, 0
        index, count = self.task
        parts = [sources_of_task(self.all_files, i, count) for i in range(count)]
        return [x for part in parts for x in part], sum(map(len, parts[:index]))

    @property
    def recorded(self) -> list[Source]:
        """The sources of the record of a run: `files`, but not divided if all parts are read."""
        return self.all_files if self.task is not None and self.task[0] is None else self.files

    @cached_property
    def all_files(self) -> list[Source]:
        """The sources in `paths`, in order, also of other tasks."""
        reading = self.reading
        if self.selects:
            reading = structs.replace(reading, whole_documents=True)
        if self.paths:
            return find_sources(self.paths, reading, self.binary_files)
        return [StandardLibrary(reading)]

    @property
    def sources(self) -> Sequence[Source]:
        """The sources to read."""
        return self.files if self.selected is None else self.selected

    def fill(
        self, settings: BuildSettings | EncodeSettings, tokenizer: AnyTokenizer,
        report: Report, progress: Progress, journal: Journal,
    ) -> dict[str, Manifest]:
        """Encode into token files, and return name of an output -> its manifest."""
        ids, workers = SpecialIds.of(tokenizer, settings), settings.workers
        encoding = EncodePass(
            self.number, self.sources, tokenizer, ids, workers, report, progress, journal,
            max_bad_records=settings.max_bad_records,
            all_sources=None if self.task is None else self.all_files,
        )
        files = TokenFiles(
            journal.storage, tokenizer.vocab_size, settings.shard_tokens, settings.split_documents,
            encoding.has_mask,
        )
        return encoding.fill(self.names, files, settings.shuffle_documents)


class Plan(Struct, frozen=True, dict=True):
    """Inputs and outputs of a run.

    Attributes:
        command: "build", "train" or "encode".
        settings: Settings of the run.
        tokenizer: The given tokenizer; None: one is trained.
        directory: Output directory, or its URL.
        run: Name of the work directory inside it.
        stats_file: Name of the stats.json.
        tokenizer_file: Name of a trained tokenizer.
        datasets: Datasets to train on, by name, which are read with options of their own.

    Raises:
        CorpusError: There is no text.
        SettingsError: Standard input is given more than once.
        SpecialTokenError: The given tokenizer lacks a special token.
    """

    command: str
    settings: BuildSettings | EncodeSettings | TrainFileSettings
    tokenizer: AnyTokenizer | None
    directory: str
    run: str
    stats_file: str
    tokenizer_file: str = TOKENIZER_FILE
    datasets: Mapping[str, BuildSettings] = {}

    @property
    def rejects_file(self) -> str:
        """Name of the list of bad records."""
        return f"{self.stats_file.removesuffix('stats.json')}rejects.jsonl"

    def __post_init__(self) -> None:
        if self.tokenizer is not None:
            SpecialIds.of(self.tokenizer, self.settings)  # raises
        n_inputs = 0
        for each in self.passes:
            n_inputs += sum(isinstance(source, StandardInput) for source in each.all_files)
            if not has_standard_input(each.all_files):
                check_has_text(each.all_files, next(iter(each.names), "train"))
        if not n_inputs:
            self._check_fields()
        self._warn_of_repeated()
        cuts = self.settings.cut_documents
        if cuts and any(x.has_spans for each in self.passes for x in each.files):
            raise SettingsError("conversations are not cut; leave out cut_documents")
        if n_inputs and (self.passes[0].task is not None or self.settings.executor == "ray"):
            raise SettingsError(
                "standard input (-) is not divided among tasks or workers of Ray; save it to a"
                " file, and give that"
            )
        if n_inputs > 1:
            raise SettingsError(
                "standard input (-) is given more than once; save it to a file, and give that"
            )

    @cached_property
    def passes(self) -> list[Pass]:
        """The passes over the text, in order."""
        if self.datasets:
            assert isinstance(self.settings, TrainFileSettings)
            return [
                Pass(number, {}, each.train, training_options(each, self.settings), each.selects)
                for number, each in enumerate(self.datasets.values())
            ]
        return make_passes(self.settings, self.tokenizer)

    @property
    def training_passes(self) -> list[Pass]:
        """The passes to train on: the first one, or those of all datasets."""
        return self.passes if self.datasets else self.passes[:1]

    @property
    def training_files(self) -> list[Source]:
        """All sources to train on, not divided, nor selected."""
        return [source for each in self.training_passes for source in each.all_files]

    @property
    def training_sources(self) -> list[Source]:
        """The sources to train on."""
        return [source for each in self.training_passes for source in each.sources]

    @cached_property
    def record(self) -> Record:
        """The inputs of the run."""
        names = self.datasets or [" and ".join(each.names) or "train" for each in self.passes]
        passes = dict(zip(names, self.passes, strict=True))
        form = self.passes[0].reading.chat_format
        template = None if form is None else form.template + (form.tools_template or "")
        return record_inputs(
            self.command, self.settings, {x: each.recorded for x, each in passes.items()},
            self.tokenizer, self.datasets, template,
            {x: each.all_files for x, each in passes.items() if each.task is not None},
        )

    @property
    def place(self) -> Path | str:
        """The output directory, or its URL without a password."""
        if is_url(self.directory):
            return shown_url(self.directory).rstrip("/")
        return Path(self.directory)

    @property
    def names(self) -> dict[str, str]:
        """Output, "train" or "val" -> stem of its files."""
        return {name: files for each in self.passes for name, files in each.names.items()}

    def _check_fields(self) -> None:
        """Raise CorpusError if fields are given, and no file has records."""
        groups = [[each] for each in self.passes] if self.datasets else [self.passes]
        for group in groups:
            sources = [source for each in group for source in each.all_files]
            check_fields_are_used(sources, group[0].reading)

    def _warn_of_repeated(self) -> None:
        """Warn if a file is read more than once; several datasets may share files."""
        files = [x.location for each in self.passes for x in each.all_files if x.location]
        repeated = [location for location, n in Counter(files).items() if n > 1]
        if repeated and not self.datasets:
            logger.warning(
                "%s: read more than once, so in both train and val, or repeated; give each file"
                " once unless that is meant", listed(repeated),
            )

    def describe_finished(self, run: Run) -> str:
        """Say why no work is left; "" if work is left.

        Raises:
            TokenmillError: Other files have the names of the outputs.
        """
        if run.is_complete:
            return "complete; files renamed to their final names"
        stems, unknown = list(self.names.values()), list[str]()
        if any(has_standard_input(each.all_files) for each in self.passes):
            unknown.append("standard input cannot be compared with that of before")
        is_there = is_up_to_date(
            run, self.stats_file, stems, tokenizer="" if stems else self.tokenizer_file,
            shards=getattr(self.settings, "shard_tokens", None) is not None,
            rejects_file=self.rejects_file, unknown=unknown,
            has_same_text=lambda before: self._has_same_text(run.storage.final, before),
        )
        return "up to date" if is_there else ""

    def _has_same_text(self, files: Files, before: Record) -> bool:
        """Return True if sources were only touched or moved: their digests are unchanged.

        The digests of files in which documents were selected are not known.
        """
        if not self.names or self.settings.selects:
            return False
        if differences(without_locations(before), without_locations(self.record)):
            return False
        for part in self.passes:
            manifest = open_published(files, next(iter(part.names.values())))
            for source, known in zip(part.sources, manifest.sources, strict=True):
                if digest_of(source).hexdigest() != known.get("digest"):
                    return False
        return True

    def prepare(self, journal: Journal, progress: Progress) -> LeftOut:
        """Read standard input and select documents, before passes read: `select_documents`."""
        for each in self.passes:
            if has_standard_input(each.all_files):
                replace_standard_input(each.all_files, keep_standard_input(journal))
                check_has_text(each.files, next(iter(each.names), "train"))
                self._check_fields()
        left_out = LeftOut()
        groups = zip([[each] for each in self.passes], self.datasets.values(), strict=False)
        for passes, settings in groups if self.datasets else [(self.passes, self.settings)]:
            left_out.merge(select_documents(passes, settings, self.settings, journal, progress))
        return left_out


def make_passes(
    settings: BuildSettings | EncodeSettings | TrainFileSettings,
    tokenizer: AnyTokenizer | None,
) -> list[Pass]:
    """Make the passes over the text, the first for training if `tokenizer` is None."""
    reading = make_read_options(settings, tokenizer)
    selects = settings.selects
    if isinstance(settings, TrainFileSettings):
        return [Pass(0, {}, settings.paths, reading, selects)]
    stems, count = settings.stems, settings.task_count
    task = None if count is None else (settings.task_index, count)
    if isinstance(settings, EncodeSettings):
        return [Pass(0, stems, settings.paths, reading, selects, task=task)]
    of_val = {"val": stems.pop("val")} if settings.val else {}
    passes = [Pass(0, stems, settings.train, reading, selects, task=task)]
    if of_val:
        passes.append(Pass(1, of_val, settings.val, reading, selects, task=task))
    return passes


def make_read_options(settings: ReadSettings, tokenizer: AnyTokenizer | None) -> ReadOptions:
    """Make the options for reading sources, for training if `tokenizer` is None."""
    from bpe.split.pretokenizer import Pretokenizer

    if tokenizer is None:
        assert isinstance(settings, TrainSettings)
        safe_cut, atomic = Pretokenizer(settings.pattern).safe_cut, settings.all_special_tokens
        reading = read_options(settings, safe_cut, atomic)
        return structs.replace(reading, chat=settings.chat)
    reading = read_options(settings, tokenizer.safe_cut, tokenizer.atomic_texts)
    if not isinstance(settings, RunSettings) or settings.chat == "off":
        return reading
    from preprocess.run.chat_format import chat_format_of

    form = chat_format_of(settings, tokenizer)
    return structs.replace(reading, chat=settings.chat, chat_format=form)


def training_options(
    dataset: BuildSettings, training: TrainSettings
) -> ReadOptions:
    """Make the options for reading a dataset to train on it together with others."""
    from bpe.split.pretokenizer import Pretokenizer

    safe_cut = Pretokenizer(training.pattern).safe_cut
    return read_options(dataset, safe_cut, training.all_special_tokens)


def read_options(
    settings: TextSettings, safe_cut: SafeCut | None, atomic: Iterable[str]
) -> ReadOptions:
    """Make the options for reading sources; the arguments are attributes of `ReadOptions`."""
    return ReadOptions(
        separator=settings.separator_bytes, unit_size=settings.unit_size,
        on_invalid_utf8=settings.on_invalid_utf8,
        validation_fraction=getattr(settings, "validation_fraction", 0.0), safe_cut=safe_cut,
        atomic=tuple(token.encode() for token in atomic), format=settings.format or "",
        content_field=settings.content_field, text_preset=settings.text_preset or "",
        strip=settings.strip, min_length=settings.min_length, max_length=settings.max_length_chars,
        skip_bad_records=settings.on_bad_record == "skip",
    )


# --- repair ---


def find_passes(
    settings: BuildSettings | EncodeSettings, tokenizer: AnyTokenizer, file_name: str
) -> tuple[Pass, list[Pass]]:
    """Find (the pass that fills a token file, perhaps among others; the passes that it needs).

    It needs itself, and earlier ones if copies of their documents are left out.
    """
    passes = make_passes(settings, tokenizer)
    found = next(each for each in passes if file_name in each.names.values())
    if settings.deduplicate:
        return found, [each for each in passes if each.number <= found.number]
    return found, [found]


def reload_tokenizer(
    settings: BuildSettings, storage: Storage, progress: Progress
) -> AnyTokenizer:
    """Load the tokenizer given to a build, or train it again; counts are saved in `storage`."""
    from preprocess.run.count_pass import train_tokenizer

    if settings.tokenizer is not None:
        return load_given_tokenizer(settings)
    first = make_passes(settings, None)[0]
    with Journal(storage) as journal:
        select_documents([first], settings, settings, journal, progress)
        return train_tokenizer(first.sources, settings, journal, progress, LeftOut())

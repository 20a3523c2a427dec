"""Configuration of a corpus of several datasets: the schema of corpus.yaml.

Annotations are not postponed in this module, see `preprocess.options`.
"""

import glob
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import Signature
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Never

from msgspec import Meta

from bpe.arguments import bind, checks_names, nearest
from bpe.files.locations import join_location
from preprocess.options import (
    BuildSettings,
    FileSettings,
    FormatSettings,
    ProgressSettings,
    Resources,
    RowsSettings,
    RunSettings,
    SelectSettings,
    ShardSettings,
    TaskSettings,
    TextSettings,
    TrainFileSettings,
    VocabularySettings,
    WindowSettings,
)
from preprocess.settings import (
    Count,
    GivenTokenizer,
    Index,
    Is,
    Kind,
    Locations,
    Option,
    Output,
    Prefix,
    Settings,
    SettingsError,
    StrPath,
    Token,
    TokenizerSource,
    Workers,
    is_ranks_file,
    option,
    options_of,
    read_values,
    run_option,
    signature_of,
)

if TYPE_CHECKING:
    import yaml

# Names of options of a dataset -> those of `build`.
_NAMES_OF_BUILD = {"data_files": "train", "val_files": "val", "save_path": "out"}
_OF_RANK_FILES = ("pattern", "special_tokens")  # what .tiktoken files lack
# Arguments of transformers' loading functions that never change ids.
_WITHOUT_EFFECT = ("use_fast", "trust_remote_code", "verbose", "clean_up_tokenization_spaces")
_DEPTH = 4  # of keys with a line; aliases may refer to themselves
_TOKENS = "tokens"  # directory of a dataset, inside that of its rows
CORPUS_FORMAT = "tokenmill-corpus"  # of config.json
Key = tuple[str | int, ...]  # such as ("datasets", 0, "name")
# Returns how the place of a key is spelled, to begin a message: "corpus.yaml:3: name: ".
Where = Callable[[Key], str]


class _Section(Settings):
    """Base of a section.

    Options that depend on one another are checked by `PipelineConfig`, which has all sections.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.__signature__ = signature_of(cls)

    __signature__: ClassVar[Signature]

    def __init__(self, /, *unnamed: Any, **given: Any) -> None:
        try:
            super().__init__(**bind(type(self).__name__, (), unnamed, given))
        except SettingsError as error:
            raise SettingsError(f"{type(self).__name__}: {error.args[0]}") from None

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._values == other._values

    def __hash__(self) -> int:
        return hash((type(self), *self._values.items()))

    @property
    def _values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in options_of(type(self))}

    def check(self) -> None:
        """Leave it to `PipelineConfig`."""

    @classmethod
    def advice(cls, unknown: str) -> str:
        """Return also where an option belongs, if that is elsewhere."""
        for section, of_section in _SECTIONS.items():
            if unknown in options_of(of_section):
                return f" here; it belongs in the section {section}"
        near = {x: nearest(unknown, options_of(of_section)) for x, of_section in _SECTIONS.items()}
        others = (f"{each[:-1]} in the section {x}?" for x, each in near.items() if each)
        return super().advice(unknown) or next(others, "")


def _read_tokenizer(value: Any) -> Any:
    """Read a tokenizer of a dataset; options of a `TokenizerConfig` are read with all sections."""
    if isinstance(value, TokenizerConfig | Mapping):
        return value
    return options_of(TokenizerConfig)["name_or_path"].read(value)


def _read_arguments(value: Any) -> tuple[str, ...]:
    """Return the names of arguments of transformers' functions, which should be without effect."""
    if not isinstance(value, Mapping):
        raise TypeError
    for name, given in value.items():
        if name not in _WITHOUT_EFFECT and given is not None:
            raise ValueError(
                f"should have what cannot change ids ({', '.join(_WITHOUT_EFFECT)}), and {name}"
                " could; give it to transformers, and its tokenizer here"
            )
    return tuple(value)


class _DatasetSettings(Settings):
    """Options for the files of a dataset."""

    data_files: Option[Locations, StrPath | Iterable[StrPath]] = option("As train of `build`.")
    val_files: Option[Locations, StrPath | Iterable[StrPath]] = option(
        "As val of `build`.", default=(),
    )
    val_fraction: Is[Annotated[float, Meta(ge=0, lt=1)] | None] = option(
        "As of `build`.", default=None, default_text="0: no validation",
    )


class DatasetConfig(
    _Section, _DatasetSettings, TextSettings, SelectSettings, ShardSettings, WindowSettings
):
    """One dataset of a corpus: files, fields, filters, tokenizer, outputs."""

    name: Is[Prefix | None] = option(
        "Name of the dataset, for messages and the default save_path.",
        default=None, default_text="the end of save_path, else of data_files",
    )
    tokenizer: Is[Annotated[
        Any, Kind(_read_tokenizer, "a path, a name, a tokenizer or its options")
    ] | None] = option(
        "Tokenizer of this dataset, or a `TokenizerConfig`.",
        default=None, default_text="that of the corpus",
    )
    tokenizer_kwargs: Is[Annotated[
        tuple[str, ...], Kind(_read_arguments, "names with values")
    ] | None] = option(
        "Arguments of transformers' functions that cannot change ids, such as use_fast.",
        default=None,
    )
    save_path: Option[Output | None, StrPath | None] = option(
        "Directory or URL of the rows, with the dataset in `tokens`; without rows of the"
        " dataset.", default=None, default_text="NAME in output_path",
    )
    end_of_text: Is[Token | None] = option("As of `build`.", default=None)
    begin_of_text: Is[Token | None] = option("As of `build`.", default=None)


class TokenizerConfig(_Section, VocabularySettings, WindowSettings):
    """A tokenizer: a given one, or how it is trained; and the rows of datasets that have it."""

    name_or_path: Option[GivenTokenizer | None, TokenizerSource | None] = option(
        "Tokenizer to use.", default=None, default_text="one that is trained on these datasets",
    )
    return_attention_mask: Is[bool | None] = option(
        "Whether rows have attention_mask, unless `save` has columns.",
        default=None, default_text="unless they have segment_ids",
    )
    trust_remote_code: Is[bool] = option(
        "Without effect: no code of a repository is run.", default=False,
    )


class TokenizeStageConfig(_Section, RunSettings, ShardSettings, WindowSettings):
    """Options of all runs, and options of datasets that do not say otherwise."""

    batch_size: Is[Count | None] = run_option(
        "Documents in a unit of work; without effect, for units have unit_size bytes.",
        default=None,
    )


class PackStageConfig(_Section, Settings):
    """Rows across documents, padded to seq_length, instead of rows of documents."""

    enabled: Is[bool] = option("False: as without the section.", default=True)
    seq_length: Is[Count] = option("As of `rows`.")
    strategy: Is[Literal["greedy", "pool", "first_fit", "best_fit"] | None] = option(
        "As of `rows`; none: cuts of the token stream.", default="greedy",
    )
    eos_token_id: Is[Index | None] = option(
        "Id of the special token after each document.", default=None, default_text="end_of_text",
    )
    pad_token_id: Is[Index | None] = option(
        "Id of padding.", default=None, default_text="pad_token",
    )
    include_segment_ids: Is[bool] = option(
        "Write segment_ids and position_ids as well.", default=True,
    )


class SaveStageConfig(_Section, FormatSettings, FileSettings):
    """Files of rows, besides the datasets."""

    enabled: Is[bool] = option("False: as without the section.", default=True)
    output_dir: Option[Output | None, StrPath | None] = option(
        "Directory or URL of the rows of a dataset without save_path; of several NAME in it.",
        default=None, default_text="output_path",
    )


class RayConfig(_Section, Settings):
    """Workers on Ray, for all runs."""

    enabled: Is[bool] = option("False: as without the section.", default=True)
    num_workers: Is[Workers | None] = option(
        "Number of workers.",
        default=None, default_text="one per available processor of this machine",
    )
    resources_per_worker: Option[Resources, Iterable[str]] = option(
        "Name of a resource of Ray -> amount that each worker needs.",
        default=(), default_text="CPU: 1",
    )
    address: Is[str | None] = option(
        "Address of a cluster, such as auto or ray://HOST:10001.",
        default=None, default_text="Ray is started on this machine",
    )

    @property
    def of_runs(self) -> dict[str, Any]:
        """The options of the runs."""
        if not self.enabled:
            return {}
        found = {"ray_address": self.address, "ray_resources": self.resources_per_worker}
        workers = {} if self.num_workers is None else {"workers": self.num_workers}
        return {"executor": "ray"} | found | workers


def _refuse(value: Any) -> Any:
    raise ValueError(
        "should be given to write_rows, or as pack=PackStageConfig(seq_length=...) of"
        " PipelineConfig, for rows across documents; these are of max_length"
    )


class TextToRowsSettings(
    _DatasetSettings, RunSettings, ShardSettings, WindowSettings, FileSettings, ProgressSettings
):
    """Options of `tokenize_and_save`: rows of text."""

    tokenizer: Is[Any] = option("As of `PipelineConfig`.")
    output_path: Option[Output, StrPath] = option("Directory or URL of the rows.")
    output_format: Is[Literal["parquet", "arrow", "jsonl", "npz", "pickle"]] = option(
        "Format of the rows.", default="parquet"
    )
    keep_tokens: Is[bool] = option("False: remove the dataset, but its tokenizer.", default=True)
    batch_size: Is[Count | None] = run_option("As of `TokenizeStageConfig`.", default=None)
    seq_length: Option[Annotated[Any, Kind(_refuse)], Never] = option(
        "Of rows across documents.", default=None
    )

    def check(self) -> None:
        """Leave it to `PipelineConfig`."""


_SECTIONS: dict[str, type[_Section]] = {
    "tokenizer": TokenizerConfig, "tokenize": TokenizeStageConfig, "pack": PackStageConfig,
    "save": SaveStageConfig, "ray": RayConfig,
}


def _in_python(key: Key) -> str:
    """Spell the place of a key of arguments.

    >>> _in_python(("datasets", 0, "name"))
    'datasets[0].name: '
    """
    parts = (f"[{x}]" if isinstance(x, int) else f".{x}" for x in key)
    return f"{''.join(parts).lstrip('.')}: "


class _Reader:
    """Reads sections, and lists what is wrong with all of them.

    Args:
        where: Spells places.

    Attributes:
        wrong: Messages.
        notes: What has no effect, in order.
    """

    def __init__(self, where: Where) -> None:
        self.where, self.wrong, self.notes = where, list[str](), dict[str, None]()

    def section(self, key: Key, given: Any, kind: type[_Section]) -> dict[str, Any]:
        """Return the valid options that are given in a section, or in an object of its class."""
        if isinstance(given, kind):
            return given.given
        if not isinstance(given, Mapping | None):
            self.wrong.append(f"{self.where(key)}expected options with values, found {given!r}")
            return {}
        read, wrong = read_values({str(x): y for x, y in (given or {}).items()}, kind)
        self.wrong += [f"{self.where((*key, name))}{what}" for name, what in wrong]
        return read

    def tokenizer(self, key: Key, given: Any) -> dict[str, Any]:
        """Return the options of a tokenizer, which may be given alone."""
        if given is not None and not isinstance(given, TokenizerConfig | Mapping):
            read, wrong = read_values({"name_or_path": given}, TokenizerConfig)
            self.wrong += [f"{self.where(key)}{what}" for _, what in wrong]
            return read
        read = self.section(key, given, TokenizerConfig)
        if len(key) > 1 and "name_or_path" not in read and _of(VocabularySettings, read):
            self.wrong.append(
                f"{self.where(key)}a tokenizer is trained on all datasets; train it in the section"
                " tokenizer, or give name_or_path"
            )
        if read.pop("trust_remote_code", False):
            self.notes["trust_remote_code has no effect: no code of a repository is run"] = None
        return read

    def stage(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of all runs and datasets."""
        stage = self.section(("tokenize",), values.get("tokenize"), TokenizeStageConfig)
        if stage.pop("batch_size", None):
            self.notes["batch_size has no effect: units of work have unit_size bytes"] = None
        on_ray = self.section(("ray",), values.get("ray"), RayConfig)
        return stage | RayConfig(**on_ray).of_runs if values.get("ray") is not None else stage

    def switched(self, name: str, values: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the options of a section that may be missing, or not enabled: None."""
        if values.get(name) is None:
            return None
        read = self.section((name,), values[name], _SECTIONS[name])
        return read if read.pop("enabled", True) else None

    def datasets(self, given: Any) -> list[dict[str, Any]]:
        """Return the options of each dataset, those of its tokenizer in one."""
        if not isinstance(given, Sequence) or isinstance(given, str) or not given:
            self.wrong.append(
                f"{self.where(('datasets',))}expected a list of at least one; got"
                f" {given!r:.100}{'; put it into a list' * isinstance(given, _Section | Mapping)}"
            )
            return []
        parts = [self.section(("datasets", i), x, DatasetConfig) for i, x in enumerate(given)]
        for i, part in enumerate(parts):
            key = ("datasets", i, "tokenizer")
            part["tokenizer"] = self.tokenizer(key, part.get("tokenizer"))
            for argument in part.pop("tokenizer_kwargs", None) or ():
                self.notes[f"tokenizer_kwargs: {argument} has no effect"] = None
        return parts


class DatasetPlan(NamedTuple):
    """One dataset of a configuration, with all its options.

    Attributes:
        build: Settings of its build; without tokenizer if it has none of its own.
        rows: Settings of its rows; None: none are written.
        pack: Options of the section `pack`; None: rows are of documents.
        adds_special_tokens: True if documents of packed rows have the special tokens that the
            tokenizer puts around a text.
        has_mask: Whether rows have attention_mask; None: if they need it.
        key: Place of its options.
    """

    build: BuildSettings
    rows: RowsSettings | None
    pack: dict[str, Any] | None
    adds_special_tokens: bool
    has_mask: bool | None
    key: Key

    def columns(self, has_loss_mask: bool) -> tuple[str, ...]:
        """Return the names of the arrays of the rows: those given, or the default ones."""
        assert self.rows is not None
        if self.rows.columns or self.rows.format == "pickle":
            return self.rows.columns
        segments = self.pack is not None and self.pack.get("include_segment_ids", True)
        has = {
            "input_ids": True,
            "attention_mask": not segments if self.has_mask is None else self.has_mask,
            "labels": self.pack is not None or has_loss_mask, "segment_ids": segments,
            "position_ids": segments,
        }
        return tuple(filter(has.__getitem__, has))


class PipelineConfig:
    """A corpus of several datasets.

    What a dataset says wins over its tokenizer config, that over the stage `tokenize`, the stage
    over the default.

    Args:
        datasets: Datasets, or mappings of their options.
        tokenizer: The tokenizer of datasets without one of their own: a path, a name or an object,
            or a `TokenizerConfig`, or a mapping of its options. None: one is trained with the
            defaults.
        tokenize: Options of all datasets.
        pack: A `PackStageConfig`, or a mapping of its options; None: rows are of documents.
        save: A `SaveStageConfig`, or a mapping of its options; None: no rows are written.
        ray: A `RayConfig`, or a mapping of its options; None: workers are threads.
        output_path: Directory or URL of the trained tokenizer, config.json and, by default, the
            datasets. None: output_dir of `save`, the save_path of a single dataset, or "tokenized".

    Attributes:
        plans: Name of a dataset -> what is made of it.
        training: Settings of the tokenizer to be trained; None if none is needed.
        max_minutes: Time limit of all runs together; None: none.
        uses_output_path: False if each dataset has a place and a tokenizer of its own.
        sections: Names of the arguments that are given.
        where: Spells places of options, to begin messages.
        notes: What has no effect, for the log.

    Raises:
        SettingsError: Options are missing, unknown, invalid (the message lists all of these) or
            contradictory; datasets have the same name or outputs.
    """

    plans: dict[str, DatasetPlan]

    @checks_names
    def __init__(
        self, *, datasets: Sequence[DatasetConfig | Mapping[str, Any]],
        tokenizer: TokenizerConfig | Mapping[str, Any] | TokenizerSource | None = None,
        tokenize: TokenizeStageConfig | Mapping[str, Any] | None = None,
        pack: PackStageConfig | Mapping[str, Any] | None = None,
        save: SaveStageConfig | Mapping[str, Any] | None = None,
        ray: RayConfig | Mapping[str, Any] | None = None,
        output_path: StrPath | None = None,
    ) -> None:
        given = {
            "datasets": datasets, "tokenizer": tokenizer, "tokenize": tokenize, "pack": pack,
            "save": save, "ray": ray, "output_path": output_path,
        }
        self._read(given, _in_python, {})

    @classmethod
    def from_mapping(
        cls, values: Mapping[str, Any], where: Where, of_run: dict[str, Any] | None = None
    ) -> "PipelineConfig":
        """Return the configuration in a mapping; options `of_run` win over it."""
        config = object.__new__(cls)
        config._read(values, where, of_run or {})
        return config

    def __repr__(self) -> str:
        given = (f"{x}={y!r}" for x, y in self._values.items() if x in self.sections)
        return f"PipelineConfig({', '.join(given)})"

    @property
    def builds(self) -> dict[str, BuildSettings]:
        """Name of a dataset -> settings of its build."""
        return {name: each.build for name, each in self.plans.items()}

    @property
    def untrained(self) -> dict[str, BuildSettings]:
        """The datasets without a tokenizer of their own, by name."""
        return {name: each for name, each in self.builds.items() if each.tokenizer is None}

    @property
    def tokenizer_file(self) -> str:
        """The tokenizer that is trained."""
        return join_location(self.output_path, "tokenizer.json")

    def with_stages(self, stages: Sequence[str]) -> "PipelineConfig":
        """Return the configuration with only some of the stages "pack" and "save" enabled."""
        values = {**self._values}
        for name in ("pack", "save"):
            if values.get(name) is not None:
                given = getattr(values[name], "given", values[name])
                # Without rows, the dataset is where it would be beside them.
                values[name] = {**given, "enabled": name == "save" or name in stages}
        config = PipelineConfig.from_mapping(values, self.where)
        return config if "save" in stages else config._without_rows()

    def _without_rows(self) -> "PipelineConfig":
        self.plans = {name: each._replace(rows=None) for name, each in self.plans.items()}
        return self

    def with_options_of(self, run: BuildSettings) -> "PipelineConfig":
        """Return the configuration with the options of a run, which win over its own.

        Raises:
            SettingsError: An option is of a dataset, not of all runs.
        """
        known, of_tasks = options_of(RunSettings), options_of(TaskSettings)
        given = {x: y for x, y in run.given.items() if x not in ("config", "progress")}
        wrong = [
            f"{name}: divides one dataset, not the datasets of a configuration; leave it out"
            if name in of_tasks
            else f"{name}: belongs in the configuration, which is given, too"
            for name in given
            if name not in known or known[name].changes_result
        ]
        if wrong:
            raise SettingsError("; ".join(wrong))
        if given.get("executor", "ray") != "ray":
            given = {"ray_address": None, "ray_resources": ()} | given
        config = PipelineConfig.from_mapping(self._values, self.where, given)
        saves = any(each.rows for each in self.plans.values())
        return config if saves else config._without_rows()

    def as_json(self) -> dict[str, Any]:
        """Return the effective configuration for config.json."""
        datasets = {}
        for name, each in self.builds.items():
            built = each.as_json(options_of(VocabularySettings))
            datasets[name] = built | {"tokenizer": built["tokenizer"] or self.tokenizer_file}
        rows = {name: x.rows.as_json() for name, x in self.plans.items() if x.rows is not None}
        return {
            "format": CORPUS_FORMAT, "output_path": self.output_path,
            "tokenizer": None if self.training is None else self.training.as_json(),
            "datasets": datasets, "rows": rows,
        }

    def _read(self, values: Mapping[str, Any], where: Where, of_run: dict[str, Any]) -> None:
        """Set the attributes; options `of_run` win over those of all runs."""
        known = ("datasets", "output_path", *_SECTIONS)
        self.sections = {name for name, each in values.items() if each is not None}
        self._values, self.where, reader = values, where, _Reader(where)
        reader.wrong += [
            f"{where((name,))}there is no such section{nearest(str(name), known)}"
            for name in values if name not in known
        ]
        shared = reader.tokenizer(("tokenizer",), values.get("tokenizer"))
        stage = reader.stage(values)
        self._pack, self._save = (reader.switched(name, values) for name in ("pack", "save"))
        out, wrong = read_values({"output_dir": values.get("output_path")}, SaveStageConfig)
        reader.wrong += [f"{where(('output_path',))}{what}" for _, what in wrong]
        parts = reader.datasets(values.get("datasets") or ())
        if reader.wrong:
            raise SettingsError("; ".join(reader.wrong))
        self.notes, self.max_minutes = reader.notes, (stage | of_run).get("max_minutes")
        places = [part.get("save_path") for part in parts]
        named = (
            out.get("output_dir"), (self._save or {}).get("output_dir"),
            *(places if len(parts) == 1 else ()),
        )
        own_path = next((path for path in named if path is not None), None)
        self.output_path = str("tokenized" if own_path is None else own_path)
        self.plans = {}
        names = {part["name"] for part in parts if part.get("name")}
        for number, part in enumerate(parts):
            self._add(number, part, names, len(parts) > 1, shared, stage, of_run)
        self.training = self._training(_of(VocabularySettings, shared), stage | of_run)
        self.uses_output_path = bool(own_path or None in places or self.training)

    def _add(
        self, number: int, part: dict[str, Any], names: set[str], has_others: bool,
        shared: dict[str, Any], stage: dict[str, Any], of_run: dict[str, Any],
    ) -> None:
        """Add the plan of a dataset.

        Args:
            number: Its index.
            part: Its options.
            names: Names of datasets that are taken.
            has_others: True if there are several datasets.
            shared: Options of the tokenizer of datasets without one of their own.
            stage: Options of all datasets.
            of_run: Options of runs that win over all others.
        """
        own = part.pop("tokenizer")
        own = own if "name_or_path" in own else shared | own
        given, ranks = own.get("name_or_path"), dict[str, Any]()
        if is_ranks_file(given):
            ranks = {x: shared[x] for x in _OF_RANK_FILES if x in shared}
        # Options of training, too, to say that nothing is trained.
        options = {} if given is None else ranks | _of(VocabularySettings, own)
        options |= stage | _of(WindowSettings, own) | part | {"tokenizer": given} | of_run
        name = options.pop("name", None) or _new_name(part, names)
        windows = {x: options.pop(x) for x in options_of(WindowSettings) if x in options}
        key = ("datasets", number)
        if name in self.plans:
            raise SettingsError(
                f"{self.where((*key, 'name'))}{name!r} is an earlier dataset; rename one of them"
            )
        of_rows = (self._save or {}).get("output_dir")
        usual = of_rows or self.output_path
        if has_others or of_rows is None:
            usual = join_location(usual, name)
        out = options.pop("save_path", None) or usual
        build = self._build(key, out, options)
        rows, adds = self._rows(build, out, windows)
        self.plans[name] = DatasetPlan(
            build, rows, self._pack, adds, own.get("return_attention_mask"), key
        )

    def _build(self, key: Key, out: str, options: dict[str, Any]) -> BuildSettings:
        """Return the settings of the build of a dataset whose outputs are in `out`."""
        built = {_NAMES_OF_BUILD.get(x, x): value for x, value in options.items()}
        built["out"] = out if self._save is None else join_location(out, _TOKENS)
        if not built.get("val"):
            built.setdefault("val_fraction", 0.0)
        try:
            settings = BuildSettings(**built)
        except SettingsError as error:
            raise SettingsError(f"{self.where(key)}{error}") from None
        for other, before in self.builds.items():
            if Path(before.out).absolute() == Path(settings.out).absolute():
                raise SettingsError(
                    f"{self.where((*key, 'save_path'))}{out!r} is that of the dataset {other!r},"
                    " too; give each its own"
                )
        return settings

    def _rows(
        self, build: BuildSettings, out: str, windows: dict[str, Any]
    ) -> tuple[RowsSettings | None, bool]:
        """Return the settings of rows, and whether packed ones have the tokenizer's special tokens.

        `windows` are the options of `WindowSettings` that are given.
        """
        where, adds = self.where(("save",)), False
        if self._save is None:
            if told := sorted([*windows, *["pack"] * (self._pack is not None)]):
                raise SettingsError(
                    f"{where}{', '.join(told)}: for rows, which are not written; add a section save"
                )
            return None, adds
        options = {x: y for x, y in self._save.items() if x != "output_dir"}
        if self._pack is not None:
            options |= {"strategy": "greedy"} | self._pack | {"padding": "max-length"}
            for name in ("include_segment_ids", "eos_token_id"):
                options.pop(name, None)
            if (pad_id := options.pop("pad_token_id", None)) is not None:
                options["pad_token"] = pad_id
            adds = windows.pop("add_special_tokens", False)
            if windows.get("max_length") and not windows.keys() & {"truncation", "stride"}:
                length = windows.pop("max_length")
                if length != options["seq_length"]:
                    self.notes[f"max_length {length:,} has no effect on packed rows"] = None
        try:
            return RowsSettings(
                path=build.out, out=out, workers=build.workers, overwrite=build.overwrite,
                **windows | options,
            ), adds
        except SettingsError as error:
            raise SettingsError(f"{where}{error}") from None

    def _training(
        self, vocabulary: dict[str, Any], stage: Mapping[str, Any]
    ) -> TrainFileSettings | None:
        """Return the settings of the tokenizer that is trained, None if all datasets have one."""
        untrained = self.untrained.values()
        if not untrained:
            return None
        where = self.where(("tokenizer" if vocabulary else "tokenize",))
        special = [
            token for each in untrained for token in (each.end_of_text, each.begin_of_text) if token
        ]
        special += vocabulary.pop("special_tokens", ())
        around = stage.get("end_of_text"), stage.get("begin_of_text")
        try:
            return TrainFileSettings(
                **_of(TrainFileSettings, stage) | vocabulary,
                special_tokens=tuple(x for x in dict.fromkeys(special) if x not in around),
                paths=tuple(path for each in untrained for path in each.train),
                out=self.tokenizer_file,
            )
        except SettingsError as error:
            raise SettingsError(f"{where}{error}") from None


def _of(kind: type[Settings], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those options that a class of settings has."""
    return {name: value for name, value in options.items() if name in options_of(kind)}


def _new_name(part: Mapping[str, Any], taken: set[str]) -> str:
    """Name a dataset after its save_path, else its files, and add the name to those `taken`."""
    path = part.get("save_path") or part["data_files"][0]
    inside = [x for x in path.split("/") if x and not glob.has_magic(x)]
    stem = inside[-1].lstrip("@.-").partition(".")[0] if inside else ""
    numbered = (f"{stem or 'dataset'}{f'-{n}' * (n > 1)}" for n in count(1))
    name = next(name for name in numbered if name not in taken)
    taken.add(name)
    return name


# --- corpus.yaml ---


def read_corpus(settings: BuildSettings) -> PipelineConfig:
    """Read the configuration in the settings of a build, whose other options win over it.

    Raises:
        SettingsError: As `load_config`; or an option belongs in the configuration.
    """
    config = settings.config
    if isinstance(config, str | os.PathLike):
        config = load_config(Path(config))
    if not isinstance(config, PipelineConfig):
        raise SettingsError(f"config: should be a path or a PipelineConfig; got {config!r:.100}")
    return config.with_options_of(settings)


def load_config(path: Path) -> PipelineConfig:
    """Read the configuration of a corpus.

    Raises:
        SettingsError: The file is missing, is not YAML, or has wrong options.
    """
    import yaml

    if path.suffix not in (".yaml", ".yml"):
        raise SettingsError(
            f"{path}: expected a .yaml file that describes a corpus; text is given with --train"
        )
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}; check the path") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: is not UTF-8 at byte {error.start:,}; convert it") from None
    lines: dict[Key, int] = {}
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is not None:
            _find_lines(node, (), lines, path)
        values = loader.construct_document(node) if node is not None else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f":{mark.line + 1}" if mark is not None else ""
        raise SettingsError(f"{path}{line}: is not YAML ({error.problem}); correct it") from None
    except SettingsError:
        raise
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        what = " ".join(str(error).split())
        raise SettingsError(f"{path}: has a value that is not valid ({what}); correct it") from None
    if not isinstance(values, dict):
        raise SettingsError(f"{path}: expected sections, such as datasets; found {values!r}")

    def where(key: Key) -> str:
        known = next(key[:n] for n in range(len(key), -1, -1) if key[:n] in lines)
        name = f"{key[-1]}: " if isinstance(key[-1], str) else ""
        return f"{path}:{lines[known]}: {name}"

    return PipelineConfig.from_mapping(values, where)


def _find_lines(node: "yaml.Node", key: Key, lines: dict[Key, int], path: Path) -> None:
    """Note the line of every key and element; raise SettingsError if a key is repeated."""
    import yaml

    lines.setdefault(key, node.start_mark.line + 1)
    if len(key) == _DEPTH:
        return
    if isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            _find_lines(value, (*key, number), lines, path)
    elif isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            inner, line = (*key, str(name.value)), name.start_mark.line + 1
            if inner in lines:
                raise SettingsError(
                    f"{path}:{line}: {name.value}: is in line {lines[inner]} already; leave one out"
                )
            lines[inner] = line
            _find_lines(value, inner, lines, path)

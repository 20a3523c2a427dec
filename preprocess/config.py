"""Configuration of a corpus of several datasets: the schema of corpus.yaml.

The sections are classes of options. A `Corpus` is what becomes of them: for each dataset the
settings of its build and of its rows. Annotations are not postponed in this module, see
`preprocess.options`.
"""

import glob
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import Signature
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, Never

from bpe.arguments import bind, nearest
from preprocess.locations import join_location
from preprocess.options import (
    BuildSettings,
    FileSettings,
    FormatSettings,
    Fraction,
    IsOutput,
    OptionalOutput,
    Paths,
    ProgressSettings,
    Resources,
    RowFormat,
    RowsSettings,
    RunSettings,
    SelectSettings,
    ShardSettings,
    Strategy,
    TaskSettings,
    TextSettings,
    Tokenizer,
    TrainFileSettings,
    VocabularySettings,
    WindowSettings,
)
from preprocess.settings import (
    AnySettings,
    Count,
    Index,
    Is,
    Kind,
    Option,
    Prefix,
    Settings,
    SettingsError,
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

# Names of options of sections -> those of `build`.
_OF_BUILD = {"data_files": "train", "val_files": "val", "save_path": "out"}
_OF_RAY = {
    "address": "ray_address", "resources_per_worker": "ray_resources", "num_workers": "workers"
}
_OF_RANK_FILES = ("pattern", "special_tokens")  # what .tiktoken files lack
# Arguments of transformers' loading functions that never change ids.
_WITHOUT_EFFECT = ("use_fast", "trust_remote_code", "verbose", "clean_up_tokenization_spaces")
_NOTES = {
    "trust_remote_code": "no code of a repository is run",
    "batch_size": "units of work have unit_size bytes",
}
_DEPTH = 4  # of keys with a line; aliases may refer to themselves
_TOKENS = "tokens"  # directory of a dataset, inside that of its rows
CORPUS_FORMAT = "tokenmill-corpus"  # of config.json
Key = tuple[str | int, ...]  # such as ("datasets", 0, "name")
# Returns how the place of a key is spelled, to begin a message: "corpus.yaml:3: name: ".
Where = Callable[[Key], str]


# --- sections ---


class _Section(Settings):
    """Base of a section.

    Options that depend on one another are checked by `Corpus`, which has all sections.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.__signature__ = signature_of(cls)

    __signature__: ClassVar[Signature]

    def __init__(self, /, *unnamed: Any, **given: Any) -> None:
        given = bind(type(self).__name__, (), unnamed, given)
        try:
            super().__init__(**given)
        except SettingsError as error:
            raise SettingsError(f"{type(self).__name__}: {error.args[0]}") from None

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._values == other._values

    def __hash__(self) -> int:
        return hash(type(self))  # values may be lists

    @property
    def _values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in options_of(type(self))}

    def check(self) -> None:
        """Leave it to `Corpus`."""

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

    data_files: Paths = option("As train of `build`.")
    val_files: Paths = option("As val of `build`.", default=())
    val_fraction: Is[Fraction | None] = option("As of `build`; none: no validation.", default=None)


class DatasetConfig(
    _Section, _DatasetSettings, TextSettings, SelectSettings, ShardSettings, WindowSettings
):
    """One dataset of a corpus: files, fields, filters, tokenizer, outputs."""

    name: Is[Prefix | None] = option("None: the end of save_path or data_files.", default=None)
    tokenizer: Is[Annotated[
        Any, Kind(_read_tokenizer, "a path, a name, a tokenizer or its options")
    ] | None] = option("A `TokenizerConfig` or as there; none: that of the corpus.", default=None)
    tokenizer_kwargs: Is[
        Annotated[tuple[str, ...], Kind(_read_arguments, "names with values")] | None
    ] = option("Arguments of transformers' functions that cannot change ids.", default=None)
    save_path: OptionalOutput = option(
        "Place of the rows, with the dataset in `tokens`; without rows of the dataset; none: NAME"
        " in output_path.", default=None,
    )
    end_of_text: Is[Token | None] = option("As of `build`.", default=None)
    begin_of_text: Is[Token | None] = option("As of `build`.", default=None)


class TokenizerConfig(_Section, VocabularySettings, WindowSettings):
    """A tokenizer: a given one, or how it is trained; and the rows of datasets that have it."""

    name_or_path: Tokenizer = option("None: one is trained on these datasets.", default=None)
    return_attention_mask: Is[bool | None] = option(
        "Whether rows have attention_mask; none: unless they have segment_ids.", default=None
    )
    trust_remote_code: Is[bool] = option("Without effect: no code is run.", default=False)


class TokenizeStageConfig(_Section, RunSettings, ShardSettings, WindowSettings):
    """Options of all runs, and options of datasets that do not say otherwise."""

    batch_size: Is[Count | None] = run_option("Without effect: see unit_size.", default=None)


class PackStageConfig(_Section, Settings):
    """Rows across documents, padded to seq_length, instead of rows of documents."""

    enabled: Is[bool] = option("False: as without the section.", default=True)
    seq_length: Is[Count] = option("As of `rows`.")
    strategy: Is[Strategy | None] = option("As of `rows`; none: not packed.", default="greedy")
    eos_token_id: Is[Index | None] = option("Instead of end_of_text.", default=None)
    pad_token_id: Is[Index | None] = option("Instead of pad_token.", default=None)
    include_segment_ids: Is[bool] = option("And position_ids.", default=True)


class SaveStageConfig(_Section, FormatSettings, FileSettings):
    """Files of rows, besides the datasets."""

    enabled: Is[bool] = option("False: as without the section.", default=True)
    output_dir: OptionalOutput = option(
        "Place of the rows of a dataset without save_path; of several NAME in it.", default=None
    )


class RayConfig(_Section, Settings):
    """Workers on Ray, for all runs."""

    enabled: Is[bool] = option("False: as without the section.", default=True)
    num_workers: Is[Workers | None] = option("As workers of `build`.", default=None)
    resources_per_worker: Option[Resources, Iterable[str] | Mapping[str, float]] = option(
        "As ray_resources of `build`.", default=()
    )
    address: Is[str | None] = option("As ray_address of `build`.", default=None)


_SECTIONS: dict[str, type[_Section]] = {
    "tokenizer": TokenizerConfig, "tokenize": TokenizeStageConfig, "pack": PackStageConfig,
    "save": SaveStageConfig, "ray": RayConfig,
}


def _read_datasets(value: Any) -> Sequence[Any]:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise TypeError
    if any(each is None for each in value):
        raise TypeError
    return value


class PipelineConfig(_Section, Settings):
    """A corpus of several datasets; sections are objects of their classes, or mappings.

    What a dataset says wins over its tokenizer config, that over the stage `tokenize`, the stage
    over the default. `plans` has the settings of each dataset by name.

    Raises:
        SettingsError: Options are missing, unknown, invalid (the message lists all of these) or
            contradictory; datasets have the same name or outputs.
    """

    datasets: Option[
        Annotated[Any, Kind(_read_datasets, "a list of at least one")],
        Sequence[DatasetConfig | Mapping[str, Any]],
    ] = option("Datasets, or mappings of their options.")
    tokenizer: Option[Any, TokenizerConfig | Mapping[str, Any] | TokenizerSource | None] = option(
        "The tokenizer of datasets without one of their own: a path, a name, an object, or options;"
        " none: one is trained with the defaults.", default=None,
    )
    tokenize: Option[Any, TokenizeStageConfig | Mapping[str, Any] | None] = option(
        "Options of all datasets.", default=None
    )
    pack: Option[Any, PackStageConfig | Mapping[str, Any] | None] = option(
        "Rows across documents; none: of documents.", default=None
    )
    save: Option[Any, SaveStageConfig | Mapping[str, Any] | None] = option(
        "Files of rows; none: none are written.", default=None
    )
    ray: Option[Any, RayConfig | Mapping[str, Any] | None] = option(
        "Workers on Ray; none: threads.", default=None
    )
    output_path: OptionalOutput = option(
        "Place of the trained tokenizer, config.json and, by default, the datasets; none:"
        " output_dir of `save`, the save_path of a single dataset, or tokenized.", default=None,
    )

    plans: ClassVar[dict[str, "DatasetPlan"]]  # name of a dataset -> what is made of it

    def check(self) -> None:
        """Check all sections together."""
        self.__dict__["plans"] = self.corpus().plans

    @property
    def builds(self) -> dict[str, BuildSettings]:
        """Name of a dataset -> settings of its build."""
        return {name: each.build for name, each in self.plans.items()}

    def corpus(self, **enabled: bool) -> "Corpus":
        """Return what is made of it, with the sections that are given `enabled` or not."""
        values = self.given
        for name in enabled.keys() & values.keys():
            given = getattr(values[name], "given", values[name])
            values[name] = {**given, "enabled": enabled[name]}
        return Corpus(values, _in_python)


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
    output_path: IsOutput = option("Directory or URL of the rows.")
    output_format: Is[RowFormat] = option("Format of the rows.", default="parquet")
    keep_tokens: Is[bool] = option("False: remove the dataset, but its tokenizer.", default=True)
    batch_size: Is[Count | None] = run_option("As of `TokenizeStageConfig`.", default=None)
    seq_length: Option[Annotated[Any, Kind(_refuse)], Never] = option(
        "Of rows across documents.", default=None
    )

    def check(self) -> None:
        """Leave it to `Corpus`."""


# --- what becomes of them ---


def _in_python(key: Key) -> str:
    """Spell the place of a key of arguments.

    >>> _in_python(("datasets", 0, "name"))
    'datasets[0].name: '
    """
    parts = (f"[{x}]" if isinstance(x, int) else f".{x}" for x in key)
    return f"{''.join(parts).lstrip('.')}: "


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


class Corpus:
    """Datasets and rows that a configuration describes.

    Args:
        config: Options of a `PipelineConfig`.
        where: Spells places of options, to begin messages.
        of_run: Options of runs that win over all others.

    Attributes:
        plans: Name of a dataset -> what is made of it.
        training: Settings of the tokenizer to be trained; None if none is needed.
        output_path: Directory or URL of the corpus.
        uses_output_path: False if each dataset has a place and a tokenizer of its own.
        max_minutes: Time limit of all runs together; None: none.
        notes: What has no effect, for the log.

    Raises:
        SettingsError: As `PipelineConfig`.
    """

    def __init__(
        self, config: Mapping[str, Any], where: Where, of_run: Mapping[str, Any] | None = None
    ) -> None:
        self.where, self._of_run, self._wrong = where, dict(of_run or {}), list[str]()
        self.notes, self.plans = dict[str, None](), dict[str, DatasetPlan]()
        top = self._section((), config, PipelineConfig)
        self._shared = self._section(
            ("tokenizer",), top.get("tokenizer"), TokenizerConfig, "name_or_path"
        )
        self._stage = self._section(("tokenize",), top.get("tokenize"), TokenizeStageConfig)
        self._pack, self._save, ray = (
            self._switched(x, top.get(x)) for x in ("pack", "save", "ray")
        )
        if ray is not None:
            self._stage |= {"executor": "ray"} | {_OF_RAY[x]: y for x, y in ray.items()}
        parts = [*map(self._part, count(), top.get("datasets", ()))]
        if self._wrong:
            raise SettingsError("; ".join(self._wrong))
        self.max_minutes = (self._stage | self._of_run).get("max_minutes")
        places = [part.get("save_path") for part in parts]
        named = (
            top.get("output_path"), (self._save or {}).get("output_dir"),
            *(places if len(parts) == 1 else ()),
        )
        own_path = next((path for path in named if path is not None), None)
        self.output_path = str("tokenized" if own_path is None else own_path)
        names = {part["name"] for part in parts if part.get("name")}
        for number, part in enumerate(parts):
            self._add(("datasets", number), part, names, len(parts) > 1)
        self.training = self._training()
        self.uses_output_path = bool(own_path or None in places or self.training)

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

    def without_rows(self) -> "Corpus":
        """Leave out the rows; the datasets are where they would be beside them."""
        self.plans = {name: each._replace(rows=None) for name, each in self.plans.items()}
        return self

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

    def _section(
        self, key: Key, given: Any, kind: type[_Section], alone: str = ""
    ) -> dict[str, Any]:
        """Return the valid options of a section; `alone` is one that may be given without name."""
        if given is None:
            return {}
        if isinstance(given, kind):
            read = given.given
        elif isinstance(given, Mapping):
            read, wrong = read_values({str(x): y for x, y in given.items()}, kind)
            self._wrong += [f"{self.where((*key, name))}{what}" for name, what in wrong]
        elif alone:
            read, wrong = read_values({alone: given}, kind)
            self._wrong += [f"{self.where(key)}{what}" for _, what in wrong]
        else:
            self._wrong.append(f"{self.where(key)}expected options with values, found {given!r}")
            return {}
        for name, why in _NOTES.items():
            if read.pop(name, None):
                self.notes[f"{name} has no effect: {why}"] = None
        return read

    def _switched(self, name: str, given: Any) -> dict[str, Any] | None:
        """Return the options of a section that may be missing, or not enabled: None."""
        read = self._section((name,), given, _SECTIONS[name])
        return read if read.pop("enabled", True) and given is not None else None

    def _part(self, number: int, given: Any) -> dict[str, Any]:
        """Return the options of a dataset, those of its tokenizer in one."""
        part = self._section(("datasets", number), given, DatasetConfig)
        key = ("datasets", number, "tokenizer")
        own = self._section(key, part.get("tokenizer"), TokenizerConfig, "name_or_path")
        if "name_or_path" not in own and _of(VocabularySettings, own):
            self._wrong.append(
                f"{self.where(key)}a tokenizer is trained on all datasets; train it in the section"
                " tokenizer, or give name_or_path"
            )
        for argument in part.pop("tokenizer_kwargs", None) or ():
            self.notes[f"tokenizer_kwargs: {argument} has no effect"] = None
        return part | {"tokenizer": own}

    def _add(self, key: Key, part: dict[str, Any], names: set[str], has_others: bool) -> None:
        """Add the plan of a dataset, whose name should not be one of other datasets."""
        own = part.pop("tokenizer")
        own = own if "name_or_path" in own else self._shared | own
        given = own.get("name_or_path")
        # Options of training, too, to say that nothing is trained.
        options = {} if given is None else _of(VocabularySettings, own)
        if is_ranks_file(given):
            options = {x: self._shared[x] for x in _OF_RANK_FILES if x in self._shared} | options
        options |= self._stage | _of(WindowSettings, own) | part | {"tokenizer": given}
        options |= self._of_run
        name = options.pop("name", None) or _new_name(part, names)
        if name in self.plans:
            raise SettingsError(
                f"{self.where((*key, 'name'))}{name!r} is an earlier dataset; rename one of them"
            )
        windows = {x: options.pop(x) for x in options_of(WindowSettings) if x in options}
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
        built = {_OF_BUILD.get(x, x): value for x, value in options.items()}
        built["out"] = out if self._save is None else join_location(out, _TOKENS)
        if not built.get("val"):
            built.setdefault("val_fraction", 0.0)
        settings = self._made(BuildSettings, key, **built)
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
        adds = False
        if self._save is None:
            if told := sorted([*windows, *["pack"] * (self._pack is not None)]):
                raise SettingsError(
                    f"{self.where(('save',))}{', '.join(told)}: for rows, which are not written;"
                    " add a section save"
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
        return self._made(
            RowsSettings, ("save",), path=build.out, out=out, workers=build.workers,
            overwrite=build.overwrite, **windows | options,
        ), adds

    def _training(self) -> TrainFileSettings | None:
        """Return the settings of the tokenizer that is trained, None if all datasets have one."""
        untrained = self.untrained.values()
        if not untrained:
            return None
        vocabulary, stage = _of(VocabularySettings, self._shared), self._stage | self._of_run
        around = stage.get("end_of_text"), stage.get("begin_of_text")
        special = [x for each in untrained for x in (each.end_of_text, each.begin_of_text)]
        special += vocabulary.pop("special_tokens", ())
        return self._made(
            TrainFileSettings, ("tokenizer" if vocabulary else "tokenize",),
            **_of(TrainFileSettings, stage) | vocabulary,
            special_tokens=[x for x in dict.fromkeys(special) if x and x not in around],
            paths=[path for each in untrained for path in each.train], out=self.tokenizer_file,
        )

    def _made(self, kind: type[AnySettings], key: Key, **options: Any) -> AnySettings:
        """Make settings; a message begins with the place of the options."""
        try:
            return kind(**options)
        except SettingsError as error:
            raise SettingsError(f"{self.where(key)}{error}") from None


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


def read_corpus(settings: BuildSettings) -> Corpus:
    """Read the configuration in the settings of a build, whose other options win over it.

    Raises:
        SettingsError: The file is missing, is not YAML, or has wrong options; or an option belongs
            in the configuration.
    """
    config, known, of_tasks = settings.config, options_of(RunSettings), options_of(TaskSettings)
    of_run = {x: y for x, y in settings.given.items() if x not in ("config", "progress")}
    values, where = _load(config)
    wrong = [
        f"{name}: divides one dataset, not the datasets of a configuration; leave it out"
        if name in of_tasks
        else f"{name}: belongs in the configuration, which is given, too"
        for name in of_run
        if name not in known or known[name].changes_result
    ]
    if wrong:
        raise SettingsError("; ".join(wrong))
    if of_run.get("executor", "ray") != "ray":
        of_run = {"ray_address": None, "ray_resources": ()} | of_run
    return Corpus(values, where, of_run)


def _load(config: Any) -> tuple[Mapping[str, Any], Where]:
    """Return the options of a configuration or its file, and what spells their places."""
    if isinstance(config, PipelineConfig):
        return config.given, _in_python
    if not isinstance(config, str | os.PathLike):
        raise SettingsError(f"config: should be a path or a PipelineConfig; got {config!r:.100}")
    path = Path(config)
    if path.suffix not in (".yaml", ".yml"):
        raise SettingsError(
            f"{path}: expected a .yaml file that describes a corpus; text is given with --train"
        )
    values, lines = _read_yaml(path)
    if not isinstance(values, dict):
        raise SettingsError(f"{path}: expected sections, such as datasets; found {values!r}")

    def where(key: Key) -> str:
        known = next(key[:n] for n in range(len(key), -1, -1) if key[:n] in lines)
        name = f"{key[-1]}: " if key and isinstance(key[-1], str) else ""
        return f"{path}:{lines[known]}: {name}"

    return values, where


def _read_yaml(path: Path) -> tuple[Any, dict[Key, int]]:
    """Return the content of a file, and the line of every key and element.

    Raises:
        SettingsError: It cannot be read, is not YAML, or repeats a key.
    """
    import yaml

    lines: dict[Key, int] = {}
    try:
        loader = yaml.SafeLoader(path.read_text("utf-8"))
        node = loader.get_single_node()
        found = [] if node is None else [*_lines(node, ())]
        values = None if node is None else loader.construct_document(node)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        mark, what = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        place = f"{path}:{mark.line + 1}" if mark else path
        what = what or getattr(error, "strerror", None) or " ".join(str(error).split())
        raise SettingsError(f"{place}: cannot be read as YAML ({what}); correct it") from error
    for key, line in found:
        if key in lines:
            raise SettingsError(
                f"{path}:{line}: {key[-1]}: is in line {lines[key]} already; leave one out"
            )
        lines[key] = line
    return values, lines


def _lines(node: "yaml.Node", key: Key) -> Iterator[tuple[Key, int]]:
    """Yield the line of every key and element; twice that of a key that is repeated."""
    import yaml

    if not key:
        yield key, node.start_mark.line + 1
    inner: list[tuple[str | int, yaml.Node, yaml.Node]] = []
    if isinstance(node, yaml.SequenceNode):
        inner = [(number, value, value) for number, value in enumerate(node.value)]
    elif isinstance(node, yaml.MappingNode):
        inner = [(str(name.value), name, value) for name, value in node.value]
    for part, place, value in inner if len(key) < _DEPTH else ():
        yield (*key, part), place.start_mark.line + 1
        yield from _lines(value, (*key, part))

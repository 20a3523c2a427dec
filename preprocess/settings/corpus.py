"""Configuration of a corpus of several datasets: the schema of corpus.yaml.

Annotations are not postponed in this module, see `preprocess.settings.schema`.
"""

import glob
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from bpe.arguments import checks_names, nearest
from bpe.files.locations import join_location
from preprocess.settings.cluster import Resources, TaskSettings
from preprocess.settings.options import (
    REQUIRED,
    Count,
    GivenTokenizer,
    Index,
    Kind,
    Locations,
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
)
from preprocess.settings.rows import FileSettings, RowsSettings, WindowSettings
from preprocess.settings.schema import (
    BuildSettings,
    RunSettings,
    SelectSettings,
    ShardSettings,
    TextSettings,
    TrainFileSettings,
    VocabularySettings,
)

# Names of options of a dataset -> those of `build`.
_NAMES_OF_BUILD = {"data_files": "train", "val_files": "val", "save_path": "out"}
_OF_RANK_FILES = ("pattern", "special_tokens")  # what .tiktoken files lack
# Arguments of transformers' loading functions that never change ids.
_WITHOUT_EFFECT = ("use_fast", "trust_remote_code", "verbose", "clean_up_tokenization_spaces")
_TOKENS = "tokens"  # directory of a dataset, inside that of its rows
CORPUS_FORMAT = "tokenmill-corpus"  # of config.json
# Returns the place of a key, such as ("datasets", 0, "name"), in a file: "corpus.yaml:3: ".
Where = Callable[[tuple[str | int, ...]], str]


class _Section:
    """Base of a section, with `given`: the options that were given, as settings store them.

    Options that depend on one another are checked by `PipelineConfig`, which has all sections.

    Raises:
        SettingsError: Options are missing, unknown or invalid.
    """

    def __new__(cls, **given: Any) -> Any:
        read, wrong = read_values(given, cls)
        if wrong:
            told = "; ".join(f"{name}: {_advise(name, what, cls)}" for name, what in wrong)
            raise SettingsError(f"{cls.__name__}: {told}")
        section = super().__new__(cls)
        object.__setattr__(section, "_given", read)
        return section

    def __post_init__(self) -> None: ...

    @property
    def given(self) -> dict[str, Any]:
        """The options that were given, by name; a copy."""
        return dict(self.__dict__["_given"])

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **self.given), ()

    def __repr__(self) -> str:
        given = (f"{name}={value!r}" for name, value in self.given.items())
        return f"{type(self).__name__}({', '.join(given)})"


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


@dataclass(frozen=True, kw_only=True, repr=False)
class DatasetConfig(_Section, TextSettings, SelectSettings, ShardSettings, WindowSettings):
    """One dataset of a corpus: files, fields, filters, tokenizer, outputs."""

    name: Prefix | None = option(
        None, "Name of the dataset, for messages and the default save_path.",
        default_text="the end of save_path, else of data_files",
    )
    data_files: Locations = option(REQUIRED, "As train of `build`.")
    val_files: Locations = option((), "As val of `build`.")
    val_fraction: Annotated[float, Meta(ge=0, lt=1)] | None = option(
        None, "As of `build`.", default_text="0: no validation"
    )
    tokenizer: Annotated[
        Any, Kind(_read_tokenizer, "a path, a name, a tokenizer or its options", Any)
    ] | None = option(
        None, "Tokenizer of this dataset, or a `TokenizerConfig`.",
        default_text="that of the corpus",
    )
    tokenizer_kwargs: Annotated[
        tuple[str, ...], Kind(_read_arguments, "names with values", Mapping[str, Any])
    ] | None = option(
        None, "Arguments of transformers' functions that cannot change ids, such as use_fast."
    )
    save_path: Output | None = option(
        None, "Directory or URL of the rows, with the dataset in `tokens`; without rows of the"
        " dataset.",
        default_text="NAME in output_path",
    )
    end_of_text: Token | None = option(None, "As of `build`.")
    begin_of_text: Token | None = option(None, "As of `build`.")


@dataclass(frozen=True, kw_only=True, repr=False)
class TokenizerConfig(_Section, VocabularySettings, WindowSettings):
    """A tokenizer: a given one, or how it is trained; and the rows of datasets that have it."""

    name_or_path: GivenTokenizer | None = option(
        None, "Tokenizer to use.", default_text="one that is trained on these datasets"
    )
    return_attention_mask: bool | None = option(
        None, "Whether rows have attention_mask, unless `save` has columns.",
        default_text="unless they have segment_ids",
    )
    trust_remote_code: bool = option(False, "Without effect: no code of a repository is run.")


@dataclass(frozen=True, kw_only=True, repr=False)
class TokenizeStageConfig(_Section, RunSettings, ShardSettings, WindowSettings):
    """Options of all runs, and options of datasets that do not say otherwise."""

    batch_size: Count | None = run_option(
        None, "Documents in a unit of work; without effect, for units have unit_size bytes."
    )


@dataclass(frozen=True, kw_only=True, repr=False)
class PackStageConfig(_Section, Settings):
    """Rows across documents, padded to seq_length, instead of rows of documents."""

    enabled: bool = option(True, "False: as without the section.")
    seq_length: Count = option(REQUIRED, "As of `rows`.")
    strategy: Literal["greedy", "pool", "first_fit", "best_fit"] | None = option(
        "greedy", "As of `rows`; none: cuts of the token stream."
    )
    eos_token_id: Index | None = option(
        None, "Id of the special token after each document.", default_text="end_of_text"
    )
    pad_token_id: Index | None = option(None, "Id of padding.", default_text="pad_token")
    include_segment_ids: bool = option(True, "Write segment_ids and position_ids as well.")


@dataclass(frozen=True, kw_only=True, repr=False)
class SaveStageConfig(_Section, FileSettings):
    """Files of rows, besides the datasets."""

    enabled: bool = option(True, "False: as without the section.")
    output_dir: Output | None = option(
        None, "Directory or URL of the rows of a dataset without save_path; of several NAME in it.",
        default_text="output_path",
    )


@dataclass(frozen=True, kw_only=True, repr=False)
class RayConfig(_Section, Settings):
    """Workers on Ray, for all runs."""

    enabled: bool = option(True, "False: as without the section.")
    num_workers: Workers | None = option(
        None, "Number of workers.", default_text="one per available processor of this machine"
    )
    resources_per_worker: Resources = option(
        (), "Name of a resource of Ray -> amount that each worker needs.", default_text="CPU: 1"
    )
    address: str | None = option(
        None, "Address of a cluster, such as auto or ray://HOST:10001.",
        default_text="Ray is started on this machine",
    )

    @property
    def of_runs(self) -> dict[str, Any]:
        """The options of the runs."""
        if not self.enabled:
            return {}
        found = {"ray_address": self.address, "ray_resources": self.resources_per_worker}
        workers = {} if self.num_workers is None else {"workers": self.num_workers}
        return {"executor": "ray"} | found | workers


def _advise(name: str, what: str, kind: type) -> str:
    """Add to what is wrong with an option of a section where it belongs, if that is elsewhere."""
    for section, of_section in _SECTIONS.items():
        if name in options_of(of_section) and name not in options_of(kind):
            return f"there is no such setting here; it belongs in the section {section}"
    return what


_SECTIONS: dict[str, type[_Section]] = {
    "tokenizer": TokenizerConfig, "tokenize": TokenizeStageConfig, "pack": PackStageConfig,
    "save": SaveStageConfig, "ray": RayConfig,
}


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
        max_minutes: Time limit of all runs together; None: none.
        builds: Name of a dataset -> settings of its build; without tokenizer if it has none.
        given: Name of a dataset -> the options of its build that are given.
        places: Name of a dataset -> the place of its files, for messages.
        training: Settings of the tokenizer to be trained; None if none is needed.
        rows: Name of a dataset -> settings of its rows; {}: none are written.
        special: Name of a dataset with packed rows -> (id after each document; None: the usual one;
            True for the special tokens that the tokenizer puts around a text).
        has_mask: Name of a dataset -> whether rows have attention_mask; None: if they need it.
        uses_output_path: False if each dataset has a place and a tokenizer of its own.
        sections: Names of the arguments that are given.
        notes: What has no effect, for the log.

    Raises:
        SettingsError: Options are missing, unknown, invalid (the message lists all of these) or
            contradictory; datasets have the same name or outputs.
    """

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
        self._read(given, lambda path: ": ".join([*map(str, path[:2]), ""]))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], where: Where) -> "PipelineConfig":
        """Return the configuration in a mapping; `where` formats places in messages."""
        config = object.__new__(cls)
        config._read(values, where)
        return config

    def __repr__(self) -> str:
        given = (f"{x}={y!r}" for x, y in self._values.items() if x in self.sections)
        return f"PipelineConfig({', '.join(given)})"

    def _read(self, values: Mapping[str, Any], where: Where) -> None:
        known = ("datasets", "output_path", *_SECTIONS)
        self.sections = {name for name, each in values.items() if each is not None}
        self._values, self._where, self.notes = values, where, dict[str, None]()
        wrong = [
            f"{where((name,))}{name}: there is no such section{nearest(str(name), known)}"
            for name in values
            if name not in known
        ]

        def section(path: tuple[str | int, ...], found: Any, kind: type) -> dict[str, Any]:
            """Return the valid options of a section; list what is wrong."""
            if isinstance(found, kind):
                return dict(found.given)  # type: ignore[attr-defined]
            if not isinstance(found, Mapping | None):
                wrong.append(f"{where(path)}expected options with values, found {found!r}")
                return {}
            read, of_section = read_values({str(x): y for x, y in (found or {}).items()}, kind)
            for name, what in of_section:
                wrong.append(f"{where((*path, name))}{name}: {_advise(name, what, kind)}")
            return read

        def tokenizer(path: tuple[str | int, ...], found: Any) -> dict[str, Any]:
            """Return the options of a tokenizer, which may be given alone."""
            is_alone = found is not None and not isinstance(found, TokenizerConfig | Mapping)
            if is_alone:
                read, of_alone = read_values({"name_or_path": found}, TokenizerConfig)
                wrong.extend(f"{where(path[:-1])}tokenizer: {what}" for _, what in of_alone)
                return read
            read = section(path, found, TokenizerConfig)
            if len(path) > 1 and "name_or_path" not in read and _of(VocabularySettings, read):
                wrong.append(
                    f"{where(path)}tokenizer: a tokenizer is trained on all datasets; train it in"
                    " the section tokenizer, or give name_or_path"
                )
            if read.pop("trust_remote_code", False):
                self.notes["trust_remote_code has no effect: no code of a repository is run"] = None
            return read

        shared = tokenizer(("tokenizer",), values.get("tokenizer"))
        stage = section(("tokenize",), values.get("tokenize"), TokenizeStageConfig)
        if stage.pop("batch_size", None):
            self.notes["batch_size has no effect: units of work have unit_size bytes"] = None
        on_ray = section(("ray",), values.get("ray"), RayConfig)
        if "ray" in self.sections:
            stage |= RayConfig(**on_ray).of_runs
        pack, save = (
            section((name,), values[name], _SECTIONS[name]) if name in self.sections else {}
            for name in ("pack", "save")
        )
        out, of_out = read_values({"output_dir": values.get("output_path")}, SaveStageConfig)
        wrong += [f"{where(('output_path',))}output_path: {what}" for _, what in of_out]
        given = values.get("datasets") or ()
        if not isinstance(given, Sequence) or isinstance(given, str) or not given:
            wrong.append(
                f"{where(('datasets',))}datasets: expected a list of at least one; got"
                f" {given!r:.100}{'; put it into a list' * isinstance(given, _Section | Mapping)}"
            )
            given = ()
        parts = [section(("datasets", i), each, DatasetConfig) for i, each in enumerate(given)]
        own = [
            tokenizer(("datasets", i, "tokenizer"), part.pop("tokenizer", None))
            for i, part in enumerate(parts)
        ]
        if wrong:
            raise SettingsError("; ".join(wrong))
        self.max_minutes: float | None = stage.get("max_minutes")
        self._pack = pack if "pack" in self.sections and pack.pop("enabled", True) else None
        self._save = save if "save" in self.sections and save.pop("enabled", True) else None
        of_rows, places = save.get("output_dir"), [part.get("save_path") for part in parts]
        named = (out.get("output_dir"), of_rows, *(places if len(parts) == 1 else ()))
        own_path = next((path for path in named if path is not None), None)
        self.output_path = str("tokenized" if own_path is None else own_path)
        self._add_datasets(shared, stage, parts, own)
        self.uses_output_path = bool(own_path or None in places or self.training)

    def _add_datasets(
        self, shared: dict[str, Any], stage: dict[str, Any], parts: list[dict[str, Any]],
        own: list[dict[str, Any]],
    ) -> None:
        """Set `builds` and what belongs to them, from the options of sections and datasets.

        Args:
            shared: Options of the tokenizer of datasets without one of their own.
            stage: Options of all datasets.
            parts: Options of each dataset.
            own: Options of the tokenizer of each dataset.
        """
        where = self._where
        self.builds: dict[str, BuildSettings] = {}
        self.given: dict[str, dict[str, Any]] = {}
        self.places: dict[str, str] = {}
        self.rows: dict[str, RowsSettings] = {}
        self.special: dict[str, tuple[int | None, bool]] = {}
        self.has_mask: dict[str, bool | None] = {}
        names = {part["name"] for part in parts if part.get("name")}
        for number, (part, of_part) in enumerate(zip(parts, own, strict=True)):
            if "name_or_path" not in of_part:
                of_part = shared | of_part
            for argument in part.pop("tokenizer_kwargs", None) or ():
                self.notes[f"tokenizer_kwargs: {argument} has no effect"] = None
            given_one, ranks = of_part.get("name_or_path"), dict[str, Any]()
            if is_ranks_file(given_one):
                ranks = {x: shared[x] for x in _OF_RANK_FILES if x in shared}
            # Options of training, too, to say that nothing is trained.
            options = {} if given_one is None else ranks | _of(VocabularySettings, of_part)
            options |= stage | _of(WindowSettings, of_part) | part | {"tokenizer": given_one}
            name = options.pop("name", None) or _new_name(part, names)
            windows = {x: options.pop(x) for x in options_of(WindowSettings) if x in options}
            self._add(name, options, windows, len(parts), where(("datasets", number)))
            self.places[name] = where(("datasets", number, "data_files"))
            self.has_mask[name] = of_part.get("return_attention_mask")
        vocabulary = _of(VocabularySettings, shared)
        section_of_training = "tokenizer" if vocabulary else "tokenize"
        try:
            self.training = self._training(vocabulary, stage)
        except SettingsError as error:
            raise SettingsError(f"{where((section_of_training,))}{error}") from None

    def with_stages(self, stages: Sequence[str]) -> "PipelineConfig":
        """Return the configuration with only some of the stages "pack" and "save" enabled."""
        values = {**self._values}
        for name in ("pack", "save"):
            if values.get(name) is not None:
                given = getattr(values[name], "given", values[name])
                # Without rows, the dataset is where it would be beside them.
                values[name] = {**given, "enabled": name == "save" or name in stages}
        config = PipelineConfig.from_mapping(values, self._where)
        if "save" not in stages:
            config.rows = {}
        return config

    @property
    def tokenizer_file(self) -> str:
        """The tokenizer that is trained."""
        return join_location(self.output_path, "tokenizer.json")

    @property
    def untrained(self) -> dict[str, BuildSettings]:
        """The datasets without a tokenizer of their own, by name."""
        return {name: each for name, each in self.builds.items() if each.tokenizer is None}

    def columns_of_rows(self, name: str, has_loss_mask: bool) -> tuple[str, ...]:
        """Return the arrays of the rows of a dataset: as given, else those that it needs."""
        if self.rows[name].columns or self.rows[name].format == "pickle":
            return self.rows[name].columns
        segments = bool(self._pack and self._pack.get("include_segment_ids", True))
        mask = self.has_mask[name]
        has = {
            "input_ids": True, "attention_mask": not segments if mask is None else mask,
            "labels": bool(self._pack) or has_loss_mask, "segment_ids": segments,
            "position_ids": segments,
        }
        return tuple(filter(has.__getitem__, has))

    def override(self, options: Mapping[str, Any]) -> None:
        """Set options of all runs; raise SettingsError for any other one."""
        known, of_tasks = options_of(RunSettings), options_of(TaskSettings)
        read, wrong = read_values(options, BuildSettings)
        wrong += [
            (name, "divides one dataset, not the datasets of a configuration; leave it out")
            if name in of_tasks
            else (name, "belongs in the configuration, which is given, too")
            for name in read
            if name not in known or known[name].changes_result
        ]
        if wrong:
            raise SettingsError("; ".join(f"{name}: {what}" for name, what in wrong))
        if read.get("executor", "ray") != "ray":
            read = {"ray_address": None, "ray_resources": ()} | read
        self.max_minutes = read.get("max_minutes", self.max_minutes)
        self.given = {name: each | read for name, each in self.given.items()}
        self.builds = {name: replace(each, **read) for name, each in self.builds.items()}
        if self.training is not None:
            self.training = replace(self.training, **read)
        of_rows = {name: read[name] for name in ("workers", "overwrite") if name in read}
        self.rows = {name: replace(each, **of_rows) for name, each in self.rows.items()}

    def as_json(self) -> dict[str, Any]:
        """Return the effective configuration for config.json."""
        training = None if self.training is None else self.training.as_json()
        datasets = {}
        for name, each in self.builds.items():
            built = each.as_json(options_of(VocabularySettings))
            datasets[name] = built | {"tokenizer": built["tokenizer"] or self.tokenizer_file}
        return {
            "format": CORPUS_FORMAT,
            "output_path": self.output_path,
            "tokenizer": training,
            "datasets": datasets,
            "rows": {name: each.as_json() for name, each in self.rows.items()},
        }

    def _add(
        self, name: str, options: dict[str, Any], windows: dict[str, Any], n_datasets: int,
        place: str,
    ) -> None:
        """Add the build of a dataset, and its rows; `windows` are options of `WindowSettings`."""
        if name in self.builds:
            raise SettingsError(f"{place}name: {name!r} is an earlier dataset; rename one of them")
        of_rows = (self._save or {}).get("output_dir")
        usual = of_rows or self.output_path
        if not of_rows or n_datasets > 1:
            usual = join_location(usual, name)
        out = options.pop("save_path", None) or usual
        built = {_NAMES_OF_BUILD.get(x, x): value for x, value in options.items()}
        built["out"] = out if self._save is None else join_location(out, _TOKENS)
        if not built.get("val"):
            built.setdefault("val_fraction", 0.0)
        try:
            settings = BuildSettings(**built)
        except SettingsError as error:
            raise SettingsError(f"{place}{error}") from None
        for other, before in self.builds.items():
            if Path(before.out).absolute() == Path(settings.out).absolute():
                raise SettingsError(
                    f"{place}save_path: {out!r} is that of the dataset {other!r}, too; give each"
                    " its own"
                )
        self.builds[name], self.given[name] = settings, built
        if self._save is None:
            if told := sorted([*windows, *["pack"] * (self._pack is not None)]):
                raise SettingsError(
                    f"{self._where(('save',))}{', '.join(told)}: for rows, which are not written;"
                    " add a section save"
                )
            return
        options = {x: y for x, y in self._save.items() if x != "output_dir"}
        if self._pack is not None:
            options |= {"strategy": "greedy"} | self._pack | {"padding": "max-length"}
            options.pop("include_segment_ids", None)
            if (pad_id := options.pop("pad_token_id", None)) is not None:
                options["pad_token"] = pad_id
            self.special[name] = (
                options.pop("eos_token_id", None), windows.pop("add_special_tokens", False)
            )
            if windows.get("max_length") and not windows.keys() & {"truncation", "stride"}:
                length = windows.pop("max_length")
                if length != options["seq_length"]:
                    self.notes[f"max_length {length:,} has no effect on packed rows"] = None
        try:
            self.rows[name] = RowsSettings(
                path=settings.out, out=out, workers=settings.workers, overwrite=settings.overwrite,
                **windows | options,
            )
        except SettingsError as error:
            raise SettingsError(f"{self._where(('save',))}{error}") from None

    def _training(
        self, vocabulary: dict[str, Any], stage: dict[str, Any]
    ) -> TrainFileSettings | None:
        """Return the settings of the tokenizer that is trained, None if all datasets have one."""
        untrained = self.untrained.values()
        if not untrained:
            return None
        special = [
            token for each in untrained for token in (each.end_of_text, each.begin_of_text) if token
        ]
        special += vocabulary.pop("special_tokens", ())
        options = _of(TrainFileSettings, stage)
        around = options.get("end_of_text"), options.get("begin_of_text")
        return TrainFileSettings(
            **options | vocabulary,
            special_tokens=tuple(x for x in dict.fromkeys(special) if x not in around),
            paths=tuple(path for each in untrained for path in each.train),
            out=self.tokenizer_file,
        )


def _of(kind: type, options: Mapping[str, Any]) -> dict[str, Any]:
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

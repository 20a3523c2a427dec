"""Configuration of a corpus of several datasets: the schema of corpus.yaml.

What a dataset says wins over the stage `tokenize`, the stage over the default. Annotations are not
postponed in this module, see `preprocess.settings.schema`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from bpe.files.locations import local_path
from preprocess.settings.cluster import Resources, TaskSettings
from preprocess.settings.options import (
    REQUIRED,
    Count,
    Location,
    Locations,
    Prefix,
    Settings,
    SettingsError,
    Token,
    nearest,
    option,
    options_of,
    read_values,
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
CORPUS_FORMAT = "tokenmill-corpus"  # of config.json
# Returns the place of a key, such as ("datasets", 0, "name"), in a file: "corpus.yaml:3: ".
Where = Callable[[tuple[str | int, ...]], str]


class _Section:
    """Base of a section, with `given`: the options that were given."""

    def __new__(cls, **given: Any) -> Any:
        section = super().__new__(cls)
        object.__setattr__(section, "given", given)
        return section


@dataclass(frozen=True, kw_only=True, repr=False)
class DatasetConfig(_Section, TextSettings, SelectSettings, ShardSettings, WindowSettings):
    """One dataset of a corpus: files, fields, filters, tokenizer, outputs."""

    name: Prefix = option(REQUIRED, "Name of the dataset, for messages and the default save_path.")
    data_files: Locations = option(REQUIRED, "As train of `build`.")
    val_files: Locations = option((), "As val of `build`.")
    val_fraction: Annotated[float, Meta(ge=0, lt=1)] | None = option(None, "As of `build`.")
    tokenizer: Location | None = option(
        None, "Tokenizer of this dataset.", default_text="that of the corpus"
    )
    save_path: Location | None = option(
        None, "Directory of the outputs.", default_text="NAME in output_path"
    )
    end_of_text: Token | None = option(None, "As of `build`.")
    begin_of_text: Token | None = option(None, "As of `build`.")


@dataclass(frozen=True, kw_only=True, repr=False)
class TokenizerConfig(_Section, VocabularySettings):
    """The tokenizer of the datasets without one of their own: a given one, or how it is trained."""

    name_or_path: Location | None = option(
        None, "Tokenizer to use.", default_text="one that is trained on these datasets"
    )
    trust_remote_code: bool = option(
        False, "Refused if true: a tokenizer is data, and no code of a repository runs."
    )


@dataclass(frozen=True, kw_only=True, repr=False)
class TokenizeStageConfig(_Section, RunSettings, ShardSettings, WindowSettings):
    """Options of all runs, and options of datasets that do not say otherwise."""


@dataclass(frozen=True, kw_only=True, repr=False)
class PackStageConfig(_Section, Settings):
    """Rows across documents, instead of rows of documents."""

    enabled: bool = option(True, "False: as without the section.")
    seq_length: Count = option(REQUIRED, "As of `rows`.")
    strategy: Literal["greedy", "pool", "first_fit", "best_fit"] | None = option(
        "greedy", "As of `rows`; none: cuts of the token stream."
    )
    include_segment_ids: bool = option(True, "Write segment_ids and position_ids as well.")


@dataclass(frozen=True, kw_only=True, repr=False)
class SaveStageConfig(_Section, FileSettings):
    """Files of rows, besides the datasets."""

    enabled: bool = option(True, "False: as without the section.")
    output_dir: Location | None = option(
        None, "Directory of the rows; of several datasets each has NAME in it.",
        default_text="rows in the save_path of each dataset",
    )


@dataclass(frozen=True, kw_only=True, repr=False)
class RayConfig(_Section, Settings):
    """Workers on Ray, for all runs."""

    enabled: bool = option(True, "False: as without the section.")
    num_workers: Count | None = option(
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
    own_names = {value: key for key, value in _NAMES_OF_BUILD.items()}
    if name in options_of(kind):
        return what
    if kind is DatasetConfig and name in own_names:
        return f"there is no such setting; did you mean {own_names[name]}?"
    sections = {
        "tokenizer": TokenizerConfig, "tokenize": TokenizeStageConfig, "pack": PackStageConfig,
        "save": SaveStageConfig, "ray": RayConfig,
    }
    for section, of_section in sections.items():
        if name in options_of(of_section):
            return f"there is no such setting here; it belongs in the section {section}"
    return what


class PipelineConfig:
    """A corpus of several datasets.

    Args:
        datasets: Datasets, or mappings of their options.
        tokenizer: A `TokenizerConfig`, a mapping of its options, or the path or name of a
            tokenizer. None: one is trained with the defaults.
        tokenize: Options of all datasets.
        pack: A `PackStageConfig`, or a mapping of its options; None: rows are of documents.
        save: A `SaveStageConfig`, or a mapping of its options; None: no rows are written.
        ray: A `RayConfig`, or a mapping of its options; None: workers are threads.
        output_path: Directory of the trained tokenizer, config.json and, by default, the datasets.

    Attributes:
        max_minutes: Time limit of all runs together; None: none.
        builds: Name of a dataset -> settings of its build; without tokenizer if it has none.
        given: Name of a dataset -> the options of its build that are given.
        places: Name of a dataset -> the place of its files, for messages.
        training: Settings of the tokenizer to be trained; None if none is needed.
        rows: Name of a dataset -> settings of its rows; {}: none are written.
        sections: Names of the arguments that are given.

    Raises:
        SettingsError: Options are missing, unknown, invalid (the message lists all of these) or
            contradictory; datasets have the same name or outputs.
    """

    def __init__(
        self, *, datasets: Sequence[DatasetConfig | Mapping[str, Any]],
        tokenizer: TokenizerConfig | Mapping[str, Any] | str | Path | None = None,
        tokenize: TokenizeStageConfig | Mapping[str, Any] | None = None,
        pack: PackStageConfig | Mapping[str, Any] | None = None,
        save: SaveStageConfig | Mapping[str, Any] | None = None,
        ray: RayConfig | Mapping[str, Any] | None = None,
        output_path: str | Path = "data",
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

    def _read(self, values: Mapping[str, Any], where: Where) -> None:
        known = ("datasets", "tokenizer", "tokenize", "pack", "save", "ray", "output_path")
        self.sections = {name for name, each in values.items() if each is not None}
        self._values, self._where = values, where
        wrong = [
            f"{where((name,))}{name}: there is no such section{nearest(str(name), known)}"
            for name in values
            if name not in known
        ]

        def section(path: tuple[str | int, ...], found: Any, kind: type) -> dict[str, Any]:
            """Return the valid options of a section; list what is wrong."""
            given = {} if found is None else getattr(found, "given", found)
            if not isinstance(given, Mapping):
                wrong.append(f"{where(path)}expected options with values, found {found!r}")
                return {}
            read, of_section = read_values({str(x): y for x, y in given.items()}, kind)
            for name, what in of_section:
                wrong.append(f"{where((*path, name))}{name}: {_advise(name, what, kind)}")
            return read

        tokenizer = values.get("tokenizer")
        if isinstance(tokenizer, str | Path):
            tokenizer = {"name_or_path": tokenizer}
        vocabulary = section(("tokenizer",), tokenizer, TokenizerConfig)
        if vocabulary.pop("trust_remote_code", False):
            wrong.append(
                f"{where(('tokenizer', 'trust_remote_code'))}trust_remote_code: is refused, for no"
                " code of a repository runs here; leave it out, and give its tokenizer.json"
            )
        stage = section(("tokenize",), values.get("tokenize"), TokenizeStageConfig)
        on_ray = section(("ray",), values.get("ray"), RayConfig)
        if "ray" in self.sections:
            stage |= RayConfig(**on_ray).of_runs
        of_rows = {
            name: section((name,), values[name], kind) if name in self.sections else None
            for name, kind in (("pack", PackStageConfig), ("save", SaveStageConfig))
        }
        given = values.get("datasets") or ()
        if not isinstance(given, Sequence) or isinstance(given, str) or not given:
            wrong.append(f"{where(('datasets',))}datasets: expected a list of at least one")
            given = ()
        parts = [section(("datasets", i), each, DatasetConfig) for i, each in enumerate(given)]
        if wrong:
            raise SettingsError("; ".join(wrong))
        given_path = values.get("output_path")
        self.output_path = local_path("data" if given_path is None else str(given_path))
        self.max_minutes: float | None = stage.get("max_minutes")
        given_tokenizer = vocabulary.pop("name_or_path", None)
        self.builds: dict[str, BuildSettings] = {}
        self.given: dict[str, dict[str, Any]] = {}
        self.places: dict[str, str] = {}
        self.rows: dict[str, RowsSettings] = {}
        for number, part in enumerate(parts):
            part = {"tokenizer": given_tokenizer} | stage | part
            tokenizer_of = part["tokenizer"]
            if tokenizer_of is not None and tokenizer_of == given_tokenizer:
                part = vocabulary | part  # to say that nothing is trained
            elif (tokenizer_of or "").endswith(".tiktoken"):
                ranks = {x: y for x, y in vocabulary.items() if x in _OF_RANK_FILES}
                part = ranks | part
            windows = {x: part.pop(x) for x in options_of(WindowSettings) if x in part}
            self._add(part, where(("datasets", number)))
            self._add_rows(windows, **of_rows, n_datasets=len(parts), where=where)
            self.places[[*self.builds][-1]] = where(("datasets", number, "data_files"))
        section_of_training = "tokenizer" if vocabulary else "tokenize"
        try:
            self.training = self._training(vocabulary, stage)
        except SettingsError as error:
            raise SettingsError(f"{where((section_of_training,))}{error}") from None

    def with_stages(self, stages: Sequence[str]) -> "PipelineConfig":
        """Return the configuration with only some of the stages "pack" and "save" enabled."""
        values = {**self._values}
        for name in ("pack", "save"):
            given = values.get(name)
            if given is not None:
                given = {**getattr(given, "given", given)}
                values[name] = given | {"enabled": name == "save" or name in stages}
        config = PipelineConfig.from_mapping(values, self._where)
        if "save" not in stages:
            config.rows = {}
        return config

    @property
    def tokenizer_file(self) -> Path:
        """The tokenizer that is trained."""
        return Path(self.output_path, "tokenizer.json")

    @property
    def untrained(self) -> dict[str, BuildSettings]:
        """The datasets without a tokenizer of their own, by name."""
        return {name: each for name, each in self.builds.items() if each.tokenizer is None}

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
            tokenizer = each.tokenizer or str(self.tokenizer_file)
            vocabulary = options_of(VocabularySettings)
            datasets[name] = each.as_json(vocabulary) | {"tokenizer": tokenizer}
        return {
            "format": CORPUS_FORMAT,
            "output_path": self.output_path,
            "tokenizer": training,
            "datasets": datasets,
            "rows": {name: each.as_json() for name, each in self.rows.items()},
        }

    def _add(self, part: dict[str, Any], place: str) -> None:
        """Add the build of a dataset."""
        name = part.pop("name")
        options = {_NAMES_OF_BUILD.get(x, x): value for x, value in part.items()}
        options.setdefault("out", str(Path(self.output_path, name)))
        try:
            settings = BuildSettings(**options)
        except SettingsError as error:
            raise SettingsError(f"{place}{error}") from None
        if name in self.builds:
            raise SettingsError(f"{place}name: {name!r} is an earlier dataset; rename one of them")
        for other, before in self.builds.items():
            if Path(before.out).absolute() == Path(settings.out).absolute():
                raise SettingsError(
                    f"{place}save_path: {settings.out!r} is that of the dataset {other!r}, too;"
                    " give each its own"
                )
        self.builds[name], self.given[name] = settings, options

    def _add_rows(
        self, windows: dict[str, Any], *, pack: dict[str, Any] | None,
        save: dict[str, Any] | None, n_datasets: int, where: Where,
    ) -> None:
        """Add the rows of the last dataset; `windows` are its options of `WindowSettings`."""
        name, built = next(reversed(self.builds.items()))
        pack = pack if pack is not None and pack.get("enabled", True) else None
        if save is None or not save.get("enabled", True):
            given = sorted([*windows, *(["pack"] if pack else [])])
            if given:
                raise SettingsError(
                    f"{where(('save',))}{', '.join(given)}: for rows, which are not written; add a"
                    " section save"
                )
            return
        options = {x: y for x, y in save.items() if x not in ("enabled", "output_dir")}
        if pack is not None:
            if windows.get("max_length") == pack["seq_length"] and not windows.get("stride"):
                del windows["max_length"]  # rows have no more tokens anyway
            packed = {"strategy": "greedy"} | pack
            packed.pop("enabled", True)
            if not packed.pop("include_segment_ids", True):
                options.setdefault("columns", ("input_ids", "attention_mask", "labels"))
            options |= packed
        place = save.get("output_dir")
        if place is None:
            place = str(Path(built.out, "rows"))
        elif n_datasets > 1:
            place = str(Path(place, name))
        try:
            self.rows[name] = RowsSettings(
                path=built.out, out=place, workers=built.workers, overwrite=built.overwrite,
                **windows | options,
            )
        except SettingsError as error:
            raise SettingsError(f"{where(('save',))}{error}") from None

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
        options = {x: y for x, y in stage.items() if x in options_of(TrainFileSettings)}
        around = options.get("end_of_text"), options.get("begin_of_text")
        return TrainFileSettings(
            **options | vocabulary,
            special_tokens=tuple(x for x in dict.fromkeys(special) if x not in around),
            paths=tuple(path for each in untrained for path in each.train),
            out=str(self.tokenizer_file),
        )

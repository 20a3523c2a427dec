"""Configuration of a corpus of several datasets: the schema of corpus.yaml.

The sections are classes of options. A `Corpus` is what becomes of them: for each dataset the
settings of its build and of its rows. Annotations are not postponed in this module, see
`preprocess.options`.
"""

import glob
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from bpe.arguments import alike
from bpe.errors import TokenmillError, with_arguments
from bpe.files.locations import given_location
from bpe.formats.json_file import decoded
from preprocess.locations import join_location
from preprocess.options import (
    AUTO,
    BuildSettings,
    FileSettings,
    FormatSettings,
    Fraction,
    ProgressSettings,
    ProvenanceSettings,
    Resources,
    RowFormat,
    RowsSettings,
    RunSettings,
    SelectSettings,
    ShardSettings,
    Strategy,
    TaskSettings,
    TextSettings,
    TrainFileSettings,
    VocabularySettings,
    WindowSettings,
)
from preprocess.settings import (
    Count,
    Index,
    Is,
    IsOutput,
    Kind,
    Option,
    OptionalOutput,
    Paths,
    Prefix,
    Settings,
    SettingsError,
    Token,
    Tokenizer,
    TokenizerSource,
    Workers,
    advice,
    is_ranks_file,
    option,
    options_of,
    read_values,
    run_option,
)

if TYPE_CHECKING:
    import yaml

# Names of options of sections -> those of `build` and `rows`.
_NAMES = {
    "data_files": "train", "val_files": "val", "save_path": "out", "name_or_path": "tokenizer",
    "pad_token_id": "pad_token", "address": "ray_address", "num_workers": "workers",
    "resources_per_worker": "ray_resources",
}
_OF_RANK_FILES = ("pattern", "special_tokens")  # what .tiktoken files lack
# Arguments of transformers' loading functions that never change ids.
_WITHOUT_EFFECT = (
    "use_fast", "trust_remote_code", "verbose", "clean_up_tokenization_spaces", "cache_dir",
    "force_download", "local_files_only", "proxies", "resume_download", "token", "use_auth_token",
)
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
    """Base of a section; those with the same options are equal."""

    def __init__(self, /, *unnamed: Any, **given: Any) -> None:
        if unnamed:
            name, first = type(self).__name__, next(iter(options_of(type(self))))
            raise SettingsError(
                f"{name}: takes 0 arguments without names; name them, as {name}({first}=...)"
            )
        try:
            super().__init__(**given)
        except SettingsError as error:
            raise SettingsError(f"{type(self).__name__}: {error.args[0]}") from None

    def check(self) -> None:
        """Leave it to `Corpus`, which checks all sections together."""

    @classmethod
    def advice(cls, unknown: str) -> str:
        """Return also the section where an option belongs, if that is elsewhere."""
        own = options_of(cls)
        sections = {f"the section {x}": options_of(kind) for x, kind in _SECTIONS.items()}
        names = {*chain(*sections.values())}
        first = unknown if unknown in names else next(iter(alike(unknown, {*own, *names})), None)
        known = own if first is None or first in own else ()
        return advice(unknown, known, sections) or super().advice(unknown)

    def __eq__(self, other: object) -> bool:
        names = options_of(type(self))
        return type(self) is type(other) and all(
            getattr(self, name) == getattr(other, name) for name in names
        )

    def __hash__(self) -> int:
        return hash(type(self))  # values may be lists


def _read_tokenizer(value: Any) -> Any:
    """Read a tokenizer of a dataset; options of a `TokenizerConfig` are read with all sections."""
    if isinstance(value, TokenizerConfig | Mapping):
        return value
    return options_of(TokenizerConfig)["name_or_path"].read(value)


def _read_arguments(value: Any) -> tuple[str, ...]:
    """Return the names of arguments of transformers' functions, which should be without effect."""
    if not isinstance(value, Mapping):
        raise TypeError
    for name in (x for x, y in value.items() if x not in _WITHOUT_EFFECT and y is not None):
        own = options_of(WindowSettings)
        if same := [name] if name in own else alike(name, own):
            raise ValueError(f"{name} is {same[0]} of the dataset itself; move it there")
        raise ValueError(
            f"should have what cannot change ids ({', '.join(_WITHOUT_EFFECT)}), and {name} could;"
            " give it to transformers, and its tokenizer here"
        )
    return tuple(value)


class _DatasetSettings(Settings):
    """Options for the files of a dataset."""

    data_files: Paths = option("As train of `build`.")
    val_files: Paths = option("As val of `build`.", default=())
    val_fraction: Is[Fraction | None] = option("As of `build`; none: no validation.", default=None)


class DatasetConfig(
    _Section, _DatasetSettings, TextSettings, SelectSettings, ShardSettings, ProvenanceSettings,
    WindowSettings,
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


class TokenizeStageConfig(
    _Section, RunSettings, ShardSettings, ProvenanceSettings, WindowSettings
):
    """Options of all runs, and options of datasets that do not say otherwise."""

    batch_size: Is[Count | None] = run_option("Without effect: see unit_size.", default=None)


class PackStageConfig(_Section):
    """Rows across documents, padded to seq_length, instead of rows of documents."""

    enabled: Is[bool] = option("False: as without the section.", default=True)
    seq_length: Is[Count] = option("As of `rows`.")
    strategy: Is[Strategy | None] = option("As of `rows`; none: not packed.", default="greedy")
    cut: Is[Literal["length", "turns"]] = option("As of `rows`.", default="length")
    eos_token_id: Is[Index | None] = option("Instead of end_of_text.", default=None)
    pad_token_id: Is[Index | None] = option("Instead of pad_token.", default=None)
    include_segment_ids: Is[bool] = option("And position_ids.", default=True)


class SaveStageConfig(_Section, FormatSettings, FileSettings):
    """Files of rows, besides the datasets."""

    enabled: Is[bool] = option("False: as without the section.", default=True)
    output_dir: OptionalOutput = option(
        "Place of the rows of a dataset without save_path; of several NAME in it.", default=None
    )


class RayConfig(_Section):
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


class PipelineConfig(_Section):
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
        self.__dict__["plans"] = Corpus(self.given, spell_in_python).plans


class TextToRowsSettings(
    _DatasetSettings, RunSettings, ShardSettings, ProvenanceSettings, WindowSettings, FileSettings,
    ProgressSettings,
):
    """Options of `tokenize_and_save`: rows of text."""

    tokenizer: Is[Any] = option("As of `PipelineConfig`.")
    output_path: IsOutput = option("Directory or URL of the rows.")
    output_format: Is[RowFormat] = option("Format of the rows.", default="parquet")
    keep_tokens: Is[bool] = option("False: remove the dataset, but its tokenizer.", default=True)
    batch_size: Is[Count | None] = run_option("As of `TokenizeStageConfig`.", default=None)

    def check(self) -> None:
        """Leave it to `Corpus`."""


# --- what becomes of them ---


def spell_in_python(key: Key) -> str:
    """Spell the place of a key of arguments.

    >>> spell_in_python(("datasets", 0, "name"))
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

    def columns(self, rows: RowsSettings, has_loss_mask: bool) -> tuple[str, ...]:
        """Return the names of the arrays of the rows: those given, or the default ones."""
        if rows.columns or rows.format == "pickle":
            return rows.columns
        segments = self.pack is not None and self.pack.get("include_segment_ids", True)
        has_mask = not segments if self.has_mask is None else self.has_mask
        has_labels = self.pack is not None or has_loss_mask
        return (
            "input_ids", *["attention_mask"] * has_mask, *["labels"] * has_labels,
            *["segment_ids", "position_ids"] * segments,
        )


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
        top = self._section((), config, PipelineConfig) or {}
        shared, stage, self._pack, self._save, ray = (
            self._section((name,), top.get(name), kind) for name, kind in _SECTIONS.items()
        )
        self._shared, self._stage = shared or {}, stage or {}
        if ray is not None:
            self._stage |= {"executor": "ray"} | ray
        parts = [*map(self._part, count(), top.get("datasets", ()))]
        if self._wrong:
            raise SettingsError("; ".join(self._wrong))
        self.max_minutes = (self._stage | self._of_run).get("max_minutes")
        places = [part.get("out") for part in parts]
        only = places[0] if len(parts) == 1 else None
        own_path = top.get("output_path") or (self._save or {}).get("output_dir") or only
        self.output_path = own_path or "tokenized"
        taken = {part["name"] for part in parts if part.get("name")}
        for number, part in enumerate(parts):
            self._add(("datasets", number), part, taken, len(parts) > 1)
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

    def _section(self, key: Key, given: Any, kind: type[_Section]) -> dict[str, Any] | None:
        """Return the valid options of a section, by their names in `build`; None: it is not used.

        A tokenizer may be given without options.
        """
        is_alone = kind is TokenizerConfig and not isinstance(given, kind | Mapping)
        if given is None:
            return None
        if isinstance(given, kind):
            read = given.given
        elif is_alone or isinstance(given, Mapping):
            values = {"name_or_path": given} if is_alone else {str(x): given[x] for x in given}
            read, wrong = read_values(values, kind)
            places = [key if is_alone else (*key, name) for name, _ in wrong]
            self._wrong += [f"{self.where(x)}{y}" for x, (_, y) in zip(places, wrong, strict=True)]
        else:
            self._wrong.append(f"{self.where(key)}expected options with values, found {given!r}")
            return None
        for name, why in _NOTES.items():
            if read.pop(name, None):
                self.notes[f"{name} has no effect: {why}"] = None
        is_used = read.pop("enabled", True)
        return {_NAMES.get(x, x): y for x, y in read.items()} if is_used else None

    def _part(self, number: int, given: Any) -> dict[str, Any]:
        """Return the options of a dataset, those of its tokenizer in one."""
        key: Key = ("datasets", number, "tokenizer")
        part = self._section(key[:2], given, DatasetConfig) or {}
        own = self._section(key, part.get("tokenizer"), TokenizerConfig) or {}
        if "tokenizer" not in own and those_of(VocabularySettings, own):
            self._wrong.append(
                f"{self.where(key)}a tokenizer is trained on all datasets; train it in the section"
                " tokenizer, or give name_or_path"
            )
        for argument in part.pop("tokenizer_kwargs", ()):
            self.notes[f"tokenizer_kwargs: {argument} has no effect"] = None
        return part | {"tokenizer": own}

    def _add(self, key: Key, part: dict[str, Any], taken: set[str], has_others: bool) -> None:
        """Add the plan of a dataset, whose name should not be one of other datasets."""
        own = part.pop("tokenizer")
        own = own if "tokenizer" in own else self._shared | own
        given = own.get("tokenizer")
        # Options of training, too, to say that nothing is trained.
        options = {} if given is None else those_of(VocabularySettings, own)
        if is_ranks_file(given):
            options = {x: y for x, y in self._shared.items() if x in _OF_RANK_FILES} | options
        options |= self._stage | those_of(WindowSettings, own) | part | {"tokenizer": given}
        options |= self._of_run
        name = options.pop("name", None) or _new_name(part, taken)
        if name in self.plans:
            raise SettingsError(
                f"{self.where((*key, 'name'))}{name!r} is an earlier dataset; rename one of them"
            )
        windows = {x: options.pop(x) for x in options_of(WindowSettings) if x in options}
        usual = (self._save or {}).get("output_dir")
        if has_others or usual is None:
            usual = join_location(usual or self.output_path, name)
        out = options.pop("out", None) or usual
        build = self._build(key, out, options)
        rows, adds = self._rows(build, out, windows)
        has_mask = own.get("return_attention_mask")
        self.plans[name] = DatasetPlan(build, rows, self._pack, adds, has_mask, key)

    def _build(self, key: Key, out: str, options: dict[str, Any]) -> BuildSettings:
        """Return the settings of the build of a dataset whose outputs are in `out`."""
        if not options.get("val"):
            options = {"val_fraction": 0.0} | options
        directory = out if self._save is None else join_location(out, _TOKENS)
        with self.at(key):
            settings = BuildSettings(**options, out=directory)
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
        if self._save is None:
            known = options_of(WindowSettings)
            told = [x for x in windows if windows[x] != known[x].default]
            if told := sorted([*told, *["pack"] * (self._pack is not None)]):
                raise SettingsError(
                    f"{self.where(('save',))}{', '.join(told)}: for rows, which are not written;"
                    " add a section save"
                )
            return None, False
        options, adds = those_of(RowsSettings, self._save), False
        if self._pack is not None:
            options |= {"strategy": "greedy"} | those_of(RowsSettings, self._pack)
            options["padding"] = "max-length"
            adds = windows.pop("add_special_tokens", False)
            has_others = windows.get("truncation") or windows.get("stride")
            if windows.get("max_length") and not has_others:
                length = windows.pop("max_length")
                if length != options["seq_length"]:
                    self.notes[f"max_length {length:,} has no effect on packed rows"] = None
        options |= {"workers": build.workers, "overwrite": build.overwrite}
        with self.at(("save",) if self._pack is None else ("pack",)):
            return RowsSettings(path=build.out, out=out, **windows | options), adds

    def _training(self) -> TrainFileSettings | None:
        """Return the settings of the tokenizer that is trained, None if all datasets have one."""
        untrained = self.untrained.values()
        if not untrained:
            return None
        vocabulary, stage = those_of(VocabularySettings, self._shared), self._stage | self._of_run
        if vocabulary.get("vocab_size") == AUTO:
            raise SettingsError(
                f"{self.where(('tokenizer',))}vocab_size auto is chosen in a build of one dataset,"
                " without a configuration; compare sizes (tokenmill vocab-curve), and give one"
            )
        around = stage.get("end_of_text"), stage.get("begin_of_text")
        special = [x for each in untrained for x in (each.end_of_text, each.begin_of_text)]
        special += vocabulary.pop("special_tokens", ())
        with self.at(("tokenizer" if vocabulary else "tokenize",)):
            return TrainFileSettings(
                **those_of(TrainFileSettings, stage) | vocabulary,
                special_tokens=[x for x in dict.fromkeys(special) if x and x not in around],
                paths=[path for each in untrained for path in each.train], out=self.tokenizer_file,
            )

    @contextmanager
    def at(self, key: Key) -> Iterator[None]:
        """Let messages of errors begin with the place of options."""
        try:
            yield
        except TokenmillError as error:
            raise type(error)(f"{self.where(key)}{with_arguments(str(error))}") from error


def those_of(kind: type[Settings], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those options that a class of settings has."""
    return {name: value for name, value in options.items() if name in options_of(kind)}


def _new_name(part: Mapping[str, Any], taken: set[str]) -> str:
    """Name a dataset after its save_path, else its files, and add the name to those `taken`."""
    path = part.get("out") or part["train"][0]
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
    known, task = options_of(RunSettings), "is for one dataset, not for several; leave it out"
    of_run = {x: y for x, y in settings.given.items() if x not in ("config", "progress")}
    values, where = _load(settings.config)
    wrong = [x for x in of_run if x not in known or known[x].changes_result]
    why = dict.fromkeys(wrong, "belongs in the configuration, which is given, too")
    why |= {x: task for x in wrong if x in options_of(TaskSettings)}
    if wrong:
        shown = {x: each.shown_name for x, each in options_of(BuildSettings).items()}
        raise SettingsError("; ".join(f"{shown[x]}: {what}" for x, what in why.items()))
    if of_run.get("executor", "ray") != "ray":
        of_run = {"ray_address": None, "ray_resources": ()} | of_run
    return Corpus(values, where, of_run)


def _load(config: Any) -> tuple[Mapping[str, Any], Where]:
    """Return the options of a configuration or its file, and what spells their places."""
    if isinstance(config, PipelineConfig):
        return config.given, spell_in_python
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

    path = Path(given_location(path))
    if path.is_char_device():  # reading it might never end
        raise SettingsError(f"{path}: is a device, expected a YAML file; give the path of a file")
    try:
        loader = yaml.SafeLoader(decoded(path.read_bytes()))
        node = loader.get_single_node()
        found = [*_lines(node, ())]
        values = None if node is None else loader.construct_document(node)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        mark, what = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        place = f"{path}:{mark.line + 1}" if mark else path
        what = what or getattr(error, "strerror", None) or " ".join(str(error).split())
        raise SettingsError(f"{place}: cannot be read as YAML ({what}); correct it") from error
    lines: dict[Key, int] = {(): 1}
    for key, line in found:
        if key in lines:
            raise SettingsError(
                f"{path}:{line}: {key[-1]}: is in line {lines[key]} already; leave one out"
            )
        lines[key] = line
    return values, lines


def _lines(node: "yaml.Node | None", key: Key) -> Iterator[tuple[Key, int]]:
    """Yield the line of every key and element; twice that of a key that is repeated."""
    import yaml

    inner: list[tuple[str | int, yaml.Node, yaml.Node]] = []
    if isinstance(node, yaml.SequenceNode):
        inner = [(number, value, value) for number, value in enumerate(node.value)]
    elif isinstance(node, yaml.MappingNode):
        inner = [(str(name.value), name, value) for name, value in node.value]
    for part, place, value in inner if len(key) < _DEPTH else ():
        yield (*key, part), place.start_mark.line + 1
        yield from _lines(value, (*key, part))

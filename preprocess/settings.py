"""What an option is, and settings: options with values.

An option is one field of a subclass of `Settings`:

    class TextSettings(Settings):
        unit_size: Option[Size, int | str] = option("Bytes of a unit.", default=4 << 20)

A field has the type of the stored value and that of the given one, `Is[T]` if they are the same.
Everything else follows: the arguments of functions (`takes`), for type checkers and editors, too;
the command line, the keys of corpus.yaml, docs/options.md, and the record of a run.

The modules that declare options do not postpone annotations, which are read here.
"""

from __future__ import annotations

import inspect
import json
import operator
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from datetime import date
from functools import reduce, wraps
from itertools import chain
from numbers import Real
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Generic,
    NamedTuple,
    ParamSpec,
    Self,
    TypeGuard,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
)

import msgspec
from msgspec import Meta

from bpe.arguments import alike, is_file_name, nearest, noun
from bpe.errors import ArgumentError, spelled
from bpe.files.locations import EMPTY, LOCAL, given_location, is_url, shown_url
from preprocess.iterables import Documents, documents_of
from preprocess.locations import BUCKETS, is_bucket

StrPath = str | os.PathLike[str]
# A path or a name, or an object: what `bpe.load_tokenizer` takes.
TokenizerSource = StrPath | Any
REQUIRED: Any = inspect.Parameter.empty  # default of options that have none
# Options have values that cannot work, or contradict one another: one class with what `bpe` raises.
SettingsError = ArgumentError

_SIZE = re.compile(r"(\d{1,18}) *([KMG]i?)?B?", re.IGNORECASE)
_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
_A_SIZE = "a number of bytes such as 65536, 64KiB or 4MiB"
_TOO_LARGE = "should be a number that is not as large"
_TRAINING = "trains a model; examples/train_gpt.py has it"
_UNITS = "--unit-size is the bytes of a unit of work, and --max-shard-size those of a file of rows"
# Names in mappings whose values may be, or have, passwords.
_SECRETS = ("token", "use_auth_token", "proxies")
# Names in other programs -> those here; or what stands for them here, if it begins with "ignored: "
# or "refused: ".
OTHER_NAMES = {
    "train_file": "train", "data_file": "train", "input": "train", "val_file": "val",
    "output": "out", "output_dir": "out", "tokenization_folder": "out",
    "tokenizer_path": "tokenizer", "chars_to_tokenize": "max_characters",
    "starting_character": "start_character", "batch_size": f"ignored: {_UNITS}",
    "chunk_size": f"ignored: {_UNITS}",
    "save_frequency": "ignored: progress is saved about once a second",
    "learning_rate": f"refused: {_TRAINING}", "max_iters": f"refused: {_TRAINING}",
    "use_params": f"refused: {_TRAINING}, as '--config FILE'",
}


# --- types of values ---


class Kind(NamedTuple):
    """How values of one type are read; in the metadata of the type.

    `read` converts a given value to the stored type. For other values it returns them unchanged,
    raises TypeError, or raises ValueError with a message of what is expected.
    """

    read: Callable[[Any], Any]
    expected: str = ""  # description of expected values; "": that of the type
    metavar: str = ""  # placeholder in usage
    is_location: bool = False  # its content, not its name, is part of the inputs of a run


def _integer(value: Any) -> Any:
    """Convert an integer of any library, except bool, to int."""
    if isinstance(value, bool):
        return value
    if (found := operator.index(value)) > 2**62:
        raise ValueError(_TOO_LARGE)
    return found


def _number(value: Any) -> Any:
    """Convert a real number of any library, except bool, to float."""
    try:
        return float(value) if isinstance(value, Real) and not isinstance(value, bool) else value
    except OverflowError:
        raise ValueError(_TOO_LARGE) from None


def size_in_bytes(value: Any) -> int:
    """Convert "64KiB", "4 MiB", "1GB" or an integer to a number of bytes.

    >>> [size_in_bytes(size) for size in ("64KiB", "4 MiB", "1GB", "200", 200)]
    [65536, 4194304, 1000000000, 200, 200]

    Raises:
        ValueError: The value is not a size, or below 1.
    """
    if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        value = int(match[1]) * _FACTORS[(match[2] or "").lower()]
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ValueError(f"should be {_A_SIZE}")
    n_bytes: int = _integer(value)
    if n_bytes < 1:
        raise ValueError("should be at least 1")
    return n_bytes


def _text(value: Any) -> str:
    """Convert text of any library to str."""
    if not isinstance(value, str):
        raise TypeError
    value.encode()
    return str(value)


def _token(value: Any) -> str:
    if not (text := _text(value)):
        raise ValueError("should not be empty")
    return text


def _elements(value: Any) -> Iterable[Any]:
    # The order of a set changes from process to process.
    no_list = isinstance(value, str | bytes | Mapping | set | frozenset)
    if no_list or not isinstance(value, Iterable):
        raise TypeError
    return value


def _tokens(value: Any) -> tuple[str, ...]:
    tokens = tuple(map(_token, _elements(value)))
    if twice := [token for token, n in Counter(tokens).items() if n > 1]:
        raise ValueError(f"should name each token once, and {twice[0]!r} is there more than once")
    return tokens


def _fields(value: Any) -> tuple[str, ...]:
    return _tokens((value,) if isinstance(value, str) else value)


def _pattern(value: Any) -> str:
    """Convert the name or the published text of a split pattern to its name."""
    from bpe.split.patterns import pattern_name

    return pattern_name(_text(value))


def _nameable(name: str) -> str:
    if not is_file_name(name):
        raise ValueError("should be a name that files can have")
    return name


def read_location(value: Any) -> str:
    """Convert a path or URL to text, unchanged."""
    location = os.fspath(value)
    if not isinstance(location, str):
        raise TypeError
    if not location:
        raise ValueError(EMPTY)
    return given_location(_nameable(str(location)))


def _location(value: Any) -> str:
    """Convert a path to text, unchanged."""
    if is_url(location := read_location(value)):
        raise ValueError(LOCAL)
    return location


def _locations(value: Any) -> tuple[str, ...]:
    given = (value,) if isinstance(value, str | os.PathLike) else _elements(value)
    return tuple(map(read_location, given))


def _texts(value: Any) -> tuple[Any, ...]:
    """Convert paths to text; documents that a program gives to `Documents`."""
    if isinstance(found := documents_of(value), Documents | str | os.PathLike):
        found = [found]
    return tuple(
        each if isinstance(each, Documents) else read_location(each)
        for each in map(documents_of, _elements(found))
    )


def _output(value: Any) -> str:
    """Convert a path, or the URL of a place in a bucket, to text, unchanged."""
    location = read_location(value)
    if is_url(location) and not is_bucket(location):
        schemes = ", ".join(f"{scheme}://" for scheme in BUCKETS)
        raise ValueError(f"should be a path, or a URL of a bucket that begins with {schemes}")
    return location


def _bin_file(value: Any) -> str:
    location = _output(value)
    stem, suffix = os.path.splitext(os.path.basename(location))
    if suffix != ".bin" or stem.startswith("."):
        raise ValueError("should be the name of a .bin file")
    if stem in ("tokenizer", "tokenizer_config", "stats") or stem.endswith("_stats"):
        manifest = f"its manifest would be {stem}.json, which is the name of another output"
        raise ValueError(f"should have another name, for {manifest}")
    return location


def read_tokenizer(value: Any) -> Any:
    """Convert a path or a name to text, unchanged, or load what is at a URL, or an object."""
    given = getattr(value, "given", value)  # of a `TokenizerConfig`
    if isinstance(given, Mapping) and given.keys() - {"trust_remote_code"} == {"name_or_path"}:
        value = given["name_or_path"]
    if isinstance(value, str | os.PathLike):
        location = read_location(value)
        if not is_url(location):
            return location
        from preprocess.storage.tokenizers import load_tokenizer_at

        return load_tokenizer_at(location)
    if isinstance(value, type) or not any(hasattr(value, name) for name in ("encode", "to_str")):
        raise TypeError
    from bpe import load_tokenizer

    return load_tokenizer(value)


def is_ranks_file(tokenizer: TokenizerSource | None) -> bool:
    """Return True for a .tiktoken file, which says neither how text is split nor special tokens."""
    return isinstance(tokenizer, str) and tokenizer.endswith(".tiktoken")


def _prefix(value: Any) -> str:
    """Check a prefix of file names, which need not be valid Unicode."""
    if not isinstance(value, str):
        raise TypeError
    if value != os.path.basename(value) or value.startswith("."):
        raise ValueError("should be the beginning of a file name, without a directory")
    return _nameable(str(value))


def _date(value: Any) -> str:
    """Convert a day to its text, YYYY-MM-DD."""
    text = str(value)  # of a date, too
    with suppress(ValueError):
        if date.fromisoformat(text).isoformat() == text:  # not 20240726 or 2024-W30-5
            return text
    raise TypeError


def _variables(value: Any) -> str:
    """Convert a mapping, or the text of a JSON object, to the text of JSON, its names sorted."""
    given = msgspec.json.decode(value) if isinstance(value, str) else value
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise TypeError
    if taken := {"messages", "tools", "add_generation_prompt"} & given.keys():
        raise ValueError(f"should not have {min(taken)!r}, which is set for each conversation")
    return json.dumps(dict(sorted(given.items())), ensure_ascii=False, allow_nan=False)


def _choice(choices: tuple[str, ...]) -> Kind:
    """Return the kind of choices, which may have the other of - and _, as names of options may."""
    known = {choice.replace("-", "_"): choice for choice in choices}

    def read(given: Any) -> Any:
        return known.get(_text(given).replace("-", "_"), given)

    return Kind(read, "", "|".join(choices))


_PLAIN: dict[Any, Kind] = {
    Any: Kind(lambda value: value), bool: Kind(lambda value: value), str: Kind(_text, "", "TEXT"),
    int: Kind(_integer, "", "N"), float: Kind(_number, "", "X"),
}


# --- options ---

Stored = TypeVar("Stored")
Given = TypeVar("Given")
T = TypeVar("T")


@dataclass(eq=False)
class Option(Generic[Stored, Given]):
    """One option: a field of settings.

    Type checkers take it for a descriptor: settings have a `Stored`, their constructor takes a
    `Given`. Its types, its name on the command line and so on are known once it is a field.
    """

    help: str
    _: KW_ONLY
    default: Any = REQUIRED  # a value, or a function that computes it, which is None in signatures
    default_text: str = ""  # the default in words, if its value is not clear
    changes_result: bool = True  # outputs depend on it
    kw_only: bool = True  # False: given by its place, in Python and on the command line
    flag: str = ""  # name on the command line, if not --NAME
    in_command: bool = True
    needs: tuple[str, ...] = ()  # names of options, perhaps with a value: one of them must be given
    excludes: Mapping[str, str] = field(default_factory=dict)  # other options that clash -> why

    def __post_init__(self) -> None:
        default, self.is_required = self.default, self.default is REQUIRED
        is_computed = callable(default) and not self.is_required
        self.default = None if is_computed else default
        self.compute = default if is_computed else lambda: default

    if TYPE_CHECKING:

        def __get__(self, settings: Any, owner: Any) -> Stored: ...
        def __set__(self, settings: object, value: Given) -> None: ...

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        self.flag = self.flag or (f"--{name.replace('_', '-')}" if self.kw_only else name)
        self._stored, self._given = get_args(owner.__annotations__[name])
        self.takes_none = type(None) in get_args(self._stored)
        inner = get_args(self._stored)[0] if self.takes_none else self._stored
        base, *self._metadata = get_args(inner) if get_origin(inner) is Annotated else (inner,)
        kinds = [each for each in self._metadata if isinstance(each, Kind)]
        self.kind = kinds[0] if kinds else _PLAIN.get(base) or _choice(get_args(base))
        self._base = base
        self.is_list, self.is_switch = get_origin(base) is tuple, base is bool
        self.is_location = self.kind.is_location
        self.metavar = self.kind.metavar if self.kw_only or self.is_list else name.upper()
        # What makes a value of text on the command line, before `read`.
        self.parse: type = {"N": int, "X": float}.get(self.kind.metavar, str)

    @property
    def accepts(self) -> Any:
        """The type of the argument in calls."""
        return _without_metadata(self._given)

    @property
    def expected(self) -> str:
        """Description of the values."""
        return f"{self.kind.expected or noun(self._base)}{_bounds(self._metadata)}"

    @property
    def shown_name(self) -> str:
        """The name in a message: of the argument, or in the command of the option."""
        return spelled(self.flag)

    @property
    def shown_default(self) -> str:
        """The default in the documentation; "" for required options and switches."""
        if self.default_text or self.is_required or self.is_switch:
            return self.default_text
        return "none" if self.default in (None, (), "") else str(self.default)

    def read(self, value: Any) -> Any:
        """Convert a given value to the stored one; raise ValueError with the valid values."""
        if value is None and (self.default is None or self.takes_none):
            return None
        try:
            stored = msgspec.convert(self.kind.read(value), self._stored)
        except UnicodeError:
            raise ValueError("should be valid Unicode") from None
        except (TypeError, RecursionError, msgspec.MsgspecError):
            raise ValueError(f"should be {self.expected}") from None
        if self.is_required and stored == ():
            raise ValueError("should not be empty")
        return stored


# Types of options, and of their values.
Is = Option[T, T]
Index = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
Seed = Annotated[int, Kind(lambda x: x if isinstance(x, bool) else operator.index(x), "", "N"),
                 Meta(ge=0)]  # of any size  # fmt: skip
Workers = Annotated[int, Meta(ge=1, le=2**16)]
Size = Annotated[int, Kind(size_in_bytes, _A_SIZE, "SIZE")]
OptionalSize = Option[Size | None, int | str | None]
Token = Annotated[str, Kind(_token, "", "TEXT")]
Tokens = Annotated[tuple[str, ...], Kind(_tokens, "a list of texts", "TEXT")]
Fields = Annotated[tuple[str, ...], Kind(_fields, "a name or a list of names", "NAME")]
Names = Option[Fields, str | Iterable[str]]
Pattern = Annotated[str, Kind(_pattern, "", "PATTERN")]
Prefix = Annotated[str, Kind(_prefix, "", "NAME")]
Location = Annotated[str, Kind(_location, "a path", "PATH", is_location=True)]
IsPath = Option[Location, StrPath]
OptionalPath = Option[Location | None, StrPath | None]
Readable = Annotated[str, Kind(read_location, "a path or URL", "PATH", is_location=True)]
IsReadable = Option[Readable, StrPath]
Locations = Annotated[
    tuple[str, ...], Kind(_locations, "a path or URL, or a list of them", "PATH", is_location=True)
]
Paths = Option[Locations, StrPath | Iterable[StrPath]]
Texts = Annotated[tuple[Any, ...], Kind(_texts, (
    "a path or URL, a list of them, or documents: a function or an iterable that yields text"
), "PATH", is_location=True)]  # fmt: skip
# Paths, or documents.
GivenTexts = Option[Texts, StrPath | Iterable[Any] | Callable[[], Iterable[Any]]]
Output = Annotated[str, Kind(_output, "a path", "PATH", is_location=True)]
IsOutput = Option[Output, StrPath]
OptionalOutput = Option[Output | None, StrPath | None]
BinFile = Annotated[str, Kind(_bin_file, "a path", "FILE.bin", is_location=True)]
IsBinFile = Option[BinFile, StrPath]
GivenTokenizer = Annotated[
    Any, Kind(read_tokenizer, "a path, a name or a tokenizer", "PATH", is_location=True)
]
Tokenizer = Option[GivenTokenizer | None, TokenizerSource | None]
Date = Annotated[str, Kind(_date, "a date, YYYY-MM-DD", "YYYY-MM-DD")]
TemplateVariables = Annotated[str, Kind(_variables, "a JSON object", "JSON")]
Config = Annotated[Any, Kind(lambda x: x, "a path or a PipelineConfig", "CONFIG")]


def option(help: str, **about: Any) -> Any:
    """Declare a field as an option; `about` are arguments of `Option`."""
    return Option(help, **about)


def run_option(help: str, **about: Any) -> Any:
    """Declare an `option` that never changes a result."""
    return Option(help, changes_result=False, **about)


def _without_metadata(type_: Any) -> Any:
    if get_origin(type_) is Annotated:
        return get_args(type_)[0]
    if get_origin(type_) is Union:
        return reduce(operator.or_, map(_without_metadata, get_args(type_)))
    return type_


_WORDS = [("ge", "at least"), ("gt", "greater than"), ("le", "at most"), ("lt", "less than")]


def _bounds(metadata: Iterable[Any]) -> str:
    """Format the constraints of a type, to follow its name: " of at least 1"."""
    given = [(words, getattr(x, name, None)) for x in metadata for name, words in _WORDS]
    texts = [f"{words} {limit:,}" for words, limit in given if limit is not None]
    return f"{' of' * texts[0].startswith('at')} {' and '.join(texts)}" if texts else ""


# --- settings ---


def advice(
    unknown: str, known: Collection[str], elsewhere: Mapping[str, Collection[str]],
    shown: Callable[[str], str] = str,
) -> str:
    """Format what stands for an unknown option, to end a message; "" if nothing is known.

    Args:
        unknown: Its name.
        known: Options that there are.
        elsewhere: Name of another command or function -> its options.
        shown: Spells the name of an option.
    """
    meant = OTHER_NAMES.get(unknown, unknown)
    same = [meant] if meant in known else alike(meant, known)
    others = (unknown, meant, *alike(meant, {*chain(*elsewhere.values())}))
    for name in () if same else others:
        if having := [x for x, each in elsewhere.items() if name in each]:
            it = "it" if name == unknown else shown(name)
            return f"; {it} is an option of {', '.join(having)}"
    kind, _, why = meant.partition(": ")
    if why:
        return f"; it {why}" if kind == "refused" else f"; leave it out: {why}"
    if near := same[0] if same else nearest(unknown, known):
        return f"; did you mean {shown(near)}?"
    for where, names in elsewhere.items():
        if near := nearest(unknown, names):
            return f"; did you mean {shown(near)}, an option of {where}?"
    return ""


class _Signature:
    """The signature of a function that takes the options of a class as its arguments."""

    def __get__(self, settings: object, owner: type[Settings]) -> inspect.Signature:
        kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
        return inspect.Signature([
            inspect.Parameter(x.name, kinds[x.kw_only], default=x.default, annotation=x.accepts)
            for x in sorted(owner._options.values(), key=lambda each: each.kw_only)
        ])  # fmt: skip


@dataclass_transform(kw_only_default=True, field_specifiers=(option, run_option))
class Settings:
    """Base of the settings of one command: options with values; None is a computed default.

    Raises:
        SettingsError: Options are missing, unknown, invalid (the message lists all of these) or
            contradictory.
    """

    _declared: ClassVar[list[str]] = []  # the own ones
    _options: ClassVar[dict[str, Option[Any, Any]]] = {}
    _of_functions: ClassVar[dict[str, dict[str, Option[Any, Any]]]] = {}  # those of users
    __signature__ = _Signature()

    def __init_subclass__(cls, function: str = "") -> None:
        """Note the options, also as those of a function for users, if it is named."""
        cls._declared = [name for name, x in vars(cls).items() if isinstance(x, Option)]
        declared = (vars(each).get("_declared", []) for each in cls.__mro__)
        cls._options = {name: getattr(cls, name) for own in declared for name in own}
        if function:
            Settings._of_functions[function] = cls._options

    def __init__(self, /, **given: Any) -> None:
        read, wrong = read_values(given, type(self))
        if wrong:
            shown = {name: each.shown_name for name, each in self._options.items()}
            raise SettingsError("; ".join(f"{shown.get(x, x)}: {what}" for x, what in wrong))
        options = options_of(type(self)).items()
        defaults = {x: y.compute() for x, y in options if x not in read}
        self.__dict__.update(defaults, **read, _given=read)
        self.check()

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"settings do not change; use {type(self).__name__}.replace")

    def __repr__(self) -> str:
        given = (f"{name}={value!r}" for name, value in self.given.items())
        return f"{type(self).__name__}({', '.join(given)})"

    def check(self) -> None:
        """Check options that depend on one another; raise SettingsError on contradictions."""
        for option in filter(self._has, self._options.values()):
            shown = option.flag
            for other in filter(self._has, map(self._options.get, option.excludes)):
                raise SettingsError(
                    f"{shown} and {other.flag} were both given: {option.excludes[other.name]};"
                    " leave one of the two out"
                )
            self._check_needs(option, option.needs)

    def _check_needs(self, option: Option[Any, Any], names: Collection[str]) -> None:
        """Raise SettingsError unless an option that an option needs was given, see `Option`."""
        pairs = [needed.partition(" ")[::2] for needed in names]
        known = [(self._options[x], value) for x, value in pairs if x in self._options]
        if known and not any(
            self._has(needed) and value in ("", str(getattr(self, needed.name)))
            for needed, value in known
        ):
            needs, shown = " or ".join(f"{x.flag} {y}".rstrip() for x, y in known), option.flag
            raise SettingsError(
                f"{shown} has no effect without {needs}; give it, or leave out {shown}"
            )

    def _has(self, option: Option[Any, Any] | None) -> TypeGuard[Option[Any, Any]]:
        """Return True if there is such an option, and its value is not the default."""
        return option is not None and getattr(self, option.name) != option.default

    @classmethod
    def advice(cls, unknown: str) -> str:
        """Return what follows that there is no such setting: the nearest that there is."""
        return advice(unknown, cls._options, Settings._of_functions)

    @property
    def given(self) -> dict[str, Any]:
        """The options that were given, by name, as they are stored; a copy."""
        return dict(self.__dict__["_given"])

    def replace(self, **changes: Any) -> Self:
        """Return settings with other values for some options."""
        return type(self)(**self.given | changes)

    def as_json(self, leave_out: Collection[str] = ()) -> dict[str, Any]:
        """Return all options except `leave_out` for JSON; the constructor is the inverse.

        URLs have no query, which may be a secret.
        """
        options = options_of(type(self)).items()
        names = [x for x, each in options if x not in leave_out and each.in_command]
        given = {name: _shown(getattr(self, name)) for name in names}
        return {x: [*value] if isinstance(value, tuple) else value for x, value in given.items()}


def options_of(settings: type[Settings]) -> dict[str, Option[Any, Any]]:
    """Return the options of a class by name: its own first, then those of its bases."""
    return settings._options


def _shown(value: Any) -> Any:
    """Return a given value, or list of them, without secrets: user and query of URLs, passwords."""
    if isinstance(value, Mapping):
        return {name: "..." if name in _SECRETS else x for name, x in value.items()}
    if isinstance(value, list | tuple):
        kinds = (str, os.PathLike, Documents)
        return type(value)(_shown(x) if isinstance(x, kinds) else x for x in value)
    value = str(value) if isinstance(value, Documents) else value
    value = os.fspath(value) if isinstance(value, os.PathLike) else value
    if hasattr(value, "fingerprint") and not isinstance(value, type):
        value = f"sha256:{value.fingerprint}"
    return shown_url(value) if isinstance(value, str) and is_url(value) else value


def read_values(
    values: Mapping[str, Any], settings: type[Settings]
) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Return (values as settings store them, (name, what is wrong) of each wrong value)."""
    options, read = options_of(settings), {}
    needed = (each.name for each in options.values() if each.is_required)
    wrong = [(name, "is required") for name in needed if name not in values]
    for name, value in values.items():
        try:
            if name not in options:
                wrong.append((name, f"there is no such setting{settings.advice(name)}"))
            elif value is not None or options[name].default is not None:
                read[name] = options[name].read(value)
        except ValueError as error:
            wrong.append((name, f"{error}; got {_shown(value)!r:.200}"))
    return read, wrong


# --- functions ---


P = ParamSpec("P")
Result = TypeVar("Result")
AnySettings = TypeVar("AnySettings", bound=Settings)


def takes(
    settings: Callable[P, AnySettings],
) -> Callable[[Callable[[AnySettings], Result]], Callable[P, Result]]:
    """Decorator: let a function of settings take their options as its arguments.

        @takes(BuildSettings)
        def build(settings: BuildSettings) -> BuildResult: ...

        build(train="a.txt", vocab_size=8000)

    Raises:
        SettingsError: As the constructor of the settings.
    """
    kind: Any = settings
    by_place = [name for name, each in options_of(kind).items() if not each.kw_only]

    def decorate(function: Callable[[AnySettings], Result]) -> Callable[P, Result]:
        @wraps(function)
        def call(*arguments: P.args, **given: P.kwargs) -> Result:
            if len(arguments) > len(by_place):
                raise SettingsError(
                    f"{function.__name__}: takes {len(by_place)} arguments without names; name the"
                    " others"
                )
            unnamed = dict(zip(by_place, arguments, strict=False))
            if twice := unnamed.keys() & given.keys():
                raise SettingsError(f"{min(twice)}: was given by its place and by its name")
            return function(kind(**unnamed, **given))

        returned = function.__annotations__["return"]
        vars(call)["__signature__"] = kind.__signature__.replace(return_annotation=returned)
        return call

    return decorate

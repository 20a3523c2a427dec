"""Declare options as fields of dataclasses, and convert given values to settings.

The type of a field is that of the stored value; constraints are `msgspec.Meta`, checked by
`msgspec.convert`. A `Kind` in the type adds accepted values: a path for a string, "64KiB" for a
number, a NumPy integer. The command line and the documentation are derived from `options_of`;
tests compare it with signatures.
"""

from __future__ import annotations

import inspect
import json
import operator
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from datetime import date
from numbers import Real
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin

import msgspec
from msgspec import Meta

from bpe.arguments import nearest
from bpe.errors import ArgumentError
from bpe.files.locations import BUCKETS, EMPTY, LOCAL, given_location, is_bucket, is_url, shown_url

StrPath = str | os.PathLike[str]
# A path or a name, or an object: what `bpe.load_tokenizer` takes.
TokenizerSource = StrPath | Any
REQUIRED = MISSING

_SIZE = re.compile(r"(\d+) *([KMG]i?)?B?", re.IGNORECASE)
_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
_MOST_WORKERS = 2**16
_GREATEST, _TOO_LARGE = 2**62, "should be a number that is not as large"
_A_SIZE = "a number of bytes such as 65536, 64KiB or 4MiB"


# Options have values that cannot work, or contradict one another: one class with what `bpe` raises.
SettingsError = ArgumentError


# --- kinds of values ---


class Kind(NamedTuple):
    """Accepted values of one type.

    `read` converts a given value to the stored type. For other values it returns them unchanged,
    raises TypeError, or raises ValueError with a message of what is expected.
    """

    read: Callable[[Any], Any]
    expected: str  # description of expected values, unless `read` raises ValueError
    accepts: Any  # type of the parameter in signatures
    metavar: str = ""  # placeholder in usage


def _read_number(value: Any) -> Any:
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
    if isinstance(value, bool | str) or not hasattr(value, "__index__"):
        raise ValueError(f"should be {_A_SIZE}")
    n_bytes = operator.index(value)
    if n_bytes < 1:
        raise ValueError("should be at least 1")
    return n_bytes


def _read_text(value: Any) -> Any:
    try:
        if isinstance(value, str):
            value.encode()
            return str(value)  # of NumPy's strings, too, which msgspec would not write
    except UnicodeEncodeError as error:
        raise ValueError("should be valid Unicode") from error
    return value


def _read_token(value: Any) -> Any:
    if value == "":
        raise ValueError("should not be empty")
    return _read_text(value)


def _read_tokens(value: Any) -> Any:
    tokens = tuple(map(_read_token, _elements(value)))
    if twice := [token for token, n in Counter(tokens).items() if n > 1]:
        raise ValueError(f"should name each token once, and {twice[0]!r} is there more than once")
    return tokens


def _read_fields(value: Any) -> Any:
    return _read_tokens((value,) if isinstance(value, str) else value)


def _read_pattern(value: Any) -> Any:
    """Convert the name or the published text of a split pattern to its name."""
    from bpe.split.patterns import pattern_name

    return pattern_name(_read_text(value)) if isinstance(value, str) else value


def _read_input(value: Any) -> str:
    """Convert a path or URL of text to a string, unchanged."""
    location = os.fspath(value)
    if not isinstance(location, str):
        raise TypeError
    if not location:
        raise ValueError(EMPTY)
    return given_location(_nameable(str(location)))


def _nameable(name: str) -> str:
    try:
        if b"\0" in os.fsencode(name):
            raise ValueError
    except ValueError:
        raise ValueError("should be a name that files can have") from None
    return name


def _read_location(value: Any) -> str:
    """Convert a path to a string, unchanged."""
    location = _read_input(value)
    if is_url(location):
        raise ValueError(LOCAL)
    return location


def _read_tokenizer(value: Any) -> Any:
    """Convert a path or a name to a string, unchanged, or load what is at a URL, or an object."""
    given = getattr(value, "given", value)  # of a `TokenizerConfig`
    if isinstance(given, Mapping) and given.keys() - {"trust_remote_code"} == {"name_or_path"}:
        value = given["name_or_path"]
    if isinstance(value, str | os.PathLike):
        location = _read_input(value)
        if not is_url(location):
            return location
        from preprocess.storage.tokenizers import load_tokenizer_at

        return load_tokenizer_at(location)
    if not any(hasattr(value, name) for name in ("encode", "to_str")):
        raise TypeError
    from bpe import load_tokenizer

    return load_tokenizer(value)


def is_ranks_file(tokenizer: TokenizerSource | None) -> bool:
    """Return True for a .tiktoken file, which says neither how text is split nor special tokens."""
    return isinstance(tokenizer, str) and tokenizer.endswith(".tiktoken")


def _read_output(value: Any) -> str:
    """Convert a path, or the URL of a place in a bucket, to a string, unchanged."""
    location = _read_input(value)
    if is_url(location):
        if is_bucket(location):
            return location
        schemes = ", ".join(f"{scheme}://" for scheme in BUCKETS)
        raise ValueError(f"should be a path, or a URL of a bucket that begins with {schemes}")
    return _read_location(value)


def _read_locations(value: Any) -> tuple[str, ...]:
    given = (value,) if isinstance(value, str | os.PathLike) else _elements(value)
    return tuple(map(_read_input, given))


def _read_bin_file(value: Any) -> str:
    location = _read_output(value)
    stem, suffix = os.path.splitext(os.path.basename(location))
    if suffix != ".bin" or stem.startswith("."):
        raise ValueError("should be the name of a .bin file")
    if stem in ("tokenizer", "tokenizer_config", "stats") or stem.endswith("_stats"):
        manifest = f"its manifest would be {stem}.json, which is the name of another output"
        raise ValueError(f"should have another name, for {manifest}")
    return location


def _read_prefix(value: Any) -> Any:
    """Check a prefix of file names, which need not be valid Unicode."""
    if isinstance(value, str) and (value != os.path.basename(value) or value.startswith(".")):
        raise ValueError("should be the beginning of a file name, without a directory")
    return _nameable(str(value)) if isinstance(value, str) else value


def _read_date(value: Any) -> str:
    """Convert a day to its text, YYYY-MM-DD."""
    try:
        return date.fromisoformat(str(value)).isoformat()
    except ValueError:
        raise TypeError from None


def _read_variables(value: Any) -> str:
    """Convert a mapping, or the text of a JSON object, to the text of JSON, its names sorted."""
    given = msgspec.json.decode(value) if isinstance(value, str) else value
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise TypeError
    if taken := {"messages", "tools", "add_generation_prompt"} & given.keys():
        raise ValueError(f"should not have {min(taken)!r}, which is set for each conversation")
    return json.dumps(dict(sorted(given.items())), ensure_ascii=False, allow_nan=False)


def _elements(value: Any) -> Iterable[Any]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise TypeError
    return value


def _read_integer(value: Any) -> Any:
    """Convert an integer of any library, except bool, to int."""
    return value if isinstance(value, bool) else operator.index(value)


def _read_workers(value: Any) -> Any:
    if (found := _read_integer(value)) > _MOST_WORKERS:
        raise ValueError(_TOO_LARGE)
    return found


_PLAIN = {
    bool: Kind(lambda value: value, "true or false", bool),
    int: Kind(_read_integer, "a whole number", int, "N"),
    float: Kind(_read_number, "a number", float, "X"),
    str: Kind(_read_text, "text", str, "TEXT"),
}
_PATHS = Kind(
    _read_locations, "a path or URL, or a list of them", StrPath | Iterable[StrPath], "PATH"
)

Index = Annotated[int, Meta(ge=0)]
Seed = Annotated[int, Meta(ge=0, title="seed")]  # of any size
Count = Annotated[int, Meta(ge=1)]
Workers = Annotated[int, Kind(_read_workers, "a whole number", int, "N"), Meta(ge=1)]
Size = Annotated[int, Kind(size_in_bytes, _A_SIZE, int | str, "SIZE")]
Token = Annotated[str, Kind(_read_token, "text", str, "TEXT")]
Tokens = Annotated[tuple[str, ...], Kind(_read_tokens, "a list of texts", Iterable[str], "TEXT")]
Fields = Annotated[
    tuple[str, ...], Kind(_read_fields, "a name or a list of names", str | Iterable[str], "NAME")
]
Pattern = Annotated[str, Kind(_read_pattern, "text", str, "PATTERN")]
Prefix = Annotated[str, Kind(_read_prefix, "text", str, "NAME")]
Location = Annotated[str, Kind(_read_location, "a path", StrPath, "PATH")]
GivenTokenizer = Annotated[
    Any, Kind(_read_tokenizer, "a path, a name or a tokenizer", TokenizerSource, "PATH")
]
Output = Annotated[str, Kind(_read_output, "a path", StrPath, "PATH")]
BinFile = Annotated[str, Kind(_read_bin_file, "a path", StrPath, "FILE.bin")]
Date = Annotated[str, Kind(_read_date, "a date, YYYY-MM-DD", str, "YYYY-MM-DD")]
TemplateVariables = Annotated[
    str, Kind(_read_variables, "a JSON object", str | Mapping[str, Any], "JSON")
]
Locations = Annotated[tuple[str, ...], _PATHS]
Config = Annotated[Any, Kind(lambda x: x, "a path or a PipelineConfig", Any, "CONFIG")]

_READ_LOCATIONS = (_read_location, _read_tokenizer, _read_output, _read_locations, _read_bin_file)


# --- options ---


@dataclass(kw_only=True, repr=False, eq=False)
class Option:
    """One option of a command."""

    name: str  # name of the field and of the keyword argument
    type: Any  # type of the field, with constraints
    default: Any  # default in signatures; None if computed, `REQUIRED` if there is none
    help: str  # text in help and documentation
    default_text: str = ""  # the default in words, if its value is not clear
    changes_result: bool = True  # True if outputs depend on it
    positional: bool = False  # True if it has no name on the command line
    flags: tuple[str, ...] = ()  # names on the command line, if not just --NAME

    def __post_init__(self) -> None:
        base, *metadata = _parts(self.type)
        kinds = [each for each in metadata if isinstance(each, Kind)]
        self.kind = kinds[0] if kinds else _PLAIN.get(base) or _one_of(base)
        self.is_required, self.is_list = self.default is REQUIRED, get_origin(base) is tuple
        self.is_switch = self.kind.accepts is bool
        # Locations are not part of the inputs of a run; the content there is.
        self.is_location = self.kind.read in _READ_LOCATIONS
        is_one = self.positional and not self.is_list
        self.metavar = self.name.upper() if is_one else self.kind.metavar
        own = self.name if self.positional else f"--{self.name.replace('_', '-')}"
        self.names = self.flags or (own,)  # as of `add_argument`

    @property
    def accepts(self) -> Any:
        """Type of the parameter in signatures."""
        return self.kind.accepts | None if self.default is None else self.kind.accepts

    @property
    def shown_default(self) -> str:
        """The default in the documentation; "" for required options and switches."""
        if self.default_text or self.is_required or self.is_switch:
            return self.default_text
        if self.kind.read is size_in_bytes and self.default:
            return f"{self.default >> 20}MiB"
        return "none" if self.default in (None, (), "") else str(self.default)

    def read(self, value: Any) -> Any:
        """Convert a given value to the stored one; raise ValueError with the valid values."""
        if value is None and self.default is None:
            return None
        try:
            stored = msgspec.convert(self.kind.read(value), self.type)
        except (TypeError, msgspec.MsgspecError):
            raise ValueError(f"should be {self.kind.expected}{_bounds(self.type)}") from None
        is_seed = Seed in (self.type, *get_args(self.type))
        if type(stored) is int and stored > _GREATEST and not is_seed:
            raise ValueError(_TOO_LARGE)
        if self.is_required and stored == ():
            raise ValueError("should not be empty")
        return stored


def option(default: Any, help: str, **about: Any) -> Any:
    """Declare a field of a dataclass as an option; `about` are attributes of `Option`.

    `default` is a value, `REQUIRED`, or a function that computes it (None in signatures).
    """
    kind = "default_factory" if callable(default) else "default"
    return field(**{kind: default}, metadata={"help": help, **about})


def run_option(default: Any, help: str, **about: Any) -> Any:
    """Declare an `option` that never changes a result."""
    return option(default, help, changes_result=False, **about)


def options_of(settings: type) -> dict[str, Option]:
    """Return the options of a class by name: its own first, then those of its bases.

    The module of the class must not postpone annotations: evaluating them takes 3 ms.
    """
    declared = {each.name: each for each in fields(settings)}
    ordered = [name for each in settings.__mro__ for name in inspect.get_annotations(each)]
    found = {}
    for each in map(declared.__getitem__, dict.fromkeys(ordered)):
        default = each.default if each.default_factory is MISSING else None
        found[each.name] = Option(name=each.name, type=each.type, default=default, **each.metadata)
    return found


def _one_of(literal: Any) -> Kind:
    *others, last = map(repr, get_args(literal))
    expected = f"{', '.join(others)} or {last}" if others else last
    metavar = "|".join(get_args(literal))

    def read(value: Any) -> Any:
        """Return the choice, which may have the other of - and _, as names of options may."""
        given = _read_text(value)
        plain = given.replace("-", "_") if isinstance(given, str) else given
        return next((x for x in get_args(literal) if x.replace("-", "_") == plain), given)

    return Kind(read, expected, literal, metavar)


def _parts(type_: Any) -> tuple[Any, ...]:
    """Split an optional, annotated type into the type itself and its annotations."""
    if type(None) in get_args(type_):
        type_, _ = get_args(type_)
    return get_args(type_) if get_origin(type_) is Annotated else (type_,)


_WORDS = [("ge", "at least"), ("gt", "greater than"), ("le", "at most"), ("lt", "less than")]


def _bounds(type_: Any) -> str:
    """Format the constraints of a type, to follow its name: " of at least 1"."""
    given = [(words, getattr(x, name, None)) for x in _parts(type_) for name, words in _WORDS]
    texts = [f"{words} {limit}" for words, limit in given if limit is not None]
    return f"{' of' * texts[0].startswith('at')} {' and '.join(texts)}" if texts else ""


class Settings:
    """Base of the settings of one command: options with values."""

    def __post_init__(self) -> None:
        """Check options that depend on one another; raise SettingsError on contradictions."""

    def as_json(self, leave_out: Collection[str] = ()) -> dict[str, Any]:
        """Return all options except `leave_out` for JSON; `convert` is the inverse.

        URLs have no query, which may be a secret.
        """
        given = {x: getattr(self, x) for x in options_of(type(self)) if x not in leave_out}
        return {
            name: [*shown] if isinstance(shown := _shown(value), tuple) else shown
            for name, value in given.items()
        }


def _shown(value: Any) -> Any:
    """Return a given value; URLs in it without user and query, which may be secrets."""
    if isinstance(value, list | tuple):
        return type(value)(map(_shown_path, value))
    return _shown_path(value)


def _shown_path(value: Any) -> Any:
    value = os.fspath(value) if isinstance(value, os.PathLike) else value
    value = f"sha256:{value.fingerprint}" if hasattr(value, "fingerprint") else value
    return shown_url(value) if isinstance(value, str) and is_url(value) else value


AnySettings = TypeVar("AnySettings")


def convert(values: Mapping[str, Any], settings: type[AnySettings]) -> AnySettings:
    """Convert given values, by name of option, to settings; None stands for a computed default.

    Raises:
        SettingsError: Options are missing, unknown, invalid (the message lists all of these) or
            contradictory.
    """
    read, wrong = read_values(values, settings)
    if wrong:
        raise SettingsError("; ".join(f"{name}: {what}" for name, what in wrong))
    return settings(**read)


def read_values(
    values: Mapping[str, Any], settings: type
) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Return (values as settings store them, (name, what is wrong) of each wrong value)."""
    options, read = options_of(settings), {}
    needed = (each.name for each in options.values() if each.is_required)
    wrong = [(name, "is required") for name in needed if name not in values]
    for name, value in values.items():
        try:
            if name not in options:
                wrong.append((name, f"there is no such setting{nearest(name, options)}"))
            elif value is not None or options[name].default is not None:
                read[name] = options[name].read(value)
        except ValueError as error:
            wrong.append((name, f"{error}; got {_shown(value)!r}"))
    return read, wrong

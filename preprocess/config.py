"""The settings of every command, checked in one place.

Law: a setting that cannot work is refused before anything is read or written, with its name, what
was found and what is expected. The command line and the functions of `preprocess.pipeline` share
these classes, so both have the same names, defaults and refusals.

A setting is a field of a dataclass with a rule: a function from what was given to what is meant,
which raises ValueError with what is expected. Every command reads this before it can begin, so it
is made of what Python itself has loaded anyway.
"""

from __future__ import annotations

import operator
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from numbers import Real
from pathlib import Path
from typing import Any, Literal, TypeVar

from bpe.errors import TokenbinError
from bpe.locations import LOCAL, is_url
from bpe.parallel import available_workers
from bpe.patterns import pattern_name

END_OF_TEXT = "<|endoftext|>"
DEFAULT_VALIDATION_FRACTION = 0.01

_SIZE = re.compile(r"(\d+) *([KMG]i?)?B?", re.IGNORECASE)
_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}

Rule = Callable[[Any], Any]


class SettingsError(TokenbinError, ValueError):
    """A setting has a value that cannot work, or two settings contradict one another."""


# --- rules ---


def optional(rule: Rule) -> Rule:
    """The rule, and None besides."""
    return lambda value: None if value is None else rule(value)


def whole_number(least: int | None = None, most: int | None = None) -> Rule:
    """An integer of any library's, from `least` to `most`."""

    def rule(value: Any) -> int:
        try:
            number = operator.index(value)
        except TypeError:
            number = None
        if number is None or isinstance(value, bool):
            raise ValueError("should be a whole number")
        if least is not None and number < least:
            raise ValueError(f"should be at least {least}")
        if most is not None and number > most:
            raise ValueError(f"should be at most {most}")
        return number

    return rule


def fraction(value: Any) -> float:
    """A part of a whole, but not all of it."""
    number = _number(value)
    if not 0 <= number < 1:
        raise ValueError("should be a number of at least 0 and less than 1")
    return number


def minutes(value: Any) -> float:
    """A time that is not over yet."""
    number = _number(value)
    if not number > 0:
        raise ValueError("should be a number greater than 0")
    return number


def size_in_bytes(value: Any) -> int:
    """Read "64KiB", "4 MiB", "1GB" or a number of bytes.

    >>> [size_in_bytes(size) for size in ("64KiB", "4 MiB", "1GB", "200", 200)]
    [65536, 4194304, 1000000000, 200, 200]

    Raises:
        ValueError: It is nothing of the kind, or no byte.
    """
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        if match is None:
            raise ValueError("should be a number of bytes such as 65536, 64KiB or 4MiB")
        value = int(match[1]) * _FACTORS[(match[2] or "").lower()]
    n_bytes: int = whole_number(1)(value)
    return n_bytes


def switch(value: Any) -> bool:
    """True or False, and nothing that only counts as one of them."""
    if not isinstance(value, bool):
        raise ValueError("should be true or false")
    return value


def one_of(*choices: str) -> Rule:
    """One of these words."""

    def rule(value: Any) -> str:
        if not isinstance(value, str) or value not in choices:
            *others, last = map(repr, choices)
            raise ValueError(f"should be {', '.join(others)} or {last}")
        return str(value)

    return rule


def any_text(value: Any) -> str:
    """Any text that has bytes."""
    if not isinstance(value, str):
        raise ValueError("should be text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError("should be valid Unicode") from error
    return value


def split_pattern(value: Any) -> str:
    """Name or published text of a split pattern."""
    return pattern_name(any_text(value))


def token_text(value: Any) -> str:
    """The text of a special token."""
    if not any_text(value):
        raise ValueError("should not be empty")
    return str(value)


def token_texts(value: Any) -> tuple[str, ...]:
    """The texts of special tokens, each once."""
    if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
        raise ValueError("should be a list of texts")
    tokens = tuple(map(token_text, value))
    twice = [token for token, count in Counter(tokens).items() if count > 1]
    if twice:
        raise ValueError(f"should name each token once, and {twice[0]!r} is there more than once")
    return tokens


def one_path(value: Any) -> Path:
    """The path of a file or a directory."""
    name = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(name, str):
        raise ValueError("should be a path")
    if is_url(name):
        raise ValueError(LOCAL)
    return Path(name)


def many_paths(value: Any) -> tuple[Path, ...]:
    """Several paths; one may stand for a sequence of paths."""
    if isinstance(value, str | os.PathLike):
        return (one_path(value),)
    if isinstance(value, Mapping | bytes) or not isinstance(value, Iterable):
        raise ValueError("should be a path or a list of paths")
    return tuple(map(one_path, value))


def some_paths(value: Any) -> tuple[Path, ...]:
    """One path at least."""
    found = many_paths(value)
    if not found:
        raise ValueError("should not be empty")
    return found


def bin_file(value: Any) -> Path:
    """The path of a token file."""
    found = one_path(value)
    if found.suffix != ".bin" or found.stem.startswith("."):
        raise ValueError("should be the name of a .bin file")
    if found.stem in ("tokenizer", "tokenizer_config", "stats") or found.stem.endswith("_stats"):
        raise ValueError(
            f"should have another name, for its manifest would be {found.stem}.json, which is the"
            " name of another output"
        )
    return found


def file_name(value: Any) -> str:
    """What the names of files begin with."""
    # Names of files need not be valid Unicode.
    is_name = isinstance(value, str) and value == os.path.basename(value)
    if not is_name or value.startswith("."):
        raise ValueError("should be the beginning of a file name, without a directory")
    return str(value)


def setting(rule: Rule, default: Any = MISSING, factory: Any = MISSING) -> Any:
    """A field that keeps to the rule; one without a default has to be given."""
    return field(default=default, default_factory=factory, metadata={"rule": rule})


# --- settings ---


@dataclass(frozen=True, kw_only=True)
class ReadSettings:
    """How text is read and by how many workers.

    Attributes:
        separator: What stands between documents in text files; empty: every file is one document.
        on_invalid_utf8: An error; or U+FFFD is put there; or the document is left out.
        unit_size: Bytes that a worker takes at a time; the results are the same whatever it is.
        workers: Threads; 1 works in the calling thread. The results are the same whatever it is.
    """

    separator: str = setting(any_text, END_OF_TEXT)
    on_invalid_utf8: Literal["error", "replace", "skip"] = setting(
        one_of("error", "replace", "skip"), "error"
    )
    unit_size: int = setting(size_in_bytes, 4 * 1024 * 1024)
    workers: int = setting(whole_number(1), factory=available_workers)

    def as_json(self, leave_out: Collection[str] = ()) -> dict[str, Any]:
        """All settings but those that are left out, ready for JSON; `checked` takes them back."""
        return {
            each.name: _for_json(getattr(self, each.name))
            for each in fields(self)
            if each.name not in leave_out
        }


@dataclass(frozen=True, kw_only=True)
class TrainSettings(ReadSettings):
    """How a tokenizer is trained.

    Attributes:
        vocab_size: Bytes, merges and special tokens together.
        pattern: Name or published text of the split pattern.
        special_tokens: Further special tokens; the end-of-text token is always there.
        end_of_text: The token behind every document; None: the tokenizer's own, else <|endoftext|>.
        begin_of_text: The token before every document; None: none.
        tie_break: Which of equally frequent pairs is merged first.
        min_frequency: Pairs that occur less often are not merged.
        max_minutes: Stop after so long, to be gone on with; None: when all is done.
        memory_limit: Bytes of memory that the run may take; see `preprocess.memory`.
    """

    vocab_size: int = setting(whole_number(most=2**29), 32_000)
    pattern: str = setting(split_pattern, "gpt2")
    special_tokens: tuple[str, ...] = setting(token_texts, ())
    end_of_text: str | None = setting(optional(token_text), None)
    begin_of_text: str | None = setting(optional(token_text), None)
    tie_break: Literal["greatest-bytes", "huggingface"] = setting(
        one_of("greatest-bytes", "huggingface"), "greatest-bytes"
    )
    min_frequency: int = setting(whole_number(0), 2)
    max_minutes: float | None = setting(optional(minutes), None)
    memory_limit: int | None = setting(optional(size_in_bytes), None)

    @property
    def all_special_tokens(self) -> tuple[str, ...]:
        """Those of a tokenizer that is trained: in the order given, the others before them."""
        wanted = [self.end_of_text or END_OF_TEXT, self.begin_of_text]
        more = [token for token in wanted if token and token not in self.special_tokens]
        return (*dict.fromkeys(more), *self.special_tokens)


@dataclass(frozen=True, kw_only=True)
class ShardSettings:
    """How token files are divided.

    Attributes:
        shard_tokens: Make shards of so many tokens at most; None: one file.
        split_documents: Whether a document may go on in the next shard; else a shard ends before
            one that does not fit, and a larger one has a shard of its own.
    """

    shard_tokens: int | None = setting(optional(whole_number(1)), None)
    split_documents: bool = setting(switch, False)


@dataclass(frozen=True, kw_only=True)
class TrainFileSettings(TrainSettings):
    """A tokenizer.json from text.

    Attributes:
        paths: Text files and directories.
        out: The tokenizer.json.
        overwrite: Whether it may be replaced if it exists.
    """

    paths: tuple[Path, ...] = setting(some_paths)
    out: Path = setting(one_path, Path("tokenizer.json"))
    overwrite: bool = setting(switch, False)


@dataclass(frozen=True, kw_only=True)
class CountSettings(ReadSettings):
    """How many tokens text has.

    Attributes:
        paths: Text files and directories.
        tokenizer: A tokenizer, as `bpe.load_tokenizer` takes it.
        pattern: The split pattern of a .tiktoken file; None for all else.
    """

    paths: tuple[Path, ...] = setting(some_paths)
    tokenizer: Path = setting(one_path)
    pattern: str | None = setting(optional(any_text), None)

    @property
    def all_special_tokens(self) -> tuple[str, ...]:
        """Those that a .tiktoken file is given: none, for nothing stands around documents."""
        return ()


@dataclass(frozen=True, kw_only=True)
class EncodeSettings(CountSettings, ShardSettings):
    """A token file from text, with a tokenizer that is there.

    Attributes:
        end_of_text: As in `TrainSettings`.
        begin_of_text: As in `TrainSettings`.
        out: The .bin; its .docs and .json land beside it.
        overwrite: Whether outputs that exist may be replaced.
        max_minutes: As in `TrainSettings`.
        memory_limit: As in `TrainSettings`.
    """

    end_of_text: str | None = setting(optional(token_text), None)
    begin_of_text: str | None = setting(optional(token_text), None)
    max_minutes: float | None = setting(optional(minutes), None)
    memory_limit: int | None = setting(optional(size_in_bytes), None)
    out: Path = setting(bin_file, Path("train.bin"))
    overwrite: bool = setting(switch, False)

    @property
    def all_special_tokens(self) -> tuple[str, ...]:
        """Those that a .tiktoken file is given: what stands around documents."""
        wanted = [self.end_of_text or END_OF_TEXT, self.begin_of_text]
        return tuple(dict.fromkeys(token for token in wanted if token))

    @property
    def name(self) -> str:
        """NAME of NAME.bin."""
        return self.out.stem


@dataclass(frozen=True, kw_only=True)
class CompareSettings(ReadSettings):
    """Two tokenizers on the same text.

    Attributes:
        first: A tokenizer, as `bpe.load_tokenizer` takes it.
        second: Another.
        paths: Text files and directories; none: text that every Python ships with.
        pattern: The split pattern of a .tiktoken file; None if neither is one.
        max_bytes: Stop after so much text, at the end of a unit.
    """

    first: Path = setting(one_path)
    second: Path = setting(one_path)
    paths: tuple[Path, ...] = setting(many_paths, ())
    pattern: str | None = setting(optional(any_text), None)
    max_bytes: int = setting(size_in_bytes, 64 * 1024 * 1024)


@dataclass(frozen=True, kw_only=True)
class BuildSettings(TrainSettings, ShardSettings):
    """A tokenizer, train.bin and val.bin from text.

    Attributes:
        train: Text files and directories; none: text that every Python ships with.
        val: The same for validation.
        val_fraction: Share of the train documents that becomes validation where `val` is not given;
            None: 0.01. With 0 there is no validation file.
        out: Directory for the outputs; made if it does not exist.
        name: Outputs are NAME_train.bin and so on; empty: train.bin and so on.
        tokenizer: A tokenizer to use, as `bpe.load_tokenizer` takes it; None: one is trained.
        overwrite: Whether outputs that exist may be replaced.
    """

    train: tuple[Path, ...] = setting(many_paths, ())
    val: tuple[Path, ...] = setting(many_paths, ())
    val_fraction: float | None = setting(optional(fraction), None)
    out: Path = setting(one_path, Path("data"))
    name: str = setting(file_name, "")
    tokenizer: Path | None = setting(optional(one_path), None)
    overwrite: bool = setting(switch, False)

    @property
    def validation_fraction(self) -> float:
        """Share of the train documents that becomes validation."""
        if self.val:
            return 0.0
        return DEFAULT_VALIDATION_FRACTION if self.val_fraction is None else self.val_fraction

    def named(self, name: str) -> str:
        """`name` with the user's prefix."""
        return f"{self.name}_{name}" if self.name else name


Settings = TypeVar("Settings", bound=ReadSettings)


def checked(kind: type[Settings], values: Mapping[str, Any]) -> Settings:
    """Make settings from values, or say in one line what is wrong with them.

    Raises:
        SettingsError: A value is of no use, or two contradict one another.
    """
    known = {each.name: each for each in fields(kind)}
    meant = {}
    wrong = [
        f"{name}: is required"
        for name, each in known.items()
        if name not in values and each.default is MISSING and each.default_factory is MISSING
    ]
    for name, value in values.items():
        if name not in known:
            wrong.append(f"{name}: there is no such setting")
            continue
        try:
            meant[name] = known[name].metadata["rule"](value)
        except ValueError as error:
            found = repr(str(value) if isinstance(value, Path) else value)
            wrong.append(f"{name}: {error}; got {found}")
    if wrong:
        raise SettingsError("; ".join(wrong))
    settings = kind(**meant)
    if isinstance(settings, TrainSettings):
        needed = 256 + len(settings.all_special_tokens)
        if settings.vocab_size < needed:
            raise SettingsError(
                f"vocab_size {settings.vocab_size:,} is too small: 256 bytes and"
                f" {len(settings.all_special_tokens)} special tokens need at least {needed}"
            )
    if (
        isinstance(settings, ShardSettings)
        and settings.split_documents
        and settings.shard_tokens is None
    ):
        raise SettingsError(
            "split_documents is for shards; say how many tokens a shard has (--shard-tokens)"
        )
    if isinstance(settings, BuildSettings) and settings.val and settings.val_fraction is not None:
        raise SettingsError(
            "val and val_fraction were both given: validation documents come either from files of"
            " their own or out of train; leave one of the two out"
        )
    return settings


def _number(value: Any) -> float:
    # True is an integer to Python.
    if not isinstance(value, Real) or isinstance(value, bool):
        raise ValueError("should be a number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError("should be a number that is not as large") from None


def _for_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_for_json(each) for each in value]
    return str(value) if isinstance(value, Path) else value

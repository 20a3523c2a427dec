"""The settings of every command, checked in one place.

Law: a setting that cannot work is refused before anything is read or written, with its name, what
was found and what is expected. The command line and the functions of `preprocess.pipeline` share
these classes, so both have the same names, defaults and refusals.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from bpe.errors import TokenbinError
from bpe.patterns import pattern_name
from preprocess.engine import available_workers

END_OF_TEXT = "<|endoftext|>"
DEFAULT_VALIDATION_FRACTION = 0.01

_SIZE = re.compile(r"(\d+) *([KMG]i?)?B?", re.IGNORECASE)
_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


class SettingsError(TokenbinError, ValueError):
    """A setting has a value that cannot work, or two settings contradict one another."""


def size_in_bytes(value: object) -> object:
    """Read "64KiB", "4 MiB", "1GB" or a number of bytes; anything else is left to be refused.

    >>> [size_in_bytes(size) for size in ("64KiB", "4 MiB", "1GB", "200", 200)]
    [65536, 4194304, 1000000000, 200, 200]
    """
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise ValueError("should be a number of bytes such as 65536, 64KiB or 4MiB")
    return int(match[1]) * _FACTORS[(match[2] or "").lower()]


def _paths(value: object) -> object:
    """One path may stand for a sequence of paths."""
    return (value,) if isinstance(value, str | os.PathLike) else value


def _encodable(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError("should be valid Unicode") from error
    return value


def _distinct(value: tuple[str, ...]) -> tuple[str, ...]:
    twice = [token for token, count in Counter(value).items() if count > 1]
    if twice:
        raise ValueError(f"should name each token once, and {twice[0]!r} is there more than once")
    return value


def _file_name(value: str) -> str:
    if value != os.path.basename(value) or value.startswith("."):
        raise ValueError("should be the beginning of a file name, without a directory")
    return value


def _bin_file(value: Path) -> Path:
    if value.suffix != ".bin" or value.stem.startswith("."):
        raise ValueError("should be the name of a .bin file")
    if value.stem in ("tokenizer", "tokenizer_config", "stats") or value.stem.endswith("_stats"):
        raise ValueError(
            f"should have another name, for its manifest would be {value.stem}.json, which is the"
            " name of another output"
        )
    return value


Text = Annotated[str, AfterValidator(_encodable)]
SpecialToken = Annotated[Text, Field(min_length=1)]
Paths = Annotated[tuple[Path, ...], BeforeValidator(_paths)]
SomePaths = Annotated[Paths, Field(min_length=1)]


class ReadSettings(BaseModel):
    """How text is read and by how many workers.

    Attributes:
        separator: What stands between documents in text files; empty: every file is one document.
        on_invalid_utf8: An error; or U+FFFD is put there; or the document is left out.
        unit_size: Bytes that a worker takes at a time; the results are the same whatever it is.
        workers: Threads; 1 works in the calling thread. The results are the same whatever it is.
    """

    # A command needs one of these classes: the others are not made ready.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    separator: Text = END_OF_TEXT
    on_invalid_utf8: Literal["error", "replace", "skip"] = "error"
    unit_size: Annotated[int, BeforeValidator(size_in_bytes), Field(ge=1)] = 4 * 1024 * 1024
    workers: Annotated[int, Field(ge=1)] = Field(default_factory=available_workers)


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

    vocab_size: Annotated[int, Field(le=2**29)] = 32_000
    pattern: Annotated[str, AfterValidator(pattern_name)] = "gpt2"
    special_tokens: Annotated[tuple[SpecialToken, ...], AfterValidator(_distinct)] = ()
    end_of_text: SpecialToken | None = None
    begin_of_text: SpecialToken | None = None
    tie_break: Literal["greatest-bytes", "huggingface"] = "greatest-bytes"
    min_frequency: Annotated[int, Field(ge=0)] = 2
    max_minutes: Annotated[float, Field(gt=0)] | None = None
    memory_limit: Annotated[int, BeforeValidator(size_in_bytes), Field(ge=1)] | None = None

    @property
    def all_special_tokens(self) -> tuple[str, ...]:
        """Those of a tokenizer that is trained: in the order given, the others before them."""
        wanted = [self.end_of_text or END_OF_TEXT, self.begin_of_text]
        more = [token for token in wanted if token and token not in self.special_tokens]
        return (*dict.fromkeys(more), *self.special_tokens)


class ShardSettings(BaseModel, defer_build=True):
    """How token files are divided.

    Attributes:
        shard_tokens: Make shards of so many tokens at most; None: one file.
        split_documents: Whether a document may go on in the next shard; else a shard ends before
            one that does not fit, and a larger one has a shard of its own.
    """

    shard_tokens: Annotated[int, Field(ge=1)] | None = None
    split_documents: bool = False


class TrainFileSettings(TrainSettings):
    """A tokenizer.json from text.

    Attributes:
        paths: Text files and directories.
        out: The tokenizer.json.
        overwrite: Whether it may be replaced if it exists.
    """

    paths: SomePaths
    out: Path = Path("tokenizer.json")
    overwrite: bool = False


class CountSettings(ReadSettings):
    """How many tokens text has.

    Attributes:
        paths: Text files and directories.
        tokenizer: A tokenizer, as `bpe.load_tokenizer` takes it.
        pattern: The split pattern of a .tiktoken file; None for all else.
    """

    paths: SomePaths
    tokenizer: Path
    pattern: str | None = None

    @property
    def all_special_tokens(self) -> tuple[str, ...]:
        """Those that a .tiktoken file is given: none, for nothing stands around documents."""
        return ()


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

    end_of_text: SpecialToken | None = None
    begin_of_text: SpecialToken | None = None
    max_minutes: Annotated[float, Field(gt=0)] | None = None
    memory_limit: Annotated[int, BeforeValidator(size_in_bytes), Field(ge=1)] | None = None
    out: Annotated[Path, AfterValidator(_bin_file)] = Path("train.bin")
    overwrite: bool = False

    @property
    def all_special_tokens(self) -> tuple[str, ...]:
        """Those that a .tiktoken file is given: what stands around documents."""
        wanted = [self.end_of_text or END_OF_TEXT, self.begin_of_text]
        return tuple(dict.fromkeys(token for token in wanted if token))

    @property
    def name(self) -> str:
        """NAME of NAME.bin."""
        return self.out.stem


class CompareSettings(ReadSettings):
    """Two tokenizers on the same text.

    Attributes:
        first: A tokenizer, as `bpe.load_tokenizer` takes it.
        second: Another.
        paths: Text files and directories; none: text that every Python ships with.
        pattern: The split pattern of a .tiktoken file; None if neither is one.
        max_bytes: Stop after so much text, at the end of a unit.
    """

    first: Path
    second: Path
    paths: Paths = ()
    pattern: str | None = None
    max_bytes: Annotated[int, BeforeValidator(size_in_bytes), Field(ge=1)] = 64 * 1024 * 1024


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

    train: Paths = ()
    val: Paths = ()
    val_fraction: Annotated[float | None, Field(ge=0, lt=1)] = None
    out: Path = Path("data")
    name: Annotated[str, AfterValidator(_file_name)] = ""
    tokenizer: Path | None = None
    overwrite: bool = False

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
    try:
        settings = kind(**values)
    except ValidationError as error:
        raise SettingsError("; ".join(map(_sentence, error.errors()))) from None
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


def _sentence(details: Any) -> str:
    """One error of pydantic's as "name: what is expected, what was found"."""
    name = ".".join(map(str, details["loc"]))
    if details["type"] == "extra_forbidden":
        return f"{name}: there is no such setting"
    message = details["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if details["type"] == "missing":
        return f"{name}: is required"
    if details["type"] in ("too_short", "string_too_short"):
        message = "should not be empty"
    found = details["input"]
    return f"{name}: {message}; got {str(found) if isinstance(found, Path) else found!r}"

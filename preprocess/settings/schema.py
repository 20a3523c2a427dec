"""Every option of every command, once: name, type, default, help, and whether it changes a result.

The keyword arguments of the functions, the command line, the documentation and the record of a run
follow these classes; tests compare all of them. Settings are valid once they exist.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from bpe.parallel import available_workers
from preprocess.settings.options import (
    BinFile,
    Count,
    Location,
    Locations,
    Pattern,
    Prefix,
    SettingsError,
    Size,
    Token,
    Tokens,
    option,
    options_of,
)

END_OF_TEXT = "<|endoftext|>"
DEFAULT_VALIDATION_FRACTION = 0.01
DEFAULT_CORPUS = "text that Python ships with"

Index = Annotated[int, Meta(ge=0)]


class Settings:
    """Options of one command, with their values."""

    def __post_init__(self) -> None:
        """Check options that depend on one another.

        Raises:
            SettingsError: Two contradict one another.
        """

    def as_json(self, leave_out: Collection[str] = ()) -> dict[str, Any]:
        """All options but those that are left out, ready for JSON; `convert` takes them back."""
        given = {name: getattr(self, name) for name in options_of(type(self))}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in given.items()
            if name not in leave_out
        }


# --- options that several commands have ---


@dataclass(frozen=True, kw_only=True)
class TextSettings(Settings):
    """How text is read."""

    separator: str = option(
        "Text between documents in text files; empty: every file is one document.",
        default=END_OF_TEXT,
    )
    on_invalid_utf8: Literal["error", "replace", "skip"] = option(
        "Documents that are not valid UTF-8: stop, replace invalid bytes by U+FFFD, or skip the"
        " document.",
        default="error",
    )
    unit_size: Size = option(
        "Bytes of text in a unit of work, such as 64KiB; never changes the outputs.",
        default=4 * 1024 * 1024,
        changes_result=False,
    )


@dataclass(frozen=True, kw_only=True)
class ReadSettings(TextSettings):
    """How text is read, and by how many workers."""

    workers: Count = option(
        "Threads; 1 works in the main thread; never changes the outputs.",
        factory=available_workers,
        default_text="one per available processor",
        changes_result=False,
    )


@dataclass(frozen=True, kw_only=True)
class RunSettings(ReadSettings):
    """How a run that writes goes on, ends and is limited."""

    end_of_text: Token | None = option(
        "Special token after each document.",
        default=None,
        default_text=f"the tokenizer's, else {END_OF_TEXT}",
    )
    begin_of_text: Token | None = option("Special token before each document.", default=None)
    max_minutes: Annotated[float, Meta(gt=0)] | None = option(
        "Stop after so many minutes and report how long all of it takes; the same command resumes.",
        default=None,
        changes_result=False,
    )
    memory_limit: Size | None = option(
        "Memory that the run may take, such as 500MB: counts that do not fit go to files; never"
        " changes the outputs.",
        default=None,
        changes_result=False,
    )
    overwrite: bool = option(
        "Replace outputs that exist, and give up an unfinished run of something else.",
        default=False,
        changes_result=False,
    )


@dataclass(frozen=True, kw_only=True)
class VocabularySettings(Settings):
    """What is trained; of no use where a tokenizer is given."""

    vocab_size: Annotated[int, Meta(le=2**29)] = option(
        "Bytes, merges and special tokens together.", default=32_000
    )
    pattern: Pattern = option(
        "Split pattern: gpt2, cl100k, o200k, llama3, qwen2, or a regular expression. A .tiktoken"
        " file needs it.",
        factory=lambda: "gpt2",
        default_text="gpt2",
    )
    special_tokens: Tokens = option(
        "Further special tokens of a tokenizer that is trained; on the command line one at a time.",
        default=(),
        flags=("--special-token",),
    )
    tie_break: Literal["greatest-bytes", "huggingface"] = option(
        "Which of equally frequent pairs is merged first: the one with the greatest bytes (Stanford"
        " CS336), or the one that Hugging Face's trainer takes.",
        default="greatest-bytes",
    )
    min_frequency: Index = option("Pairs that occur less often are not merged.", default=2)


@dataclass(frozen=True, kw_only=True)
class TrainSettings(VocabularySettings, RunSettings):
    """How a tokenizer is trained."""

    @property
    def all_special_tokens(self) -> tuple[str, ...]:
        """Those of a tokenizer that is trained: in the order given, the others before them."""
        wanted = [self.end_of_text or END_OF_TEXT, self.begin_of_text]
        more = [token for token in wanted if token and token not in self.special_tokens]
        return (*dict.fromkeys(more), *self.special_tokens)

    def __post_init__(self) -> None:
        """Check that bytes and special tokens fit in the vocabulary."""
        super().__post_init__()
        needed = 256 + len(self.all_special_tokens)
        if self.vocab_size < needed:
            raise SettingsError(
                f"vocab_size {self.vocab_size:,} is too small: 256 bytes and"
                f" {len(self.all_special_tokens)} special tokens need at least {needed}"
            )


@dataclass(frozen=True, kw_only=True)
class ShardSettings(Settings):
    """How token files are divided."""

    shard_tokens: Count | None = option(
        "Write shards NAME_00000.bin and so on of so many tokens at most, with one manifest.",
        default=None,
        default_text="one file",
    )
    split_documents: bool = option(
        "Let a document continue in the next shard, so that all shards but the last are full;"
        " without it a larger document has a shard of its own.",
        default=False,
    )

    def __post_init__(self) -> None:
        """Check that there are shards to split documents for."""
        super().__post_init__()
        if self.split_documents and self.shard_tokens is None:
            raise SettingsError(
                "split_documents is for shards; say how many tokens a shard has (--shard-tokens)"
            )


@dataclass(frozen=True, kw_only=True)
class RanksSettings(Settings):
    """How a tokenizer is read that does not say how it splits text."""

    pattern: str | None = option("Split pattern of a .tiktoken file.", default=None)


@dataclass(frozen=True, kw_only=True)
class BuiltWithSettings(Settings):
    """How the tokenizer of a token file is found."""

    tokenizer: Location | None = option(
        "Tokenizer that the token file was built with.",
        default=None,
        default_text="tokenizer.json beside it",
        flags=("--tokenizer", "--tokenizer-path"),
    )


# --- commands ---


@dataclass(frozen=True, kw_only=True)
class BuildSettings(TrainSettings, ShardSettings):
    """A tokenizer, train.bin and val.bin from text."""

    train: Locations = option(
        "Text files and directories, read in the order given; a directory in sorted order.",
        default=(),
        default_text=DEFAULT_CORPUS,
        flags=("--train", "--train-file"),
    )
    val: Locations = option(
        "The same for validation.",
        default=(),
        default_text="documents of train",
        flags=("--val", "--val-file"),
    )
    val_fraction: Annotated[float, Meta(ge=0, lt=1)] | None = option(
        "Share of the documents of train, chosen by a hash of each, that becomes validation where"
        " no files are given for it; 0: no validation file.",
        default=None,
        default_text=str(DEFAULT_VALIDATION_FRACTION),
    )
    out: Location = option(
        "Directory of the outputs; made if it does not exist.",
        default="data",
        flags=("--out", "--output-dir"),
    )
    name: Prefix = option(
        "NAME makes the outputs NAME_train.bin and so on.", default="", changes_result=False
    )
    tokenizer: Location | None = option(
        "Tokenizer to use instead of training one: a tokenizer.json, a directory that has one, a"
        " .tiktoken file, or a name (tiktoken, Hugging Face).",
        default=None,
        flags=("--tokenizer", "--tokenizer-path"),
    )

    @property
    def validation_fraction(self) -> float:
        """Share of the train documents that becomes validation."""
        if self.val:
            return 0.0
        return DEFAULT_VALIDATION_FRACTION if self.val_fraction is None else self.val_fraction

    def named(self, name: str) -> str:
        """`name` with the user's prefix."""
        return f"{self.name}_{name}" if self.name else name

    def __post_init__(self) -> None:
        """Check that validation comes from one place."""
        super().__post_init__()
        if self.val and self.val_fraction is not None:
            raise SettingsError(
                "val and val_fraction were both given: validation documents come either from files"
                " of their own or out of train; leave one of the two out"
            )


@dataclass(frozen=True, kw_only=True)
class TrainFileSettings(TrainSettings):
    """A tokenizer.json from text."""

    paths: Locations = option("Text files and directories.", positional=True)
    out: Location = option("Tokenizer file to write.", default="tokenizer.json")


@dataclass(frozen=True, kw_only=True)
class CountSettings(RanksSettings, ReadSettings):
    """How many tokens text has."""

    paths: Locations = option("Text files and directories.", positional=True)
    tokenizer: Location = option(
        "A tokenizer.json, a directory that has one, a .tiktoken file, or a name (tiktoken, Hugging"
        " Face).",
        flags=("--tokenizer", "--tokenizer-path"),
    )

    @property
    def all_special_tokens(self) -> tuple[str, ...]:
        """Special tokens that a .tiktoken file is given: none, for none surround documents."""
        return ()


@dataclass(frozen=True, kw_only=True)
class EncodeSettings(CountSettings, RunSettings, ShardSettings):
    """A token file from text, with a tokenizer that exists."""

    out: BinFile = option(
        "The .bin file to write, with its .docs and .json beside it.", default="train.bin"
    )

    @property
    def all_special_tokens(self) -> tuple[str, ...]:
        """Special tokens that a .tiktoken file is given: those that surround documents."""
        wanted = [self.end_of_text or END_OF_TEXT, self.begin_of_text]
        return tuple(dict.fromkeys(token for token in wanted if token))

    @property
    def name(self) -> str:
        """NAME of NAME.bin."""
        return Path(self.out).stem


@dataclass(frozen=True, kw_only=True)
class CompareSettings(RanksSettings, TextSettings):
    """Two tokenizers on the same text."""

    first: Location = option("A tokenizer, as `encode` takes it.", positional=True)
    second: Location = option("Another.", positional=True)
    paths: Locations = option(
        "Text files and directories.", default=(), default_text=DEFAULT_CORPUS, positional=True
    )
    max_bytes: Size = option(
        "Stop after so much text, at the end of a unit.", default=64 * 1024 * 1024
    )


@dataclass(frozen=True, kw_only=True)
class DecodeSettings(BuiltWithSettings):
    """The text of a token file."""

    path: Location = option("Token file.", positional=True)
    start: Index = option("First token.", default=0)
    count: Index | None = option("Number of tokens.", default=None, default_text="all")


@dataclass(frozen=True, kw_only=True)
class InspectSettings(RanksSettings):
    """What a file or a directory is."""

    path: Location = option(
        "A .bin file, a tokenizer (as `encode` takes it), or a directory of outputs.",
        positional=True,
    )


@dataclass(frozen=True, kw_only=True)
class VerifySettings(BuiltWithSettings):
    """Whether token files are what their manifests say."""

    path: Location = option("A directory of outputs, or one .bin file.", positional=True)
    deep: bool = option("Encode the sources again and compare.", default=False)
    repair: bool = option("Rebuild what is damaged from the sources.", default=False)


@dataclass(frozen=True, kw_only=True)
class DoctorSettings(Settings):
    """Whether a machine is fit for a long job."""

    path: Location = option(
        "Directory where outputs would be written.", default="data", positional=True
    )


# --- options of the command line alone ---


@dataclass(frozen=True, kw_only=True)
class ConsoleSettings(Settings):
    """How a command reports."""

    json: bool = option("Print JSON.", default=False)
    debug: bool = option("Show the traceback of an error.", default=False)
    verbose: bool = option(
        "Report memory, processors and disk rates with the progress.", default=False
    )
    quiet: bool = option("No progress and no closing lines.", default=False)
    log_file: Location | None = option(
        "Append everything that is reported to this file.", default=None
    )

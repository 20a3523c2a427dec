"""Options of all commands: name, type, default, help, and effect on results.

Keyword arguments of functions, the command line, the documentation and the record of a run follow
these classes; tests compare them. Constructors validate settings. Annotations are not postponed in
this module: `options_of` reads types from the fields, and evaluating text takes longer.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from bpe.parallel import available_workers
from preprocess.settings.cluster import ExecutorSettings, TaskSettings
from preprocess.settings.exchange import ExportSettings as ExportSettings
from preprocess.settings.exchange import ImportSettings as ImportSettings
from preprocess.settings.options import (
    REQUIRED,
    BinFile,
    Config,
    Count,
    Date,
    Fields,
    GivenTokenizer,
    Index,
    Location,
    Locations,
    Output,
    Pattern,
    Prefix,
    Seed,
    Settings,
    SettingsError,
    Size,
    TemplateVariables,
    Token,
    Tokens,
    Workers,
    option,
    run_option,
)
from preprocess.settings.rows import RowsSettings as RowsSettings
from preprocess.settings.shards import ShardSettings as ShardSettings

_TEXT = "train paths path"
_TRAINING = "trains a model; examples/train_gpt.py has it"
_UNITS = "units of work have --unit-size bytes, and files of rows --max-shard-size"
# Command-line options of other programs -> names of options here, of which a command has one; or
# what stands for them here, if it begins with "ignored: " or "refused: ".
OTHER_SPELLINGS = {
    "--train-file": "train", "--val-file": "val", "--data-file": _TEXT, "--input": _TEXT,
    "--output": "out", "--output-dir": "out", "--tokenization-folder": "out",
    "--tokenizer-path": "tokenizer", "--chars-to-tokenize": "max_characters",
    "--starting-character": "start_character", "--batch-size": f"ignored: {_UNITS}",
    "--chunk-size": f"ignored: {_UNITS}",
    "--save-frequency": "ignored: progress is saved about once a second",
    "--learning-rate": f"refused: {_TRAINING}", "--max-iters": f"refused: {_TRAINING}",
    "--use-params": f"refused: {_TRAINING}, as --config FILE",
}
END_OF_TEXT = "<|endoftext|>"
DEFAULT_VALIDATION_FRACTION = 0.01
DEFAULT_CORPUS = "text that Python ships with"
_SEPARATORS = {"blank-line": "\n\n", "line": "\n", "file": ""}


# --- options that several commands have ---

# Base classes have no generated methods, which take most of the start-up time of a class.


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class TextSettings(Settings):
    """Options for reading text."""

    format: Literal["text", "jsonl", "json", "parquet", "arrow"] | None = option(
        None, "Format of all files.", default_text="by name and content"
    )
    separator: str = option(
        END_OF_TEXT, "Text between documents in text files, or blank-line, line or file (every file"
        " is one document).",
    )
    content_field: Fields = option(
        (), "Field or column of records that has the text, such as data.text; on the command line"
        " one at a time, several are joined by a newline.", default_text="text, content or code",
    )
    text_preset: Literal["title-text"] | None = option(
        None, "How fields become text: title-text strips title and text, leaves out blank ones,"
        " [deleted] and [removed], and joins the rest by a newline.",
    )
    strip: bool = option(False, "Remove white space at both ends of documents.")
    min_length: Index = option(0, "Leave out documents of fewer characters.")
    max_length_chars: Count | None = option(None, "Leave out documents of more characters.")
    on_invalid_utf8: Literal["error", "replace", "skip"] = option(
        "error", "Documents that are not valid UTF-8: stop, replace invalid bytes by U+FFFD, or"
        " skip the document.",
    )
    on_bad_record: Literal["error", "skip"] = option(
        "error", "Records that are invalid or lack the text: stop, or leave them out; `build` and"
        " `encode` list them in rejects.jsonl.",
    )
    max_bad_records: Index = run_option(1000, "Stop if more bad records than this are left out.")
    unit_size: Size = run_option(
        lambda: 4 << 20, "Bytes of text in a unit of work, such as 64KiB; never changes the"
        " outputs.", default_text="4MiB",
    )

    @property
    def separator_bytes(self) -> bytes:
        """The text between documents; b"": none."""
        return _SEPARATORS.get(self.separator, self.separator).encode()

    def __post_init__(self) -> None:
        super().__post_init__()
        if re.fullmatch(r"(\\[nrt])+", self.separator):
            raise SettingsError(
                f"separator {self.separator} is a backslash and a letter, not a line break; choose"
                " line or blank-line, or give the character itself (in bash $'\\n')"
            )
        if self.max_length_chars is not None and self.min_length > self.max_length_chars:
            raise SettingsError(
                f"min_length {self.min_length:,} is above max_length_chars"
                f" {self.max_length_chars:,}, so no document is left; lower it"
            )
        if self.text_preset is not None and self.content_field:
            raise SettingsError(
                f"text_preset {self.text_preset!r} has fields of its own; leave out content_field"
            )
        for field in self.content_field:
            if "" in field.split("."):
                raise SettingsError(
                    f"content_field {field!r} has an empty part; name fields as in data.text"
                )
            if inside := [x for x in self.content_field if x.startswith(f"{field}.")]:
                raise SettingsError(
                    f"content_field {field!r} is text or an object with {inside[0]!r}, not both;"
                    " leave one out"
                )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ReadSettings(TextSettings):
    """Options for reading text with several workers."""

    workers: Workers = run_option(
        available_workers, "Threads; 1 works in the main thread; never changes the outputs.",
        default_text="one per available processor",
    )

    @property
    def all_special_tokens(self) -> tuple[str, ...]:
        """Special tokens to add to a tokenizer: those around documents, if any."""
        return ()


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class SelectSettings(Settings):
    """Options for choosing and ordering documents; train and val files have a slice each."""

    deduplicate: bool = option(
        False, "Leave out documents that are equal to an earlier one, or in val to one of train."
    )
    start_character: Index = option(
        0, "Leave out documents that begin before this character of the text, counted from 0."
    )
    max_characters: Count | None = option(
        None, "Leave out documents that begin so many characters after start_character, or later."
    )
    max_documents: Count | None = option(None, "Keep at most so many documents.")
    cut_documents: bool = option(
        False, "Cut the documents in which start_character and max_characters fall."
    )
    shuffle_documents: Seed | None = option(
        None, "Seed of a random order of the documents.", default_text="the order of the files"
    )

    @property
    def selects(self) -> bool:
        """True if documents are chosen or ordered by more than what they are."""
        return self.deduplicate or self.limits or self.shuffle_documents is not None

    @property
    def limits(self) -> bool:
        """True if documents are chosen by their number or place."""
        return bool(self.start_character or self.max_characters or self.max_documents)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cut_documents and not (self.start_character or self.max_characters):
            raise SettingsError(
                "cut_documents is for start_character and max_characters; give one of them, or"
                " leave it out"
            )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ChatSettings(Settings):
    """Options for conversations."""

    chat: Literal["auto", "off", "messages", "sharegpt", "prompt-completion"] = option(
        "auto", "Conversations in records: found by their fields, off, or fields of this kind."
    )
    chat_template: Token | None = option(
        None, "File with a Jinja template that makes text of conversations, or chatml.",
        default_text="the tokenizer's",
    )
    train_on: Literal["assistant", "all", "last-assistant"] = option(
        "assistant", "What of a conversation the mask says to train on."
    )
    chat_date: Date | None = option(
        None, "Day that a chat template writes as that of today.",
        default_text="none, an error if a template writes it",
    )
    chat_template_kwargs: TemplateVariables | None = option(
        None, "More variables of the chat template, such as {\"enable_thinking\": false}."
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class RunSettings(ReadSettings, SelectSettings, ChatSettings, ExecutorSettings):
    """Options of runs that write outputs: special ids, limits, overwriting."""

    end_of_text: Token | None = option(
        None, "Special token after each document.",
        default_text=f"the tokenizer's, else {END_OF_TEXT}",
    )
    begin_of_text: Token | None = option(None, "Special token before each document.")
    max_minutes: Annotated[float, Meta(gt=0)] | None = run_option(
        None, "Stop after so many minutes and report how long all of it takes; the same command"
        " resumes.",
    )
    memory_limit: Size | None = run_option(
        None, "Memory that the run may take, such as 500MB: counts that do not fit go to files;"
        " never changes the outputs.",
    )
    profile: Literal["memory", "balanced", "speed"] | None = run_option(
        None, "Workers, unit_size and memory_limit together, unless they are given: 1, 256KiB,"
        " 500MB; half of the processors, 1MiB, 2GB; or all processors, 4MiB, no limit. Limits that"
        " are below the minimum of the run are raised to it.",
    )
    overwrite: bool = run_option(
        False, "Replace outputs that exist, and give up an unfinished run of something else."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        is_task = getattr(self, "task_index", None) is not None
        if self.selects and (is_task or self.executor == "ray"):
            raise SettingsError(
                f"{'task_index' if is_task else 'executor ray'} divides the text, and these need"
                " all of it: deduplicate, max_documents, max_characters, start_character and"
                " shuffle_documents; leave them out"
            )
        if self.chat not in ("auto", "off") and (self.content_field or self.text_preset):
            raise SettingsError(
                f"chat {self.chat!r} has fields of its own; leave out content_field and text_preset"
            )

    @property
    def all_special_tokens(self) -> tuple[str, ...]:
        """Special tokens to add to a tokenizer: those around documents."""
        wanted = (self.end_of_text or END_OF_TEXT, self.begin_of_text)
        return tuple(dict.fromkeys(token for token in wanted if token))


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class VocabularySettings(Settings):
    """Options for training, without effect if a tokenizer is given."""

    vocab_size: Annotated[int, Meta(le=2**29)] = option(
        32_000, "Bytes, merges and special tokens together."
    )
    pattern: Pattern = option(
        lambda: "gpt2", "Split pattern: gpt2, cl100k, o200k, llama3, qwen2, or a regular"
        " expression. A .tiktoken file needs it.", default_text="gpt2",
    )
    special_tokens: Tokens = option(
        (), "Further special tokens of a tokenizer that is trained; on the command line one at a"
        " time.", flags=("--special-token",),
    )
    tie_break: Literal["greatest-bytes", "huggingface"] = option(
        "greatest-bytes", "Which of equally frequent pairs is merged first: the one with the"
        " greatest bytes (Stanford CS336), or the one that Hugging Face's trainer takes.",
    )
    min_frequency: Index = option(2, "Pairs that occur less often are not merged.")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class TrainSettings(VocabularySettings, RunSettings):
    """Options for training on text."""

    @property
    def all_special_tokens(self) -> tuple[str, ...]:
        """Special tokens of the trained tokenizer: those around documents, then the given ones."""
        others = (token for token in super().all_special_tokens if token not in self.special_tokens)
        return (*others, *self.special_tokens)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vocab_size < (least := 256 + len(self.all_special_tokens)):
            raise SettingsError(
                f"vocab_size {self.vocab_size:,} is too small: 256 bytes and {least - 256} special"
                f" tokens need at least {least}"
            )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class RanksSettings(Settings):
    """Options for tokenizer files without a split pattern."""

    pattern: str | None = option(None, "Split pattern of a .tiktoken file.")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class BuiltWithSettings(Settings):
    """Options to find the tokenizer of a token file."""

    tokenizer: Location | None = option(
        None, "Tokenizer that the token file was built with.",
        default_text="tokenizer.json beside it",
    )


# --- commands ---


@dataclass(frozen=True, kw_only=True, repr=False)
class BuildSettings(TrainSettings, ShardSettings, TaskSettings):
    """Options of `build`: a tokenizer, train.bin and val.bin from text."""

    config: Config | None = run_option(
        None, "A corpus.yaml with several datasets; only options that do not change the outputs may"
        " be combined with it.", positional=True,
    )
    train: Locations = option(
        (), "Text: files, directories and URLs, read in the order given; a directory in sorted"
        " order.",
        default_text=DEFAULT_CORPUS,
    )
    val: Locations = option(
        (), "The same for validation.",
        default_text="documents of train",
    )
    val_fraction: Annotated[float, Meta(ge=0, lt=1)] | None = option(
        None, "Share of the documents of train, chosen by a hash of each, that becomes validation"
        " where no files are given for it; 0: no validation file.",
        default_text=str(DEFAULT_VALIDATION_FRACTION),
    )
    out: Output = option(
        "data", "Directory of the outputs, made if it does not exist; or URL of a place in a bucket"
        " (s3://BUCKET/data), where they are shards.",
    )
    name: Prefix = run_option("", "NAME makes the outputs NAME_train.bin and so on.")
    tokenizer: GivenTokenizer | None = option(
        None, "Tokenizer to use instead of training one: a tokenizer.json or a directory that has"
        " one, or its URL, a .tiktoken file, or a name (tiktoken, Hugging Face).",
    )

    @property
    def validation_fraction(self) -> float:
        """Share of the train documents used for validation."""
        if self.val:
            return 0.0
        return DEFAULT_VALIDATION_FRACTION if self.val_fraction is None else self.val_fraction

    @property
    def stems(self) -> dict[str, str]:
        """Output -> stem of its files."""
        has_val = self.val or self.validation_fraction
        return {name: self.named(name) for name in (("train", "val") if has_val else ("train",))}

    @property
    def run_name(self) -> str:
        """Name of the work directory."""
        return self.named("build")

    def named(self, name: str) -> str:
        """Return `name` with the prefix of the user, and that of the part."""
        return "_".join(filter(None, (self.name, self.part, name)))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.val and self.val_fraction is not None:
            raise SettingsError(
                "val and val_fraction were both given: validation documents come either from files"
                " of their own or out of train; leave one of the two out"
            )
        if self.task_index is None:
            return
        if self.tokenizer is None:
            raise SettingsError(
                "task_index divides the text, and a tokenizer is trained on all of it; train it"
                " first (tokenmill train), and give it to every task (--tokenizer)"
            )


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainFileSettings(TrainSettings):
    """Options of `train`: a tokenizer.json from text."""

    paths: Locations = option(REQUIRED, "Text: files, directories and URLs.", positional=True)
    out: Output = option("tokenizer.json", "Tokenizer file to write, or its URL in a bucket.")


@dataclass(frozen=True, kw_only=True, repr=False)
class CountSettings(RanksSettings, ReadSettings):
    """Options of `count`: the number of tokens of text."""

    paths: Locations = option(REQUIRED, "Text: files, directories and URLs.", positional=True)
    tokenizer: GivenTokenizer = option(
        REQUIRED, "A tokenizer.json or a directory that has one, or its URL, a .tiktoken file, or a"
        " name (tiktoken, Hugging Face).",
    )


@dataclass(frozen=True, kw_only=True, repr=False)
class EncodeSettings(CountSettings, RunSettings, ShardSettings, TaskSettings):
    """Options of `encode`: a token file from text, with a given tokenizer."""

    out: BinFile = option(
        "train.bin", "The .bin file to write, with its .docs and .json beside it; or its URL in a"
        " bucket, where they are shards.",
    )

    @property
    def name(self) -> str:
        """NAME of NAME.bin."""
        return Path(self.out).stem

    @property
    def stems(self) -> dict[str, str]:
        """Output -> stem of its files."""
        return {self.name: "_".join(filter(None, (self.name, self.part)))}

    @property
    def run_name(self) -> str:
        """Name of the work directory."""
        return self.stems[self.name]

    def named(self, name: str) -> str:
        """Return `name` with the stem of the output."""
        return f"{self.stems[self.name]}_{name}"


@dataclass(frozen=True, kw_only=True, repr=False)
class CompareSettings(RanksSettings, TextSettings):
    """Options of `compare`: two tokenizers on the same text."""

    first: Location = option(REQUIRED, "A tokenizer, as `encode` takes it.", positional=True)
    second: Location = option(REQUIRED, "Another.", positional=True)
    paths: Locations = option(
        (), "Text: files, directories and URLs.", default_text=DEFAULT_CORPUS, positional=True
    )
    max_bytes: Size = option(64 << 20, "Stop after so much text, at the end of a unit.")


@dataclass(frozen=True, kw_only=True, repr=False)
class DecodeSettings(BuiltWithSettings):
    """Options of `decode`: the text of a token file."""

    path: Location = option(REQUIRED, "Token file.", positional=True)
    start: Index = option(0, "First token.")
    count: Index | None = option(None, "Number of tokens.", default_text="all")


@dataclass(frozen=True, kw_only=True, repr=False)
class InspectSettings(RanksSettings):
    """Options of `inspect`: a description of a file or directory."""

    path: Location = option(
        REQUIRED, "A .bin file, a tokenizer (as `encode` takes it), or a directory of outputs.",
        positional=True,
    )


@dataclass(frozen=True, kw_only=True, repr=False)
class VerifySettings(BuiltWithSettings):
    """Options of `verify`: a check of token files against manifests."""

    path: Location = option(REQUIRED, "A directory of outputs, or one .bin file.", positional=True)
    deep: bool = option(False, "Encode the sources again and compare.")
    repair: bool = option(False, "Rebuild what is damaged from the sources.")


@dataclass(frozen=True, kw_only=True, repr=False)
class MergeSettings(Settings):
    """Options of `merge`: one dataset from the parts of several tasks."""

    path: Output = option(REQUIRED, "Directory or URL with the parts.", positional=True)
    name: Prefix = run_option("", "The name that was given to the tasks.")
    overwrite: bool = run_option(
        False, "Replace the manifests that were merged before; files of parts are not changed."
    )


@dataclass(frozen=True, kw_only=True, repr=False)
class DoctorSettings(Settings):
    """Options of `doctor`: a check of the machine."""

    path: Location = option("data", "Directory where outputs would be written.", positional=True)


# --- options of the command line alone ---


@dataclass(frozen=True, kw_only=True, repr=False)
class ConsoleSettings(Settings):
    """Options for the output of a command."""

    json: bool = option(False, "Print JSON.")
    debug: bool = option(False, "Show the traceback of an error.")
    verbose: bool = option(False, "Report memory, processors and disk rates with the progress.")
    quiet: bool = option(False, "No progress and no closing lines.")
    dry_run: bool = option(
        False, "Show what would be read and written, and the first documents; write nothing."
    )
    log_file: Location | None = option(None, "Append everything that is reported to this file.")

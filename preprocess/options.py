"""All options: name, type, default, help, and effect on results.

The arguments of functions, the command line, the documentation and the record of a run follow these
classes, see `preprocess.settings`. Annotations are not postponed in this module.
"""

import operator
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from bpe.files.locations import is_url
from bpe.parallel import available_workers
from preprocess.locations import split_location
from preprocess.report.progress import Progress
from preprocess.settings import (
    Config,
    Count,
    Date,
    GivenTexts,
    GivenTokenizer,
    Index,
    Is,
    IsBinFile,
    IsOutput,
    IsPath,
    IsReadable,
    Kind,
    Names,
    Option,
    OptionalPath,
    OptionalSize,
    Paths,
    Pattern,
    Prefix,
    Readable,
    Seed,
    Settings,
    SettingsError,
    Size,
    StrPath,
    TemplateVariables,
    Token,
    Tokenizer,
    TokenizerSource,
    Tokens,
    Workers,
    option,
    options_of,
    read_location,
    run_option,
)

END_OF_TEXT = "<|endoftext|>"
TOKENS_OF_SHARD_IN_BUCKET = 500_000_000  # objects cannot be appended to
MAX_SHARD_SIZE = 500 << 20  # of rows, where neither it nor the number of files is given
DEFAULT_VALIDATION_FRACTION = 0.01
DEFAULT_CORPUS = "text that Python ships with"
_SEPARATORS = {"blank-line": "\n\n", "line": "\n", "file": ""}
# A character that is spelled out as in bash and JSON, but not the beginning of a word: \newpage.
_ESCAPE = re.compile(r"\\([abefnrtv0]|x[\da-fA-F]{2}|u[\da-fA-F]{4}|U[\da-fA-F]{8})(?![a-z])")

Fraction = Annotated[float, Meta(ge=0, lt=1)]
OpenFraction = Annotated[float, Meta(gt=0, lt=1)]  # 0 excluded
RowFormat = Literal["parquet", "arrow", "jsonl", "npz", "pickle"]
Strategy = Literal["greedy", "pool", "first_fit", "best_fit"]

# --- options that several commands have ---


def _read_progress(value: Any) -> Any:
    if not isinstance(value, Progress | bool):
        raise TypeError
    return value


Shown = Annotated[Any, Kind(_read_progress, "a Progress, True or False")]


class ProgressSettings(Settings):
    """The argument for progress, in Python."""

    progress: Option[Shown, Progress | bool | None] = run_option(
        "None: bars on a terminal and in notebooks; True: lines in the log elsewhere; False: none.",
        default=None, in_command=False,
    )


class WorkerSettings(Settings):
    """The number of workers."""

    workers: Option[Workers, int | None] = run_option(
        "Threads; 1 works in the main thread; never changes the outputs.",
        default=available_workers, default_text="one per available processor",
    )


class OverwriteSettings(Settings):
    """Whether outputs may be replaced."""

    overwrite: Is[bool] = run_option(
        "Replace outputs that exist, and discard an unfinished run with other text or options.",
        default=False,
    )


class RepeatableSettings(OverwriteSettings):
    """Options of runs that the same command resumes."""

    max_minutes: Is[Annotated[float, Meta(gt=0)] | None] = run_option(
        "Stop after so many minutes and report the expected time of the whole run; the same"
        " command resumes.", default=None,
    )


class TextSettings(Settings):
    """Options for reading text."""

    format: Is[Literal["text", "jsonl", "json", "parquet", "arrow"] | None] = option(
        "Format of all files.", default=None, default_text="by name and content",
    )
    separator: Is[str] = option(
        "Text between documents in text files, or blank-line, line or file (every file is one"
        " document).", default=END_OF_TEXT,
    )
    content_field: Names = option(
        "Field or column with the text, such as data.text; may be repeated: several are joined by"
        " a newline.",
        default=(), default_text="text, content or code",
        excludes={"text_preset": "--text-preset has fields of its own"},
    )
    text_preset: Is[Literal["title-text"] | None] = option(
        "How fields become text: title-text strips title and text, leaves out blank ones,"
        " [deleted] and [removed], and joins the rest by a newline.", default=None,
    )
    strip: Is[bool] = option("Remove white space at both ends of documents.", default=False)
    min_length: Is[Index] = option("Leave out documents of fewer characters.", default=0)
    max_length_chars: Is[Count | None] = option(
        "Leave out documents of more characters.", default=None,
    )
    on_invalid_utf8: Is[Literal["error", "replace", "skip"]] = option(
        "Documents that are not valid UTF-8: stop, replace invalid bytes by U+FFFD, or skip the"
        " document.", default="error",
    )
    on_bad_record: Is[Literal["error", "skip"]] = option(
        "Records that are invalid or lack the text: stop, or leave them out; `build` and"
        " `encode` list them in rejects.jsonl.", default="error",
    )
    max_bad_records: Is[Index] = run_option(
        "Stop if more bad records than this are left out.", default=1000,
    )
    unit_size: Option[Size, int | str | None] = run_option(
        "Bytes of text in a unit of work, such as 64KiB; never changes the outputs.",
        default=lambda: 4 << 20, default_text="4MiB",
    )

    @property
    def separator_bytes(self) -> bytes:
        """The text between documents; b"": none."""
        return _SEPARATORS.get(self.separator, self.separator).encode()

    def check(self) -> None:
        super().check()
        if escape := _ESCAPE.search(self.separator):
            # Arguments of commands have no zero byte.
            has_zero = re.search(r"\\(0(?![0-7])|x00|u0000)", self.separator)
            bash = "" if has_zero else f"in bash $'{self.separator}', "
            raise SettingsError(
                f"--separator {self.separator} has a backslash and {escape[0][1:]}, not the"
                " character that this stands for; choose line or blank-line, or give the character"
                f" itself ({bash}in YAML \"{self.separator}\")"
            )
        if self.max_length_chars is not None and self.min_length > self.max_length_chars:
            raise SettingsError(
                f"--min-length {self.min_length:,} is above --max-length-chars"
                f" {self.max_length_chars:,}, so no document is left; lower it"
            )
        for field in self.content_field:
            if "" in field.split("."):
                raise SettingsError(
                    f"--content-field {field!r} has an empty part; name fields as in data.text"
                )
            if inside := [x for x in self.content_field if x.startswith(f"{field}.")]:
                raise SettingsError(
                    f"--content-field {field!r} is text or an object with {inside[0]!r}, not both;"
                    " leave one out"
                )


class ShardSettings(Settings):
    """Options for shards."""

    shard_tokens: Is[Count | None] = option(
        "Write shards NAME_00000.bin and so on of so many tokens at most, with one manifest.",
        default=None, default_text="one file; in a bucket 500,000,000",
    )
    split_documents: Is[bool] = option(
        "Let a document continue in the next shard, so that all shards but the last are full, and"
        " none is larger.",
        default=False, needs=("shard_tokens",),
    )

    def check(self) -> None:
        if self.shard_tokens is None and is_url(getattr(self, "out", "")):
            self.__dict__["shard_tokens"] = TOKENS_OF_SHARD_IN_BUCKET
        super().check()


class ReadSettings(TextSettings, WorkerSettings):
    """Options for reading text with several workers."""

    @property
    def all_special_tokens(self) -> tuple[str, ...]:
        """Special tokens to add to a tokenizer: those around documents, if any."""
        return ()


_OF_ALL_TEXT = {
    "executor": "Ray divides the text, and this needs all of it, as tasks read it (--task-index)"
}


class SelectSettings(Settings):
    """Options for choosing and ordering documents; train and val files have a slice each."""

    deduplicate: Is[bool] = option(
        "Leave out documents that are equal to an earlier one, or in val to one of train.",
        default=False, excludes=_OF_ALL_TEXT,
    )
    start_character: Is[Index] = option(
        "Leave out documents that begin before this character of the text, counted from 0.",
        default=0, excludes=_OF_ALL_TEXT,
    )
    max_characters: Is[Count | None] = option(
        "Leave out documents that begin so many characters after --start-character, or later.",
        default=None, excludes=_OF_ALL_TEXT,
    )
    max_documents: Is[Count | None] = option(
        "Keep at most so many documents.", default=None, excludes=_OF_ALL_TEXT,
    )
    cut_documents: Is[bool] = option(
        "Cut documents at --start-character and --max-characters, instead of keeping or leaving"
        " out all of each.",
        default=False, needs=("start_character", "max_characters"),
    )
    shuffle_documents: Is[Seed | None] = option(
        "Seed of a random order of the documents.",
        default=None, default_text="the order of the files",
    )

    @property
    def selects(self) -> bool:
        """True if documents are chosen by more than what they are."""
        return self.deduplicate or self.limits

    @property
    def limits(self) -> bool:
        """True if documents are chosen by their number or place."""
        return bool(self.start_character or self.max_characters or self.max_documents)


_RESOURCE = r"([^=\s]+)=(\d{1,18}(?:\.\d+)?|\.\d+)"


def _read_resources(value: Any) -> tuple[str, ...]:
    """Convert {"CPU": 2}, or texts such as "CPU=2", to texts."""
    if isinstance(value, Mapping):
        value = [f"{name}={amount}" for name, amount in value.items()]
    found = () if isinstance(value, str) else tuple(map(str, value))
    if not all(re.fullmatch(_RESOURCE, x) for x in found) or isinstance(value, str):
        raise TypeError
    return found


def resources_of(texts: Iterable[str]) -> dict[str, float]:
    """Return name -> amount of resources.

    >>> resources_of(("CPU=2", "GPU=0.5"))
    {'CPU': 2.0, 'GPU': 0.5}
    """
    return {name: float(amount) for name, _, amount in (text.partition("=") for text in texts)}


_RESOURCES = "amounts of resources, such as CPU=2 or memory=4000000000"
Resources = Annotated[tuple[str, ...], Kind(_read_resources, _RESOURCES, "NAME=AMOUNT")]


class ProvenanceSettings(Settings):
    """The option for where documents are from."""

    provenance: Is[bool] = option(
        "Write source and record number of each document, 12 bytes for each, for `where` and"
        " `search`.",
        default=False, excludes=dict.fromkeys(
            ("task_count", "executor"),
            "records are counted from the beginning of a file, and tasks divide files",
        ),
    )


class TaskSettings(Settings):
    """Options for a build that is divided among tasks of a scheduler."""

    task_index: Is[Index | None] = option(
        "Make only part N of --task-count parts, counted from 0, with the given tokenizer;"
        " `merge` joins them.",
        default=None, default_text="all", needs=("task_count",),
        excludes={"executor": "Ray makes all parts"},
    )
    task_count: Is[Count | None] = option(
        "Number of parts that the text is divided into.",
        default=None, default_text="on Ray one for every 128 MiB, up to 1,024",
    )

    @property
    def part(self) -> str:
        """Prefix of the outputs of a task; "": there are no tasks."""
        index, count = self.task_index, self.task_count
        return "" if index is None else f"part-{index:05d}-of-{count:05d}"

    def check(self) -> None:
        super().check()
        index, count = self.task_index, self.task_count
        if index is not None and count is not None and index >= count:
            raise SettingsError(
                f"--task-index is {index:,}, and parts are counted from 0 to {count - 1:,}"
                f" (--task-count {count:,}); correct one of them"
            )


class SpecialTokenSettings(Settings):
    """Options for the special ids around documents."""

    end_of_text: Is[Token | None] = option(
        "Special token after each document.",
        default=None, default_text=f"the tokenizer's, else {END_OF_TEXT}",
    )
    begin_of_text: Is[Token | None] = option("Special token before each document.", default=None)

    @property
    def all_special_tokens(self) -> tuple[str, ...]:
        """Special tokens to add to a tokenizer: those around documents."""
        wanted = (self.end_of_text or END_OF_TEXT, self.begin_of_text)
        return tuple(dict.fromkeys(token for token in wanted if token))


class MemorySettings(Settings):
    """Options for memory."""

    memory_limit: OptionalSize = run_option(
        "Memory that the run may take, such as 500MB: counts that do not fit go to files; never"
        " changes the outputs.", default=None,
    )
    profile: Is[Literal["memory", "balanced", "speed"] | None] = run_option(
        "Values of --workers, --unit-size and --memory-limit that are not given. memory: 1,"
        " 256KiB, 500MB; balanced: half of the processors, 1MiB, 2GB; speed: all processors, 4MiB,"
        " no limit. A limit below the minimum of the run is raised to it.", default=None,
    )


class ConversationSettings(ReadSettings):
    """Options for reading text and conversations."""

    chat: Is[Literal["auto", "off", "messages", "sharegpt", "prompt-completion"]] = option(
        "Kind of the conversations in records; auto: found by their fields, off: records are text.",
        default="auto",
    )
    chat_template: Is[Token | None] = option(
        "File with a Jinja template that renders conversations as text, or chatml.",
        default=None, default_text="the tokenizer's",
    )
    train_on: Is[Literal["assistant", "all", "last-assistant"]] = option(
        "Part of a conversation to train on, which the loss mask marks.", default="assistant",
    )
    chat_date: Is[Date | None] = option(
        "Date that a chat template writes as today's.",
        default=None, default_text="none, an error if a template writes it",
    )
    chat_template_kwargs: Option[TemplateVariables | None, str | Mapping[str, Any] | None] = option(
        "Further variables for the chat template, such as {\"enable_thinking\": false}.",
        default=None,
    )

    def check(self) -> None:
        super().check()
        if self.chat not in ("auto", "off") and (self.content_field or self.text_preset):
            raise SettingsError(
                f"--chat {self.chat!r} has fields of its own; leave out --content-field and"
                " --text-preset"
            )


class DocumentSettings(MemorySettings, SpecialTokenSettings, ConversationSettings, SelectSettings):
    """Options for documents: which, their text and special ids; and for memory."""


class RunSettings(DocumentSettings, RepeatableSettings):
    """Options of runs that write outputs: where their workers are."""

    executor: Is[Literal["threads", "ray"]] = run_option(
        "Where the workers run: in threads of this process, or on Ray, also on other machines.",
        default="threads",
    )
    ray_address: Is[str | None] = run_option(
        "Address of a cluster of Ray, such as auto or ray://HOST:10001.",
        default=None, default_text="Ray is started on this machine", needs=("executor ray",),
    )
    ray_resources: Option[Resources, Iterable[str] | Mapping[str, float]] = run_option(
        "Resource of Ray that each worker needs, such as CPU=2; may be repeated.",
        default=(), default_text="CPU=1", flag="--ray-resource", needs=("executor ray",),
    )


AUTO: Literal["auto"] = "auto"


def _vocabulary_size(value: Any) -> Any:
    """Convert text such as "32k" or "32000" to a number."""
    if isinstance(value, str) and (match := re.fullmatch(r"(\d{1,19})([kK]?)", value)):
        return int(match[1]) * (1000 if match[2] else 1)
    return value if isinstance(value, bool) else operator.index(value)


def _vocabulary_sizes(value: Any) -> Any:
    """Convert sizes, or texts of some separated by commas, to numbers in ascending order."""
    given = value if isinstance(value, Iterable) and not isinstance(value, str) else [value]
    each = [y for x in given for y in (x.split(",") if isinstance(x, str) else [x])]
    return tuple(sorted({*map(_vocabulary_size, each)}))


def _vocabulary_size_or_auto(value: Any) -> Any:
    return value if isinstance(value, str) and value == AUTO else _vocabulary_size(value)


VocabularySize = Annotated[
    Annotated[int, Meta(le=2**29)] | Literal["auto"],
    Kind(_vocabulary_size_or_auto, f"a whole number from 256 to {2**29:,}, or 'auto'", "N|auto"),
]
VocabularySizes = Annotated[
    tuple[Annotated[int, Meta(ge=256, le=2**29)], ...],
    Kind(_vocabulary_sizes, f"numbers from 256 to {2**29:,}, such as 8k,32k", "N[,N...]"),
]
VOCABULARY_SIZES = tuple(1000 * 2**i for i in range(8))


class ModelSettings(Settings):
    """Options for the model whose compute a size of the vocabulary is chosen for."""

    width: Is[Count] = option(
        "Width of the model for which a size of the vocabulary is chosen.", default=768,
        needs=("vocab_size auto",),
    )
    layers: Is[Count] = option("Layers of that model.", default=12, needs=("vocab_size auto",))


class LearningSettings(Settings):
    """Options for training, except the size of the vocabulary."""

    pattern: Option[Pattern, str | None] = option(
        "Split pattern: gpt2, cl100k, o200k, llama3, qwen2, superwords, or a regular expression. A"
        " .tiktoken file needs it.", default=lambda: "gpt2", default_text="gpt2",
    )
    special_tokens: Option[Tokens, Iterable[str]] = option(
        "Further special token for a new tokenizer; may be repeated.",
        default=(), flag="--special-token",
    )
    tie_break: Is[Literal["greatest-bytes", "huggingface"]] = option(
        "Which of equally frequent pairs is merged: that with the greatest bytes (Stanford CS336),"
        " or that of Hugging Face's trainer.",
        default="greatest-bytes",
    )
    min_frequency: Is[Index] = option("Pairs that occur less often are not merged.", default=2)


class VocabularySettings(LearningSettings, ModelSettings):
    """Options for training, without effect if a tokenizer is given."""

    vocab_size: Option[VocabularySize, int | str] = option(
        "Bytes, merges and special tokens together; auto: of 1k, 2k, 4k, and so on to 128k the size"
        " with the least compute per byte of validation text, by --width and --layers.",
        default=32_000,
    )

    @property
    def largest_size(self) -> int:
        """The size of the vocabulary, or that of which it is chosen."""
        return VOCABULARY_SIZES[-1] if self.vocab_size == AUTO else self.vocab_size


class TrainSettings(VocabularySettings, RunSettings):
    """Options for training on text."""

    @property
    def all_special_tokens(self) -> tuple[str, ...]:
        """Special tokens of the trained tokenizer: those around documents, then the given ones."""
        others = (token for token in super().all_special_tokens if token not in self.special_tokens)
        return (*others, *self.special_tokens)

    def check(self) -> None:
        super().check()
        if self.vocab_size == AUTO and self.executor == "ray":
            raise SettingsError(
                "--vocab-size auto is chosen on one machine, not on Ray; train the tokenizer first"
                " (tokenmill train), and give it (--tokenizer)"
            )
        if self.largest_size < (least := 256 + len(self.all_special_tokens)):
            raise SettingsError(
                f"--vocab-size {self.largest_size:,} is too small: 256 bytes and {least - 256}"
                f" special tokens need at least {least}"
            )


class RanksSettings(Settings):
    """Options for tokenizer files without a split pattern."""

    pattern: Is[str | None] = option("Split pattern of a .tiktoken file.", default=None)


class BuiltWithSettings(Settings):
    """Options to find the tokenizer of a token file."""

    tokenizer: Tokenizer = option(
        "Tokenizer that the token file was built with.",
        default=None, default_text="tokenizer.json beside it",
    )


# --- options of rows ---

_PADDINGS = {  # also those of transformers
    False: "none", True: "longest", "do_not_pad": "none", "none": "none", "longest": "longest",
    "max_length": "max-length", "max-length": "max-length",
}
Padding = Annotated[
    Literal["none", "longest", "max-length"],
    Kind(_PADDINGS.get, "'none', 'longest' or 'max-length', False or True",
         "none|longest|max-length"),
]  # fmt: skip


def _read_pad_token(value: Any) -> Any:
    return value if isinstance(value, str | bool) else operator.index(value)


PadToken = Annotated[int | str, Kind(_read_pad_token, "a special token, or an id", "TEXT")]
_OF_STREAM = {"seq_length": "rows are of documents, or of --seq-length tokens across them"}


class WindowSettings(Settings):
    """Options for rows of documents."""

    max_length: Is[Count | None] = option(
        "Most tokens of a row; a longer document has several rows.",
        default=None, default_text="a document is a row", excludes=_OF_STREAM,
    )
    stride: Is[Count | None] = option(
        "Distance between the beginnings of rows of a document; rows overlap if it is less than"
        " --max-length.",
        default=None, default_text="--max-length", needs=("max_length",), excludes=_OF_STREAM,
    )
    truncation: Is[bool] = option(
        "Leave out what follows the first --max-length tokens of a document.",
        default=False, needs=("max_length",),
        excludes=_OF_STREAM | {"stride": "a document has one row"},
    )
    drop_end_of_text: Is[bool] = option(
        "Leave out the id at the end of each document.", default=False, excludes=_OF_STREAM,
    )
    drop_short: Is[bool] = option(
        "Leave out rows of fewer tokens than --max-length, or --seq-length, so that all have the"
        " same length.",
        default=False, needs=("max_length", "seq_length"),
        excludes={"strategy": "packed rows are padded (--padding max-length)"},
    )
    add_special_tokens: Is[bool] = option(
        "Put the special tokens around each row that the tokenizer puts around a text, instead of"
        " those of the dataset; --max-length counts them.", default=False, excludes=_OF_STREAM,
    )
    padding: Option[Padding, bool | Literal["none", "longest", "max-length", "max_length"]] = (
        option(
            "Pad rows to the longest, or to --max-length or --seq-length; with none, only rows of"
            " npz are padded, to the longest.", default="none",
        )
    )
    padding_side: Is[Literal["right", "left"]] = option(
        "Side on which rows are padded.", default="right",
    )
    pad_token: Is[PadToken | None] = option(
        "Special token to pad with, in Python also an id.", default=None,
        default_text="the tokenizer's, else <|pad|>, <pad> or [PAD], else end-of-text",
    )

    def check(self) -> None:
        super().check()
        if self.stride and self.max_length and self.stride > self.max_length:
            raise SettingsError(
                f"--stride {self.stride:,} is above --max-length {self.max_length:,}, so tokens"
                " between rows would be lost; lower it"
            )


class FormatSettings(Settings):
    """The option for the format of rows."""

    format: Is[RowFormat] = option("Format of the files.", default="parquet")


class FileSettings(Settings):
    """Options for files of rows."""

    columns: Names = option(
        "Arrays to write, in this order: input_ids, attention_mask, labels, segment_ids,"
        " position_ids; may be repeated.",
        default=(), flag="--column",
        default_text="the first three, of npz two; with a strategy all but attention_mask",
    )
    compression: Is[Literal["zstd", "snappy", "gzip", "zlib", "none"] | None] = option(
        "Compression: of parquet zstd, snappy or none; of arrow zstd; of jsonl gzip or zstd; of"
        " npz zlib.", default=None, default_text="of parquet zstd, of npz zlib, else none",
    )
    per_file: Is[bool] = option(
        "Write the rows of each input file to a file with its name; a rerun writes those that are"
        " new, missing or damaged.", default=False,
        excludes={"cut": "which rows are cut at turns is planned for all inputs together"} |
        dict.fromkeys(
            ("strategy", "num_shards", "max_shard_size"), "each input has one file of its rows"
        ),
    )
    num_shards: Is[Count | None] = option(
        "Number of files, whose numbers of rows differ by at most one; fewer for fewer rows.",
        default=None, default_text="as many as needed",
    )
    max_shard_size: OptionalSize = option(
        "Most bytes of arrays in a file, approximately; there are more files than --num-shards if"
        " those would be larger.", default=None, default_text="500MiB; with --num-shards no limit",
    )


class RowSettings(WindowSettings, FormatSettings, FileSettings, WorkerSettings, RepeatableSettings):
    """Options for rows: which tokens a row has, its arrays, and their files."""

    seq_length: Is[Count | None] = option(
        "Cut the whole dataset into rows of so many tokens, across documents.",
        default=None,
    )
    strategy: Is[Strategy | None] = option(
        "Pack documents, and parts of them, into rows of at most --seq-length tokens; see"
        " docs/sampling.md.", default=None, default_text="not packed", needs=("seq_length",),
    )
    cut: Is[Literal["length", "turns"]] = option(
        "Where longer documents are cut: after --max-length or --seq-length tokens, or between"
        " turns, for conversations with a loss mask; the end of an answer that does not fit is"
        " left out.",
        default="length", needs=("strategy", "max_length"), excludes=dict.fromkeys(
            ("stride", "truncation", "drop_short", "drop_end_of_text", "add_special_tokens"),
            "rows of documents begin where a turn does, and have any length",
        ),
    )

    @property
    def padded_to(self) -> Literal["none", "longest", "max-length"]:
        """To what rows are padded: as chosen, else as the format needs rows of one length."""
        if self.padding == "none" and not self.drop_short:
            if self.format == "npz":
                return "longest"
            if self.format == "pickle" and self.seq_length is not None and self.strategy is None:
                return "max-length"
        return self.padding

    @property
    def is_padded(self) -> bool:
        """True if rows are padded."""
        return self.padded_to != "none"

    def check(self) -> None:
        super().check()
        if not self.is_padded and (self.pad_token is not None or self.padding_side == "left"):
            raise SettingsError(
                "--pad-token and --padding-side are for padding; say how (--padding)"
            )
        if self.padding == "max-length" and not (self.max_length or self.seq_length):
            raise SettingsError("--padding max-length needs --max-length or --seq-length; give one")


# --- commands ---


class BuildSettings(
    TrainSettings, ShardSettings, ProvenanceSettings, TaskSettings, ProgressSettings,
    function="build",
):
    """Options of `build`: a tokenizer, train.bin and val.bin from text."""

    config: Is[Config | None] = run_option(
        "A corpus.yaml with several datasets; only options that do not change the outputs may"
        " be combined with it.", default=None, kw_only=False,
    )
    train: GivenTexts = option(
        "Text: files, directories and URLs, read in the order given; a directory in sorted"
        " order; in Python also documents.", default=(), default_text=DEFAULT_CORPUS,
    )
    val: GivenTexts = option(
        "Validation text, given in the same way.", default=(), default_text="documents of train",
        excludes={"val_fraction": "validation is of files of its own, or out of train"},
    )
    val_fraction: Is[Fraction | None] = option(
        "Share of the documents of train, chosen by a hash of each, that becomes validation"
        " without --val; 0: no validation file.",
        default=None, default_text=str(DEFAULT_VALIDATION_FRACTION),
    )
    out: IsOutput = option(
        "Directory of the outputs, or URL of a place in a bucket (s3://BUCKET/data), where they"
        " are shards.", default="data",
    )
    name: Is[Prefix] = run_option("Prefix of the outputs: NAME_train.bin and so on.", default="")
    tokenizer: Tokenizer = option(
        "Tokenizer to use instead of training one: a tokenizer.json, its directory or URL, a"
        " .tiktoken file, or a name (tiktoken, Hugging Face).", default=None,
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

    def check(self) -> None:
        if self.config is not None:
            return  # its datasets are checked
        super().check()
        if self.vocab_size == AUTO and self.tokenizer is None and len(self.stems) == 1:
            raise SettingsError(
                "--vocab-size auto is chosen by validation text, and --val-fraction 0 leaves none;"
                " give a share, or files (--val)"
            )
        if self.task_index is not None and self.tokenizer is None:
            raise SettingsError(
                "--task-index divides the text, and a tokenizer is trained on all of it; train it"
                " first (tokenmill train), and give it to every task (--tokenizer)"
            )


class TrainFileSettings(TrainSettings, ProgressSettings):
    """Options of `train`: a tokenizer.json from text."""

    paths: GivenTexts = option(
        "Text: files, directories and URLs; in Python also documents.", kw_only=False,
    )
    out: IsOutput = option(
        "Tokenizer file to write, or its URL in a bucket.", default="tokenizer.json",
    )
    extend: Tokenizer = option(
        "Tokenizer to add tokens to: its ids keep their meaning, and further merges are learnt"
        " from the text. --vocab-size counts its ids, too.", default=None,
    )
    val_fraction: Is[OpenFraction | None] = option(
        "Share of the documents, chosen by a hash of each, that --vocab-size auto is chosen by,"
        " and not trained on.", default=None, needs=("vocab_size auto",),
        default_text=f"with auto {DEFAULT_VALIDATION_FRACTION}, else none",
    )

    @property
    def validation_fraction(self) -> float:
        """Share of the documents that the size of the vocabulary is chosen by."""
        if self.vocab_size != AUTO:
            return 0.0
        return self.val_fraction or DEFAULT_VALIDATION_FRACTION

    superwords: Is[Count | None] = option(
        "Number of merges within words; later ones, up to --vocab-size, may join words into phrases"
        " (SuperBPE).",
        default=None, excludes={"extend": "tokens of several words need a new tokenizer"},
    )

    def check(self) -> None:
        super().check()
        after = "--superwords" if self.extend is None else "--extend"
        if self.vocab_size == AUTO and (self.extend is not None or self.superwords is not None):
            raise SettingsError(
                f"--vocab-size auto is of one training, and {after} goes on after another; say how"
                " many tokens it is to have"
            )
        if self.superwords is None:
            return
        if self.largest_size <= (least := 256 + self.superwords + len(self.all_special_tokens)):
            raise SettingsError(
                f"--superwords {self.superwords:,} leaves no merge for phrases: bytes, these merges"
                f" and special tokens are {least:,} tokens, and --vocab-size is"
                f" {self.largest_size:,}; raise it"
            )
        if "pattern" in self.given:
            raise SettingsError("--superwords has split patterns of its own: leave out --pattern")
        for each in self.paths:
            remedy = "save standard input (-) to a file" if each == "-" else ""
            if getattr(each, "is_one_shot", False):
                remedy = f"give a function that returns {each}, which can be read once"
            if remedy:
                raise SettingsError(f"--superwords reads the text twice: {remedy}")

    @property
    def run_name(self) -> str:
        """Name of the work directory."""
        return Path(split_location(self.out)[1]).stem

    def named(self, name: str) -> str:
        """Return `name` with the stem of the tokenizer."""
        return f"{self.run_name}_{name}"


class CountSettings(RanksSettings, ReadSettings, ProgressSettings):
    """Options of `count`: the number of tokens of text."""

    paths: GivenTexts = option(
        "Text: files, directories and URLs; in Python also documents.", kw_only=False,
    )
    tokenizer: Option[GivenTokenizer, TokenizerSource] = option(
        "A tokenizer.json, its directory or URL, a .tiktoken file, or a name (tiktoken, Hugging"
        " Face).",
    )


class EncodeSettings(
    CountSettings, RunSettings, ShardSettings, ProvenanceSettings, TaskSettings
):
    """Options of `encode`: a token file from text, with a given tokenizer."""

    out: IsBinFile = option(
        "The .bin file to write, with its .docs and .json beside it; or its URL in a bucket,"
        " where they are shards.", default="train.bin",
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
        return f"{self.run_name}_{name}"


class WriterSettings(
    SpecialTokenSettings, RanksSettings, ShardSettings, WorkerSettings, OverwriteSettings
):
    """Options of `DatasetWriter`: a dataset whose documents a program writes one by one."""

    out: IsBinFile = option("The .bin file to write, or its URL in a bucket.", kw_only=False)
    tokenizer: Option[GivenTokenizer, TokenizerSource] = option("A tokenizer, as of `encode`.")
    loss_mask: Is[bool] = option("Documents of ids have a mask.", default=False)

    @property
    def name(self) -> str:
        """NAME of NAME.bin."""
        return Path(self.out).stem


class AppendSettings(
    MemorySettings, ConversationSettings, BuiltWithSettings, OverwriteSettings, ProgressSettings,
    function="append",
):
    """Options of `append`: more documents for a dataset."""

    path: IsOutput = option(
        "Dataset: a directory or .bin file, or its URL in a bucket.", kw_only=False,
    )
    train: GivenTexts = option(
        "Text to append: files, directories and URLs; in Python also documents.",
    )
    shard_tokens: Is[Count | None] = option(
        "Most tokens of a new shard.", default=None, default_text="one shard",
    )


def _read_numbers(value: Any) -> Any:
    """Convert a list of numbers, or a path of a file of them."""
    if isinstance(value, str | os.PathLike):
        return read_location(value)
    if isinstance(value, Mapping | set) or not isinstance(value, Iterable):
        raise TypeError
    return tuple(map(operator.index, value))


DocumentNumbers = Annotated[
    str | tuple[int, ...], Kind(_read_numbers, "a path, or a list of numbers", "FILE"),
]


class DropSettings(OverwriteSettings, ProgressSettings, function="drop"):
    """Options of `drop`: a dataset without some of its documents."""

    path: IsReadable = option(
        "Dataset that has the documents: a directory, .bin file or URL.", kw_only=False,
    )
    out: IsBinFile = option("The .bin file of the new dataset.")
    documents: Option[DocumentNumbers | None, str | Iterable[int] | None] = option(
        "File with the number of a document to drop in each line, counted from 0; in Python also"
        " a list.", default=None,
    )
    source: Names = option(
        "Source whose documents are dropped, named as `inspect` shows it; may be repeated.",
        default=(),
    )
    matching: Option[Readable | None, StrPath | None] = option(
        "File of evaluation items: drop documents that have an n-gram of one, as `search"
        " --contamination` finds them.", default=None,
    )
    ngram: Is[Count] = option("Words of an n-gram.", default=13, needs=("matching",))

    @property
    def name(self) -> str:
        """NAME of NAME.bin."""
        return Path(self.out).stem


class CompareSettings(RanksSettings, TextSettings, ProgressSettings):
    """Options of `compare`: two tokenizers on the same text."""

    first: IsPath = option("A tokenizer, as `encode` takes it.", kw_only=False)
    second: IsPath = option("A tokenizer to compare it with, as `encode` takes it.", kw_only=False)
    paths: Paths = option(
        "Text: files, directories and URLs.",
        default=(), kw_only=False, default_text=DEFAULT_CORPUS,
    )
    max_bytes: Option[Size, int | str] = option(
        "Stop after so much text, at the end of a work unit.",
        default=64 << 20, default_text="64MiB",
    )


class VocabCurveSettings(
    ModelSettings, LearningSettings, DocumentSettings, ProgressSettings, function="vocab_curve"
):
    """Options of `vocab-curve`: tokens of held-out text for several sizes of the vocabulary."""

    paths: Paths = option(
        "Text to train on: files, directories and URLs.", kw_only=False,
    )
    val: Paths = option(
        "Held-out text, which is encoded and not trained on.", default=(),
        default_text="documents of PATH, which are not trained on",
        excludes={"val_fraction": "held-out text is of files of its own, or out of PATH"},
    )
    val_fraction: Is[OpenFraction | None] = option(
        "Share of the documents of PATH, chosen as in `build`, that is held out without --val.",
        default=None, default_text=str(DEFAULT_VALIDATION_FRACTION),
    )
    sizes: Option[VocabularySizes, int | str | Iterable[int | str]] = option(
        "Sizes of the vocabulary, such as 8k,16k,32k, where k is a thousand.",
        default=VOCABULARY_SIZES, default_text="1k,2k,4k, and so on to 128k",
    )
    plot: OptionalPath = run_option(
        "File of a plot (.svg, .png or .pdf), which is replaced if it exists.", default=None,
    )

    def check(self) -> None:
        super().check()
        if not self.sizes:
            raise SettingsError("--sizes has no size; give at least one, such as 8k,32k")


class DecodeSettings(BuiltWithSettings):
    """Options of `decode`: the text of a token file."""

    path: IsReadable = option("Token file, or its URL.", kw_only=False)
    start: Is[Index] = option("Position of the first token.", default=0)
    count: Is[Index | None] = option("Number of tokens.", default=None, default_text="all")


def _read_ids(value: Any) -> tuple[int, ...]:
    """Convert ids, or text such as "464,318", to numbers."""
    given = [value] if isinstance(value, str) else value
    if isinstance(given, bytes | Mapping):
        raise TypeError
    each = [y for x in given for y in (x.split(",") if isinstance(x, str) else [x])]
    if not all(re.fullmatch(r"\s*\d{1,19}\s*", x) for x in each if isinstance(x, str)):
        raise TypeError
    return tuple(int(x) if isinstance(x, str) else operator.index(x) for x in each)


def _read_texts(value: Any) -> tuple[str, ...]:
    """Convert a text, or texts, to a tuple."""
    given = (value,) if isinstance(value, str) else value
    if isinstance(given, bytes | Mapping):
        raise TypeError
    found = tuple(given)
    if not all(isinstance(x, str) and x and x.encode() for x in found):
        raise TypeError
    return found


_TEXTS = "a text, or a list of texts, none of them empty"
Texts = Annotated[tuple[str, ...], Kind(_read_texts, _TEXTS, "TEXT")]
Ids = Annotated[tuple[Index, ...], Kind(_read_ids, "ids such as 464,318", "N[,N...]")]
_ONE_SEARCH = "one thing is searched for at a time"


class SearchSettings(BuiltWithSettings, ReadSettings, ProgressSettings, function="search"):
    """Options of `search`: where texts or ids occur in a dataset."""

    path: IsReadable = option("Dataset: a directory, .bin file or URL.", kw_only=False)
    texts: Option[Texts, str | Iterable[str]] = option(
        "Texts to find, byte by byte, however they are divided into tokens.",
        default=(), kw_only=False, excludes={"file": _ONE_SEARCH},
    )
    ids: Option[Ids | None, str | Iterable[int] | None] = option(
        "Ids to find, special ones too, such as 464,318.", default=None,
        excludes={"texts": _ONE_SEARCH, "file": _ONE_SEARCH},
    )
    file: Option[Readable | None, StrPath | None] = option(
        "File whose documents are the texts to find, read as `build` reads text.", default=None,
    )
    contamination: Option[Readable | None, StrPath | None] = option(
        "File of evaluation items: find which share of the n-grams of each is in the dataset.",
        default=None, excludes=dict.fromkeys(("texts", "ids", "file"), _ONE_SEARCH),
    )
    ngram: Is[Count] = option(
        "Words of an n-gram, in lower case and without punctuation.", default=13,
        needs=("contamination",),
    )
    limit: Is[Index] = option(
        "Places that are listed for each text, or documents for each item.", default=10,
    )

    def check(self) -> None:
        super().check()
        if not (self.texts or self.ids or self.file or self.contamination):
            raise SettingsError(
                "there is nothing to search for; give a text, ids (--ids), a file of texts (--file)"
                " or of evaluation items (--contamination)"
            )
        for name, of_text in options_of(TextSettings).items():
            if name in self.given and self._has(of_text):
                self._check_needs(of_text, ("file", "contamination"))


class SampledSettings(BuiltWithSettings):
    """The dataset of a sampler."""

    path: Option[Readable | None, StrPath | None] = option(
        "Directory, .bin file or URL of the dataset, unless the configuration names it.",
        default=None, kw_only=False,
    )


class ShowSettings(SampledSettings):
    """Options of `show`: what the rows of a training step are."""

    config: IsPath = option("JSON file with the arguments of a Sampler or Mixture.")
    step: Is[Index] = option("Number of the step, counted from 0.", default=0)
    row: Is[Index] = option("First row to show, counted from 0.", default=0)
    rows: Is[Count] = option("Number of rows to show.", default=4)


_ONE_PLACE = "one place is looked up at a time"


class WhereSettings(SampledSettings):
    """Options of `where`: where a token is from."""

    token: Is[Index | None] = option(
        "Position of a token in the dataset, counted from 0.", default=None,
        excludes=dict.fromkeys(("document", "step"), _ONE_PLACE),
    )
    document: Is[Index | None] = option(
        "Number of a document, counted from 0.", default=None, excludes={"step": _ONE_PLACE},
    )
    step: Is[Index | None] = option(
        "Step of a sampler: the documents of one of its rows are looked up.", default=None,
        needs=("config",),
    )
    row: Is[Index | None] = option(
        "Row of the step, counted from 0.", default=None, default_text="0", needs=("step",),
    )
    config: OptionalPath = option(
        "JSON file with the arguments of the sampler, as `show` takes it.", default=None,
        needs=("step",),
    )

    def check(self) -> None:
        super().check()
        given = (self.token, self.document, self.step)
        if all(x is None for x in given) or (self.step is None and self.path is None):
            raise SettingsError(
                "there is no place to look up; give a dataset and a token (--token) or document"
                " (--document), or a step of a sampler (--step, --config)"
            )


class InspectSettings(RanksSettings):
    """Options of `inspect`: a description of a file or directory."""

    path: IsReadable = option(
        "A directory of outputs or a .bin file, or its URL; or a tokenizer, as `encode` takes it.",
        kw_only=False,
    )


class ReportSettings(BuiltWithSettings, ProgressSettings, function="report"):
    """Options of `report`: the numbers of datasets, and a page that shows them."""

    path: IsReadable = option(
        "Directory of outputs, .bin file or URL of a dataset.", kw_only=False,
    )
    out: OptionalPath = run_option(
        "HTML page to write; that of an earlier report is replaced.", default=None,
        default_text="report.html, with --json none",
    )
    beside: Tokenizer = option(
        "Another tokenizer, as `encode` takes it, whose bytes per token are also reported.",
        default=None,
    )


class ViewSettings(Settings, function="open_viewer"):
    """Options of `view`: a page that shows datasets and tokenizers."""

    paths: Paths = option(
        "Datasets (a directory, a .bin file, or its URL) and tokenizers, as `encode` takes them.",
        kw_only=False,
    )
    port: Is[Annotated[int, Meta(ge=0, le=65535)]] = run_option(
        "Port of 127.0.0.1 to listen on.", default=0, default_text="a free one",
    )
    no_browser: Is[bool] = run_option("Print the address, but open no browser.", default=False)


class DiffSettings(ProgressSettings, function="diff"):
    """Options of `diff`: what two datasets have in common."""

    old: IsReadable = option("Directory, .bin file or URL of a dataset.", kw_only=False)
    new: IsReadable = option(
        "Directory, .bin file or URL of the dataset to compare it with.", kw_only=False,
    )
    limit: Is[Index] = option("Number of differing documents to list for each dataset.", default=10)


class VerifySettings(BuiltWithSettings, ProgressSettings, function="verify"):
    """Options of `verify`: a check of token files against manifests."""

    path: IsReadable = option(
        "A directory of outputs, or one .bin file; or its URL.", kw_only=False,
    )
    deep: Is[bool] = option("Encode the sources again and compare.", default=False)
    repair: Is[bool] = option("Rebuild what is damaged from the sources.", default=False)


class MergeSettings(OverwriteSettings, function="merge_parts"):
    """Options of `merge`: one dataset from the parts of several tasks."""

    path: IsOutput = option("Directory or URL with the parts, which are kept.", kw_only=False)
    name: Is[Prefix] = run_option("The --name that was given to the tasks.", default="")


class DoctorSettings(Settings):
    """Options of `doctor`: a check of the machine."""

    path: IsPath = option(
        "Directory where outputs would be written.", default="data", kw_only=False,
    )


class RowsSettings(RowSettings, ProgressSettings, function="write_rows"):
    """Options of `rows`: files of rows from a dataset."""

    path: IsReadable = option("Directory, .bin file or URL of a dataset.", kw_only=False)
    out: IsOutput = option(
        "Directory of the rows, or a URL; if the dataset has several .bin files, those of"
        " NAME.bin are in OUT/NAME.", default="rows",
    )
    tokenizer: Tokenizer = option(
        "Tokenizer that the dataset was built with, for --add-special-tokens and --pad-token.",
        default=None, default_text="tokenizer.json beside it",
    )


class ExportSettings(OverwriteSettings, ProgressSettings, function="export_tokens"):
    """Options of `export`: a dataset as files of another program."""

    path: IsReadable = option(
        "A directory with datasets, or one .bin file; or its URL.", kw_only=False,
    )
    to: Is[Literal["megatron", "llmc", "datatrove", "mds", "litdata", "npy"]] = option(
        "Format of the export; see docs/exports.md."
    )
    out: IsPath = option(
        "Directory of the export.", default="export",
    )
    name: Is[Prefix] = option(
        "Prefix of the outputs, if one dataset is exported.",
        default="", default_text="that of the dataset",
    )
    shard_tokens: Is[Count | None] = option(
        "Most tokens of a file, for llmc, mds and litdata; in mds a larger document has a file of"
        " its own.",
        default=None, default_text="of llmc 100,000,000, of mds and litdata 16,777,216",
    )


class ImportSettings(
    ShardSettings, OverwriteSettings, ProgressSettings, function="import_tokens"
):
    """Options of `import`: a dataset from token ids that another program made."""

    path: IsPath = option(
        "File of ids; of Megatron the prefix of its .bin and .idx.", kw_only=False,
    )
    format: Is[Literal["megatron", "raw"]] = option(
        "Format: Megatron's .bin and .idx, or ids without a header."
    )
    dtype: Is[Literal["uint8", "uint16", "uint32", "int32", "int64"] | None] = option(
        "Type of the ids, little-endian; required for raw files. The .idx of Megatron has it.",
        default=None,
    )
    end_of_text_id: Is[Index] = option("Id at the end of each document.")
    append_end_of_text: Is[bool] = option(
        "Append the end-of-text id to documents that lack it.", default=False,
    )
    tokenizer: Tokenizer = option(
        "Tokenizer that made the ids; required without --vocab-size.", default=None,
    )
    vocab_size: Is[Annotated[int, Meta(ge=1, le=2**32)] | None] = option(
        "Number of tokens of the vocabulary; required without --tokenizer.", default=None,
    )
    out: IsBinFile = option(
        "The .bin file of the dataset, with its .docs and .json beside it.",
        default="data/train.bin",
    )

    @property
    def name(self) -> str:
        """NAME of NAME.bin."""
        return Path(self.out).stem

    def check(self) -> None:
        super().check()
        if (self.tokenizer is None) == (self.vocab_size is None):
            raise SettingsError(
                "ids are checked against a vocabulary; give either its tokenizer (--tokenizer) or"
                " its size (--vocab-size)"
            )


# --- options of the command line alone ---


class ConsoleSettings(Settings):
    """Options for the output of a command."""

    json: Is[bool] = option("Print JSON.", default=False)
    debug: Is[bool] = option("Show the traceback of an error.", default=False)
    verbose: Is[bool] = option(
        "Report memory, processors and disk rates with the progress.", default=False,
    )
    quiet: Is[bool] = option("Show no progress, and no summary at the end.", default=False)
    dry_run: Is[bool] = option(
        "Show what would be read and written, and the first documents; write nothing.",
        default=False,
    )
    log_file: OptionalPath = option(
        "Append all messages to this file.", default=None,
    )

"""Options for rows, as `preprocess.settings.schema` has those of other commands."""

import operator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta

from bpe.parallel import available_workers
from preprocess.settings.options import (
    REQUIRED,
    Count,
    Fields,
    GivenTokenizer,
    Kind,
    Output,
    Settings,
    SettingsError,
    Size,
    Workers,
    option,
    run_option,
)

MAX_SHARD_SIZE = 500 << 20  # where neither it nor the number of files is given

_Padding = Literal["none", "longest", "max-length"]


def _read_padding(value: Any) -> Any:
    """Convert what transformers takes to our spellings."""
    theirs = {False: "none", True: "longest", "do_not_pad": "none", "max_length": "max-length"}
    return theirs.get(value, value)


def _read_pad_token(value: Any) -> Any:
    return value if isinstance(value, str | bool) else operator.index(value)


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class WindowSettings(Settings):
    """Options for rows of documents."""

    max_length: Count | None = option(
        None, "Tokens of a row at most; a longer document has several rows.",
        default_text="a document is a row",
    )
    stride: Count | None = option(
        None, "Distance of the rows of a document; below max_length they overlap.",
        default_text="max_length",
    )
    truncation: bool = option(
        False, "Leave out what follows the first max_length tokens of a document."
    )
    drop_end_of_text: bool = option(
        False, "Leave out the id at the end of each document."
    )
    drop_short: bool = option(
        False, "Leave out rows of fewer tokens than max_length, or seq_length, so that all have the"
        " same length.",
    )
    add_special_tokens: bool = option(
        False, "Put the special tokens around each row that the tokenizer puts around a text,"
        " instead of those of the dataset; max_length counts them.",
    )
    padding: Annotated[
        _Padding,
        Kind(
            _read_padding, "'none', 'longest' or 'max-length', False or True",
            bool | Literal["none", "longest", "max-length", "max_length"],
            "none|longest|max-length",
        ),
    ] = option(
        "none", "Pad rows to the longest, or to max_length or seq_length; none: rows of npz to the"
        " longest.",
    )
    padding_side: Literal["right", "left"] = option("right", "Where padding stands.")
    pad_token: Annotated[
        int | str, Kind(_read_pad_token, "a special token, or an id", int | str, "TEXT")
    ] | None = option(
        None, "Special token to pad with, in Python also an id.",
        default_text="the tokenizer's, else <|pad|>, <pad> or [PAD], else end-of-text",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_length is None and (self.truncation or self.stride):
            raise SettingsError("truncation and stride need --max-length")
        if self.truncation and self.stride:
            raise SettingsError("truncation leaves one row per document; leave out stride")
        if self.stride and self.max_length and self.stride > self.max_length:
            raise SettingsError(
                f"stride {self.stride:,} is above max_length {self.max_length:,}, so tokens between"
                " rows would be lost; lower it"
            )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class PackSettings(Settings):
    """Options for rows across documents."""

    seq_length: Count | None = option(
        None, "Cut all tokens into rows of so many, across documents, instead of documents."
    )
    strategy: Literal["greedy", "pool", "first_fit", "best_fit"] | None = option(
        None, "Pack documents, and parts of them, into rows of seq_length tokens at most; see"
        " docs/sampling.md.", default_text="not packed",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.seq_length is None and self.strategy is not None:
            raise SettingsError(
                "a strategy packs rows of seq_length tokens; say how many (--seq-length)"
            )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class FileSettings(Settings):
    """Options for files of rows."""

    format: Literal["parquet", "arrow", "jsonl", "npz", "pickle"] = option(
        "parquet", "Format of the files."
    )
    columns: Fields = option(
        (), "Arrays to write, in this order: input_ids, attention_mask, labels, segment_ids,"
        " position_ids; on the command line one at a time.", flags=("--column",),
        default_text="the first three, of npz two; with a strategy all but attention_mask",
    )
    compression: Literal["zstd", "snappy", "gzip", "zlib", "none"] | None = option(
        None, "Compression: of parquet zstd, snappy or none; of arrow zstd; of jsonl gzip or zstd;"
        " of npz zlib.", default_text="of parquet zstd, of npz zlib, else none",
    )
    per_file: bool = option(
        False, "Write the rows of each input file to a file of its own, of its name; a rerun writes"
        " those that are new, missing or damaged.",
    )
    num_shards: Count | None = option(
        None, "Number of files, which differ by one row at most; fewer if there are fewer rows.",
        default_text="as many as needed",
    )
    max_shard_size: Size | None = option(
        None, "Bytes of arrays in a file, about; there are more than num_shards files if those"
        " would have more.", default_text="500MiB, with num_shards any",
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class RowSettings(WindowSettings, PackSettings, FileSettings):
    """Options for rows: which tokens a row has, its arrays, and their files."""

    workers: Workers = run_option(
        available_workers, "Threads; never changes the outputs.",
        default_text="one per available processor",
    )
    max_minutes: Annotated[float, Meta(gt=0)] | None = run_option(
        None, "Stop after so many minutes and report how long all of it takes; the same command"
        " resumes after the files that are complete.",
    )
    overwrite: bool = run_option(
        False, "Replace rows that exist, and give up an unfinished run of something else."
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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.drop_short and (self.strategy or not (self.max_length or self.seq_length)):
            raise SettingsError(
                "drop_short is for rows of max_length tokens, or for seq_length without a strategy;"
                " give one, or pad packed rows (--padding max-length)"
            )
        if self.per_file and (self.strategy or self.num_shards or self.max_shard_size):
            raise SettingsError(
                "per_file makes one file of the rows of each input; leave out num_shards and"
                " max_shard_size, and the strategy, which packs documents of several inputs"
            )
        if self.seq_length is not None:
            for name in ("stride", "truncation", "max_length", "add_special_tokens",
                         "drop_end_of_text"):
                if getattr(self, name):
                    raise SettingsError(
                        f"{name} is for rows of documents, seq_length for rows across them; leave"
                        " one of the two out"
                    )
        if not self.is_padded and (self.pad_token is not None or self.padding_side == "left"):
            raise SettingsError("pad_token and padding_side are for padding; say how (--padding)")
        if self.padding == "max-length" and not (self.max_length or self.seq_length):
            raise SettingsError("padding max-length needs max_length or seq_length; give one")


@dataclass(frozen=True, kw_only=True, repr=False)
class RowsSettings(RowSettings):
    """Options of `rows`: files of rows from a dataset."""

    path: Output = option(REQUIRED, "Directory, .bin file or URL of a dataset.", positional=True)
    out: Output = option(
        "rows", "Directory of the rows, or a URL; if the dataset has several .bin files, those of"
        " NAME.bin are in OUT/NAME.",
    )
    tokenizer: GivenTokenizer | None = option(
        None, "Tokenizer that the dataset was built with, for add_special_tokens and pad_token.",
        default_text="tokenizer.json beside it",
    )

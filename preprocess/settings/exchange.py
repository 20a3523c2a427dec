"""Options of `export` and `import`, as `preprocess.settings.schema` has those of others."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from preprocess.settings.options import (
    REQUIRED,
    BinFile,
    Count,
    GivenTokenizer,
    Index,
    Location,
    Prefix,
    Settings,
    SettingsError,
    option,
    run_option,
)
from preprocess.settings.shards import ShardSettings


@dataclass(frozen=True, kw_only=True, repr=False)
class ExportSettings(Settings):
    """Options of `export`: a dataset as files of another program."""

    path: Location = option(
        REQUIRED, "A directory with datasets, or one .bin file.", positional=True
    )
    to: Literal["megatron", "llmc", "datatrove", "mds", "litdata", "npy"] = option(
        REQUIRED, "Format, which docs/exports.md describes."
    )
    out: Location = option("export", "Directory of the export; made if it does not exist.")
    name: Prefix = option(
        "", "NAME of the outputs, if one dataset is exported.", default_text="that of the dataset"
    )
    shard_tokens: Count | None = option(
        None, "Most tokens of a file of llmc, mds and litdata; a larger document of mds has a"
        " file of its own.",
        default_text="of llmc 100,000,000, of mds and litdata 16,777,216",
    )
    overwrite: bool = run_option(
        False, "Replace an export that exists, and discard an unfinished one of something else."
    )


@dataclass(frozen=True, kw_only=True, repr=False)
class ImportSettings(ShardSettings):
    """Options of `import`: a dataset from token ids that another program made."""

    path: Location = option(
        REQUIRED, "File of ids; of Megatron the prefix of its .bin and .idx.", positional=True
    )
    format: Literal["megatron", "raw"] = option(
        REQUIRED, "Format: Megatron's .bin and .idx, or ids without a header."
    )
    dtype: Literal["uint8", "uint16", "uint32", "int32", "int64"] | None = option(
        None, "Type of raw ids, little-endian; required for them. The .idx of Megatron says it."
    )
    end_of_text_id: Index = option(REQUIRED, "Id at the end of each document.")
    append_end_of_text: bool = option(
        False, "Append the end-of-text id to documents that lack it."
    )
    tokenizer: GivenTokenizer | None = option(
        None, "Tokenizer that made the ids; required without vocab_size.",
        flags=("--tokenizer", "--tokenizer-path"),
    )
    vocab_size: Annotated[int, Meta(ge=1, le=2**32)] | None = option(
        None, "Number of tokens of the vocabulary; required without tokenizer."
    )
    out: BinFile = option(
        "data/train.bin", "The .bin file of the dataset, with its .docs and .json beside it."
    )
    overwrite: bool = run_option(
        False, "Replace a dataset that exists, and discard an unfinished run of something else."
    )

    @property
    def name(self) -> str:
        """NAME of NAME.bin."""
        return Path(self.out).stem

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.tokenizer is None) == (self.vocab_size is None):
            raise SettingsError(
                "ids are checked against a vocabulary; give either its tokenizer (--tokenizer) or"
                " its size (--vocab-size)"
            )

"""Options of `export`, as `preprocess.settings.schema` has those of other commands."""

from dataclasses import dataclass
from typing import Literal

from preprocess.settings.options import (
    REQUIRED,
    Count,
    Location,
    Prefix,
    Settings,
    option,
    run_option,
)


@dataclass(frozen=True, kw_only=True, repr=False)
class ExportSettings(Settings):
    """Options of `export`: a dataset as files of another program."""

    path: Location = option(
        REQUIRED, "A directory with a dataset, or one .bin file.", positional=True
    )
    to: Literal["megatron", "llmc", "datatrove", "mds", "litdata", "npy"] = option(
        REQUIRED, "Format, which docs/exports.md describes."
    )
    out: Location = option("export", "Directory of the outputs; made if it does not exist.")
    name: Prefix = option(
        "", "NAME of the outputs, if one dataset is exported.", default_text="that of the dataset"
    )
    shard_tokens: Count | None = option(
        None, "Tokens of a file at most, of llmc, mds and litdata; a larger document of mds has a"
        " file of its own.",
        default_text="of llmc 100,000,000, of mds and litdata 16,777,216",
    )
    overwrite: bool = run_option(
        False, "Replace an export that exists, and give up an unfinished one of something else."
    )

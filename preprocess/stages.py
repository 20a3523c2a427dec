"""One call from text to rows: `tokenize_and_save`, and `Pipeline` with a method for each stage."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from copy import copy
from pathlib import Path
from typing import Any, Literal, Self

from preprocess.dataset.columns import manifest_name
from preprocess.dataset.manifest import Manifest
from preprocess.pipeline import BuildResult, build
from preprocess.report.progress import Progress
from preprocess.run.finished import find_manifests
from preprocess.settings.corpus import PipelineConfig
from preprocess.settings.options import SettingsError, StrPath
from preprocess.storage import LocalStorage

_TOKENS = "tokens"  # directory of the dataset


def tokenize_and_save(
    *, data_files: StrPath | Iterable[StrPath], tokenizer: StrPath | Mapping[str, Any],
    output_path: StrPath,
    output_format: Literal["parquet", "arrow", "jsonl", "npz", "pickle"] = "parquet",
    val_files: StrPath | Iterable[StrPath] = (), val_fraction: float = 0.0,
    content_field: str | Iterable[str] = (), max_length: int | None = None,
    stride: int | None = None, truncation: bool = False, add_special_tokens: bool = False,
    drop_end_of_text: bool = False,
    padding: Literal["none", "longest", "max-length"] = "none",
    padding_side: Literal["right", "left"] = "right", pad_token: str | None = None,
    columns: str | Iterable[str] = (),
    compression: Literal["zstd", "snappy", "gzip", "zlib", "none"] | None = None,
    num_shards: int | None = None, max_shard_size: int | str = 500 << 20,
    workers: int | None = None, overwrite: bool = False, keep_tokens: bool = True,
    progress: Progress | None = None,
) -> BuildResult:
    """Encode text, and write rows of its tokens.

        tokenize_and_save(data_files="data/*.jsonl", tokenizer="tokenizer.json",
                          output_path="out", max_length=2048)

    The dataset is in OUTPUT_PATH/tokens, the rows are in OUTPUT_PATH/train (and val). The same call
    resumes an interrupted one. Other options: `build` with a `PipelineConfig`.

    Args:
        data_files: As train of `build`.
        tokenizer: A tokenizer.json, its directory, or a name; or the options of `TokenizerConfig`,
            with which one is trained.
        output_path: Directory of the outputs.
        output_format: Format of the rows.
        val_files: As val of `build`.
        val_fraction: As of `build`; 0: no validation rows.
        content_field: As of `build`.
        max_length: As of `write_rows`.
        stride: As of `write_rows`.
        truncation: As of `write_rows`.
        add_special_tokens: As of `write_rows`.
        drop_end_of_text: As of `write_rows`.
        padding: As of `write_rows`.
        padding_side: As of `write_rows`.
        pad_token: As of `write_rows`.
        columns: As of `write_rows`.
        compression: As of `write_rows`.
        num_shards: As of `write_rows`.
        max_shard_size: As of `write_rows`.
        workers: Threads; None: one per available processor.
        overwrite: True to replace outputs that exist.
        keep_tokens: False to remove the dataset when the rows are written. They cannot be cut again
            or repaired then, and the same call builds it again.
        progress: Reports progress; None reports nothing.

    Raises:
        TokenmillError: As `build` and `write_rows`.
    """
    place = Path(output_path)
    windows = {
        "max_length": max_length, "stride": stride, "truncation": truncation,
        "add_special_tokens": add_special_tokens, "drop_end_of_text": drop_end_of_text,
        "padding": padding, "padding_side": padding_side, "pad_token": pad_token,
    }
    dataset = {
        "name": _TOKENS, "data_files": data_files, "val_files": val_files,
        "content_field": content_field, "val_fraction": None if val_files else val_fraction,
    }
    config = PipelineConfig(
        datasets=[dataset], output_path=place,
        tokenizer=_given_tokenizer(tokenizer),
        tokenize=windows | {"workers": workers, "overwrite": overwrite},
        save={
            "format": output_format, "columns": columns, "compression": compression,
            "num_shards": num_shards, "max_shard_size": max_shard_size, "output_dir": place,
        },
    )
    result = build(config, progress=progress)
    if not keep_tokens:
        given = None if isinstance(tokenizer, Mapping) else Path(tokenizer)
        _remove_dataset(place / _TOKENS, result.datasets[_TOKENS].manifests, given)
    return result


def _remove_dataset(
    directory: Path, manifests: Mapping[str, Manifest], tokenizer: Path | None
) -> None:
    """Remove the files of a dataset, and the directory if it has no others.

    The tokenizer stays if it is the one that was given, or if another dataset needs it.
    """
    own = [manifest_name(name) for name in manifests]
    others = {path.name for path in find_manifests(directory)} - {*own}
    gone = [*own]
    for name, manifest in manifests.items():
        plan = rf"{re.escape(name)}\.[a-z_]+-\d+-[0-9a-f]{{16}}\.plan"
        gone += [file.name for file in manifest.files(name)]
        gone += [each for each in sorted(os.listdir(directory)) if re.fullmatch(plan, each)]
    inside = {directory.resolve(), directory.resolve() / "tokenizer.json"}
    if not others and not (tokenizer and tokenizer.resolve() in inside):
        gone += ["stats.json", "tokenizer.json", "tokenizer_config.json"]
    with LocalStorage(directory, "removal") as storage:
        storage.remove_finished(gone)
    if not any(directory.iterdir()):
        directory.rmdir()


def _given_tokenizer(tokenizer: StrPath | Mapping[str, Any]) -> str | Mapping[str, Any]:
    if isinstance(tokenizer, Mapping):
        return tokenizer
    if not isinstance(tokenizer, str | os.PathLike):
        raise SettingsError(
            "tokenizer should be a path, a name, or options to train one; save an object first:"
            " save_pretrained(DIR)"
        )
    return os.fspath(tokenizer)


class Pipeline:
    """The stages of a `PipelineConfig`, enabled one by one.

        Pipeline.from_config(config).source().tokenize().pack().save().build()

    Each method enables the stage of its name, whose options are in the configuration; `build` runs
    the enabled stages.
    """

    def __init__(self, config: PipelineConfig, stages: tuple[str, ...] = ()) -> None:
        self._config, self._stages = config, stages

    @classmethod
    def from_config(cls, config: PipelineConfig) -> Self:
        """Return the pipeline of a configuration, with no stage enabled."""
        return cls(config)

    def source(self) -> Self:
        """Read the files of the datasets."""
        return self._with("source", "datasets")

    def tokenize(self) -> Self:
        """Encode the text into datasets."""
        return self._with("tokenize", "tokenizer", "tokenize")

    def pack(self) -> Self:
        """Make rows across documents."""
        return self._with("pack", "pack")

    def save(self) -> Self:
        """Write rows."""
        return self._with("save", "save")

    def build(self, progress: Progress | None = None) -> BuildResult:
        """Run the enabled stages; raise SettingsError if one before them is missing."""
        needed = {"source": (), "tokenize": ("source",), "save": ("tokenize",), "pack": ("save",)}
        for stage in ("tokenize", *self._stages):
            for before in (stage, *needed[stage]):
                if before not in self._stages:
                    raise SettingsError(
                        f"the stage {before} is not enabled, and build needs it; call {before}()"
                    )
        return build(self._config.with_stages(self._stages), progress=progress)

    def _with(self, stage: str, *fields: str) -> Self:
        if not self._config.sections & {*fields}:
            raise SettingsError(
                f"{stage}() has no configuration; set {' or '.join(fields)} of PipelineConfig"
            )
        found = copy(self)
        found._stages = (*self._stages, stage)
        return found

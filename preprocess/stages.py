"""One call from text to rows: `tokenize_and_save`, and `Pipeline` with a method for each stage."""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import copy
from typing import Any, Self

from bpe.arguments import checked
from preprocess.config import (
    DatasetConfig,
    Key,
    PipelineConfig,
    SaveStageConfig,
    TextToRowsSettings,
)
from preprocess.dataset.columns import manifest_name
from preprocess.dataset.manifest import Manifest
from preprocess.pipeline import BuildResult, build
from preprocess.report.progress import Progress
from preprocess.run.finished import manifests_in
from preprocess.run.merge import files_of_parts
from preprocess.settings import SettingsError, options_of, takes
from preprocess.storage import open_storage

_TOKENS = "tokens"  # directory of the dataset
_OF_DATASET, _OF_FILES = options_of(DatasetConfig), options_of(SaveStageConfig)


@takes(TextToRowsSettings)
def tokenize_and_save(settings: TextToRowsSettings) -> BuildResult:
    """Encode text, and write rows of its tokens.

        tokenize_and_save(data_files="data/*.jsonl", tokenizer="tokenizer.json",
                          output_path="out", max_length=2048)

    The rows are in OUTPUT_PATH, with val_files or val_fraction in its `train` and `val`; the
    dataset is in OUTPUT_PATH/tokens. The same call resumes an interrupted one.

    Without the dataset (`keep_tokens=False`), which only its tokenizer remains of, rows cannot be
    cut again or repaired, and the same call builds it again. Options are as of `build`,
    `write_rows` and `DatasetConfig`; the tokenizer may be trained (`TokenizerConfig`).

    Raises:
        TokenmillError: As `build` and `write_rows`.
    """
    given = settings.given
    save: dict[str, Any] = {"format": settings.output_format}
    dataset: dict[str, Any] = {"name": _TOKENS, "save_path": given.pop("output_path")}
    stage: dict[str, Any] = {}
    tokenizer, progress = given.pop("tokenizer"), given.pop("progress", None)
    for name in given.keys() - {"output_format", "keep_tokens"}:
        part = dataset if name in _OF_DATASET else save if name in _OF_FILES else stage
        part[name] = given[name]
    values = {"datasets": [dataset], "tokenizer": tokenizer, "tokenize": stage, "save": save}
    result = build(PipelineConfig.from_mapping(values, _name_argument), progress=progress)
    if not settings.keep_tokens:
        built = result.datasets[_TOKENS]
        _remove_dataset(str(built.directory), built.manifests)
    return result


def _name_argument(key: Key) -> str:
    """Spell the place of an option, which is an argument, to begin a message."""
    is_argument = key[0] == "tokenizer" or (len(key) > 1 and isinstance(key[-1], str))
    return f"{key[-1]}: " if is_argument else ""


def _remove_dataset(location: str, manifests: Mapping[str, Manifest]) -> None:
    """Remove the files of a dataset but the tokenizer."""
    gone = [*map(manifest_name, manifests)]
    with open_storage(location, "removal") as storage:
        names, is_last = storage.final.names(), {*manifests_in(storage.final)} <= {*gone}
        # Manifests of parts before the others.
        gone += sorted(files_of_parts(storage.final, ""), key=lambda x: x[-5:] != ".json")
        for name, manifest in manifests.items():
            plan = re.compile(  # or what is left of one that was being made
                rf"\.?{re.escape(name)}\.[a-z_]+-\d+-[0-9a-f]{{16}}\.plan(\.partial(\.\d+)?)?"
            )
            gone += [*(file.name for file in manifest.files(name)), *filter(plan.fullmatch, names)]
        storage.remove_finished(gone + ["stats.json"] * is_last)


@checked
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

    def __repr__(self) -> str:
        return f"Pipeline({', '.join(self._stages)})"

    def build(self, progress: Progress | bool | None = None) -> BuildResult:
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
        if not self._config.sections & {*fields} and not (
            stage == "tokenize" and any(each.tokenizer for each in self._config.builds.values())
        ):
            raise SettingsError(
                f"{stage}() has no configuration; set {' or '.join(fields)} of PipelineConfig"
            )
        found = copy(self)
        found._stages = (*self._stages, stage)
        return found

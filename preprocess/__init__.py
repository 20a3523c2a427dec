"""Build memory-mapped token files from text, and sample batches from them.

    from preprocess import build, get_batch, open_tokens

    result = build(train=["train.txt"], val=["val.txt"], out="data")
    train = open_tokens("data/train.bin")
    inputs, targets = get_batch(train, batch_size=8, context_length=256)

Public names are imported at their first use (PEP 562), so `import preprocess` is fast. This package
has files, formats, workers and the command; `bpe` does not depend on it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import bpe as bpe  # says where it cannot run

if TYPE_CHECKING:
    from bpe.errors import CorpusError
    from preprocess.check.verify import verify
    from preprocess.config import (
        DatasetConfig,
        PackStageConfig,
        PipelineConfig,
        RayConfig,
        SaveStageConfig,
        TokenizerConfig,
        TokenizeStageConfig,
    )
    from preprocess.dataset.columns import TokenFileError
    from preprocess.dataset.reader import TokenFile, open_tokens
    from preprocess.documents.template_sandbox import ChatTemplateError
    from preprocess.export.source import ExportError
    from preprocess.export.write import ExportResult, export_tokens
    from preprocess.imports.write import ImportResult, import_tokens
    from preprocess.pipeline import BuildResult, build
    from preprocess.report.progress import Progress
    from preprocess.rows.formats import RowsError
    from preprocess.rows.loaders import (
        ArrowShardedSource,
        JsonShardedSource,
        ParquetShardedSource,
        TransformedShardedSource,
    )
    from preprocess.rows.pytorch import PickledTrainerDataset as PickledTrainerDataset
    from preprocess.rows.pytorch import StreamingTokenizedDataset as StreamingTokenizedDataset
    from preprocess.rows.pytorch import TokenizedDataset as TokenizedDataset
    from preprocess.rows.write import RowsResult, write_rows
    from preprocess.run.chat_transform import ChatTemplateTransform
    from preprocess.run.merge import merge_parts
    from preprocess.sampling.data import SamplingError
    from preprocess.sampling.get_batch import get_batch
    from preprocess.sampling.mixture import Mixture
    from preprocess.sampling.prefetch import AsyncDataLoader
    from preprocess.sampling.pytorch import BatchDataset as BatchDataset
    from preprocess.sampling.pytorch import WindowDataset as WindowDataset
    from preprocess.sampling.pytorch import window_loader as window_loader
    from preprocess.sampling.sampler import Sampler
    from preprocess.settings import SettingsError
    from preprocess.stages import Pipeline, tokenize_and_save
    from preprocess.storage.errors import OutputError

# Without the names that need PyTorch: `import *` must work without it.
__all__ = [
    "ArrowShardedSource", "AsyncDataLoader", "BuildResult", "ChatTemplateError",
    "ChatTemplateTransform", "CorpusError", "DatasetConfig", "ExportError", "ExportResult",
    "ImportResult", "JsonShardedSource", "Mixture", "OutputError", "PackStageConfig",
    "ParquetShardedSource", "Pipeline", "PipelineConfig", "Progress", "RayConfig", "RowsError",
    "RowsResult", "Sampler", "SamplingError", "SaveStageConfig", "SettingsError", "TokenFile",
    "TokenFileError", "TokenizeStageConfig", "TokenizerConfig", "TransformedShardedSource", "build",
    "export_tokens", "get_batch", "import_tokens", "merge_parts", "open_tokens",
    "tokenize_and_save", "verify", "write_rows",
]

# No module may have a public name, for importing it would replace the name by the module.
_NAMES_OF = {
    "bpe.errors": "CorpusError",
    "preprocess.check.verify": "verify",
    "preprocess.dataset.columns": "TokenFileError",
    "preprocess.dataset.reader": "TokenFile open_tokens",
    "preprocess.documents.template_sandbox": "ChatTemplateError",
    "preprocess.export.source": "ExportError",
    "preprocess.export.write": "ExportResult export_tokens",
    "preprocess.imports.write": "ImportResult import_tokens",
    "preprocess.pipeline": "BuildResult build",
    "preprocess.report.progress": "Progress",
    "preprocess.rows.formats": "RowsError",
    "preprocess.rows.loaders":
        "ArrowShardedSource JsonShardedSource ParquetShardedSource TransformedShardedSource",
    "preprocess.rows.pytorch": "PickledTrainerDataset StreamingTokenizedDataset TokenizedDataset",
    "preprocess.rows.write": "RowsResult write_rows",
    "preprocess.run.chat_transform": "ChatTemplateTransform",
    "preprocess.run.merge": "merge_parts",
    "preprocess.sampling.data": "SamplingError",
    "preprocess.sampling.get_batch": "get_batch",
    "preprocess.sampling.mixture": "Mixture",
    "preprocess.sampling.prefetch": "AsyncDataLoader",
    "preprocess.sampling.pytorch": "BatchDataset WindowDataset window_loader",
    "preprocess.sampling.sampler": "Sampler",
    "preprocess.config":
        "DatasetConfig PackStageConfig PipelineConfig RayConfig SaveStageConfig TokenizeStageConfig"
        " TokenizerConfig",
    "preprocess.settings": "SettingsError",
    "preprocess.stages": "Pipeline tokenize_and_save",
    "preprocess.storage.errors": "OutputError",
}
_MODULE_OF = {name: module for module, names in _NAMES_OF.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})

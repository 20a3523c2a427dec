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

if TYPE_CHECKING:
    from bpe.errors import CorpusError
    from preprocess.check.verify import verify
    from preprocess.dataset.columns import TokenFileError
    from preprocess.dataset.reader import TokenFile, open_tokens
    from preprocess.documents.template_sandbox import ChatTemplateError
    from preprocess.export.source import ExportError
    from preprocess.export.write import ExportResult, export_tokens
    from preprocess.imports.write import ImportResult, import_tokens
    from preprocess.pipeline import BuildResult, build
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
    from preprocess.settings.corpus import (
        DatasetConfig,
        PackStageConfig,
        PipelineConfig,
        RayConfig,
        SaveStageConfig,
        TokenizerConfig,
        TokenizeStageConfig,
    )
    from preprocess.settings.options import SettingsError
    from preprocess.stages import Pipeline, tokenize_and_save
    from preprocess.storage.base import OutputError

# Without the names that need PyTorch: `import *` must work without it.
__all__ = [
    "ArrowShardedSource", "AsyncDataLoader", "BuildResult", "ChatTemplateError",
    "ChatTemplateTransform", "CorpusError", "DatasetConfig", "ExportError", "ExportResult",
    "ImportResult", "JsonShardedSource", "Mixture", "OutputError", "PackStageConfig",
    "ParquetShardedSource", "Pipeline", "PipelineConfig", "RayConfig", "RowsError", "RowsResult",
    "Sampler", "SamplingError", "SaveStageConfig", "SettingsError", "TokenFile", "TokenFileError",
    "TokenizeStageConfig", "TokenizerConfig", "TransformedShardedSource", "build", "export_tokens",
    "get_batch", "import_tokens", "merge_parts", "open_tokens", "tokenize_and_save", "verify",
    "write_rows",
]

# No module may have a public name, for importing it would replace the name by the module.
_MODULE_OF = {
    "ArrowShardedSource": "preprocess.rows.loaders",
    "AsyncDataLoader": "preprocess.sampling.prefetch",
    "BatchDataset": "preprocess.sampling.pytorch",
    "BuildResult": "preprocess.pipeline",
    "ChatTemplateError": "preprocess.documents.template_sandbox",
    "ChatTemplateTransform": "preprocess.run.chat_transform",
    "CorpusError": "bpe.errors",
    "DatasetConfig": "preprocess.settings.corpus",
    "ExportError": "preprocess.export.source",
    "ExportResult": "preprocess.export.write",
    "ImportResult": "preprocess.imports.write",
    "JsonShardedSource": "preprocess.rows.loaders",
    "Mixture": "preprocess.sampling.mixture",
    "OutputError": "preprocess.storage.base",
    "PackStageConfig": "preprocess.settings.corpus",
    "ParquetShardedSource": "preprocess.rows.loaders",
    "PickledTrainerDataset": "preprocess.rows.pytorch",
    "Pipeline": "preprocess.stages",
    "PipelineConfig": "preprocess.settings.corpus",
    "RayConfig": "preprocess.settings.corpus",
    "RowsError": "preprocess.rows.formats",
    "RowsResult": "preprocess.rows.write",
    "Sampler": "preprocess.sampling.sampler",
    "SamplingError": "preprocess.sampling.data",
    "SaveStageConfig": "preprocess.settings.corpus",
    "SettingsError": "preprocess.settings.options",
    "StreamingTokenizedDataset": "preprocess.rows.pytorch",
    "TokenFile": "preprocess.dataset.reader",
    "TokenFileError": "preprocess.dataset.columns",
    "TokenizeStageConfig": "preprocess.settings.corpus",
    "TokenizedDataset": "preprocess.rows.pytorch",
    "TokenizerConfig": "preprocess.settings.corpus",
    "TransformedShardedSource": "preprocess.rows.loaders",
    "WindowDataset": "preprocess.sampling.pytorch",
    "build": "preprocess.pipeline",
    "export_tokens": "preprocess.export.write",
    "get_batch": "preprocess.sampling.get_batch",
    "import_tokens": "preprocess.imports.write",
    "merge_parts": "preprocess.run.merge",
    "open_tokens": "preprocess.dataset.reader",
    "tokenize_and_save": "preprocess.stages",
    "verify": "preprocess.check.verify",
    "window_loader": "preprocess.sampling.pytorch",
    "write_rows": "preprocess.rows.write",
}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})

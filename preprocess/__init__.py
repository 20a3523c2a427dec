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

if TYPE_CHECKING:  # the public names; no module may have one, for it would replace the name
    from bpe.errors import CorpusError as CorpusError
    from preprocess.check.diff import diff as diff
    from preprocess.check.verify import verify as verify
    from preprocess.check.vocab_curve import vocab_curve as vocab_curve
    from preprocess.config import DatasetConfig as DatasetConfig
    from preprocess.config import PackStageConfig as PackStageConfig
    from preprocess.config import PipelineConfig as PipelineConfig
    from preprocess.config import RayConfig as RayConfig
    from preprocess.config import SaveStageConfig as SaveStageConfig
    from preprocess.config import TokenizerConfig as TokenizerConfig
    from preprocess.config import TokenizeStageConfig as TokenizeStageConfig
    from preprocess.dataset.columns import TokenFileError as TokenFileError
    from preprocess.dataset.reader import TokenFile as TokenFile
    from preprocess.dataset.reader import open_tokens as open_tokens
    from preprocess.documents.template_sandbox import ChatTemplateError as ChatTemplateError
    from preprocess.edit.append import append as append
    from preprocess.edit.drop import drop as drop
    from preprocess.export.formats import ExportError as ExportError
    from preprocess.export.write import ExportResult as ExportResult
    from preprocess.export.write import export_tokens as export_tokens
    from preprocess.find.search import search as search
    from preprocess.imports.documents import DatasetWriter as DatasetWriter
    from preprocess.imports.write import ImportResult as ImportResult
    from preprocess.imports.write import import_tokens as import_tokens
    from preprocess.pipeline import BuildResult as BuildResult
    from preprocess.pipeline import Pipeline as Pipeline
    from preprocess.pipeline import build as build
    from preprocess.pipeline import count as count
    from preprocess.pipeline import encode as encode
    from preprocess.pipeline import tokenize_and_save as tokenize_and_save
    from preprocess.pipeline import train as train
    from preprocess.report.progress import Progress as Progress
    from preprocess.rows.formats import RowsError as RowsError
    from preprocess.rows.loaders import ArrowShardedSource as ArrowShardedSource
    from preprocess.rows.loaders import JsonShardedSource as JsonShardedSource
    from preprocess.rows.loaders import ParquetShardedSource as ParquetShardedSource
    from preprocess.rows.loaders import TransformedShardedSource as TransformedShardedSource
    from preprocess.rows.pytorch import PickledTrainerDataset as PickledTrainerDataset
    from preprocess.rows.pytorch import StreamingTokenizedDataset as StreamingTokenizedDataset
    from preprocess.rows.pytorch import TokenizedDataset as TokenizedDataset
    from preprocess.rows.write import RowsResult as RowsResult
    from preprocess.rows.write import write_rows as write_rows
    from preprocess.run.chats import ChatTemplateTransform as ChatTemplateTransform
    from preprocess.run.merge import merge_parts as merge_parts
    from preprocess.sampling.data import SamplingError as SamplingError
    from preprocess.sampling.get_batch import get_batch as get_batch
    from preprocess.sampling.mixture import Mixture as Mixture
    from preprocess.sampling.prefetch import AsyncDataLoader as AsyncDataLoader
    from preprocess.sampling.pytorch import BatchDataset as BatchDataset
    from preprocess.sampling.pytorch import WindowDataset as WindowDataset
    from preprocess.sampling.pytorch import window_loader as window_loader
    from preprocess.sampling.sampler import Sampler as Sampler
    from preprocess.settings import SettingsError as SettingsError
    from preprocess.storage.errors import OutputError as OutputError

# A module -> its public names, as above; the source itself may not be there to read.
_NAMES_OF = {
    "bpe.errors": "CorpusError",
    "preprocess.check.diff": "diff",
    "preprocess.check.verify": "verify",
    "preprocess.check.vocab_curve": "vocab_curve",
    "preprocess.config":
        "DatasetConfig PackStageConfig PipelineConfig RayConfig SaveStageConfig TokenizerConfig"
        " TokenizeStageConfig",
    "preprocess.dataset.columns": "TokenFileError",
    "preprocess.dataset.reader": "TokenFile open_tokens",
    "preprocess.documents.template_sandbox": "ChatTemplateError",
    "preprocess.edit.append": "append",
    "preprocess.edit.drop": "drop",
    "preprocess.export.formats": "ExportError",
    "preprocess.export.write": "ExportResult export_tokens",
    "preprocess.imports.documents": "DatasetWriter",
    "preprocess.find.search": "search",
    "preprocess.imports.write": "ImportResult import_tokens",
    "preprocess.pipeline": "BuildResult Pipeline build count encode tokenize_and_save train",
    "preprocess.report.progress": "Progress",
    "preprocess.rows.formats": "RowsError",
    "preprocess.rows.loaders":
        "ArrowShardedSource JsonShardedSource ParquetShardedSource TransformedShardedSource",
    "preprocess.rows.pytorch": "PickledTrainerDataset StreamingTokenizedDataset TokenizedDataset",
    "preprocess.rows.write": "RowsResult write_rows",
    "preprocess.run.chats": "ChatTemplateTransform",
    "preprocess.run.merge": "merge_parts",
    "preprocess.sampling.data": "SamplingError",
    "preprocess.sampling.get_batch": "get_batch",
    "preprocess.sampling.mixture": "Mixture",
    "preprocess.sampling.prefetch": "AsyncDataLoader",
    "preprocess.sampling.pytorch": "BatchDataset WindowDataset window_loader",
    "preprocess.sampling.sampler": "Sampler",
    "preprocess.settings": "SettingsError",
    "preprocess.storage.errors": "OutputError",
}
_MODULE_OF = {name: module for module, names in _NAMES_OF.items() for name in names.split()}
# Without the names that need PyTorch: `import *` must work without it.
__all__ = [name for name, module in _MODULE_OF.items() if not module.endswith(".pytorch")]


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})

"""Keyword arguments that several functions have, as the options of `preprocess.settings.schema`.

Defaults are those of the options; tests compare names and types.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Never, TypedDict

from preprocess.settings.options import StrPath


class TextKeywords(TypedDict, total=False):
    """Options for reading text."""

    format: Literal["text", "jsonl", "json", "parquet", "arrow"] | None
    separator: str
    content_field: str | Iterable[str]
    text_preset: Literal["title-text"] | None
    strip: bool
    min_length: int
    max_length_chars: int | None
    on_invalid_utf8: Literal["error", "replace", "skip"]
    on_bad_record: Literal["error", "skip"]
    max_bad_records: int
    unit_size: int | str | None


class RunKeywords(TextKeywords, total=False):
    """Options of runs that write outputs."""

    workers: int | None
    deduplicate: bool
    start_character: int
    max_characters: int | None
    max_documents: int | None
    cut_documents: bool
    shuffle_documents: int | None
    chat: Literal["auto", "off", "messages", "sharegpt", "prompt-completion"]
    chat_template: str | None
    train_on: Literal["assistant", "all", "last-assistant"]
    chat_date: str | None
    chat_template_kwargs: str | Mapping[str, Any] | None
    executor: Literal["threads", "ray"]
    ray_address: str | None
    ray_resources: Iterable[str]
    end_of_text: str | None
    begin_of_text: str | None
    max_minutes: float | None
    memory_limit: int | str | None
    profile: Literal["memory", "balanced", "speed"] | None
    overwrite: bool


class TrainKeywords(RunKeywords, total=False):
    """Options for training on text."""

    vocab_size: int
    pattern: str | None
    special_tokens: Iterable[str]
    tie_break: Literal["greatest-bytes", "huggingface"]
    min_frequency: int


class ShardKeywords(RunKeywords, total=False):
    """Options for token files."""

    shard_tokens: int | None
    split_documents: bool


class EncodeKeywords(ShardKeywords, total=False):
    """Options for encoding text."""

    task_index: int | None
    task_count: int | None


class RowKeywords(TypedDict, total=False):
    """Options for rows of documents, and their files."""

    stride: int | None
    truncation: bool
    drop_end_of_text: bool
    drop_short: bool
    add_special_tokens: bool
    padding: bool | Literal["none", "longest", "max-length", "max_length"]
    padding_side: Literal["right", "left"]
    pad_token: int | str | None
    columns: str | Iterable[str]
    compression: Literal["zstd", "snappy", "gzip", "zlib", "none"] | None
    per_file: bool
    num_shards: int | None
    max_shard_size: int | str | None


class TextToRows(ShardKeywords, RowKeywords, total=False):
    """Options of `tokenize_and_save`, besides those of its signature."""

    val_files: StrPath | Iterable[StrPath]
    val_fraction: float | None
    batch_size: int | None
    seq_length: Never  # to say who takes it

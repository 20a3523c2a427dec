"""Derive the plan, columns and file names of rows from settings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from preprocess.dataset.manifest import SELECTED
from preprocess.dataset.reader import TokenFile
from preprocess.options import RowSettings
from preprocess.report.progress import logger
from preprocess.rows.columns import COLUMNS, RowPlan, RowReader, Shape
from preprocess.rows.formats import FORMATS, RowsError
from preprocess.sampling.packing import PackedWindows
from preprocess.sampling.windows import DocumentRows
from preprocess.settings import SettingsError, TokenizerSource, options_of
from preprocess.sources.compressed import CODECS

Ids = tuple[int, ...]


def ids_of_rows(
    file: TokenFile, settings: RowSettings, tokenizer: TokenizerSource | None
) -> tuple[tuple[Ids, Ids], int]:
    """Return ((ids before, ids after each row), id of padding).

    The padding is as chosen, of the tokenizer, or the end of text.
    """
    from bpe import load_tokenizer
    from bpe.special import pad_token_of
    from preprocess.dataset.reader import check_tokenizer
    from preprocess.documents.tokenizer_files import read_token_names

    path, token, is_padded = _tokenizer_of(file, tokenizer), settings.pad_token, settings.is_padded
    known = dict[str, int]()
    if path is not None:
        found = load_tokenizer(path)
        is_needed = tokenizer is not None or settings.add_special_tokens or is_padded
        if is_needed or found.fingerprint == file.manifest.tokenizer_fingerprint:
            check_tokenizer(file.path, file.manifest, found.fingerprint)
            known = found.special_tokens
            names = read_token_names(str(path) if isinstance(path, Path) else path)
            token = names.get("pad_token") or pad_token_of(known) if token is None else token
    around = _special_ids(file, path) if settings.add_special_tokens else ((), ())
    if token is None or (isinstance(token, str) and token not in known and not is_padded):
        return around, file.manifest.end_of_text_id
    if path is None and isinstance(token, str):
        raise SettingsError(
            f"pad_token {token!r} cannot be looked up without a tokenizer; give it (--tokenizer)"
        )
    return around, pad_id_of(token, file.vocab_size, known, path)


def pad_id_of(
    token: int | str, vocab_size: int, known: Mapping[str, int], where: Any,
    option: str = "pad_token",
) -> int:
    """Return the id of padding; raise SettingsError if it is not in the vocabulary.

    Args:
        token: The id, or a special token.
        vocab_size: Number of ids.
        known: Special token -> id.
        where: The tokenizer, for messages.
        option: Name of the option, for messages.
    """
    if isinstance(token, int):
        if not 0 <= token < vocab_size:
            raise SettingsError(
                f"{option} {token:,} is no id of the vocabulary of {vocab_size:,}; give one"
            )
        return token
    if token not in known:
        raise SettingsError(
            f"{option} {token!r} is no special token of {where}, which has"
            f" {', '.join(map(repr, known)) or 'none'}; choose one of these"
        )
    return known[token]


def plan_rows(
    file: TokenFile, settings: RowSettings, around: tuple[Ids, Ids], pad_id: int,
    documents: range | None = None,
) -> tuple[RowPlan, Shape]:
    """Return which tokens rows have, and how they become arrays.

    Args:
        file: The dataset.
        settings: How rows are made of it.
        around: Ids before and after each row.
        pad_id: Id of padding.
        documents: Numbers of consecutive documents, not with a strategy; None: all.

    Raises:
        RowsError: The settings do not fit the dataset.
    """
    manifest, ends = file.manifest, file.document_ends
    shape = Shape(
        columns_of(settings), *around, pad_id=pad_id, is_packed=settings.strategy is not None,
        pads_left=settings.padding_side == "left",
    )
    plan: RowPlan
    if settings.seq_length is not None:
        if settings.strategy is not None:
            plan = PackedWindows(file, settings.seq_length, settings.strategy)
        else:
            bounds = (0, len(ends)) if documents is None else (documents.start, documents.stop)
            edges = [int(ends[number - 1]) if number else 0 for number in bounds]
            plan = DocumentRows(
                np.array(edges, np.uint64), settings.seq_length, documents=range(1, 2),
                drop_short=settings.drop_short,
            )
    else:
        n_before = n_after = 0
        if settings.add_special_tokens:
            n_before = int(manifest.begin_of_text_id is not None)
        if settings.add_special_tokens or settings.drop_end_of_text:
            n_after = 1
        room = settings.max_length and settings.max_length - shape.n_around
        if room is not None and room < 1:
            raise RowsError(
                f"max_length {settings.max_length} has no room for the {shape.n_around} special"
                " tokens around each row and a token; raise it"
            )
        # So that rows overlap by max_length - stride tokens of the document.
        stride = settings.stride and settings.stride - shape.n_around
        if stride is not None and stride < 1:
            raise RowsError(
                f"stride {settings.stride} is not above the {shape.n_around} special tokens around"
                " each row, so rows would not advance; raise it"
            )
        plan = DocumentRows(
            ends, room, stride, n_before=n_before, n_after=n_after, documents=documents,
            first_only=settings.truncation, drop_short=settings.drop_short,
        )
    if not len(plan) and documents is None:
        what = "a shorter max_length or seq_length, or leave out drop_short"
        raise RowsError(
            f"{file.path}: has no tokens for rows; "
            + (f"choose {what}" if plan.n_short else "build it from more text")
        )
    if settings.is_padded:
        longest = plan.longest + shape.n_around
        length = longest if settings.padded_to == "longest" else (
            settings.max_length or settings.seq_length
        )
        shape = replace(shape, length=length)
    return plan, shape


def shard_names(name: str, n_shards: int, settings: RowSettings) -> list[str]:
    """Return the names of the files."""
    if settings.format == "pickle":
        return [f"dump-{number}.pkl" for number in range(n_shards)]
    if settings.format == "npz":
        return [f"part_{number:03}.npz" for number in range(n_shards)]
    suffix = FORMATS[settings.format].suffix_of(compression_of(settings))
    return [f"{name}-{number:05}-of-{n_shards:05}{suffix}" for number in range(n_shards)]


def compression_of(settings: RowSettings) -> str:
    """Return the compression; raise SettingsError if the format has it not."""
    known = FORMATS[settings.format].compressions
    if settings.compression is None:
        return known[0]
    if settings.compression not in known:
        raise SettingsError(
            f"compression {settings.compression!r} is not for format {settings.format!r}, which has"
            f" {', '.join(known)}; choose one of these"
        )
    return settings.compression


def columns_of(settings: RowSettings) -> tuple[str, ...]:
    """Return the names of the arrays; raise SettingsError for wrong ones."""
    if settings.format == "pickle":
        own = COLUMNS[: 2 if settings.is_padded else 1]
        if settings.columns not in ((), ("input_ids",), own):
            raise SettingsError("columns: format pickle has ids alone; leave them out")
        return own
    if not settings.columns:
        if settings.format == "npz":
            return COLUMNS[:2]
        # With an attention mask, models of transformers attend across the documents of a row.
        packed = ("input_ids", "labels", "segment_ids", "position_ids")
        return packed if settings.strategy is not None else COLUMNS[:3]
    for name in settings.columns:
        if name not in COLUMNS or settings.columns.count(name) > 1:
            raise SettingsError(
                f"columns: {name!r} should be one of {', '.join(COLUMNS)}, each once at most"
            )
    if "input_ids" not in settings.columns:
        raise SettingsError("columns: input_ids is missing, without which rows have no tokens")
    return settings.columns


def settings_of_rows(settings: RowSettings) -> dict[str, Any]:
    """Return the options of `RowSettings` that change rows, for JSON."""
    own = options_of(RowSettings)
    found = {name: getattr(settings, name) for name, each in own.items() if each.changes_result}
    found |= {"columns": list(columns_of(settings)), "compression": compression_of(settings)}
    return found


def _special_ids(file: TokenFile, path: Any) -> tuple[Ids, Ids]:
    """Return the ids (before, after) a row that the post-processor of a tokenizer has."""
    from preprocess.documents.tokenizer_files import read_special_ids

    if path is None:
        raise SettingsError(
            f"add_special_tokens needs the tokenizer of {file.path}, and there is no tokenizer.json"
            " beside it; give it (--tokenizer)"
        )
    found = read_special_ids(path)
    if any(not 0 <= token < file.vocab_size for part in found for token in part):
        raise RowsError(
            f"{path}: the post-processor has ids outside of the vocabulary of {file.vocab_size:,};"
            " correct it"
        )
    if not any(found):
        logger.warning(
            "%s: the tokenizer puts no special tokens around a text, so rows have none: neither"
            " does a document end with one", file.path,
        )
    return found


def _tokenizer_of(file: TokenFile, given: TokenizerSource | None) -> Any:
    """Return the given tokenizer, or the file beside the dataset; None: there is none."""
    if given is None:
        return file.tokenizer_file()[0]
    if not isinstance(given, str):
        return given
    path = Path(given)
    return path / "tokenizer.json" if path.is_dir() else path


class OutputFile(NamedTuple):
    """The rows [first, stop) of a reader, which are written to one file."""

    name: str
    reader: RowReader
    first: int
    stop: int


def divided(reader: RowReader, names: Sequence[str]) -> list[OutputFile]:
    """Divide rows among files, which differ by one row at most."""
    size, longer = divmod(len(reader.plan), len(names))
    bounds = [number * size + min(number, longer) for number in range(len(names) + 1)]
    return [
        OutputFile(name, reader, *rows) for name, rows in zip(names, pairwise(bounds), strict=True)
    ]


def files_of_sources(
    file: TokenFile, settings: RowSettings, around: tuple[Ids, Ids], pad_id: int
) -> Iterator[OutputFile]:
    """Yield the file with the rows of each input file that has some.

    Raises:
        RowsError: Documents belong to no input file, or two of these would have the same output.
    """
    suffix = FORMATS[settings.format].suffix_of(compression_of(settings))
    inputs, first = dict[str, str](), 0
    for source in file.manifest.sources:
        name, count = str(source.get("name")), source.get("documents")
        if count is None or name == SELECTED or file.manifest.is_imported:
            raise RowsError(
                f"{file.path}: its documents were selected, shuffled or imported, so they belong to"
                " no input file; leave out per_file"
            )
        documents, first = range(first, first + count), first + count
        plan, shape = plan_rows(file, settings, around, pad_id, documents)
        if not len(plan):
            continue
        output = f"{_stem_of(name)}{suffix}"
        if output in inputs:
            raise RowsError(
                f"{file.path}: the inputs {inputs[output]} and {name} would both have the output"
                f" {output}; rename one of them, or leave out per_file"
            )
        inputs[output] = name
        yield OutputFile(output, RowReader(file, plan, shape), 0, len(plan))
    if not inputs:
        raise RowsError(f"{file.path}: has no tokens for rows; build it from more text")


def _stem_of(name: str) -> str:
    """Return the name of an input file as one name, without suffixes.

    >>> _stem_of("sub/part_000.jsonl.gz")
    'sub_part_000'
    """
    stem, suffix = os.path.splitext(name)
    if any(suffix.lower() in codec.suffixes for codec in CODECS):
        stem = os.path.splitext(stem)[0]
    return stem.lstrip("./").replace("/", "_")

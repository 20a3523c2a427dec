"""Derive the plan, columns and file names of rows from settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from preprocess.dataset.reader import TokenFile
from preprocess.report.progress import logger
from preprocess.rows.columns import COLUMNS, Shape
from preprocess.rows.formats import FORMATS, RowsError
from preprocess.rows.plan import DocumentRows, PackedRows, RowPlan, StreamRows
from preprocess.settings.options import SettingsError, TokenizerSource, options_of
from preprocess.settings.rows import RowSettings

Ids = tuple[int, ...]


def ids_of_rows(
    file: TokenFile, settings: RowSettings, tokenizer: TokenizerSource | None
) -> tuple[tuple[Ids, Ids], int]:
    """Return ((ids before, ids after each row), id of padding)."""
    if tokenizer is not None:
        from bpe import load_tokenizer
        from preprocess.dataset.reader import check_tokenizer

        check_tokenizer(Path(file.path), file.manifest, load_tokenizer(tokenizer).fingerprint)
    around: tuple[Ids, Ids] = ((), ())
    if settings.add_special_tokens:
        around = _special_ids(file, tokenizer)
    return around, _pad_id(file, settings, tokenizer)


def plan_rows(
    file: TokenFile, settings: RowSettings, around: tuple[Ids, Ids], pad_id: int
) -> tuple[RowPlan, Shape]:
    """Return which tokens rows have, and how they become arrays.

    Args:
        file: The dataset.
        settings: How rows are made of it.
        around: Ids before and after each row.
        pad_id: Id of padding.

    Raises:
        RowsError: The settings do not fit the dataset.
    """
    codec, manifest = FORMATS[settings.format].codec(), file.manifest
    shape = Shape(
        columns_of(settings), *around, pad_id=pad_id, is_packed=settings.strategy is not None,
        pads_left=settings.padding_side == "left",
    )
    plan: RowPlan
    if settings.seq_length is not None:
        if settings.strategy is not None:
            plan = PackedRows(file, settings.seq_length, settings.strategy)
        else:
            plan = StreamRows(file.n_tokens, settings.seq_length)
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
            file.document_ends, room, stride, settings.truncation, n_before, n_after
        )
    if not len(plan):
        raise RowsError(f"{file.path}: has no tokens for rows; build it from more text")
    if settings.padding != "none":
        longest = plan.longest + shape.n_around
        length = longest if settings.padding == "longest" else (
            settings.max_length or settings.seq_length
        )
        shape = replace(shape, length=length)
    elif plan.n_tokens != len(plan) * plan.longest and codec.NEEDS_PADDING:
        raise RowsError(
            f"{settings.format} holds rows of one length, and these differ; choose --padding"
            " longest or max-length, or another --format"
        )
    return plan, shape


def shard_bounds(n_rows: int, n_shards: int) -> list[int]:
    """Return where shards begin, and the number of rows; they differ by one row at most.

    >>> shard_bounds(7, 3)
    [0, 3, 5, 7]
    """
    size, longer = divmod(n_rows, n_shards)
    return [number * size + min(number, longer) for number in range(n_shards + 1)]


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
        if settings.columns not in ((), ("input_ids",)):
            raise SettingsError("columns: format pickle has ids alone; leave them out")
        return ("input_ids",)
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


def check_rows(rows: Mapping[str, RowSettings], places: Mapping[str, str]) -> None:
    """Check settings of rows, by name of dataset, before anything is built.

    Raises:
        SettingsError: Arrays or compression cannot be; it names the place of the dataset.
    """
    for name, settings in rows.items():
        try:
            columns_of(settings)
            compression_of(settings)
        except SettingsError as error:
            raise SettingsError(f"{places[name]}save: {error}") from None


def settings_of_rows(settings: RowSettings) -> dict[str, Any]:
    """Return the options of `RowSettings` that change rows, for JSON."""
    own = options_of(RowSettings)
    found = {name: getattr(settings, name) for name, each in own.items() if each.changes_result}
    found |= {"columns": list(columns_of(settings)), "compression": compression_of(settings)}
    return found


def _special_ids(file: TokenFile, tokenizer: TokenizerSource | None) -> tuple[Ids, Ids]:
    """Return the ids (before, after) a row that the post-processor of a tokenizer has."""
    from bpe import load_tokenizer
    from bpe.formats.post_processor import read_special_ids
    from preprocess.dataset.reader import check_tokenizer

    path = _tokenizer_of(file, tokenizer)
    if path is None:
        raise SettingsError(
            f"add_special_tokens needs the tokenizer of {file.path}, and there is no tokenizer.json"
            " beside it; give it (--tokenizer)"
        )
    check_tokenizer(Path(file.path), file.manifest, load_tokenizer(path).fingerprint)
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
    if given is not None and not isinstance(given, str):
        return given
    path = Path(file.absolute_path).parent if given is None else Path(given)
    path = path / "tokenizer.json" if path.is_dir() else path
    return path if given is not None or path.exists() else None


def _pad_id(
    file: TokenFile, settings: RowSettings, tokenizer: TokenizerSource | None
) -> int:
    """Return the id of padding: as chosen, of the tokenizer, or of the end of text."""
    from bpe import load_tokenizer
    from bpe.formats.chat_template import read_token_names
    from preprocess.dataset.reader import check_tokenizer

    path = _tokenizer_of(file, tokenizer)
    names = {}
    if path is not None:
        names = read_token_names(str(path) if isinstance(path, Path) else path)
    token = names.get("pad_token") if settings.pad_token is None else settings.pad_token
    if token is None:
        return file.manifest.end_of_text_id
    if isinstance(token, int):
        if not 0 <= token < file.vocab_size:
            raise SettingsError(
                f"pad_token {token:,} is no id of the vocabulary of {file.vocab_size:,}; give one"
            )
        return token
    if path is None:
        raise SettingsError(
            f"pad_token {token!r} cannot be looked up without a tokenizer; give it (--tokenizer)"
        )
    found = load_tokenizer(path)
    check_tokenizer(Path(file.path), file.manifest, found.fingerprint)
    known = found.special_tokens
    if token not in known and settings.padding == "none":
        return file.manifest.end_of_text_id
    if token not in known:
        raise SettingsError(
            f"pad_token {token!r} is no special token of {path}, which has"
            f" {', '.join(map(repr, known)) or 'none'}; choose one of these"
        )
    return known[token]

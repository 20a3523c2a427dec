"""Conversations in records of any format: detected by their fields, and read as documents.

A conversation is a document: its text is what the chat template writes. The batch says which bytes
are special tokens of the template, and which are trained on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from bpe.errors import CorpusError, listed
from preprocess.documents.batch import DocumentBatch, ReadOptions, Spans
from preprocess.documents.chat_template import ChatTemplateError, Rendered, render
from preprocess.documents.conversations import (
    KINDS,
    BadConversationError,
    kind_of,
    messages_of,
)
from preprocess.sources.fields import USUAL_FIELDS, choose_field, given_fields


def choose_fields(
    path: Path, names: Iterable[str], reading: ReadOptions
) -> tuple[ReadOptions, tuple[str, ...]]:
    """Choose what is read from records with fields `names`.

    Returns:
        (the options, whose `chat` is a name in `KINDS` or "off"; the fields with the text or the
        conversation).

    Raises:
        CorpusError: It is unclear, or conversations have no chat template.
    """
    names = list(names)
    if fields := given_fields(reading):
        return structs.replace(reading, chat="off"), fields
    kind = kind_of(names) if reading.chat == "auto" else reading.chat
    if kind not in KINDS:
        return structs.replace(reading, chat="off"), choose_field(path, names)
    usual = [name for name in USUAL_FIELDS if name in names]
    if usual and reading.chat == "auto":
        raise CorpusError(
            f"{path}: records have conversations ({listed(KINDS[kind].fields)}) and text"
            f" ({listed(usual)}); choose one: --chat {kind}, or --content-field {usual[0]}"
        )
    return chat_options(path, reading, kind), KINDS[kind].fields


def chat_options(path: Path | str, reading: ReadOptions, kind: str) -> ReadOptions:
    """Return the options to read conversations; raise CorpusError if there is no template."""
    if reading.chat_format is None:
        raise CorpusError(
            f"{path}: has conversations ({listed(KINDS[kind].fields)}), and no chat template is"
            " known; give a tokenizer (--tokenizer) that has one, or a tokenizer and"
            " --chat-template FILE or chatml; or a field with text: --content-field"
        )
    return structs.replace(reading, chat=kind)


def render_record(record: Mapping[str, Any], reading: ReadOptions) -> Rendered:
    """Render the conversation in a record.

    Raises:
        BadConversationError: It is no conversation, or there is nothing to train on.
    """
    assert reading.chat_format is not None
    messages, tools = messages_of(record, reading.chat)
    try:
        rendered = render(messages, reading.chat_format, tools)
    except ChatTemplateError as error:
        raise BadConversationError(str(error)) from error
    if not any(stop > start for start, stop in rendered.trained):
        raise BadConversationError(
            "the conversation has nothing to train on; remove it, or train on all (--train-on all)"
        )
    return rendered


def tools_field(names: Iterable[str]) -> tuple[str, ...]:
    """Return the name of the field with the tools of a conversation, if there is one."""
    return tuple({"tools"} & {*names})


def record_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row without names whose value is null, inside its columns: structs have all names.

    The content of a message may be null.
    """
    return {name: _without_null(value) for name, value in row.items()}


def _without_null(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_null(each) for each in value]
    if isinstance(value, dict):
        found = {key: _without_null(each) for key, each in value.items()}
        return {k: each for k, each in found.items() if each is not None or k == "content"}
    return value


def batch_of(rendered: list[Rendered], content: Any) -> DocumentBatch:
    """Return conversations as documents."""
    texts = [each.text for each in rendered]
    buffer = np.frombuffer("".join(texts).encode(), np.uint8)
    begins = np.zeros(len(texts) + 1, np.int64)
    np.cumsum([*map(len, texts)], out=begins[1:])
    # The byte at which each character begins.
    byte_of = np.append(np.flatnonzero((buffer & 0xC0) != 0x80), len(buffer))
    special = [each.special for each in rendered]
    trained = [[mark for mark in each.trained if mark[1] > mark[0]] for each in rendered]
    forged: dict[str, int] = {}
    for each in rendered:
        for token, n in each.n_forged.items():
            forged[token] = forged.get(token, 0) + n
    return DocumentBatch(
        buffer, byte_of[np.repeat(begins, 2)[1:-1]], content=content, forged=forged,
        special=_spans(special, [[row[2] for row in rows] for rows in special], begins, byte_of),
        spans=_spans(trained, [[1] * len(rows) for rows in trained], begins, byte_of),
    )


def _spans(
    ranges: list[list[Any]], values: list[list[int]], begins: Any, byte_of: Any
) -> Spans:
    """Return ranges of characters of each document as spans of bytes of the buffer."""
    n = [*map(len, ranges)]
    flat = np.array([row[:2] for rows in ranges for row in rows], np.int64).reshape(-1, 2)
    bounds = byte_of[flat + np.repeat(begins[:-1], n)[:, np.newaxis]]
    return Spans(bounds.ravel(), np.array([x for row in values for x in row], np.int64))

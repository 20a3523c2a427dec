"""Conversations in records of any format, read as documents.

A conversation is a document: its text is what the chat template writes. The batch says which bytes
are special tokens of the template, and which are trained on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np

from bpe.errors import CorpusError
from preprocess.documents.batch import (
    DocumentBatch,
    Offsets,
    ReadOptions,
    Spans,
)
from preprocess.documents.chat_template import Rendered, render
from preprocess.documents.conversations import BadConversationError, messages_of
from preprocess.documents.template_sandbox import ChatTemplateError, UnusableTemplateError


def render_record(record: Mapping[str, Any], reading: ReadOptions) -> Rendered:
    """Render the conversation in a record.

    Raises:
        BadConversationError: It is no conversation, or there is nothing to train on.
        CorpusError: The template cannot be used.
    """
    assert reading.chat_format is not None
    form = reading.chat_format
    try:
        all_turns = form.train_on == "all"
        found = messages_of(record, reading.chat)
        untrained = found.untrained
        if found.n_prompt and not all_turns:
            untrained = untrained.union(range(found.n_prompt))
        rendered = render(found.messages, form, found.tools, untrained)
        rendered.text.encode()
    except UnusableTemplateError as error:  # which is no fault of the record
        raise CorpusError(str(error)) from error
    except ChatTemplateError as error:
        raise BadConversationError(str(error)) from error
    except UnicodeEncodeError as error:
        reason = "has a lone surrogate, which is no character; correct or remove it"
        raise BadConversationError(reason) from error
    except RecursionError as error:
        reason = "has values that are nested too deep; correct or remove them"
        raise BadConversationError(reason) from error
    if not any(stop > start for start, stop in rendered.trained):
        raise BadConversationError(
            "the conversation has nothing to train on; remove it, or train on all (--train-on all)"
        )
    return rendered


def batch_of(rendered: list[Rendered], content: Any) -> DocumentBatch:
    """Return conversations as documents; `content` are the raw bytes of the unit."""
    texts = [each.text for each in rendered]
    buffer = np.frombuffer("".join(texts).encode(), np.uint8)
    begins = np.zeros(len(texts) + 1, np.int64)
    np.cumsum([*map(len, texts)], out=begins[1:])
    # Number of characters that begin before each byte that continues one.
    continued = np.flatnonzero((buffer & 0xC0) == 0x80)
    continued -= np.arange(len(continued))

    def byte_of(characters: Offsets) -> Offsets:
        return characters + np.searchsorted(continued, characters, "right")

    def in_buffer(ranges: list[list[Any]], width: int) -> Offsets:
        """Return rows of each document; their first two columns become bytes of the buffer."""
        numbers = chain.from_iterable(chain.from_iterable(ranges))
        flat = np.fromiter(numbers, np.int64).reshape(-1, width)
        flat[:, :2] += np.repeat(begins[:-1], [*map(len, ranges)])[:, np.newaxis]
        flat[:, :2] = byte_of(flat[:, :2])
        return flat

    special = in_buffer([each.special for each in rendered], 3)
    trained = in_buffer([each.trained for each in rendered], 2)
    trained = trained[trained[:, 1] > trained[:, 0]]
    forged = Counter[str]()
    for each in rendered:
        if each.n_forged:
            forged.update(each.n_forged)
    return DocumentBatch(
        buffer, byte_of(np.repeat(begins, 2)[1:-1]), content=content, forged=dict(forged),
        special=Spans(special[:, :2].ravel(), special[:, 2].copy()),
        spans=Spans(trained.ravel(), np.ones(len(trained), np.int64)),
    )

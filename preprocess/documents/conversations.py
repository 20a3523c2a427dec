"""Conversations in records: `messages`, ShareGPT, and prompt with completion.

A conversation becomes a list of messages for a chat template, each with a role and a content. Keys
whose value is null are left out, as transformers does; unknown ones are the template's. It is a
document: its text is what the template writes. The batch says which bytes are special tokens of the
template, and which are trained on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from itertools import chain
from typing import Any, NamedTuple

import msgspec
import numpy as np

from bpe.errors import CorpusError
from preprocess.documents.batch import DocumentBatch, Offsets, ReadOptions, Spans
from preprocess.documents.chat_template import REASONING, ROLES, Rendered, render
from preprocess.documents.template_sandbox import (
    ChatTemplateError,
    Messages,
    UnusableTemplateError,
)

# Names of roles, and of ShareGPT's speakers -> roles.
_ROLES = {
    **{role: role for role in ROLES}, "human": "user", "gpt": "assistant", "chatgpt": "assistant",
    "model": "assistant", "bing": "assistant", "function_call": "assistant", "function": "tool",
    "observation": "tool", "ipython": "tool", "environment": "tool",
}
_OF_SHAREGPT = {"from": "role", "value": "content"}  # names of keys of a message
# Keys of a message: whether it is trained on, and those that might mean it or its opposite.
_TRAINED = ("weight", "train", "training", "loss_weight", "loss", "trainable")
_UNCLEAR = ("mask", "masked", "loss_mask", "train_mask", "train_detail", "training_detail")
# Fields beside a conversation: those that are used, and those that would be lost.
_SYSTEM, _TOOLS = ("system", "system_prompt", "system_message"), ("tools", "functions")
_LOST = (
    "images", "image", "videos", "video", "audios", "audio", "documents", "chat_template_kwargs",
    "loss_mask", "train_mask",
)
_IS_GOOD = ("label", "kto_tag")  # of preferences: whether the answer is a good one
FIELDS_BESIDE = frozenset((*_TOOLS, *_SYSTEM, *_LOST, *_IS_GOOD))


_MESSAGES = "a list of messages"
_KINDS = {  # of values of JSON
    type(None): "null", bool: "a truth value", int: "a number", float: "a number", str: "text",
    list: "a list", dict: "an object",
}


class BadConversationError(Exception):
    """A record is no conversation; the message is a reason that follows the name of the record."""


class Conversation(NamedTuple):
    """A conversation.

    Attributes:
        messages: The messages.
        tools: Its tools; None: none.
        untrained: Numbers of messages that say that they are not trained on.
        n_prompt: Number of messages of a prompt.
    """

    messages: Messages
    tools: list[Any] | None
    untrained: frozenset[int] = frozenset()
    n_prompt: int = 0


# Kind of conversation -> its fields in a record.
KINDS = {
    "messages": ("messages",), "sharegpt": ("conversations",),
    "prompt-completion": ("prompt", "completion"),
}


def kind_of(names: Collection[str]) -> str | None:
    """Return the kind of conversation in records with fields `names`; None: there is none."""
    return next((name for name, fields in KINDS.items() if {*fields} <= {*names}), None)


def messages_of(record: Mapping[str, Any], kind: str) -> Conversation:
    """Return the conversation in a record of a kind in `KINDS`.

    Args:
        record: The record.
        kind: The kind.

    Raises:
        BadConversationError: It is no conversation, or a part of it would be lost.
    """
    given, n_prompt = list[Any](), 0
    for name in KINDS[kind]:
        value, role = record[name], {"prompt": "user", "completion": "assistant"}.get(name)
        if isinstance(value, str) and role is not None:
            value = [{"role": role, "content": value}]
        given += _expect(value, list, name, "text or a list of messages" if role else _MESSAGES)
        n_prompt += len(value) * (name == "prompt")
    if not given:
        raise BadConversationError("the conversation has no message; remove it")
    if FIELDS_BESIDE.isdisjoint(record) and all(map(_is_usual, given)):
        return Conversation(given, None, frozenset(), n_prompt)
    if lost := [name for name in _LOST if record.get(name)]:
        raise BadConversationError(
            f"has the field {lost[0]!r}, which would be lost: it is not used; remove it"
        )
    if bad := [name for name in _IS_GOOD if record.get(name) is False]:
        raise BadConversationError(
            f"has {bad[0]} false, which says of a preference that the answer is a bad one; remove"
            " the record, or the field if it means something else"
        )
    system = {name: record[name] for name in _SYSTEM if record.get(name) not in (None, "")}
    for name, text in system.items():
        given = [{"role": "system", "content": _expect(text, str, name, "text")}, *given]
        n_prompt += bool(n_prompt)
    first = 1 - len(system)
    read = [_message(each, number) for number, each in enumerate(given, start=first)]
    messages = [message for message, _ in read]
    if len(system) > 1 or (system and messages[1]["role"] in ("system", "developer")):
        raise BadConversationError(
            f"has the field {next(iter(system))!r} and another system message; remove one of them"
        )
    untrained = frozenset(number for number, (_, trained) in enumerate(read) if not trained)
    return Conversation(messages, _tools(record), untrained, n_prompt)


def _is_usual(message: Any) -> bool:
    """Return True if a message has a role and a text, and nothing else."""
    return (
        isinstance(message, dict) and len(message) == 2 and isinstance(message.get("content"), str)
        and message.get("role") in ROLES
    )


def _message(given: Any, number: int) -> tuple[dict[str, Any], bool]:
    """Return (a message for templates, whether it may be trained on)."""
    where = f"message {number}"
    given = _expect(given, dict, where, "an object with a role")
    given = {key: value for key, value in given.items() if value is not None}
    if "content" in given and "value" in given:
        raise BadConversationError(f"{where} has content and value; remove one of them")
    # The names of ShareGPT, unless there are the others.
    usual = {name: _OF_SHAREGPT.get(name, name) for name in given}
    message = {x if y in given else y: given[x] for x, y in usual.items()}
    key = "from" if "from" in given and "role" not in given else "role"
    name = message.get("role")
    if not isinstance(name, str) or name not in _ROLES:
        raise BadConversationError(
            f"{where} has the {key} {name!r}, expected one of {', '.join(_ROLES)}; correct it"
        )
    trained = _is_trained(message, where)
    calls = _objects(message.pop("tool_calls", None), f"{where}: tool_calls")
    for field in ("content",) * (name == "function_call") + ("function_call",):
        more = _objects(message.pop(field, None), f"{where}: {field}")
        calls += [{"type": "function", "function": call} for call in more]
    for call in calls:
        inner = call.get("function", call)
        called = inner.get("name") if isinstance(inner, dict) else None
        if not isinstance(called, str) or not called:
            raise BadConversationError(f"{where} has a call without a name; correct it")
    if calls:
        message["tool_calls"] = calls
    if "content" in message or not calls:
        is_value = "value" in given or key == "from"
        message["content"] = _content(
            message.get("content"), f"{where}: {'value' if is_value else 'content'}"
        )
    message["role"] = _ROLES[name]
    # As in transformers, reasoning has all names that templates read.
    names = [each for each in REASONING if each in message]
    thoughts = [_expect(message[each], str, f"{where}: {each}", "text") for each in names]
    if len({*thoughts} - {""}) > 1:
        raise BadConversationError(
            f"{where} has {' and '.join(names)}, which say different things; remove one of them"
        )
    if thoughts:
        found = max(thoughts)
        message |= dict.fromkeys(REASONING, found)
    return message, trained


def _is_trained(message: dict[str, Any], where: str) -> bool:
    """Return whether a message may be trained on; remove the keys that say so."""
    if unclear := [name for name in _UNCLEAR if name in message]:
        raise BadConversationError(
            f"{where} has the key {unclear[0]!r}, which may mean that it is trained on, or that it"
            " is not; name it train, true or false, instead"
        )
    given = {name: message.pop(name) for name in _TRAINED if name in message}
    values = [each for each in given.values() if isinstance(each, int | float)]
    if not {*values} <= {0, 1} or len({*values}) > 1 or len(values) < len(given):
        raise BadConversationError(
            f"{where} has {', '.join(f'{x} {y!r}' for x, y in given.items())}, expected 0 or 1, in"
            " all of them the same, for it is trained on or not; correct it"
        )
    return all(values)


def _tools(record: Mapping[str, Any]) -> list[Any] | None:
    """Return the tools of a record, which may be JSON in a text; None: there are none."""
    given = [name for name in _TOOLS if record.get(name)]
    if len(given) > 1:
        raise BadConversationError(f"has {' and '.join(given)}; remove one of them")
    tools = _objects(record[given[0]], given[0]) if given else []
    if given == ["functions"]:  # OpenAI's before tools
        tools = [{"type": "function", "function": tool} for tool in tools]
    return tools or None


def _objects(value: Any, where: str) -> list[Any]:
    """Return a list of objects, which may be JSON in a text, or a single one; null: none."""
    if isinstance(value, str) and value:
        try:
            value = msgspec.json.decode(value)
        except msgspec.DecodeError as error:
            raise BadConversationError(f"{where} is no JSON ({error}); correct it") from error
    value = [] if value is None else [value] * bool(value) if isinstance(value, dict) else value
    for each in _expect(value, list, where, "a list of objects"):
        _expect(each, dict, f"an element of {where}", "an object")
    return [*value]


def _content(value: Any, where: str) -> str:
    """Return the text of a message: of a string, or of a list of parts."""
    texts = []
    for part in [value] if isinstance(value, str) else _expect(value, list, where, "text"):
        text = part
        if isinstance(part, dict) and part.get("type") == "text":
            text = part.get("text")
        if not isinstance(text, str):
            raise BadConversationError(
                f"{where} has a part that is not text; remove it, for only text becomes tokens"
            )
        texts.append(text)
    return "".join(texts)


def _expect(value: Any, kind: type, where: str, expected: str) -> Any:
    """Return a value of a kind.

    Raises:
        BadConversationError: It is of another.
    """
    if not isinstance(value, kind):
        name = _KINDS.get(type(value), type(value).__name__)
        raise BadConversationError(f"{where} is {name}, expected {expected}; correct or remove it")
    return value


# --- conversations as documents ---


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

"""Conversations in records: `messages`, ShareGPT, and prompt with completion.

A conversation becomes a list of messages for a chat template, each with a role and a content.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import msgspec

from preprocess.documents.chat_template import ROLES
from preprocess.documents.template_sandbox import Messages

# Names of ShareGPT's speakers -> roles.
_SPEAKERS = {
    "system": "system", "human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant",
    "assistant": "assistant", "model": "assistant", "bing": "assistant", "tool": "tool",
    "function": "tool", "observation": "tool", "developer": "developer",
}


class BadConversationError(Exception):
    """A record is no conversation; the message is a reason that follows the name of the record."""


class ConversationKind(NamedTuple):
    """A way to write conversations: the fields of a record, and a function that reads them."""

    fields: tuple[str, ...]
    read: Callable[[Mapping[str, Any]], Messages]


def _read_messages(record: Mapping[str, Any]) -> Messages:
    given = record["messages"]
    if isinstance(given, list) and all(map(_is_usual, given)):
        return given
    return [
        {**_reasoning(each), "role": _role(each, "role", number, {}),
         "content": _content(each, number)}
        for number, each in _numbered(given, "messages")
    ]


def _is_usual(message: Any) -> bool:
    """Return True if a message has a role and a text, and nothing else."""
    return (
        isinstance(message, dict) and len(message) == 2 and isinstance(message.get("content"), str)
        and message.get("role") in ROLES
    )


def _reasoning(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message whose reasoning has the names that templates read, as in transformers."""
    names = ("reasoning_content", "thinking", "reasoning")
    found = next((message[name] for name in names if message.get(name) is not None), None)
    if found is None:
        return message
    return {"thinking": found, **message, "reasoning_content": found}


def _read_sharegpt(record: Mapping[str, Any]) -> Messages:
    found = []
    for number, each in _numbered(record["conversations"], "conversations"):
        value = each.get("value")
        if not isinstance(value, str):
            raise BadConversationError(
                f"message {number} has {_kind(value)} as value, expected text; correct or remove it"
            )
        found.append({"role": _role(each, "from", number, _SPEAKERS), "content": value})
    return found


def _read_prompt(record: Mapping[str, Any]) -> Messages:
    found: Messages = []
    for name, role in (("prompt", "user"), ("completion", "assistant")):
        value = record[name]
        if isinstance(value, list):  # of messages
            found += _read_messages({"messages": value})
        elif isinstance(value, str):
            found.append({"role": role, "content": value})
        else:
            raise BadConversationError(
                f"{name} is {_kind(value)}, expected text or a list of messages; correct or remove"
                " it"
            )
    return found


KINDS = {
    "messages": ConversationKind(("messages",), _read_messages),
    "sharegpt": ConversationKind(("conversations",), _read_sharegpt),
    "prompt-completion": ConversationKind(("prompt", "completion"), _read_prompt),
}


def kind_of(names: Collection[str]) -> str | None:
    """Return the kind of conversation in records with fields `names`; None: there is none."""
    return next((name for name, kind in KINDS.items() if {*kind.fields} <= {*names}), None)


def messages_of(record: Mapping[str, Any], kind: str) -> tuple[Messages, Any]:
    """Return (messages, tools or None) of a record.

    Raises:
        BadConversationError: It is no conversation.
    """
    messages = KINDS[kind].read(record)
    if not messages:
        raise BadConversationError("the conversation has no message; remove it")
    return messages, _tools(record.get("tools"))


def _tools(tools: Any) -> list[Any] | None:
    """Return the tools of a record, which may be JSON in a text."""
    if isinstance(tools, str) and tools:
        try:
            tools = msgspec.json.decode(tools)
        except msgspec.DecodeError as error:
            raise BadConversationError(f"tools is no JSON ({error}); correct it") from error
    if not tools:
        return None
    if not isinstance(tools, list) or not all(isinstance(each, dict) for each in tools):
        raise BadConversationError(
            f"tools is {_kind(tools)}, expected a list of objects; correct or remove it"
        )
    return tools


def _numbered(value: Any, name: str) -> list[tuple[int, Mapping[str, Any]]]:
    if not isinstance(value, list):
        raise BadConversationError(
            f"{name} is {_kind(value)}, expected a list of messages; correct or remove it"
        )
    for number, each in enumerate(value, start=1):
        if not isinstance(each, dict):
            raise BadConversationError(
                f"message {number} is {_kind(each)}, expected an object with a role; correct it"
            )
    return [*enumerate(value, start=1)]


def _role(
    message: Mapping[str, Any], key: str, number: int, names: Mapping[str, str]
) -> str:
    """Return the role of a message; `names` are further names of roles."""
    given = message.get(key)
    role = names.get(given, given) if isinstance(given, str) else given
    if role not in ROLES:
        known = ", ".join(names or ROLES)
        raise BadConversationError(
            f"message {number} has the {key} {given!r}, expected one of {known}; correct it"
        )
    return str(role)


def _content(message: Mapping[str, Any], number: int) -> str:
    """Return the text of a message: of a string, or of a list of text parts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if content is None and message.get("tool_calls"):
        return ""
    if not isinstance(content, list):
        raise BadConversationError(
            f"message {number} has {_kind(content)} as content, expected text; correct or remove it"
        )
    texts = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) else part
        is_text = isinstance(part, str) or (isinstance(part, dict) and part.get("type") == "text")
        if not is_text or not isinstance(text, str):
            raise BadConversationError(
                f"message {number} has a part that is not text; remove it, for only text becomes"
                " tokens"
            )
        texts.append(text)
    return "".join(texts)


def _kind(value: Any) -> str:
    return {
        type(None): "null", bool: "a truth value", int: "a number", float: "a number",
        str: "text", list: "a list", dict: "an object",
    }.get(type(value), type(value).__name__)

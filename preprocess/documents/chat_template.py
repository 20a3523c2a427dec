"""Render conversations through a chat template, with the origin of each character.

The template's special tokens are special; what a message says is text. So a conversation that has
characters of special tokens is rendered twice: as it is, and with private characters in place of
what it says. Only special tokens that are in both texts are the template's.

Which characters to train on comes from the template's `{% generation %}` marks, or, without them,
from the places of the assistant's turns (`chat_turns`).
"""

from __future__ import annotations

import functools
import json
import re
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from msgspec import Struct

from bpe.text.normalize import normalized
from preprocess.documents.chat_turns import Hidden, Place, Special, Turns, hide_all, mark_of
from preprocess.documents.template_sandbox import ChatTemplateError, Messages, Template

ROLES = ("system", "developer", "user", "assistant", "tool")
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

_PLAIN = frozenset(ROLES[:4])  # roles of those who speak
_USUAL_NAMES = {"role", "content"}  # of a message
REASONING = ("reasoning_content", "thinking", "reasoning")  # names of what is not said aloud
_PRIVATE = "\U000f0000"  # characters from here on have no meaning of their own


class ChatFormat(Struct, frozen=True, cache_hash=True):
    """Chat template, the special tokens of the tokenizer, and what to train on.

    Attributes:
        template: Jinja source.
        special_tokens: Name of a special token -> its id, as (name, id) pairs.
        variables: Further variables of the template, as (name, value) pairs, such as `bos_token`.
        train_on: "assistant": all its turns; "last-assistant": the last of them; "all".
        normal_forms: Of the tokenizer, which normalizes the text between special tokens.
        where: Of the template, for messages.
        tools_template: Jinja source for conversations with tools; None: `template`.
        date: The day that the template writes, YYYY-MM-DD; None: it must not write one.
        kwargs: More variables of the template, a JSON object.
    """

    template: str
    special_tokens: tuple[tuple[str, int], ...]
    variables: tuple[tuple[str, str], ...] = ()
    train_on: str = "assistant"
    normal_forms: tuple[str, ...] = ()
    where: str = "the chat template"
    tools_template: str | None = None
    date: str | None = None
    kwargs: str = "{}"


class Rendered(NamedTuple):
    """A conversation as text.

    Attributes:
        text: What is encoded.
        special: (start, end, id) of each special token of the template, ascending; in characters.
        trained: (start, end) of what to train on, ascending; in characters.
        n_forged: Special token -> number of times that text of messages spells it.
    """

    text: str
    special: Special
    trained: list[Place]
    n_forged: dict[str, int]


def render(
    messages: Messages, form: ChatFormat, tools: Any = None, untrained: Collection[int] = ()
) -> Rendered:
    """Render a conversation.

    Args:
        messages: As `conversations.messages_of` returns them.
        form: Template, special tokens, and what to train on.
        tools: Tools of the conversation, passed to the template; None: none.
        untrained: Numbers of messages not to train on.

    Raises:
        ChatTemplateError: The template cannot be used, refuses the conversation, loses a part of
            it, or writes special tokens that depend on the text of messages.
    """
    template = _template(form, tools is not None and form.tools_template is not None)
    tokens = _tokens(form)
    messages, text, marks = _render(template, messages, tools)
    roles = tuple([message["role"] for message in messages])
    is_usual = not tools and all(message.keys() == _USUAL_NAMES for message in messages)
    if is_usual and _PLAIN.issuperset(roles):
        _check_roles(template, roles)
    else:
        _check_written(template, messages, tools)
    # What messages say: all texts in them but the roles, and the names of other fields.
    said = [message["content"] for message in messages] if is_usual else [
        *_strings([_without_role(message) for message in messages]), *_strings(tools)
    ]
    n_forged: dict[str, int] = {}
    if not tokens.may_be_in(said):
        special = tokens.find(text)
    else:
        special = _special_of(template, tokens, messages, tools, text)
        n_found = tokens.count(text)
        n_found.subtract(tokens.names[token] for *_, token in special)
        n_forged = {name: n for name, n in n_found.items() if n}
    if form.train_on == "assistant" and template.has_marks and not untrained:
        trained = marks
    else:
        turns = Turns(template, messages, tools, text, special)
        trained = _trained(turns, marks, form.train_on, untrained)
    rendered = Rendered(text, special, trained, n_forged)
    return _normalized(rendered, form.normal_forms) if form.normal_forms else rendered


def _trained(
    turns: Turns, marks: list[Place], train_on: str, untrained: Collection[int]
) -> list[Place]:
    """Return what to train on."""
    if train_on == "all":
        left_out = turns.find(sorted(untrained))
        bounds = [0, *(bound for place in left_out for bound in place), len(turns.text)]
        return [*zip(bounds[::2], bounds[1::2], strict=True)]
    turns_of_it = [i for i, each in enumerate(turns.messages) if each["role"] == "assistant"]
    chosen = turns_of_it[-1:] if train_on == "last-assistant" else turns_of_it
    places = turns.find(turn for turn in chosen if turn not in untrained)
    if not turns.template.has_marks:
        return places
    return [(a, b) for a, b in marks if any(a < stop and start < b for start, stop in places)]


def _render(
    template: Template, messages: Messages, tools: Any
) -> tuple[Messages, str, list[Place]]:
    """Return (messages, text, marks)."""
    try:
        return messages, *template.render(messages, tools)
    except ChatTemplateError:
        # Some templates ask for calls without content whether it is null.
        given = [{"content": None, **message} for message in messages]
        if messages == given:
            raise
        return given, *template.render(given, tools)


@functools.lru_cache(maxsize=1024)
def _check_roles(template: Template, roles: tuple[str, ...]) -> None:
    """Check that a template writes messages with these roles, whatever they say."""
    _check_written(template, [{"role": role, "content": ""} for role in roles], None)


def _check_written(template: Template, messages: Messages, tools: Any) -> None:
    """Raise ChatTemplateError if tools, reasoning, calls, or what some role says is not written."""
    unread = ["tools"] if tools and "tools" not in template.names else []
    if template.names.isdisjoint(REASONING):
        unread += [key for key in REASONING[:1] for m in messages if str(m.get(key, "")).strip()]
    if unread:
        raise ChatTemplateError(
            f"{template.where} does not write {unread[0]}, so they would be lost; use another"
            " template, or remove them"
        )
    hidden: dict[str, str] = {}  # private character -> what it stands for
    changed = []

    def mark_for(what: str) -> str:
        mark = mark_of(len(hidden))
        hidden[mark] = what
        return mark

    for number, message in enumerate(messages, start=1):
        calls = []
        for call in message.get("tool_calls", ()):
            inner = call.get("function", call)
            what = f"the call of {inner['name']!r} in message {number}"
            renamed = {**inner, "name": mark_for(what)}
            given = _decoded(inner.get("arguments"))
            if any(text.strip() for text in _strings(given, with_names=False)):
                marked = _replaced(given, mark_for(f"arguments of {what}"))
                is_json = isinstance(inner["arguments"], str) and not isinstance(marked, str)
                renamed["arguments"] = json.dumps(marked, ensure_ascii=False) if is_json else marked
            calls.append(renamed if inner is call else {**call, "function": renamed})
        if not calls:
            mark = mark_for(f"message {number}, of the role {message['role']},")
            changed.append({**message, "content": mark})
            continue
        changed.append({**message, "tool_calls": calls})
        if (message.get("content") or "").strip():
            changed[-1]["content"] = mark_for(f"the content beside a call in message {number}")
    try:
        shown, _ = template.render(changed, tools)
    except ChatTemplateError:  # it looks at what messages say, or results of tools need calls
        return
    lost = [  # values may be written as in JSON, or as in Python
        what for mark, what in hidden.items()
        if not any(x in shown for x in (mark, json.dumps(mark)[1:-1], repr(mark)[1:-1]))
    ]
    if lost:
        raise ChatTemplateError(
            f"{template.where} writes {lost[0]} nowhere, so it would be lost; use another"
            " template, or remove the conversation"
        )


def _special_of(
    template: Template, tokens: _Tokens, messages: Messages, tools: Any, text: str
) -> Special:
    """Return (start, end, id) of the special tokens in a rendered text that the template wrote."""

    def hides_name(name: str) -> bool:
        return not (name in template.names and name.isidentifier()) and tokens.may_be_of(name)

    kept, special = list[str](), list[tuple[int, int, int]]()
    for _ in range(2):
        hidden = Hidden(messages, tools, kept, tokens.hide, hides_name)
        agrees = hidden.is_of(text, template)
        special = tokens.find(hidden.text)
        if agrees:
            return special
        kept = [*filter(tokens.is_apart, template.literals)]
    # The template looks at what messages say. It may, but not to write other special tokens.
    found = tokens.find(text)
    if [token for *_, token in found] != [token for *_, token in special]:
        raise ChatTemplateError(
            f"{template.where} writes other special tokens because of what a message says, so it is"
            " not known which are its own; remove special-token text from the message"
        )
    return found


def _without_role(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message without its role, which is checked, and may be a part of a special token."""
    return {key: value for key, value in message.items() if key != "role"}


def _decoded(value: Any) -> Any:
    """Return what JSON in a text says; another value as it is."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _replaced(value: Any, mark: str) -> Any:
    """Return a value of JSON with `mark` in place of all texts in it."""
    if isinstance(value, dict):
        return {key: _replaced(each, mark) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_replaced(each, mark) for each in value]
    return mark if isinstance(value, str) else value


def _strings(value: Any, with_names: bool = True) -> Iterator[str]:
    """Yield all texts in a value of JSON, and the names in it, if wanted."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _strings(each, with_names)
    elif isinstance(value, dict):
        for key, each in value.items():
            if with_names:
                yield key
            yield from _strings(each, with_names)


def _normalized(rendered: Rendered, forms: tuple[str, ...]) -> Rendered:
    """Normalize the text between special tokens, as the tokenizer does before encoding it."""
    text, special, trained, n_forged = rendered
    if all(unicodedata.is_normalized(form, text) for form in forms):  # type: ignore[arg-type]
        return rendered

    def change(part: str) -> str:
        return normalized(part.encode(), forms).decode()

    starts = [0, *(bound for start, end, _ in special for bound in (start, end))]
    parts, new_starts = list[str](), [0]
    for number, (start, end) in enumerate(pairwise([*starts, len(text)])):
        parts.append(text[start:end] if number % 2 else change(text[start:end]))
        new_starts.append(new_starts[-1] + len(parts[-1]))

    def moved(position: int) -> int:
        part = bisect_right(starts, position) - 1
        return new_starts[part] + len(change(text[starts[part] : position]))

    special = [(moved(a), moved(a) + b - a, token) for a, b, token in special]
    trained = [(moved(start), moved(stop)) for start, stop in trained]
    return Rendered("".join(parts), special, trained, n_forged)


@functools.lru_cache(maxsize=8)
def _template(form: ChatFormat, for_tools: bool) -> Template:
    source = form.tools_template if for_tools else form.template
    variables = dict(form.variables) | json.loads(form.kwargs)
    return Template(source or "", variables, form.where, form.date)


class _Tokens:
    """Special tokens.

    Attributes:
        names: Id -> token.
    """

    def __init__(self, special_tokens: tuple[tuple[str, int], ...]) -> None:
        self._ids = dict(special_tokens)
        self.names = {token: name for name, token in special_tokens}
        # The leftmost token, and of several the longest.
        ordered = sorted(self._ids, key=len, reverse=True)
        self._anywhere = re.compile("|".join(map(re.escape, ordered)) or "(?!)")
        found = ("".join(re.findall(r"[^\w\s]", x)) or "".join(x.split()) for x in ordered)
        # Punctuation, without which none can be spelled; of a token without it, all its characters.
        self._critical = _in_both_cases("".join(found))
        self._codes = [*map(ord, self._critical)]
        self._parts = {
            name[i:j].casefold()
            for name in ordered for i in range(len(name)) for j in range(i + 1, len(name))
        }
        self._longest = max(map(len, ordered), default=0)

    def may_be_in(self, texts: list[str]) -> bool:
        """Return True if texts have characters of which special tokens could be made."""
        joined = "\n".join(texts)
        return self.may_be_of(joined) or any(map(self._is_part, texts))

    def may_be_of(self, text: str) -> bool:
        """Return True if a text has characters without which no special token can be spelled."""
        return any(each in text for each in self._critical)

    def hide(self, text: str, mark: str) -> str:
        """Return a text with a character in place of those without which none can be spelled."""
        if self._is_part(text):
            return hide_all(text, mark)
        return text.translate(dict.fromkeys(self._codes, mark))

    def is_apart(self, text: str) -> bool:
        """Return True if nothing around a text can make a special token of a part of it."""
        text, sizes = text.casefold(), range(1, len(text) + 1)
        return not any(
            name in text or text in name
            or any(name.startswith(text[-n:]) or name.endswith(text[:n]) for n in sizes)
            for name in map(str.casefold, self._ids)
        )

    def find(self, text: str) -> Special:
        """Return (start, end, id) of all special tokens in a text."""
        return [(*each.span(), self._ids[each[0]]) for each in self._anywhere.finditer(text)]

    def count(self, text: str) -> Counter[str]:
        """Count the special tokens in a text."""
        return Counter(self._anywhere.findall(text))

    def _is_part(self, text: str) -> bool:
        """Return True if a text is inside a special token, but for case and white space around."""
        return len(text) < 2 * self._longest and text.strip().casefold() in self._parts


def _in_both_cases(text: str) -> list[str]:
    """Return the characters of a text, and what filters such as `upper` make of them, sorted."""
    cases = {case for x in text for case in (x, x.lower(), x.upper())}
    return sorted(x for x in cases if len(x) == 1)


@functools.lru_cache(maxsize=8)
def _tokens(form: ChatFormat) -> _Tokens:
    return _Tokens(form.special_tokens)

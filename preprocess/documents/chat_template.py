"""Render conversations through a chat template, with the origin of each character.

The template's special tokens are special; what a message says is text. So a conversation that has
characters of special tokens is rendered twice: as it is, and with private characters in place of
what it says. Only special tokens that are in both texts are the template's.

Which characters to train on comes from the template's `{% generation %}` marks, or, without them,
from the places of the assistant's turns. For these, a conversation is rendered with other private
characters for each message. Where that text agrees with the real one, they show what a message
says, and all others are the template's. The place of a turn follows from two more renderings: up to
the turn, with the generation prompt, a conversation ends where the assistant begins to write;
through the turn, it ends where the assistant stops. If the text of the whole conversation begins
with both, their ends are the place. Otherwise the template writes earlier turns in another way when
more follows, and only what the three texts have in common next to the private characters of the
turn counts.
"""

from __future__ import annotations

import functools
import json
import re
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from bpe.text.normalize import normalized
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

# Private characters have no meaning of their own. Those of messages are of the first private plane.
_PRIVATE, _N_OF_MESSAGES = 0xF0001, 0xFFF0
_OF_TOOLS, _OF_PROBE, _OF_NAMES = "\U00100000", "\U00100001", 0x100002
_private = re.compile(f"[{chr(_PRIVATE)}-\U0010ffff]")

Special = list[tuple[int, int, int]]  # (start, end, id), ascending
Place = tuple[int, int]  # start, end


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


# --- the places of what messages say ---


class Hidden:
    """A conversation with private characters in place of what it says.

    Args:
        messages: The messages.
        tools: The tools; None: none.
        kept: Texts to leave as they are, the longest first: what the template looks for.
        hide: Returns a text with a private character in place of those to hide.
        hides_name: Whether a name in a message or tool, such as that of an argument, is hidden.
    """

    def __init__(
        self, messages: Messages, tools: Any, kept: Sequence[str],
        hide: Callable[[str, str], str], hides_name: Callable[[str], bool],
    ) -> None:
        self._kept = re.compile(f"({'|'.join(map(re.escape, kept))})") if kept else None
        self._hide_text, self._hides_name, self._names = hide, hides_name, dict[str, str]()
        self.messages = [
            # The role is checked, and may be a part of a special token.
            {**self._hide(message, mark_of(number)), "role": message["role"]}
            for number, message in enumerate(messages)
        ]
        self.tools = self._hide(tools, _OF_TOOLS)
        self.text = ""

    def _hide(self, value: Any, mark: str) -> Any:
        """Return a value of JSON with `mark` for each character of its texts."""
        if isinstance(value, str):
            if self._kept is None:
                return self._hide_text(value, mark)
            parts = self._kept.split(value)
            parts[::2] = (self._hide_text(part, mark) for part in parts[::2])
            return "".join(parts)
        if isinstance(value, list | tuple):
            return [self._hide(each, mark) for each in value]
        if isinstance(value, dict):
            return {self._name(key): self._hide(each, mark) for key, each in value.items()}
        return value

    def _name(self, name: str) -> str:
        if not self._hides_name(name):
            return name
        mark = chr(_OF_NAMES + len(self._names) % _N_OF_MESSAGES)
        return self._names.setdefault(name, mark * len(name))

    def is_of(self, text: str, template: Template) -> bool:
        """Render the conversation; return True if other characters are those of `text`."""
        try:
            self.text = template.render(self.messages, self.tools)[0]
        except ChatTemplateError:  # it looks at what messages say
            return False
        given = (each.encode("utf-32-le", "surrogatepass") for each in (self.text, text))
        codes, others = (np.frombuffer(each, "<u4") for each in given)
        return len(codes) == len(others) and bool(((codes == others) | (codes >= _PRIVATE)).all())


def hide_all(text: str, mark: str) -> str:
    """Return a text with a character in place of all but white space."""
    return re.sub(r"\S", mark, text)


def mark_of(number: int) -> str:
    """Return the private character for what a message says."""
    return chr(_PRIVATE + number % _N_OF_MESSAGES)


def _n_common(text: str, other: str) -> int:
    """Return the number of characters that both texts begin with."""
    pairs = enumerate(zip(text, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(text), len(other)))


class Turns:
    """Finds the places of turns in a rendered conversation.

    Args:
        template: The template.
        messages: The messages.
        tools: The tools; None: none.
        text: What the template writes.
        special: Places of the template's special tokens in it.
    """

    def __init__(
        self, template: Template, messages: Messages, tools: Any, text: str, special: Special
    ) -> None:
        self.template, self.messages, self.text = template, messages, text
        self._tools, self._special = tools, special
        self._hidden: Hidden | None = None

    def find(self, turns: Iterable[int]) -> list[Place]:
        """Return the places of messages, by their numbers, which ascend.

        Raises:
            ChatTemplateError: A place is not known, or a rendering is refused.
        """
        found = list[Place]()
        for turn in turns:
            by_prefixes = self._by_prefixes(turn) if self._hidden is None else None
            start, stop, is_whole = by_prefixes or self._by_marks(turn)
            stop = self._end(start, stop, is_whole)
            found.append((max(start, found[-1][1] if found else 0), stop))
        return found

    def _by_prefixes(self, turn: int) -> tuple[int, int, bool] | None:
        before, through = self._before(self.messages, self._tools, turn), self.text
        if not self.text.startswith(before):
            return None
        if turn + 1 < len(self.messages):
            through, _ = self.template.render(self.messages[: turn + 1], self._tools)
        return (len(before), len(through), True) if self.text.startswith(through) else None

    def _by_marks(self, turn: int) -> tuple[int, int, bool]:
        if self._hidden is None:
            self._hidden = self._hide(turn)
        hidden, text, mark = self._hidden, self._hidden.text, mark_of(turn)
        first, last = text.find(mark), text.rfind(mark) + 1
        if {*_private.findall(text[first:last])} != {mark}:
            said = self.messages[turn]
            if hidden.messages[turn] == said and not (said.get("content") or "").strip():
                raise ChatTemplateError(
                    f"message {turn + 1} of {len(self.messages)} says nothing, and"
                    f" {self.template.where} writes turns in another way when more follows, so it"
                    " is not known what to train on; remove the message, or add {% generation %}"
                    " marks to the template"
                )
            raise self._unknown(turn)
        header, trailer = _private.split(text[:first])[-1], _private.split(text[last:], 1)[0]
        begin = first - len(header)
        for by_probe in (False, True):
            before = self._before(hidden.messages, hidden.tools, turn, by_probe)
            prompt = _private.split(before)[-1]
            start = self._past_common(begin, header, prompt)
            # More of both would follow if the turn did not begin with the prompt.
            n = _n_common(header, prompt)
            is_turn = hidden.messages[turn]["role"] == "assistant"
            if not (is_turn and n and header[n:].strip() and prompt[n:].strip()):
                break
        else:
            raise self._unknown(turn)
        through = text
        if turn + 1 < len(hidden.messages):
            through, _ = self.template.render(hidden.messages[: turn + 1], hidden.tools)
        closing = through[through.rfind(mark) + 1 :]
        stop = self._past_common(last, trailer, closing)
        is_whole = stop - last == len(closing)
        if (start == begin and prompt.strip()) or (
            stop == last and not is_whole and self._end(start, stop, is_whole) == stop
        ):
            raise self._unknown(turn)
        return start, stop, is_whole

    def _hide(self, turn: int) -> Hidden:
        calls = [call for message in self.messages for call in message.get("tool_calls", ())]
        inner = [call.get("function", call) for call in calls]
        # Results may name the call again, so its name is hidden only if it is all that is said.
        names = sorted({x["name"] for x in inner if x.get("arguments")}, key=len, reverse=True)
        texts = self.template.literals
        for kept in (names, names + [x for x in texts if not x.isalnum()], names + texts):
            hidden = Hidden(self.messages, self._tools, kept, hide_all, lambda name: False)
            if hidden.is_of(self.text, self.template):
                return hidden
        raise self._unknown(turn)

    def _unknown(self, turn: int) -> ChatTemplateError:
        return ChatTemplateError(
            f"{self.template.where} writes message {turn + 1} of {len(self.messages)} nowhere, in"
            " pieces, or in another way because of what messages say, so it is not known what to"
            " train on; add {% generation %} marks to the template, or train on all (--train-on"
            " all)"
        )

    def _before(self, messages: Messages, tools: Any, turn: int, by_probe: bool = False) -> str:
        """Return the text up to where a message begins to be written.

        It ends with the generation prompt, or, `by_probe`, with what another turn begins with.
        """
        given, role = messages[:turn], messages[turn]["role"]
        if role != "assistant":
            return self.template.render(given, tools)[0] if given else ""
        if given and not by_probe and "add_generation_prompt" in self.template.names:
            return self.template.render(given, tools, add_generation_prompt=True)[0]
        # What all turns of the assistant begin with. A space is a part of the first word.
        probe = {"role": role, "content": _OF_PROBE}
        text, mark, _ = self.template.render([*given, probe], tools)[0].partition(_OF_PROBE)
        if not mark:
            raise self._unknown(turn)
        return text.removesuffix(" ")

    def _past_common(self, place: int, text: str, other: str) -> int:
        """Return where what both texts begin with ends; `text` is at a place of the whole.

        If it is a part of `other`, it ends with white space or a special token.
        """
        n = _n_common(text, other)
        ends = {end - place for _, end, _ in self._special}
        while 0 < n < min(len(text), len(other)) and not (text[n - 1].isspace() or n in ends):
            n -= 1
        return place + n

    def _end(self, start: int, stop: int, is_whole: bool) -> int:
        """Return where the model stops, which does not write the line break after its last token.

        If no special token ends the turn, one that follows at once does, such as that of the next
        turn, or one for the last turn that is another if the turn is not the last (not `is_whole`).
        """
        ends = [end for _, end, _ in self._special if start < end <= stop]
        if ends and not self.text[ends[-1] : stop].strip():
            return ends[-1]
        if is_whole and self.text[start:stop][-1:].isspace():
            return stop
        return next((end for begin, end, _ in self._special if begin == stop), stop)

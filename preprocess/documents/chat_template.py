"""Render conversations through a chat template, with the origin of each character.

The template's special tokens are special; what a message says is text. Which is which is seen in
renderings of *marked* conversations: marks, which are no characters, are put into what messages
say. Where the text without its marks is the real one, they show what is of messages; all else is
the template's. A special token that a message spells has a mark inside.

Which characters to train on comes from the template's `{% generation %}` marks, or, without them,
from the places of the assistant's turns, by two more renderings for each: up to the turn, with the
generation prompt, a conversation ends where the assistant begins to write; through the turn, it
ends where the assistant stops. If the text of the whole conversation begins with both, their ends
are the place. Otherwise the template writes earlier turns in another way when more follows, and
only what the marked texts of all three have in common next to the marks of the turn counts.
"""

from __future__ import annotations

import functools
import json
import re
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from itertools import chain, pairwise
from typing import Any, NamedTuple

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
# Other keys of messages, which some templates ignore.
_RARE_KEYS = (
    "images", "image", "videos", "video", "audio", "tools", "functions", "function_calls",
    "tool_responses", "refusal",
)
_UNSAID = frozenset(("role", "id", "type", "tool_call_id", "name", None))  # None: a name itself

# A mark is a pair of lone surrogates, which no text has that can be encoded.
_MARK = "[\ud800-\udbff][\udc00-\udfff]"

Special = list[tuple[int, int, int]]  # (start, end, id), ascending
Place = tuple[int, int]  # start, end
Change = Callable[[str, tuple[Any, ...]], str]  # of a text at a path of names and indices


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
    special = found = tokens.find(text)
    if not is_usual or tokens.may_be_in(*(message["content"] for message in messages)):
        special = _special_of(template, tokens, messages, tools, text, found)
    n_forged = dict(tokens.count(found) - tokens.count(special)) if special != found else {}
    if form.train_on == "assistant" and template.has_marks and not untrained:
        trained = marks
    else:
        turns = _Turns(template, messages, tools, text, special)
        trained = _trained(turns, marks, form.train_on, untrained)
    rendered = Rendered(text, special, trained, n_forged)
    return _normalized(rendered, form.normal_forms) if form.normal_forms else rendered


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


def _trained(
    turns: _Turns, marks: list[Place], train_on: str, untrained: Collection[int]
) -> list[Place]:
    """Return what to train on."""
    if train_on == "all":
        bounds = [0, *chain.from_iterable(turns.find(sorted(untrained))), len(turns.text)]
        return [*zip(bounds[::2], bounds[1::2], strict=True)]
    turns_of_it = [i for i, each in enumerate(turns.messages) if each["role"] == "assistant"]
    chosen = turns_of_it[-1:] if train_on == "last-assistant" else turns_of_it
    places = turns.find(turn for turn in chosen if turn not in untrained)
    if not turns.template.has_marks:
        return places
    return [(a, b) for a, b in marks if any(a < stop and start < b for start, stop in places)]


# --- marked conversations ---


def _mark_of(number: int) -> str:
    """Return the mark of a message by its number; negative ones are of no message."""
    return chr(0xD800 + number // 1024 % 1024) + chr(0xDC00 + number % 1024)


_OF_TOOLS, _PROBE = -2, _mark_of(-1)


def _unmarked(text: str) -> str:
    """Return a text without marks, which UTF-8 has none of."""
    return text.encode("utf-8", "ignore").decode()


def _changed(value: Any, change: Change, *path: Any, numbers: bool = False) -> Any:
    """Return a value of JSON with changed texts; names in it have a path that ends with None.

    With `numbers`, those in arguments of calls, and truth values, are changed as texts, too.
    """
    is_number = numbers and isinstance(value, int | float) and "arguments" in path
    if isinstance(value, str) or is_number:
        return change(str(value), path)
    inside = functools.partial(_changed, numbers=numbers)
    if isinstance(value, list | tuple):
        return [inside(each, change, *path, number) for number, each in enumerate(value)]
    if isinstance(value, dict):
        return {
            change(key, (*path, None)): inside(each, change, *path, key)
            for key, each in value.items()
        }
    return value


def _text_of(template: Template, messages: Messages, tools: Any) -> str | None:
    """Return what is written of a marked conversation; None: it is refused for what it says."""
    try:
        return template.render(messages, tools)[0]
    except ChatTemplateError:
        return None


def _between(text: str, kept: re.Pattern[str], change: Callable[[str], str]) -> str:
    """Return a text that is changed between what is kept, which finds one group."""
    pieces = kept.split(text)
    pieces[::2] = map(change, pieces[::2])
    return "".join(pieces)


def _wrapped(text: str, mark: str) -> str:
    """Return a text with marks around it, but inside of its white space, which may be removed."""
    core = text.strip()
    return text.replace(core, mark + core + mark, 1) if core else text


def _inner(call: dict[str, Any]) -> dict[str, Any]:
    return call.get("function", call)  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=1024)
def _check_roles(template: Template, roles: tuple[str, ...]) -> None:
    """Check that a template writes messages with these roles, whatever they say."""
    _check_written(template, [{"role": role, "content": "x"} for role in roles], None)


def _check_written(template: Template, messages: Messages, tools: Any) -> None:
    """Raise ChatTemplateError if tools, reasoning, calls, or what some role says is not written."""
    unread = ["tools"] if tools and "tools" not in template.names else []
    if template.names.isdisjoint(REASONING):
        unread += [key for key in REASONING[:1] for m in messages if str(m.get(key, "")).strip()]
    unread += [
        f"the {key} of message {number}"
        for number, m in enumerate(messages, 1) for key in _RARE_KEYS
        if m.get(key) and key not in template.names
    ]
    if unread:
        raise ChatTemplateError(
            f"{template.where} does not write {unread[0]}, which would be lost; use another"
            " template, or remove it"
        )
    parts: dict[tuple[str, Any], str] = {}  # what a mark stands for, and of which call -> mark
    ids = dict[str, str]()  # id of a call -> the id with its mark

    def change(text: str, path: tuple[Any, ...]) -> str:
        number, key = path[:2]
        message, what, before, after = messages[number], f"message {number + 1}", "", ""
        if key == "content" and text.strip():
            is_beside = "tool_calls" in message
            what = f"the content beside a call in {what}" if is_beside else (
                f"{what}, of the role {message['role']},"
            )
        elif key == "tool_calls" and path[-1] is not None:
            name = _inner(message[key][path[2]])["name"]
            what = f"the call of {name!r} in {what}"
            if "arguments" in path and any(map(str.isalnum, text)):
                what = f"arguments of {what}"
            elif path[-1] == "id" and name in text:  # some templates write it alone
                before, after = text.split(name, 1)
            elif path[-1] != "name":
                return text
        else:
            return ids.get(text, text) if key == "tool_call_id" else text
        marked = before + parts.setdefault((what, path[2:3]), _mark_of(len(parts))) + after
        if path[3:] == ("id",):
            ids[text] = marked
        return marked

    def change_tool(text: str, path: tuple[Any, ...]) -> str:
        is_name = path[1:] in (("function", "name"), ("name",))
        what = f"the tool {text!r}"
        return parts.setdefault((what, path), _mark_of(len(parts))) if is_name else text

    changed = _changed(messages, change, numbers=True)
    shown = _text_of(template, changed, _changed(tools, change_tool))
    if shown is None:  # or because results of tools need calls
        return
    for (what, _), mark in parts.items():
        if mark not in shown and json.dumps(mark)[1:-1] not in shown:
            raise ChatTemplateError(
                f"{template.where} writes {what} nowhere, so it would be lost; use another"
                " template, or remove the conversation"
            )


def _special_of(
    template: Template, tokens: _Tokens, messages: Messages, tools: Any, text: str, found: Special
) -> Special:
    """Return those of the special tokens found in a rendered text that the template wrote."""
    kept, is_marked = _literals(template, tokens), False

    def change(part: str, path: tuple[Any, ...]) -> str:
        nonlocal is_marked
        # The role is checked, and may be a part of a special token.
        is_read = path[-1] is None and part in template.names and part.isidentifier()
        if is_read or path[1:] == ("role",) or not tokens.may_be_in(part):
            return part
        is_marked, mark = True, _mark_of(path[0])
        return _between(part, kept, lambda piece: _wrapped(tokens.broken(piece, mark), mark))

    changed, of_tools = _changed(messages, change), _changed(tools, change, _OF_TOOLS)
    if not is_marked:
        return found
    marked = _text_of(template, changed, of_tools) or ""
    of_template = tokens.find(marked)
    if _unmarked(marked) == text:
        special, at, n = list[tuple[int, int, int]](), 0, 0
        for start, end, token in of_template:
            n += len(_unmarked(marked[at:start]))
            special.append((n, n + end - start, token))
            at, n = end, n + end - start
        return special
    # The template looks at what messages say. It may, but not to write other special tokens.
    if [token for *_, token in found] != [token for *_, token in of_template]:
        raise ChatTemplateError(
            f"{template.where} writes other special tokens because of what a message says, so it is"
            " not known which are its own; remove special-token text from the message"
        )
    return found


@functools.lru_cache(maxsize=8)
def _literals(template: Template, tokens: _Tokens | None) -> re.Pattern[str]:
    """Return a pattern of the literals of a template that are left without marks in messages.

    With `tokens`: literals that cannot be a part of a special token; without: all but words.
    """
    kept = [
        re.escape(text) for text in template.literals
        if (not text.isalnum() if tokens is None else tokens.is_apart(text))
    ]
    return re.compile(f"({'|'.join(kept) or '(?!)'})")


class _Tokens:
    """Special tokens, as (name, id) pairs."""

    def __init__(self, special_tokens: tuple[tuple[str, int], ...]) -> None:
        self._ids = dict(special_tokens)
        self._names = {token: name for name, token in special_tokens}
        # The leftmost token, and of several the longest.
        ordered = sorted(self._ids, key=len, reverse=True)
        self._anywhere = re.compile("|".join(map(re.escape, ordered)) or "(?!)")
        # Punctuation, without which none can be spelled; of a token without it, all its characters.
        needed = ["".join(re.findall(r"[^\w\s]", x)) or "".join(x.split()) for x in ordered]
        # Also what filters such as `upper` make of them.
        cases = {case for x in "".join(needed) for case in (x, x.lower(), x.upper())}
        self._critical = sorted(x for x in cases if len(x) == 1)
        self._folded = [*map(str.casefold, ordered)]
        self._joined = "\n".join(self._folded)
        self._longest = max(map(len, ordered), default=0)

    def may_be_in(self, *texts: str) -> bool:
        """Return True if special tokens could be made of parts of some texts."""
        joined = "\n".join(texts)
        return any(each in joined for each in self._critical) or any(map(self._is_part, texts))

    def _is_part(self, text: str) -> bool:
        """Return True if a text is inside a special token, but for case and white space around."""
        core = text.strip().casefold() if len(text) < 2 * self._longest else ""
        return core != "" and core in self._joined

    def broken(self, text: str, mark: str) -> str:
        """Return a text with a mark after each character without which none can be spelled."""
        return text.translate({ord(each): each + mark for each in self._critical})

    def is_apart(self, text: str) -> bool:
        """Return True if nothing around a text can make a special token of a part of it."""
        text, sizes = text.casefold(), range(1, len(text) + 1)
        return not any(
            name in text or text in name
            or any(name.startswith(text[-n:]) or name.endswith(text[:n]) for n in sizes)
            for name in self._folded
        )

    def find(self, text: str) -> Special:
        """Return (start, end, id) of all special tokens in a text."""
        return [(*each.span(), self._ids[each[0]]) for each in self._anywhere.finditer(text)]

    def count(self, special: Special) -> Counter[str]:
        """Count special tokens by their names."""
        return Counter(self._names[token] for *_, token in special)


@functools.lru_cache(maxsize=8)
def _tokens(form: ChatFormat) -> _Tokens:
    return _Tokens(form.special_tokens)


# --- the places of turns ---


def _n_common(text: str, other: str) -> int:
    """Return the number of characters that both texts begin with."""
    pairs = enumerate(zip(text, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(text), len(other)))


def _is_said(messages: Messages, path: tuple[Any, ...]) -> bool:
    """Return True if the value at `path` is content that a template must render.

    Names, kinds and numbers need not be rendered. Names of arguments have to be where these say
    nothing else, and the name of a call where it has no arguments: results of tools may repeat it.
    """
    if "arguments" in path and path[1] == "tool_calls":
        call = _inner(messages[path[0]]["tool_calls"][path[2]])
        return path[-1] is not None or not _has_text(call.get("arguments"))
    if path[-1] == "name" and path[1] == "tool_calls":
        return not _inner(messages[path[0]]["tool_calls"][path[2]]).get("arguments")
    return path[-1] not in _UNSAID


def _has_text(value: Any) -> bool:
    """Return True if there is a text in a value of JSON, but for names and white space."""
    if isinstance(value, dict | list):
        return any(map(_has_text, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str) and value.strip() != ""


class _Turns:
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
        self._marked: tuple[Messages, str] | None = None  # and the text

    def find(self, turns: Iterable[int]) -> list[Place]:
        """Return the places of messages, by their numbers, which ascend.

        Raises:
            ChatTemplateError: A place is not known, or a rendering is refused.
        """
        found = list[Place]()
        for turn in turns:
            by_prefixes = self._by_prefixes(turn) if self._marked is None else None
            start, stop, is_whole = by_prefixes or self._by_marks(turn)
            stop = self._end(turn, start, stop, is_whole)
            found.append((max(start, found[-1][1] if found else 0), stop))
        return found

    def _by_prefixes(self, turn: int) -> tuple[int, int, bool] | None:
        before = self._before(self.messages, turn)
        if not self.text.startswith(before):
            return None
        through = self._through(self.messages, turn, self.text)
        return (len(before), len(through), True) if self.text.startswith(through) else None

    def _by_marks(self, turn: int) -> tuple[int, int, bool]:
        messages, text = self._marked = self._marked or self._mark(turn)
        mark = _mark_of(turn)
        first, last = text.find(mark), text.rfind(mark) + len(mark)
        if {*re.findall(_MARK, text[first:last])} != {mark}:
            raise self._unknown(turn)
        header, trailer = re.split(_MARK, text[:first])[-1], re.split(_MARK, text[last:])[0]
        end = len(_unmarked(text[:last]))
        begin = end - len(_unmarked(text[first:last])) - len(header)
        for probed in (None, [], [{"role": "user", "content": "x"}]):
            prompt = re.split(_MARK, self._before(messages, turn, probed))[-1]
            start = self._past_common(begin, header, prompt)
            # More of both would follow if the turn did not begin with the prompt.
            n = _n_common(header, prompt)
            is_turn = messages[turn]["role"] == "assistant"
            if not (is_turn and n and header[n:].strip() and prompt[n:].strip()):
                break
        else:
            raise self._unknown(turn)
        closing = self._through(messages, turn, text).rpartition(mark)[2]
        stop = self._past_common(end, trailer, closing)
        is_whole = stop - end == len(closing)
        if (start == begin and prompt.strip()) or (
            stop == end and not is_whole and self._end(turn, start, stop, is_whole) == stop
        ):
            raise self._unknown(turn)
        return start, stop, is_whole

    def _mark(self, turn: int) -> tuple[Messages, str]:
        """Return (messages with marks around what they say, the text)."""
        kept = _literals(self.template, None)
        for is_around in (True, False):  # templates may look at what messages begin with

            def change(text: str, path: tuple[Any, ...], is_around: bool = is_around) -> str:
                if not _is_said(self.messages, path):
                    return text
                mark = _mark_of(path[0])
                text = _between(text, kept, lambda piece: _wrapped(piece, mark))
                return _wrapped(text, mark) if is_around else text

            messages = _changed(self.messages, change)
            text = _text_of(self.template, messages, self._tools) or ""
            if _unmarked(text) == self.text:
                return messages, text
        raise self._unknown(turn)

    def _unknown(self, turn: int) -> ChatTemplateError:
        return ChatTemplateError(
            f"{self.template.where} writes message {turn + 1} of {len(self.messages)} nowhere, for"
            " it says nothing, in pieces, or in another way because of what messages say, so it is"
            " not known what to train on; remove it, add {% generation %} marks to the template,"
            " or train on all (--train-on all)"
        )

    def _through(self, messages: Messages, turn: int, text: str) -> str:
        """Return the text of the messages through one; `text` is that of all."""
        if turn + 1 == len(messages):
            return text
        return self.template.render(messages[: turn + 1], self._tools)[0]

    def _before(self, messages: Messages, turn: int, probed: Messages | None = None) -> str:
        """Return the text up to where a message begins to be written.

        It ends with the generation prompt, or with what another turn before `probed` begins with.
        """
        given, role = messages[:turn], messages[turn]["role"]
        if role != "assistant":
            return self.template.render(given, self._tools)[0] if given else ""
        if given and probed is None and "add_generation_prompt" in self.template.names:
            return self.template.render(given, self._tools, add_generation_prompt=True)[0]
        # What all turns of the assistant begin with. A space is a part of the first word.
        probe = {"role": role, "content": _PROBE}
        rendered = _text_of(self.template, [*given, probe, *(probed or ())], self._tools) or ""
        text, mark, _ = rendered.partition(_PROBE)
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

    def _end(self, turn: int, start: int, stop: int, is_whole: bool) -> int:
        """Return where the model stops, which does not write the line break after its last token.

        If no special token ends the turn, one that follows at once does, such as that of the next
        turn, or one for the last turn that is another if the turn is not the last (not `is_whole`).
        """
        ends = [end for _, end, _ in self._special if start < end <= stop]
        if ends and not self.text[ends[-1] : stop].strip():
            return ends[-1]
        text, said = self.text[start:stop], self.messages[turn].get("content") or ""
        if is_whole and text[-1:].isspace():
            is_said = said.strip() != "" and text.endswith(said)
            if is_said:  # unless the template removes it, and writes its own
                without = {**self.messages[turn], "content": said.rstrip()}
                given = [*self.messages[:turn], without]
                is_said = not self.template.render(given, self._tools)[0][-1:].isspace()
            if not is_said:
                return stop  # white space of the template ends it
        return next((end for begin, end, _ in self._special if begin == stop), stop)


# --- normal forms, and what is kept between conversations ---


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

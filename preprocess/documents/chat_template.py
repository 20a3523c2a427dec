"""Render conversations through a chat template, with the origin of each character.

The template's special tokens are special; what a message says is text. So a conversation that has
characters of special tokens is rendered twice: as it is, and with other characters in their place.
Only special tokens that are in both texts are the template's.

Which characters to train on comes from the template's `{% generation %}` marks. Without them the
conversation is also rendered up to each turn of the assistant, with the generation prompt, and
through it: the characters between are trained on.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from msgspec import Struct

from preprocess.documents.template_sandbox import ChatTemplateError, Messages, Template

ROLES = ("system", "developer", "user", "assistant", "tool")
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

_USUAL_NAMES = {"role", "content"}  # of a message
# Names that templates look up, which no message chooses.
_KNOWN_NAMES = _USUAL_NAMES | {
    "name", "type", "text", "id", "tool_calls", "tool_call_id", "function", "arguments",
    "description", "parameters", "properties", "required", "reasoning_content", "thinking",
    "reasoning",
}
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
    """

    template: str
    special_tokens: tuple[tuple[str, int], ...]
    variables: tuple[tuple[str, str], ...] = ()
    train_on: str = "assistant"
    normal_forms: tuple[str, ...] = ()
    where: str = "the chat template"


class Rendered(NamedTuple):
    """A conversation as text.

    Attributes:
        text: What is encoded.
        special: (start, end, id) of each special token of the template, ascending; in characters.
        trained: (start, end) of what to train on, ascending; in characters.
        n_forged: Special token -> number of times that text of messages spells it.
    """

    text: str
    special: list[tuple[int, int, int]]
    trained: list[tuple[int, int]]
    n_forged: dict[str, int]


def render(messages: Messages, form: ChatFormat, tools: Any = None) -> Rendered:
    """Render a conversation.

    Args:
        messages: As `conversations.messages_of` returns them.
        form: Template, special tokens, and what to train on.
        tools: Tools of the conversation, passed to the template; None: none.

    Raises:
        ChatTemplateError: The template cannot be used, refuses the conversation, or writes special
            tokens that depend on the text of messages.
    """
    template, tokens = _template(form), _tokens(form)
    text, marks = template.render(messages, tools)
    strings = [*_texts_of(messages), *_strings(tools)]
    n_forged: dict[str, int] = {}
    if not tokens.may_be_in(strings):
        special = tokens.find(text)
    else:
        special = _special_of(template, tokens, messages, tools, text, form, "\n".join(strings))
        n_found = tokens.count(text)
        n_found.subtract(tokens.names[token] for *_, token in special)
        n_forged = {name: n for name, n in n_found.items() if n}
    if form.train_on == "all":
        marks = [(0, len(text))]
    elif not template.has_marks:
        marks = _by_prefixes(template, messages, tools, text, form)
        # The model stops at the token that ends a turn: it does not write the line break behind it.
        marks = [_up_to_token(each, text, special) for each in marks]
    elif form.train_on == "last-assistant":
        turn = max((i for i, m in enumerate(messages) if m["role"] == "assistant"), default=0)
        marks = marks[len(template.render(messages[:turn], tools)[1]) :]
    rendered = Rendered(text, special, marks, n_forged)
    return _normalized(rendered, form.normal_forms) if form.normal_forms else rendered


def _special_of(
    template: Template, tokens: _Tokens, messages: Messages, tools: Any, text: str,
    form: ChatFormat, joined: str,
) -> list[tuple[int, int, int]]:
    """Return (start, end, id) of the special tokens in a rendered text that the template wrote.

    The conversation, whose texts are `joined`, is rendered once more with other characters in place
    of those of special tokens: special tokens that are still there are the template's.
    """
    hide = tokens.hiding(joined)
    hidden_messages = [
        {"role": message["role"], **_changed(_without_role(message), hide)} for message in messages
    ]
    hidden, _ = template.render(hidden_messages, _changed(tools, hide))
    special = tokens.find(hidden)
    if hidden.translate(hide.back) == text:
        return special
    # The template looks at these characters. It may, but not to write other special tokens.
    found = tokens.find(text)
    if [token for *_, token in found] != [token for *_, token in special]:
        raise ChatTemplateError(
            f"{form.where} writes other special tokens because of what a message says, so it is not"
            " known which are its own; remove special-token text from the message"
        )
    return found


def _without_role(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message without its role, which is checked, and may be a part of a special token."""
    return {key: value for key, value in message.items() if key != "role"}


def _texts_of(messages: Messages) -> Iterator[str]:
    """Yield what messages say: all texts in them but the roles, and the names of other fields."""
    for message in messages:
        if message.keys() == _USUAL_NAMES:
            yield message["content"]
        else:
            yield from _strings(_without_role(message))


def _strings(value: Any) -> Iterator[str]:
    """Yield all texts in a value of JSON, and the names in it."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _strings(each)
    elif isinstance(value, dict):
        for key, each in value.items():
            yield key
            yield from _strings(each)


def _changed(value: Any, hide: _Hiding) -> Any:
    """Return a value of JSON with other characters in its texts and names."""
    if isinstance(value, str):
        return value.translate(hide.all if hide.tokens.is_part(value) else hide.critical)
    if isinstance(value, list | tuple):
        return [_changed(each, hide) for each in value]
    if isinstance(value, dict):
        return {
            key if key in _KNOWN_NAMES else key.translate(hide.critical): _changed(each, hide)
            for key, each in value.items()
        }
    return value


def _up_to_token(
    mark: tuple[int, int], text: str, special: list[tuple[int, int, int]]
) -> tuple[int, int]:
    """Return a range without the white space behind its last special token."""
    start, stop = mark
    ends = [end for _, end, _ in special if start < end <= stop]
    has_only_space = bool(ends) and not text[ends[-1] : stop].strip()
    return (start, ends[-1]) if has_only_space else mark


def _normalized(rendered: Rendered, forms: tuple[Any, ...]) -> Rendered:
    """Normalize the text between special tokens, as the tokenizer does before encoding it."""
    text, special, trained, n_forged = rendered
    for form in forms:
        if unicodedata.is_normalized(form, text):
            continue
        cuts = [0, *(x for start, end, _ in special for x in (start, end)), len(text)]
        parts, moves = list[str](), list[tuple[int, int, int]]()  # start, end, new start
        for number, (start, end) in enumerate(pairwise(cuts)):
            part = text[start:end]
            parts.append(part if number % 2 else unicodedata.normalize(form, part))
            moves.append((start, end, sum(map(len, parts[:-1]))))

        def moved(
            position: int, given: str = text, form: Any = form,
            moves: list[tuple[int, int, int]] = moves,
        ) -> int:
            start, _, new = next(x for x in moves if x[0] <= position <= x[1])
            return new + len(unicodedata.normalize(form, given[start:position]))

        special = [(moved(a), moved(a) + b - a, token) for a, b, token in special]
        trained = [(moved(start), moved(stop)) for start, stop in trained]
        text = "".join(parts)
    return Rendered(text, special, trained, n_forged)


@functools.lru_cache(maxsize=8)
def _template(form: ChatFormat) -> Template:
    return Template(form.template, dict(form.variables), form.where)


def _by_prefixes(
    template: Template, messages: Messages, tools: Any, text: str, form: ChatFormat
) -> list[tuple[int, int]]:
    """Render the conversation up to and through turns of the assistant, and return their places."""
    found = []
    turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    for turn in turns[-1:] if form.train_on == "last-assistant" else turns:
        if not turn:
            raise ChatTemplateError(
                f"{form.where} has no {{% generation %}} marks, so the first message cannot be the"
                " assistant's; add marks, or train on all (--train-on all)"
            )
        before, _ = template.render(messages[:turn], tools, add_generation_prompt=True)
        through = text
        if turn + 1 < len(messages):
            through, _ = template.render(messages[: turn + 1], tools)
        for part, upto in ((before, "up to"), (through, "through")):
            if not text.startswith(part):
                place = next(
                    (i for i, (a, b) in enumerate(zip(text, part, strict=False)) if a != b),
                    min(len(text), len(part)),
                )
                raise ChatTemplateError(
                    f"{form.where} writes something else for a whole conversation than for the"
                    f" conversation {upto} message {turn + 1} of {len(messages)}, from character"
                    f" {place:,} on, so it is not known what the assistant writes; add"
                    " {% generation %} marks to the template, or train on all (--train-on all)"
                )
        found.append((len(before), len(through)))
    return found


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
        self._all = _in_both_cases("".join(x for name in ordered for x in name.split()))
        self._parts = {
            name[i:j].casefold()
            for name in ordered for i in range(len(name)) for j in range(i + 1, len(name))
        }
        self._longest = max(map(len, ordered), default=0)

    def may_be_in(self, texts: list[str]) -> bool:
        """Return True if texts have characters of which special tokens could be made."""
        joined = "\n".join(texts)
        return any(each in joined for each in self._critical) or any(map(self.is_part, texts))

    def find(self, text: str) -> list[tuple[int, int, int]]:
        """Return (start, end, id) of all special tokens in a text."""
        return [(*each.span(), self._ids[each[0]]) for each in self._anywhere.finditer(text)]

    def count(self, text: str) -> Counter[str]:
        """Count the special tokens in a text."""
        return Counter(self._anywhere.findall(text))

    def is_part(self, text: str) -> bool:
        """Return True if a text is inside a special token, but for case and white space around."""
        return len(text) < 2 * self._longest and text.strip().casefold() in self._parts

    def hiding(self, text: str) -> _Hiding:
        """Return how to hide characters by some that a text does not have."""
        n = len(self._all)
        used = {ord(x) for x in text if x >= _PRIVATE}
        first = ord(_PRIVATE)
        while used & {*range(first, first + n)}:
            first += n
        table = {ord(x): first + i for i, x in enumerate(self._all)}
        critical = {ord(x): table[ord(x)] for x in self._critical}
        return _Hiding(self, critical, table, {other: given for given, other in table.items()})


def _in_both_cases(text: str) -> list[str]:
    """Return the characters of a text, and what filters such as `upper` make of them, sorted."""
    cases = {case for x in text for case in (x, x.lower(), x.upper())}
    return sorted(x for x in cases if len(x) == 1)


class _Hiding(NamedTuple):
    """Tables of `str.translate` that hide characters of special tokens.

    Attributes:
        critical: Hides the critical characters.
        all: Hides all characters.
        back: Shows them again.
    """

    tokens: _Tokens
    critical: dict[int, int]
    all: dict[int, int]
    back: dict[int, int]


@functools.lru_cache(maxsize=8)
def _tokens(form: ChatFormat) -> _Tokens:
    return _Tokens(form.special_tokens)

"""Render conversations through a chat template, with the origin of each character.

The template's special tokens are special; what a message says is text. So a conversation that has
characters of special tokens is rendered twice: as it is, and with other characters in their place.
Only special tokens that are in both texts are the template's.

Which characters to train on comes from the template's `{% generation %}` marks. Without them the
conversation is also rendered up to each turn of the assistant, with the generation prompt, and
through it: the characters between are trained on.
"""

from __future__ import annotations

import ctypes
import functools
import re
import threading
import time
import unicodedata
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

from msgspec import Struct

from bpe.errors import TokenbinError

Messages = list[dict[str, Any]]

ROLES = ("system", "developer", "user", "assistant", "tool")
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

_SECONDS = 10.0  # for one rendering
_LOOK_SECONDS = 0.5  # between looks at renderings that run
_MOST_BITS = 1 << 16  # of a power
_PRIVATE = "\U000f0000"  # characters from here on have no meaning of their own
_MOST_CHARACTERS = 1 << 26  # of a rendered conversation, and of a value that is made for it


class ChatTemplateError(TokenbinError, ValueError):
    """A template cannot be used, or not with a conversation."""


class TemplateTimeoutError(Exception):
    """A rendering takes too long."""


class ChatFormat(Struct, frozen=True):
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
    template, tokens = _template(form), _tokens(form.special_tokens)
    text, marks = template.render(messages, tools)
    special = _special_of(template, tokens, messages, tools, text, form)
    if form.train_on == "all":
        marks = [(0, len(text))]
    elif not template.has_marks:
        marks = _by_prefixes(template, messages, tools, text, form)
        # The model stops at the token that ends a turn: it does not write the line break behind it.
        marks = [_up_to_token(each, text, special) for each in marks]
    elif form.train_on == "last-assistant":
        turn = max((i for i, m in enumerate(messages) if m["role"] == "assistant"), default=0)
        marks = marks[len(template.render(messages[:turn], tools)[1]) :]
    n_forged = tokens.count(text)
    for *_, token in special:
        n_forged[tokens.names[token]] -= 1
    forged = {name: n for name, n in n_forged.items() if n}
    return _normalized(Rendered(text, special, marks, forged), form.normal_forms)


def _special_of(
    template: _Template, tokens: _Tokens, messages: Messages, tools: Any, text: str,
    form: ChatFormat,
) -> list[tuple[int, int, int]]:
    """Return (start, end, id) of the special tokens in a rendered text that the template wrote.

    If messages have characters of special tokens, the conversation is rendered once more with
    others in their place: special tokens that are still there are the template's.
    """
    strings = [x for message in messages for x in _strings(_without_role(message))]
    strings += _strings(tools)
    joined = "\n".join(strings)
    if not tokens.critical.search(joined) and not any(map(tokens.is_part, strings)):
        return tokens.find(text)
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
        return {key.translate(hide.critical): _changed(each, hide) for key, each in value.items()}
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


class _Template:
    """A compiled template."""

    def __init__(self, form: ChatFormat) -> None:
        self._where = form.where
        jinja = _environment()
        self.has_marks = bool(re.search(r"\{%[-+]?\s*generation\s*[-+]?%\}", form.template))
        try:
            with _time_limit():  # what is constant is computed now
                self._compiled = jinja.from_string(form.template)
        except Exception as error:
            raise ChatTemplateError(
                f"{form.where} is no Jinja template ({_one_line(error)}); correct it"
            ) from error
        self._variables = {"documents": None, **dict(form.variables)}

    def render(
        self, messages: Messages, tools: Any, add_generation_prompt: bool = False
    ) -> tuple[str, list[tuple[int, int]]]:
        """Return the text, and the (start, end) of what is marked as generated."""
        parts: list[str] = []
        marks: list[tuple[int, int]] = []
        n = 0
        try:
            with _time_limit(), self._compiled.environment.activate_tracker(parts, marks):
                for part in self._compiled.generate(
                    messages=messages, tools=tools, add_generation_prompt=add_generation_prompt,
                    **self._variables,
                ):
                    parts.append(part)
                    n += len(part)
                    if n > _MOST_CHARACTERS:
                        raise OverflowError(f"it writes more than {_MOST_CHARACTERS:,} characters")
        except TemplateTimeoutError:
            raise ChatTemplateError(
                f"{self._where} takes more than {_SECONDS:g} seconds for a conversation; use"
                " another template"
            ) from None
        except Exception as error:
            raise ChatTemplateError(
                f"{self._where} refuses the conversation: {_one_line(error)}"
            ) from error
        return "".join(parts), marks


@functools.lru_cache(maxsize=8)
def _template(form: ChatFormat) -> _Template:
    return _Template(form)


@functools.cache
def _environment() -> Any:
    """Return transformers' sandboxed environment, with limits."""
    try:
        from transformers.utils.chat_template_utils import _compile_jinja_template
    except ModuleNotFoundError as error:
        raise ChatTemplateError(
            "conversations are rendered with transformers, which is not installed; install it: pip"
            " install 'tokenbin[chat]'"
        ) from error
    # Of a template that nobody else has, for it is changed.
    environment = _compile_jinja_template("{# of tokenbin #}").environment
    # The day of the build must not be in its outputs.
    environment.globals.pop("strftime_now", None)
    environment.globals.pop("lipsum", None)  # is random
    environment.filters.pop("random", None)
    environment.intercepted_binops = frozenset(("*", "**", "%"))
    plain, plain_call = environment.call_binop, environment.call

    def call_binop(context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and isinstance(left, int) and left.bit_length() * right > _MOST_BITS:
            raise OverflowError(f"a power would have more than {_MOST_BITS:,} bits")
        if operator == "*" and _size(left) * _size(right) > _MOST_CHARACTERS:
            raise OverflowError(f"a value would have more than {_MOST_CHARACTERS:,} elements")
        if operator == "%" and isinstance(left, str) and re.search(r"[0-9*]{6}|\*", left):
            raise OverflowError(f"the format {left[:40]!r} has a large width")
        return plain(context, operator, left, right)

    def call(context: Any, called: Any, *arguments: Any, **named: Any) -> Any:
        if isinstance(getattr(called, "__self__", None), str):
            _check_numbers(*arguments, *named.values())
        return plain_call(context, called, *arguments, **named)

    environment.call_binop, environment.call = call_binop, call
    environment.filters = {name: _limited(each) for name, each in environment.filters.items()}
    return environment


def _limited(function: Any) -> Any:
    """Return a filter that refuses large numbers, such as the width of a text."""

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        _check_numbers(*arguments[1:], *named.values())
        return function(*arguments, **named)

    return call


def _check_numbers(*values: Any) -> None:
    for value in values:
        if isinstance(value, int) and value > _MOST_CHARACTERS:
            raise OverflowError(f"the argument {value} is above {_MOST_CHARACTERS:,}")


def _size(value: Any) -> int:
    """Return by how much a factor repeats another, or how long it is."""
    if isinstance(value, int):
        return max(value, 1)
    return len(value) if hasattr(value, "__len__") else 1


def _by_prefixes(
    template: _Template, messages: Messages, tools: Any, text: str, form: ChatFormat
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
        critical: Matches the punctuation of special tokens, without which none can be spelled; of a
            token without punctuation, all of its characters.
    """

    def __init__(self, special_tokens: tuple[tuple[str, int], ...]) -> None:
        self._ids = dict(special_tokens)
        self.names = {token: name for name, token in special_tokens}
        # The leftmost token, and of several the longest.
        ordered = sorted(self._ids, key=len, reverse=True)
        self._anywhere = re.compile("|".join(map(re.escape, ordered)) or "(?!)")
        found = (re.findall(r"[^\w\s]", name) or name for name in ordered)
        self._critical = sorted({character for each in found for character in each})
        self._all = sorted({x for name in ordered for x in name if not x.isspace()})
        self._parts = {
            name[i:j] for name in ordered for i in range(len(name)) for j in range(i + 1, len(name))
        }
        self._longest = max(map(len, ordered), default=0)
        self.critical = re.compile(f"[{re.escape(''.join(self._critical))}]" if ordered else "(?!)")

    def find(self, text: str) -> list[tuple[int, int, int]]:
        """Return (start, end, id) of all special tokens in a text."""
        return [(*each.span(), self._ids[each[0]]) for each in self._anywhere.finditer(text)]

    def count(self, text: str) -> Counter[str]:
        """Count the special tokens in a text."""
        return Counter(self._anywhere.findall(text))

    def is_part(self, text: str) -> bool:
        """Return True if a text is inside a special token, but for white space around it."""
        return len(text) < 2 * self._longest and text.strip() in self._parts

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
def _tokens(special_tokens: tuple[tuple[str, int], ...]) -> _Tokens:
    return _Tokens(special_tokens)


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


class _Watch:
    """Raises TemplateTimeoutError on threads that render for too long."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until: dict[int, float] = {}  # identity of a thread -> time
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        with self._lock:
            self._until[threading.get_ident()] = time.monotonic() + _SECONDS
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._run, name="tokenbin-template", daemon=True
                )
                self._thread.start()

    def end(self) -> None:
        with self._lock:
            own = threading.get_ident()
            if self._until.pop(own, None) is None:  # it is late: what is not raised yet must not be
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(own), None)

    def _run(self) -> None:
        while True:
            time.sleep(_LOOK_SECONDS)
            with self._lock:
                if not self._until:
                    self._thread = None
                    return
                now = time.monotonic()
                late = [each for each, until in self._until.items() if until < now]
                for each in late:
                    del self._until[each]
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(
                        ctypes.c_ulong(each), ctypes.py_object(TemplateTimeoutError)
                    )


_watch = _Watch()


@contextmanager
def _time_limit() -> Iterator[None]:
    """Raise TemplateTimeoutError inside if it takes too long."""
    _watch.begin()
    try:
        yield
    finally:
        _watch.end()

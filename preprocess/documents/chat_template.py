"""Render conversations through a chat template, with the origin of each character.

The template's special tokens are special; what a message says is text. So text in a message that
spells a special token, or could be a part of one, is replaced by a nonce before the template sees
it, and put back after the special tokens of the rendered text have been found.

Which characters to train on comes from the template's `{% generation %}` marks. Without them the
conversation is also rendered up to each turn of the assistant, with the generation prompt, and
through it: the characters between are trained on.
"""

from __future__ import annotations

import bisect
import ctypes
import functools
import itertools
import json
import re
import threading
import time
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import xxhash
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
_MOST_CHARACTERS = 1 << 26  # of a rendered conversation, and of a value that is made for it


class ChatTemplateError(TokenbinError, ValueError):
    """A template cannot be used, or not with a conversation."""


class TemplateTimeoutError(Exception):
    """A rendering takes too long."""


class ChatFormat(Struct, frozen=True):
    """How conversations become text.

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
        n_forged: How often a message spells each special token: text -> number.
    """

    text: str
    special: list[tuple[int, int, int]]
    trained: list[tuple[int, int]]
    n_forged: dict[str, int]


def render(messages: Messages, form: ChatFormat, tools: Any = None) -> Rendered:
    """Render a conversation.

    Args:
        messages: As `conversations.messages_of` returns them.
        form: How.
        tools: Passed to the template.

    Raises:
        ChatTemplateError: The template cannot be used, or refuses the conversation; or the rendered
            text does not have what the messages say.
    """
    template = _template(form)
    origin = _Origin(form, messages, tools)
    messages, tools = origin.messages, origin.tools
    text, marks = template.render(messages, tools)
    if form.train_on == "all":
        marks = [(0, len(text))]
    elif not template.has_marks:
        marks = _by_prefixes(template, messages, tools, text, form)
    if form.train_on == "last-assistant":
        marks = marks[-1:]
    rendered = _normalized(origin.restore(text, marks), form.normal_forms)
    if form.train_on == "all" or template.has_marks:
        return rendered
    # The model stops at the token that ends a turn, and does not write the line break behind it.
    return rendered._replace(trained=[_up_to_token(each, rendered) for each in rendered.trained])


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


def _up_to_token(mark: tuple[int, int], rendered: Rendered) -> tuple[int, int]:
    """Return a range without the white space behind its last special token."""
    start, stop = mark
    ends = [end for _, end, _ in rendered.special if start < end <= stop]
    has_only_space = bool(ends) and not rendered.text[ends[-1] : stop].strip()
    return (start, ends[-1]) if has_only_space else mark


class _Template:
    """A compiled template."""

    def __init__(self, form: ChatFormat) -> None:
        self._where = form.where
        jinja = _environment()
        self.has_marks = bool(re.search(r"\{%[-+]?\s*generation\s*[-+]?%\}", form.template))
        try:
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
    environment.intercepted_binops = frozenset(("*", "**", "%"))
    plain, plain_call = environment.call_binop, environment.call

    def call_binop(context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and abs(right) > 1000:
            raise OverflowError(f"the exponent {right} is above 1,000")
        if operator == "*" and _size(left) * _size(right) > _MOST_CHARACTERS:
            raise OverflowError(f"a value would have more than {_MOST_CHARACTERS:,} elements")
        if operator == "%" and isinstance(left, str) and re.search(r"[0-9*]{6}|\*", left):
            raise OverflowError(f"the format {left[:40]!r} has a large width")
        return plain(context, operator, left, right)

    def call(context: Any, called: Any, *arguments: Any, **named: Any) -> Any:
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


class _Origin:
    """Hides text of a conversation that spells special tokens from the template."""

    def __init__(self, form: ChatFormat, messages: Messages, tools: Any) -> None:
        self._form, self._tokens = form, _tokens(form.special_tokens)
        self._given = messages, tools
        self._hidden: dict[str, str] = {}  # text -> its nonce
        self._n_hidden: dict[str, int] = {}  # nonce -> how often it was put in
        self._n_forged: dict[str, int] = {}
        self.messages, self.tools = messages, tools
        if self._tokens.ids:
            self.messages = [
                {
                    # Roles are checked, and templates make special tokens of them.
                    key: value if key == "role" else self._hide(value, key == "content")
                    for key, value in message.items()
                }
                for message in messages
            ]
            self.tools = self._hide(tools)

    def _hide(self, value: Any, is_content: bool = False) -> Any:
        """Return a value of JSON in which text of special tokens is hidden."""
        if isinstance(value, str):
            return self._hide_text(value, is_content)
        if isinstance(value, list):
            return [self._hide(each) for each in value]
        if isinstance(value, dict):
            return {self._hide_text(key): self._hide(each) for key, each in value.items()}
        return value

    def _hide_text(self, text: str, is_content: bool = False) -> str:
        tokens = self._tokens
        if is_content and text in tokens.parts:
            return self._nonce(text)
        if tokens.anywhere.search(text):
            for match in tokens.anywhere.finditer(text):
                self._n_forged[match[0]] = self._n_forged.get(match[0], 0) + 1
            text = tokens.anywhere.sub(lambda match: self._nonce(match[0]), text)
        # What the template, or another message, has beside it could complete a token.
        if text[:1] in tokens.inner and (n := tokens.n_at_start(text)):
            text = self._nonce(text[:n]) + text[n:]
        if text[-1:] in tokens.inner and (n := tokens.n_at_end(text)):
            text = text[:-n] + self._nonce(text[-n:])
        return text

    def _nonce(self, text: str) -> str:
        if text not in self._hidden:
            self._hidden[text] = f"{self._unused}{len(self._hidden)}n"
        nonce = self._hidden[text]
        self._n_hidden[nonce] = self._n_hidden.get(nonce, 0) + 1
        return nonce

    @functools.cached_property
    def _unused(self) -> str:
        """Text that the conversation does not have, and that nobody can know before."""
        content = json.dumps(self._given)
        for attempt in itertools.count():
            found = f"n{xxhash.xxh3_128_hexdigest(f'{attempt} {content}'.encode())}x"
            if found not in content:
                return found
        raise AssertionError("there is always another one")

    def restore(self, text: str, marks: list[tuple[int, int]]) -> Rendered:
        """Find special tokens in a rendered text, and put back what was hidden.

        Raises:
            ChatTemplateError: A nonce is not there as often as it was put in.
        """
        ids, pattern = self._tokens.ids, self._tokens.anywhere
        if not self._hidden:
            special = [(*each.span(), ids[each[0]]) for each in pattern.finditer(text)]
            return Rendered(text, special, marks, {})
        hidden = {nonce: given for given, nonce in self._hidden.items()}
        for nonce, n in self._n_hidden.items():
            n_found = text.count(nonce)
            # A part of a token may be written more often: it is text wherever it is.
            if n_found < n or (n_found > n and hidden[nonce] in ids):
                raise ChatTemplateError(
                    f"{self._form.where} writes {hidden[nonce]!r} of a message {n_found:,} times,"
                    f" expected {n:,}: as it is special-token text, or a part of such, its origin"
                    " would be lost; remove it from the message"
                )
        pattern = re.compile(f"{'|'.join(hidden)}|{pattern.pattern}")
        special, parts, moved = [], list[str](), [(0, 0)]
        end = n = 0  # in the rendered text, and in the one with the hidden parts
        for match in pattern.finditer(text):
            parts.append(text[end : match.start()])
            n += match.start() - end
            end = match.end()
            given = hidden.get(match[0])
            if given is None:
                special.append((n, n + len(match[0]), ids[match[0]]))
            parts.append(match[0] if given is None else given)
            n += len(parts[-1])
            moved.append((end, n - end))
        parts.append(text[end:])
        marks = [(_moved(start, moved), _moved(stop, moved)) for start, stop in marks]
        return Rendered("".join(parts), special, marks, self._n_forged)


def _moved(position: int, moved: list[tuple[int, int]]) -> int:
    """Return where a position is after the shifts (from position on, by) of `moved`."""
    return position + moved[bisect.bisect_right(moved, position, key=lambda each: each[0]) - 1][1]


class _Tokens:
    """Special tokens, and what could become one.

    Attributes:
        ids: Token -> id.
        anywhere: Matches the leftmost token, and of several the longest.
        parts: All texts inside tokens, but for the tokens.
        inner: All characters of tokens.
    """

    def __init__(self, special_tokens: tuple[tuple[str, int], ...]) -> None:
        self.ids = dict(special_tokens)
        names = sorted(self.ids, key=len, reverse=True)
        self.anywhere = re.compile("|".join(map(re.escape, names)) or "(?!)")
        inside = (name[i:] for name in names for i in range(len(name)))
        self.parts = {x[:n] for x in inside for n in range(1, len(x) + 1)} - self.ids.keys()
        self.inner = set("".join(names))
        self._starts = {name[:n] for name in names for n in range(1, len(name))}
        self._ends = {name[n:] for name in names for n in range(1, len(name))}
        self._longest = max(map(len, names), default=1) - 1

    def n_at_start(self, text: str) -> int:
        """Return how many characters at the start of a text could end a token."""
        sizes = range(min(self._longest, len(text)), 0, -1)
        return next((n for n in sizes if text[:n] in self._ends), 0)

    def n_at_end(self, text: str) -> int:
        """Return how many characters at the end of a text could begin a token."""
        sizes = range(min(self._longest, len(text)), 0, -1)
        return next((n for n in sizes if text[-n:] in self._starts), 0)


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

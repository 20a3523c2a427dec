"""Run chat templates in transformers' sandbox, with limits of time and size.

A template comes with a tokenizer, from a stranger. Jinja's sandbox keeps it from attributes and
modules of Python; here it is also kept from running for long, from writing much, and from what
would differ between two runs: the time of day, and random numbers.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import threading
import time
from collections.abc import Mapping
from contextlib import nullcontext
from datetime import datetime
from typing import Any

from bpe.errors import TokenmillError
from bpe.parallel import Lock, start_thread

Messages = list[dict[str, Any]]

_SECONDS = 10.0  # for one rendering
_LOOK_SECONDS = 0.5  # between looks at renderings that run
_MOST_BITS = 1 << 16  # of a power
_MOST_CHARACTERS = 1 << 26  # of a rendered conversation, and of a value that is made for it


_no_marks = nullcontext()


class ChatTemplateError(TokenmillError, ValueError):
    """A template cannot be used, or not with a conversation."""


class UnusableTemplateError(ChatTemplateError):
    """A template cannot be used, whatever a conversation says."""


class TemplateTimeoutError(Exception):
    """A rendering takes too long."""


class Template:
    """A compiled template.

    Args:
        source: Jinja source.
        variables: Name -> value of further variables.
        where: Of the template, for messages.
        date: The day that `strftime_now` writes, YYYY-MM-DD; None: the template must not call it.

    Raises:
        UnusableTemplateError: It is no Jinja template, or transformers is not installed.

    Attributes:
        source: Jinja source.
        has_marks: True if it marks what is generated.
        names: The variables and attributes that it reads, and its literal texts.
        literals: Its literal texts, longest first, without white space at both ends.
    """

    def __init__(
        self, source: str, variables: Mapping[str, Any], where: str, date: str | None = None
    ) -> None:
        self.source, self.where = source, where
        jinja = _environment()
        try:
            from jinja2 import nodes

            tree = jinja.parse(source)
            marks = tree.find_all(nodes.ExtensionAttribute)
            self.has_marks = any(each.name == "_generation_support" for each in marks)
            texts = {x.value for x in tree.find_all(nodes.Const) if isinstance(x.value, str)}
            self.literals = sorted({x.strip() for x in texts} - {""}, key=lambda x: (-len(x), x))
            self.names = {
                *texts, *(x.name for x in tree.find_all(nodes.Name)),
                *(x.attr for x in tree.find_all(nodes.Getattr)),
            }
            with _watch:  # what is constant is computed now
                self._compiled = jinja.from_string(tree)
        except Exception as error:
            raise UnusableTemplateError(
                f"{where} is no Jinja template ({_one_line(error)}); correct it"
            ) from error
        self._variables = {**self._compiled.globals, "documents": None, **variables}
        if date is not None:
            self._variables["strftime_now"] = datetime.fromisoformat(date).strftime

    def render(
        self, messages: Messages, tools: Any, add_generation_prompt: bool = False
    ) -> tuple[str, list[tuple[int, int]]]:
        """Return the text, and the (start, end) of what is marked as generated, in characters.

        Raises:
            ChatTemplateError: The template refuses the conversation, or takes too much time or
                memory.
            UnusableTemplateError: It writes a date that is not given.
        """
        parts: list[str] = []
        marks: list[tuple[int, int]] = []
        n = 0
        given = {
            **self._variables, "messages": messages, "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            context = self._compiled.new_context(given, shared=True)
            tracker = _no_marks
            if self.has_marks:
                tracker = self._compiled.environment.activate_tracker(parts, marks)
            with _watch, tracker:
                append = parts.append
                for part in self._compiled.root_render_func(context):
                    append(part)
                    n += len(part)
                    if n > _MOST_CHARACTERS:
                        raise OverflowError(f"it writes more than {_MOST_CHARACTERS:,} characters")
        except TemplateTimeoutError:
            raise ChatTemplateError(
                f"{self.where} takes more than {_SECONDS:g} seconds for a conversation; use"
                " another template"
            ) from None
        except Exception as error:
            if "'strftime_now' is undefined" in str(error):
                raise UnusableTemplateError(
                    f"{self.where} writes the date of today, with which two builds would differ;"
                    " give the date that it writes: --chat-date YYYY-MM-DD"
                ) from error
            raise ChatTemplateError(
                f"{self.where} refuses the conversation: {_one_line(error)}"
            ) from error
        return "".join(parts), marks


@functools.cache
def _environment() -> Any:
    """Return transformers' sandboxed environment, with limits."""
    try:
        from transformers.utils.chat_template_utils import _compile_jinja_template
    except ModuleNotFoundError as error:
        raise UnusableTemplateError(
            "conversations are rendered with transformers, which is not installed; install it: pip"
            " install 'tokenmill[chat]'"
        ) from error
    # Of a template that nobody else has, for it is changed.
    environment = _compile_jinja_template("{# of tokenmill #}").environment
    # The day of the build must not be in its outputs; `Template` has the one that is given.
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


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


class _Watch:
    """Raises TemplateTimeoutError on threads that render for too long, in its context."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._until: dict[int, float] = {}  # identity of a thread -> time
        self._process = 0  # whose thread watches

    def __enter__(self) -> None:
        with self._lock:
            if self._process != os.getpid():
                start_thread(self._run)
                self._process = os.getpid()
            self._until[threading.get_ident()] = time.monotonic() + _SECONDS

    def __exit__(self, *_: object) -> None:
        with self._lock:
            own = threading.get_ident()
            if self._until.pop(own, None) is None:  # it is late: what is not raised yet must not be
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(own), None)

    def _run(self) -> None:
        while True:
            time.sleep(_LOOK_SECONDS)
            with self._lock:
                now = time.monotonic()
                for own in [own for own, until in self._until.items() if until < now]:
                    del self._until[own]
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(
                        ctypes.c_ulong(own), ctypes.py_object(TemplateTimeoutError)
                    )


_watch = _Watch()

"""Check the arguments of public functions by their annotations.

An argument of another type would end in an error from somewhere inside, or in another result: the
special tokens "<a>" would be three. `checked` checks before the call. A function that is called for
short texts has a `try` instead, and calls `check` when something was raised.
"""

from __future__ import annotations

import inspect
import operator
import os
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache, wraps
from numbers import Real
from typing import Any, Literal, TypeVar

from bpe.errors import ArgumentError, TokenmillError

Checked = TypeVar("Checked", bound=Any)

# Names of one thing, ours and those of other tools.
_ALIKE = (
    ("train", "data_files", "paths", "path", "folders", "input", "inputs", "input_files",
     "input_path", "train_file", "train_files", "train_path", "data_dir", "data_path"),
    ("out", "save_path", "output_path", "output_dir", "out_dir", "output"),
    ("content_field", "text_field", "text_column", "text_column_name", "text_key", "json_keys",
     "dataset_text_field"),
    ("val", "val_files", "validation_file"),
    ("max_length", "max_len", "max_seq_length", "max_seq_len", "model_max_length"),
    ("seq_length", "seq_len", "sequence_length", "block_size", "context_length", "context_size"),
    ("context_length", "context_size", "block_size", "max_length", "max_len", "max_seq_length"),
    ("format", "output_format"),
    ("workers", "num_proc", "num_workers", "n_jobs", "num_processes", "preprocessing_num_workers"),
    ("end_of_text", "eos_token", "eos_token_id"), ("begin_of_text", "bos_token"),
    ("val_fraction", "validation_split", "test_size"), ("source", "dataset", "text", "txt"),
    ("tokenizer", "name_or_path", "tokenizer_name", "tokenizer_path", "tokenizer_name_or_path",
     "model_name", "model_name_or_path"),
)
_NOUNS = {
    str: "text", int: "a whole number", float: "a number", bool: "True or False", bytes: "bytes",
    Mapping: "a mapping", dict: "a mapping", types.NoneType: "None", Callable: "a function",
    os.PathLike: "a path", typing.IO: "a stream",
}
MISSING: Any = object()  # default of required arguments where `tells_missing` decorates
_LISTS = (Iterable, Sequence, Collection, list, tuple)
_SHORT = 1000  # elements, all of which are looked at


def alike(name: str, known: Collection[str]) -> list[str]:
    """Return the known names of the same thing."""
    return [x for names in _ALIKE if name in names for x in names if x in known]


def nearest(name: str, known: Collection[str]) -> str:
    """Return the known name of the same thing, else a similar one; "" if there is none."""
    from difflib import get_close_matches

    near = alike(name, known) or [x for x in known if x.startswith(name)]
    likeness = 0.6 if len(name) < 4 else 0.7  # of names with a wrong letter
    return next(iter(near or get_close_matches(name, known, 1, likeness)), "")


def checked(function: Checked, with_types: bool = True) -> Checked:
    """Decorator: raise ArgumentError for arguments that are unknown, missing, or of another type.

    Of a class, the constructor and all public methods are checked, except methods with a parameter
    `_unknown`, which call `check` themselves after an error.
    """
    if not isinstance(function, type):
        return _checking(function, with_types)
    for name, member in [*vars(function).items()]:
        inner = getattr(member, "__func__", member)
        is_public = name == "__init__" or name[0] != "_"
        is_function = is_public and isinstance(inner, types.FunctionType)
        if is_function and "_unknown" not in inner.__code__.co_varnames:
            found = _checking(inner, with_types)
            setattr(function, name, found if inner is member else type(member)(found))
    return function


def checks_names(function: Checked) -> Checked:
    """Decorator: as `checked`, but types are checked only if the function raises an error.

    For functions that convert the values of their arguments; truth values and sets are checked.
    """
    return checked(function, with_types=False)


def tells_missing(function: Checked) -> Checked:
    """Decorator: give required arguments the default `MISSING`, which `check` reports.

    The function itself is returned, so that calls take no more time.
    """
    function.__signature__ = inspect.signature(function)
    defaults = function.__defaults__ or ()
    n = function.__code__.co_argcount - len(defaults)
    function.__defaults__ = (*[MISSING] * n, *defaults)
    return function


def _checking(function: Checked, with_types: bool) -> Checked:
    own = inspect.unwrap(function)

    @wraps(function)
    def call(*arguments: Any, **given: Any) -> Any:
        hints, n_by_place, required = _parameters(own)
        is_whole = not given and len(required) <= len(arguments) <= n_by_place
        if not (is_whole and all(map(_fits, arguments, hints.values()))):
            check(own, arguments, given, with_types)
        try:
            return function(*arguments, **given)
        except (AttributeError, IndexError, TypeError, ValueError) as error:
            if not with_types and not isinstance(error, TokenmillError):
                check(own, arguments, given)
            raise

    return call  # type: ignore[return-value]


def check(
    function: Any, arguments: Sequence[Any], given: Mapping[str, Any], with_types: bool = True
) -> None:
    """Raise ArgumentError if a function does not take these arguments."""
    hints, n_by_place, required = _parameters(function)
    by_place = [*hints][:n_by_place]
    values = {**dict(zip(by_place, arguments, strict=False)), **given}
    values = {name: value for name, value in values.items() if value is not MISSING}
    wrong = []
    for name, value in values.items():
        hint = hints.get(name)
        is_typed = with_types or hint is bool or isinstance(value, set | frozenset)
        if name not in hints:
            near = nearest(name, hints)
            advice = f"; did you mean {near}?" if near else ""
            wrong.append(f"{name}: there is no such argument{advice}")
        elif name in by_place[: len(arguments)] and name in given:
            wrong.append(f"{name}: is given twice")
        elif is_typed and not _fits(value, hint):
            wrong.append(f"{name}: should be {noun(hint)}; got {value!r:.100}")
    if len(arguments) > n_by_place:
        shown = function.__qualname__.removesuffix(".__init__")
        n = n_by_place - (by_place[:1] in (["self"], ["cls"]))
        wrong.append(f"{shown}: takes {n} arguments without names; name the others")
    wrong += [f"{name}: is required" for name in required if name not in values]
    if wrong:
        raise ArgumentError("; ".join(wrong))


@lru_cache(maxsize=1024)
def _parameters(function: Any) -> tuple[dict[str, Any], int, list[str]]:
    """Return (types of the parameters by name, how many are positional, required names)."""
    code = function.__code__
    defaults = [each for each in function.__defaults__ or () if each is not MISSING]
    n, keywords = code.co_argcount, function.__kwdefaults__ or {}
    names = code.co_varnames[: n + code.co_kwonlyargcount]
    required = [*names[: n - len(defaults)], *(x for x in names[n:] if x not in keywords)]
    return {name: _hint(function, name) for name in names}, n, required


def _hint(function: Any, name: str) -> Any:
    """Return the annotation of an argument; Any if it has names that only type checkers import."""
    hint = function.__annotations__.get(name, Any)
    try:
        return eval(hint, function.__globals__) if isinstance(hint, str) else hint
    except (NameError, AttributeError, TypeError):
        return Any


@lru_cache(maxsize=1024)
def _parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the kind of a type, and the types in it, of an alias or annotation those it is for."""
    # NumPy's types are aliases by a `type` statement from 2.5 on.
    hint = getattr(typing.get_origin(hint) or hint, "__value__", hint)
    kind, inner = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind is typing.Annotated:
        return _parts(inner[0])
    return typing.Union if kind is types.UnionType else kind, inner


def _fits(value: Any, hint: Any) -> bool:
    """Return True if a value is of a type, and what is in it; of much, one of each type."""
    if type(value) is hint or hint is Any:
        return True
    kind, inner = _parts(hint)
    if kind is typing.Union:
        if isinstance(value, str) and any(_parts(each)[0] is os.PathLike for each in inner):
            return is_file_name(value)
        return any(_fits(value, each) for each in inner)
    if kind is Literal:
        return isinstance(value, str) and value in inner
    if kind is int:
        return not isinstance(value, bool) and _is_whole(value)
    if kind is float:
        return not isinstance(value, bool) and isinstance(value, Real)
    if kind in _LISTS:
        is_list = isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
        is_list &= kind is Iterable or hasattr(value, "__len__")
        is_list &= getattr(value, "ndim", 1) > 0  # an array without a dimension is a number
        # The order of a set changes from process to process, and with it what is made of it.
        is_list &= kind is Collection or not isinstance(value, set | frozenset)
        return is_list and (not inner or _all_fit(value, inner[0]))
    if kind is typing.IO:
        return hasattr(value, "write")
    if kind is os.PathLike:
        return isinstance(value, os.PathLike) and is_file_name(str(value))
    if not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return kind is not None or value is None
    if not isinstance(value, kind):
        return False
    if kind.__name__ == "ndarray":
        found: Any = value
        return found.ndim > 0 and str(found.dtype).lstrip("u").startswith("int")
    if not inner or not isinstance(value, Mapping):
        return True
    return _all_fit([*value], inner[0]) and _all_fit([*value.values()], inner[1])


def _is_whole(value: Any) -> bool:
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def is_file_name(text: str) -> bool:
    """Return True if files can have a name."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeError:
        return False


def _all_fit(values: Any, hint: Any) -> bool:
    if hint is Any:
        return True
    if hasattr(values, "ndim"):  # an array, or a tensor
        values = values[:1]
    elif not isinstance(values, list | tuple | set | frozenset) and not (
        isinstance(values, Collection) and len(values) < _SHORT  # others may make each when asked
    ):
        return True
    if len(values) >= _SHORT:
        values = {type(each): each for each in values}.values()
    return all(_fits(each, hint) for each in values)


def noun(hint: Any) -> str:
    """Describe the values of a type: "a path, or a list of paths"."""
    kind, inner = _parts(hint)
    if kind is Literal:
        *others, last = map(repr, inner)
        return f"{', '.join(others)} or {last}" if others else last
    if kind is typing.Union:
        has_paths = any(_parts(each)[0] is os.PathLike for each in inner)
        shown = (x for x in inner if x is not Any and not (has_paths and x is str))
        return " or ".join(dict.fromkeys(map(noun, shown)))
    if kind in _LISTS:
        if not inner or inner[0] is Any:
            return "a list"
        return f"a list of {_nouns(inner[0])}"
    if kind is Mapping and inner and inner[1] is not Any:
        return f"a mapping of {_nouns(inner[0])} to {_nouns(inner[1])}"
    name = getattr(kind, "__name__", str(kind))
    return _NOUNS.get(kind) or ("an array of integers" if name == "ndarray" else f"a {name}")


def _nouns(hint: Any) -> str:
    of = [each.removeprefix("a ") for each in noun(hint).split(" or ")]
    return " or ".join(x + "s" * (x[-1] != "s") for x in of)

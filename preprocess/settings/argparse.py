"""Argument parsers of commands, from their options.

Options that are not given are absent from the parsed arguments, for functions have the defaults.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from preprocess.settings.options import Option
from preprocess.settings.schema import OTHER_SPELLINGS


def add_options(parser: argparse.ArgumentParser, options: Sequence[Option]) -> None:
    """Add the options of a command to its parser, in the order of its help, and its usage."""
    shown = filter(None, map(_format_usage, options))
    parser.usage = " ".join([f"{parser.prog} [OPTION...]", *shown])
    for option in options:
        parser.add_argument(*option.names, **_argument_options(option))


def _format_usage(option: Option) -> str:
    """Format a positional or required option for the usage line; "" for others."""
    if not option.positional:
        return f"{option.names[0]} {option.metavar}" if option.is_required else ""
    shown = f"{option.metavar}{'...' * option.is_list}"
    return shown if option.is_required else f"[{shown}]"


def _argument_options(option: Option) -> dict[str, Any]:
    """Return the keyword arguments of `add_argument` for an option."""
    default = f" [default: {option.shown_default}]" if option.shown_default else ""
    # argparse formats help with %.
    text = (option.help + default).replace("%", "%%")
    how: dict[str, Any] = {"help": text, "default": argparse.SUPPRESS}
    if option.is_switch:
        return how | {"dest": option.name, "action": "store_true"}
    kind = option.kind.accepts
    how |= {"metavar": option.metavar, "type": kind if kind in (int, float) else str}
    if option.positional:
        nargs = "+" if option.is_required else "*"
        return how | {"nargs": nargs if option.is_list else None if option.is_required else "?"}
    how |= {"dest": option.name, "required": option.is_required}
    if option.is_list:
        how |= {"action": "extend", "nargs": "+"} if option.is_location else {"action": "append"}
    return how


def for_argparse(
    arguments: list[str], options: Sequence[Option], ignored: list[str]
) -> list[str]:
    """Rewrite arguments that argparse would misinterpret, and options of other programs.

    Underscores in option names become hyphens; the argument after an option with a value is its
    value, and arguments after `--` are paths, even if they begin with a hyphen. Why options of
    other programs are ignored is added to `ignored`.

    >>> from preprocess.settings.options import options_of
    >>> from preprocess.settings.schema import CountSettings
    >>> options = [*options_of(CountSettings).values()]
    >>> for_argparse(["--unit_size", "1_0", "a_b", "--separator", "--", "--", "-c"], options, [])
    ['--unit-size=1_0', 'a_b', '--separator=--', './-c']
    >>> for_argparse(["--input", "a", "--batch_size", "500"], options, [])
    ['a']
    """
    by_name = {name: each for each in options if not each.positional for name in each.names}
    own = {each.name: each for each in options}
    spelled: list[str] = []
    left = iter(arguments)
    for argument in left:
        if argument == "--" and any(each.positional for each in options):
            return [*spelled, *map(_as_path, left)]
        name, equals, value = argument.partition("=")
        name = name.replace("_", "-")
        option, other = by_name.get(name), OTHER_SPELLINGS.get(name, "")
        if option is None and other.startswith("ignored: "):
            ignored.append(f"{name} is {other}")
            _ = equals or next(left, None)
            continue
        if option is None and (option := next(filter(None, map(own.get, other.split())), None)):
            if option.positional:
                spelled.append(_as_path(value if equals else next(left, "")))
                continue
            name = option.names[0]
        if option is None:
            before = by_name.get(spelled[-1]) if spelled else None
            is_first_of_list = before is not None and before.is_list
            spelled.append(_as_path(argument) if is_first_of_list else argument)
            continue
        takes_one = not option.is_switch and not (option.is_list and option.is_location)
        if takes_one and not equals and (following := next(left, None)) is not None:
            equals, value = "=", following
        spelled.append(f"{name}{equals}{value}")
    return spelled


def _as_path(path: str) -> str:
    return f"./{path}" if path.startswith("-") and path != "-" else path

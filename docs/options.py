"""Write the tables of options in README.md and docs/options.md: `python docs/options.py`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from preprocess import compare, doctor, inspect, pipeline, verify
from preprocess.cli import COMMANDS
from preprocess.settings.options import Option

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "options.md"
README = ROOT / "README.md"

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "build": pipeline.build,
    "train": pipeline.train,
    "encode": pipeline.encode,
    "count": pipeline.count,
    "decode": inspect.decode_range,
    "inspect": inspect.facts,
    "compare": compare.compare,
    "verify": verify.verify,
    "doctor": doctor.run_doctor,
}

INTRODUCTION = """# Options

*Written by `python docs/options.py` from `preprocess/settings/schema.py`.*

The functions and the command have the same options: `vocab_size=8000` is `--vocab-size 8000`.
`StrPath` is `str | os.PathLike[str]`; a size is a number of bytes, or text such as `"64KiB"` or
`"500MB"`. Where the table names a default in words, it is None or empty in Python.
"""


def page() -> str:
    """The text of docs/options.md."""
    parts = [INTRODUCTION]
    for name, command in COMMANDS.items():
        function = FUNCTIONS[name]
        rows = [
            [usage(option), python(option, function), default(option), option.help]
            for option in command.options()
        ]
        parts += [
            f"\n## {name}\n\n{command.summary} In Python:"
            f" `{function.__module__}.{function.__name__}`.\n\n",
            table([f"option of `{name}`", "in Python", "default", ""], rows),
        ]
    return "".join(parts)


def readme_table() -> str:
    """The table of README.md: options of `build`, but for those that say how it reports."""
    left_out = ("debug", "quiet", "log_file")
    options = [each for each in COMMANDS["build"].options() if each.name not in left_out]
    rows = [[usage(option), default(option), option.help] for option in options]
    return table(["option of `build`", "default", ""], rows)


def usage(option: Option) -> str:
    """How an option is given on the command line."""
    value = f" {option.metavar}" if not option.is_switch else ""
    several = "..." if option.is_list and option.is_location else ""
    return f"`{value.strip() if option.positional else option.names[0] + value}{several}`"


def python(option: Option, function: Callable[..., Any]) -> str:
    """How an option is given in Python; "" for one of the command line alone."""
    annotation = function.__annotations__.get(option.name)
    return f"`{option.name}: {annotation}`" if annotation else ""


def default(option: Option) -> str:
    """The default, special tokens in it as code."""
    return re.sub(r"<\|.*?\|>", r"`\g<0>`", option.shown_default)


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    cells = [[cell.replace("|", r"\|") for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n".replace("  ", " ") for line in cells)


def with_table(readme: str) -> str:
    """README.md with its table in place."""
    before, head, after = readme.partition("| option of `build` |")
    if not head:
        raise ValueError(f"{README}: no table of options; expected a line '{head}'")
    return before + readme_table() + "\n" + after.partition("\n\n")[2]


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
    README.write_text(with_table(README.read_text("utf-8")), "utf-8")

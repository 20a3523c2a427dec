"""Draw the numbers of `tokenmill report` as one HTML page, and its plots by matplotlib.

`report.html` is the template of the page, and `numbers.html` of its sections. The page has no
script and loads nothing. Text of datasets is escaped, and never part of a plot.
"""

from __future__ import annotations

import functools
import io
import os
import pkgutil
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bpe.files.atomic_write import write_atomically
from preprocess.report.plots import PlotError, new_figure
from preprocess.report.progress import amount, duration
from preprocess.report.summary import LeftOut, counted
from preprocess.sources.registry import REPORT_BEGINS
from preprocess.storage import OutputError, writing
from preprocess.storage.errors import OUTPUTS_KEPT

Facts = dict[str, Any]

_MOST_ROWS = 30  # of a table, or a list
_MOST_TEXT = 10_000  # characters of a value in a table
_MOST_DECODED = 10  # datasets whose documents are shown
_COLOURS = ("one", "two", "three", "four")  # of datasets in plots; others are in tables alone
# Colours in the drawing -> those of the page, which are light or dark.
_TEXT, _LINE = "#010101", "#020202"
_SERIES = {name: f"#0303{i:02x}" for i, name in enumerate(_COLOURS, 1)}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "tokenmill", "font.size": 9.0, "text.color": _TEXT,
    "axes.labelcolor": _TEXT, "axes.edgecolor": _LINE, "xtick.color": _TEXT, "ytick.color": _TEXT,
    "xtick.labelcolor": _TEXT, "ytick.labelcolor": _TEXT, "grid.color": _LINE, "axes.grid": True,
    "grid.linewidth": 0.5, "axes.axisbelow": True, "axes.spines.top": False,
    "axes.spines.right": False, "lines.linewidth": 1.6,
}  # fmt: skip


def check_page(out: str) -> None:
    """Raise an error, before the work, if no page can be written as `out`.

    Raises:
        PlotError: matplotlib or jinja2 is not installed.
        OutputError: There is a file that is no report.
    """
    new_figure()
    _environment()
    with writing(out, OUTPUTS_KEPT):
        if not os.path.lexists(out) or (os.path.isfile(out) and _is_report(out)):
            return
    raise OutputError(
        f"{out}: exists, and is not the page of a report; move it, or choose another name (--out)"
    )


def _is_report(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(len(REPORT_BEGINS)) == REPORT_BEGINS.encode()


def write_page(found: Facts, out: str) -> None:
    """Write the page of what `report` returns under a temporary name, and rename it.

    Raises:
        OutputError: It cannot be written.
    """
    page: str = _environment().get_template("report.html").render(found)
    with writing(out, OUTPUTS_KEPT):
        write_atomically(Path(out), page.encode("utf-8", "backslashreplace"))


def draw_sections(found: Facts) -> str:
    """Return the sections of the page, whose style is `style`, in an element of class "numbers"."""
    html: str = _environment().get_template("numbers.html").render(found)
    return html


def style() -> str:
    """Return the style of the sections, which needs the colours --text, --line, --faint, --card."""
    return _file("numbers.css")


def _file(name: str) -> str:
    return (pkgutil.get_data("preprocess.check", name) or b"").decode()


@functools.cache
def _environment() -> Any:
    """Return what has the templates; raise PlotError if jinja2 is not installed."""
    try:
        import jinja2
        import markupsafe
    except ModuleNotFoundError as error:
        raise PlotError(
            "pages are made with jinja2, which is not installed; install it: pip install"
            " 'tokenmill[plot]'"
        ) from error
    found = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined,
        loader=jinja2.FunctionLoader(_file), extensions=["jinja2.ext.do"],
    )
    found.filters |= {
        "columns": _columns, "shown": _shown, "pairs": _pairs, "of_unit": _of_unit, "zip": zip,
        "counted": counted, "duration": duration,
    }
    found.globals |= {
        "plot": lambda *given: markupsafe.Markup(_plot(*given)),
        "colours": _COLOURS, "most_rows": _MOST_ROWS, "most_decoded": _MOST_DECODED,
        "left_out": LeftOut.__struct_fields__,
    }
    return found


# --- tables ---


class _Column(NamedTuple):
    heading: str
    format: str  # as `format` takes it; or "code" for text of tokens, "bar" for numbers with a bar
    values: list[Any]  # of each row

    @property
    def is_text(self) -> bool:
        return any(isinstance(value, str) for value in self.values)


def _columns(rows: Sequence[Any], names: Iterable[str]) -> list[_Column]:
    """Return the columns of a table that have values.

    A name is "heading=key:format", where the key may be that of a dictionary in one ("a.b"), and is
    the heading unless it is given; with "?" after it, 0 is no value.
    """
    found = []
    for name in names:
        heading, _, rest = name.rpartition("=")
        key, _, how = rest.partition(":")
        path = key.removesuffix("?").replace(" ", "_").split(".")
        values = [functools.reduce(lambda x, y: x.get(y), path, row) for row in rows]
        values = [x or None for x in values] if key.endswith("?") else values
        if any(x is not None for x in values):
            found.append(_Column(heading or key, how or ",", values))
    return found


def _shown(value: Any, how: str = ",") -> str:
    """Format a value: of long text or a long list the beginning, and how many more there are."""
    if isinstance(value, list) and len(value) > _MOST_ROWS:
        return f"{str(value[:_MOST_ROWS])[:-1]}, and {len(value) - _MOST_ROWS:,} more]"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return format(value, how).replace("%", " %")
    text = "" if value is None else str(value)
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]} ..."


def _pairs(facts: Facts, names: Iterable[str] = ()) -> list[Facts]:
    """Return the rows of a table of some facts, or of all, numbers as options have them."""
    return [
        {"what": name.replace("_", " "), "value": _shown(facts[name], "," if names else "")}
        for name in names or facts if facts.get(name) not in (None, [], "")
    ]  # fmt: skip


def _of_unit(number: float, unit: str) -> str:
    return amount(number) if unit == "B" else f"{number:,.0f} {unit}"


# --- plots ---


def _plot(kind: str, title: str, datasets: Sequence[Facts]) -> str:
    """Return a plot of "lengths" or "frequencies" as SVG whose colours are those of the page."""
    try:
        new_figure()
    except PlotError as error:  # the page of `view` has all else
        return str(error)
    from matplotlib import rc_context

    file, no_metadata = io.StringIO(), dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with rc_context(_STYLE):
        figure = new_figure(figsize=(4.6, 2.7), layout="constrained")
        axes = figure.subplots()
        for each, colour in zip(datasets, _SERIES.values(), strict=False):
            _PLOTS[kind](axes, each, colour)
        figure.savefig(file, format="svg", transparent=True, metadata=no_metadata)
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)  # would be there several times
    svg = re.sub("<style.*?</style>", "", svg, flags=re.DOTALL)  # see `style`
    names = {_TEXT: "text", _LINE: "line"} | {each: name for name, each in _SERIES.items()}
    for ours, name in names.items():
        svg = svg.replace(ours, f"var(--{name})")
    return svg.replace("<svg", f'<svg role="img" aria-label="{title}"', 1)


def _plot_lengths(axes: Any, dataset: Facts, colour: str) -> None:
    shares = [100 * n / dataset["documents"] for n in dataset["lengths"]["documents"]]
    axes.stairs(shares, dataset["lengths"]["edges"], color=colour, linewidth=1.6)
    axes.set(xscale="log", xlabel="tokens of a document", ylabel="% of documents")


def _plot_frequencies(axes: Any, dataset: Facts, colour: str) -> None:
    shares = [n / dataset["tokens"] for n in dataset["frequencies"]["counts"]]
    axes.plot(dataset["frequencies"]["ranks"], shares, color=colour)
    axes.set(xscale="log", yscale="log", xlabel="rank of a token", ylabel="share of all tokens")


_PLOTS = {"lengths": _plot_lengths, "frequencies": _plot_frequencies}

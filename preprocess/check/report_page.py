"""Draw the numbers of `tokenmill report` as one HTML page: tables, and plots by matplotlib.

The page has no script and loads nothing. Text of datasets is escaped, and never part of a plot.
"""

from __future__ import annotations

import io
import os
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from bpe.files.atomic_write import write_atomically
from preprocess.report.plots import PlotError, new_figure
from preprocess.report.progress import amount, duration, percent
from preprocess.report.summary import LeftOut, counted, listed
from preprocess.sources.registry import REPORT_BEGINS
from preprocess.storage import OutputError, writing
from preprocess.storage.errors import OUTPUTS_KEPT

Facts = dict[str, Any]
Row = Sequence[Any]

_MOST_ROWS = 30  # of a table, or a list
_MOST_TEXT = 10_000  # characters of a value in a table
_COLOURS = ("one", "two", "three", "four")  # of datasets in plots; others are in tables alone
# Colours in the drawing -> those of the page, which are light or dark.
_TEXT, _LINE = "#010101", "#020202"
_SERIES = {name: f"#0303{i:02x}" for i, name in enumerate(_COLOURS, 1)}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "tokenmill", "font.size": 9.0, "text.color": _TEXT,
    "axes.labelcolor": _TEXT, "axes.edgecolor": _LINE, "xtick.color": _TEXT, "ytick.color": _TEXT,
    "xtick.labelcolor": _TEXT, "ytick.labelcolor": _TEXT, "grid.color": _LINE, "axes.grid": True,
    "grid.linewidth": 0.5, "axes.axisbelow": True, "axes.spines.top": False,
    "axes.spines.right": False,
}  # fmt: skip


def check_page(out: str) -> None:
    """Raise an error, before the work, if no page can be written as `out`.

    Raises:
        PlotError: matplotlib is not installed.
        OutputError: There is a file that is no report.
    """
    new_figure()
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
    """Write the page of a report under a temporary name, and rename it.

    Raises:
        OutputError: It cannot be written.
    """
    with writing(out, OUTPUTS_KEPT):
        write_atomically(Path(out), draw(found).encode("utf-8", "backslashreplace"))


def draw(found: Facts) -> str:
    """Return the page of what `preprocess.check.report_numbers.report` returns."""
    n_tokens = sum(each["tokens"] for each in found["datasets"])
    return Template(_file("report.html")).substitute(
        title=f"Report of {escape(found['path'])}", content=draw_sections(found), style=style(),
        about=f"{counted(len(found['datasets']), 'dataset')}, {counted(n_tokens, 'token')}",
        verdict=_verdict(found["verdict"]),
    )


def draw_sections(found: Facts) -> str:
    """Return the sections of the page, whose style is `style`, in an element of class "numbers"."""
    parts = [
        ("Datasets", _datasets(found)), ("Built from", _sources(found)),
        ("Lengths of documents", _lengths(found)), ("Tokens", _tokens(found)),
        ("Bytes per token", _bytes_per_token(found)), ("Validation and train", _validation(found)),
        ("Rows", _rows(found)), ("The run", _runs(found)), ("Documents", _documents(found)),
    ]
    sections = ((title, "".join(html)) for title, html in parts)
    return "\n".join(
        f"<section><h2>{title}</h2>\n{html}</section>" for title, html in sections if html
    )


def style() -> str:
    """Return the style of the sections, which needs the colours --text, --line, --faint, --card."""
    return _file("numbers.css")


def _file(name: str) -> str:
    return (pkgutil.get_data("preprocess.check", name) or b"").decode()


# --- sections ---


def _verdict(verdict: Facts) -> str:
    marks = {True: ("good", "ok"), False: ("bad", "look"), None: ("faint", "unknown")}
    items = "".join(
        f'<li><b class="{marks[x["ok"]][0]}">{marks[x["ok"]][1]}</b>{escape(x["text"])}</li>'
        for x in verdict["checks"]
    )
    line = verdict["line"][:1].upper() + verdict["line"][1:]
    kind = "good" if verdict["ok"] else "bad"
    return f'<div class="verdict {kind}"><p>{escape(line)}.</p><ul>{items}</ul></div>'


def _datasets(found: Facts) -> Iterator[str]:
    rows = [
        [
            x["name"], x["documents"], x["tokens"], x["bytes"] or None,
            x["bytes_per_token"] or None, x["copies"], x["empty_documents"],
            f"{x['ids_that_occur']:,} of {x['vocab_size']:,}", x["shards"] or None,
            _Share(x["trained_share"]) if "trained_share" in x else None,
        ]
        for x in found["datasets"]
    ]  # fmt: skip
    yield _table(
        "dataset; documents; tokens; bytes of text; bytes per token; copies; empty documents;"
        " ids that occur; shards; trained on", rows,
    )  # fmt: skip
    yield from (
        _note(f"{each['name']} was not decoded, so what needs its text is left out:"
              f" {each['no_text']}")
        for each in found["datasets"] if "no_text" in each
    )  # fmt: skip


def _sources(found: Facts) -> Iterator[str]:
    for each in found["datasets"]:
        if each["is_imported"]:
            yield _note(f"The ids of {each['name']} were imported from another program.")
        if any(source["documents"] is None for source in each["sources"]):
            yield _note(f"How many documents and tokens of {each['name']} each source gave is not"
                        " recorded, as of all datasets that are shuffled or imported.")  # fmt: skip
        yield f"<h3>Sources of {escape(each['name'])}</h3>"
        rows = [[x["name"], x["documents"], x["tokens"], x["bytes"]] for x in each["sources"]]
        yield _table("source; documents; tokens; bytes of the file", rows)
    for each in found["tokenizers"]:
        yield f"<h3>Tokenizer</h3>{_pairs(each, ('kind', 'vocab_size', 'pattern', 'merges'))}"
    for run in found["runs"]:
        settings = {key: x for key, x in run.get("settings", {}).items() if x not in (None, [], "")}
        yield f"<details><summary>Options of the run ({escape(run['file'])})</summary>"
        yield f"{_pairs(settings, settings)}</details>"


def _lengths(found: Facts) -> Iterator[str]:
    shown = [each for each in found["datasets"] if each["documents"]]
    if not shown:
        yield _note("There are no documents.")
        return

    def plot(axes: Any) -> None:
        for each, colour in zip(shown, _SERIES.values(), strict=False):
            edges, counts = each["lengths"]["edges"], each["lengths"]["documents"]
            shares = [100 * n / each["documents"] for n in counts]
            axes.stairs(shares, edges, color=colour, linewidth=1.6)
        axes.set(xscale="log", xlabel="tokens of a document", ylabel="% of documents")

    yield '<div class="grid">'
    yield _figure(plot, "Histogram of the lengths of documents", _key(shown))
    shares = shown[0]["tokens_per_document"]["percentiles"]
    spreads = [(x["name"], x["tokens_per_document"]) for x in shown]
    rows = [[name, of["mean"], *of["percentiles"].values()] for name, of in spreads]
    table = _table(["dataset", "mean", *(f"{share} %" for share in shares)], rows)
    note = _note("Quantiles: so many tokens, special ones included, or fewer.")
    yield f"<div>{table}{note}</div></div>"


def _tokens(found: Facts) -> Iterator[str]:
    shown = [each for each in found["datasets"] if each["tokens"]]

    def plot(axes: Any) -> None:
        for each, colour in zip(shown, _SERIES.values(), strict=False):
            counts = [n / each["tokens"] for n in each["frequencies"]["counts"]]
            axes.plot(each["frequencies"]["ranks"], counts, color=colour, linewidth=1.6)
        axes.set(xscale="log", yscale="log", xlabel="rank of a token", ylabel="share of all tokens")

    yield '<div class="grid">'
    if shown:
        yield _figure(plot, "Frequency of tokens by rank", _key(shown))
    known = [each for each in shown if "no_text" not in each]
    yield "<div>" + _table(
        "dataset; unused tokens; of the vocabulary; single bytes; parts of characters",
        [
            [x["name"], x["unused_tokens"], x["tokens_of_vocabulary"],
             _Share(x["single_bytes"]["share"]), _Share(x["single_bytes"]["parts_share"])]
            for x in known
        ],
    ) + _note(
        "Single bytes are all tokens of one byte; those above 127 are parts of characters, which"
        " the vocabulary has no token for."
    ) + "</div></div>"  # fmt: skip
    for each in known:
        yield f"<details><summary>Most frequent tokens of {escape(each['name'])}, and unused ones"
        rows = [[x["id"], _Code(x["text"] or ""), x["count"], _Share(x["count"] / each["tokens"])]
                for x in each["frequent"]]  # fmt: skip
        yield f"</summary>{_table('id; token; occurrences; share', rows)}"
        listed_here = ((x["id"], escape(x["text"] or "")) for x in each["unused"])
        unused = ", ".join(f"{number} <code>{text}</code>" for number, text in listed_here)
        yield f"<p>Unused, the first: {unused or 'none'}</p></details>"


def _bytes_per_token(found: Facts) -> Iterator[str]:
    beside = found["beside"]
    for each in found["datasets"]:
        if "sample" not in each:
            continue
        sample = each["sample"]
        of = "all of it" if sample["everything"] else f"{counted(sample['documents'], 'document')}"
        yield f"<h3>{escape(each['name'])}, {of}</h3>"
        if not sample["by_source"]:
            yield _note("Which source each document is from is not recorded.")
        yield '<div class="grid">'
        for key in ("source", "script"):
            if groups := sample[f"by_{key}"]:
                most = max(x[y] for x in groups for y in x if y.endswith("per_token"))
                rows = [
                    [x[key], x["documents"], _Bar(x["bytes_per_token"], most),
                     *([_Bar(x["beside_bytes_per_token"], most)] if beside else [])]
                    for x in groups
                ]  # fmt: skip
                head = [key, "documents", "bytes per token", *([beside["name"]] if beside else [])]
                yield f"<div>{_table(head, rows)}</div>"
        broken = sample["broken"]
        yield "</div>" + _note(
            f"Broken text: {broken['not_utf8']:,} documents are not UTF-8, {broken['replaced']:,}"
            f" have U+FFFD, {broken['mojibake']:,} look like UTF-8 that was read as Latin-1."
        )
    yield _note(
        "The text is decoded, special tokens around documents left out. The script of a document"
        " is that of most of its letters."
    )


def _validation(found: Facts) -> Iterator[str]:
    if not found["val_in_train"]:
        yield _note("There is no validation dataset beside a train dataset, so none is compared.")
    for pair in found["val_in_train"]:
        title = f"{pair['val']} and {pair['train']}"
        if "in_train" not in pair:
            yield _note(f"{title} are not compared: {pair['not_compared']}.")
            continue
        text = f"{pair['in_train']:,} of {counted(pair['documents'], 'document')} of {pair['val']}"
        yield _note(f"{text} are in {pair['train']}, too, token by token.")
        if pair["divergence"] is None:
            yield _note(f"{title}: one is empty, so there is no divergence.")
            continue
        yield _note(
            f"Jensen-Shannon divergence of {title}: {pair['divergence']:.4f} bits (0: equal shares"
            " of all tokens, 1: no token in common). As many tokens drawn from"
            f" {pair['train']} would have {pair['divergence_of_draw']:.4f}."
        )
        rows = [
            [x["id"], _Code(x["text"] or ""), _Share(x["train_share"]), _Share(x["val_share"]),
             f"{x['part']:.5f}"]
            for x in pair["tokens"]
        ]  # fmt: skip
        head = ["id", "token", f"in {pair['train']}", f"in {pair['val']}", "bits"]
        yield "<details><summary>The tokens that differ most</summary>"
        yield f"{_table(head, rows)}</details>"


def _rows(found: Facts) -> Iterator[str]:
    rows = [
        [
            each["name"], x["length"], x["longer_documents"], _Share(x["cut_off_share"]),
            _Share(x["padding_of_documents_share"]), x["packed_rows"],
            _Share(x["packed_padding_share"]),
        ]
        for each in found["datasets"] for x in each["rows"]
    ]  # fmt: skip
    yield _table(
        "dataset; tokens of a row; longer documents; tokens cut off; padding, a document a row;"
        " packed rows; padding, packed", rows,
    )  # fmt: skip
    yield _note(
        "Tokens are cut off if a document is one row. Packed rows (best_fit) have all tokens:"
        " longer documents go on in other rows."
    )


def _runs(found: Facts) -> Iterator[str]:
    if not found["runs"]:
        yield _note("There is no stats.json of the run that made these files.")
    for run in found["runs"]:
        rows = []
        for stage in run.get("stages", ()):
            done, seconds = stage["done"], stage["seconds"]
            rate = done / seconds if seconds > 0 else 0
            is_bytes = stage["unit"] == "B"
            rows.append([
                stage["name"], duration(seconds),
                amount(done) if is_bytes else f"{done:,} {stage['unit']}",
                f"{amount(rate)}/s" if is_bytes else f"{rate:,.0f} {stage['unit']}/s",
            ])
        yield f"<h3>{escape(run['file'])}</h3>{_table('stage; time; done; rate', rows)}"
        facts = [f"{duration(run.get('seconds', 0))} in all"]
        for key, shown in (("peak_memory_bytes", "peak memory"), ("disk_read_bytes", "read"),
                           ("disk_write_bytes", "written")):  # fmt: skip
            facts += [f"{shown} {amount(run[key])}"] * (key in run)
        left_out = ((key, run.get(key)) for key in LeftOut.__struct_fields__)
        facts += [f"{key.replace('_', ' ')}: {n:,}" for key, n in left_out if n]
        yield _note(f"{', '.join(facts)}. Only totals are recorded, no course over time.")
        if sources := [x for x in run.get("sources", ()) if "tokens" in x]:
            rows = [[x["name"], x["documents"], x["tokens"], x["bytes"],
                     x["bytes"] / max(x["tokens"], 1)] for x in sources]  # fmt: skip
            head = "source, all outputs; documents; tokens; bytes of text; bytes per token"
            yield _table(head, rows)


def _documents(found: Facts) -> Iterator[str]:
    for each in found["datasets"]:
        for one in each.get("decoded", ()):
            more = one["tokens"] - len(one["ids"])
            title = f"Document {one['document']:,} of {each['name']}"
            yield f"<h3>{escape(title)}, {counted(one['tokens'], 'token')}</h3>"
            trained = one["trained"] or [1] * len(one["ids"])
            spans = [
                f'<span class="t{i % 4}{"" if is_trained else " untrained"}" title="{number}">'
                f"{escape(text)}</span>{'<br>' * text.endswith(_NEWLINE)}"
                for i, (number, text, is_trained) in enumerate(
                    zip(one["ids"], one["texts"], trained, strict=True)
                )
            ]
            yield f'<div class="tokens">{"".join(spans)}{" ..." * (more > 0)}</div>'
    if any(each.get("decoded") for each in found["datasets"]):
        yield _note("Each colour is a token; underlined ones are not trained on.")


_NEWLINE = r"\n"  # as `token_texts` shows it


# --- parts of a page ---


class _Code(str):
    """Text of a token."""


class _Share(float):
    """A number that is shown in percent."""


class _Bar(float):
    """A number with a bar behind it, of a share of the largest."""

    share: float

    def __new__(cls, value: float, most: float) -> _Bar:
        found = super().__new__(cls, value)
        found.share = value / most if most else 0.0
        return found


def _table(head: str | Sequence[str], rows: Sequence[Row]) -> str:
    """Return a table; columns that have no value are left out."""
    names = head.split("; ") if isinstance(head, str) else head
    if not rows:
        return _note("None.")
    kept = [i for i in range(len(names)) if any(row[i] is not None for row in rows)]
    is_text = {i: any(type(row[i]) in (str, _Code) for row in rows) for i in kept}
    heads = (f"<th{_class(is_text[i])} scope=\"col\">{escape(names[i])}</th>" for i in kept)
    body = (
        f"<tr>{''.join(_cell(row[i], is_text[i]) for i in kept)}</tr>" for row in rows[:_MOST_ROWS]
    )
    more = len(rows) - _MOST_ROWS
    label = escape(f"Table of {listed(list(names), 2)}")
    return (
        f'<div class="scroll" role="group" tabindex="0" aria-label="{label}"><table><thead><tr>'
        f"{''.join(heads)}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
        + (_note(f"and {more:,} more, which the JSON has (--json).") if more > 0 else "")
    )


def _class(is_text: bool) -> str:
    return "" if is_text else ' class="n"'


def _cell(value: Any, is_text: bool) -> str:
    if isinstance(value, _Code):
        return f"<td><code>{escape(_cut(value))}</code></td>"
    if isinstance(value, _Bar):
        return f'<td class="n bar" style="--share:{value.share:.1%}">{value:,.2f}</td>'
    if isinstance(value, _Share):
        text = percent(value, 2)
    elif value is None or isinstance(value, str):
        text = value or ""
    else:
        text = f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"
    return f"<td{_class(is_text)}>{escape(_cut(text))}</td>"


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]} ..."


def _pairs(facts: Facts, names: Iterable[str]) -> str:
    rows = [[name.replace("_", " "), _value(facts[name])] for name in names if name in facts]
    return _table(["what", "value"], rows)


def _value(value: Any) -> str:
    """Format a setting: of a long list the beginning, and how many more there are."""
    if not isinstance(value, list) or len(value) <= _MOST_ROWS:
        return str(value)
    return f"{str(value[:_MOST_ROWS])[:-1]}, and {len(value) - _MOST_ROWS:,} more]"


def _note(text: str) -> str:
    return f"<p>{escape(text)}</p>\n"


def _key(datasets: Sequence[Facts]) -> str:
    return "".join(
        f'<span class="key"><i style="background:var(--{colour})"></i>{escape(each["name"])}</span>'
        for each, colour in zip(datasets, _COLOURS, strict=False)
    )


def _figure(plot: Callable[[Any], None], title: str, key: str) -> str:
    """Return a figure as SVG whose colours are those of the page."""
    try:
        new_figure()
    except PlotError as error:  # the page of `view` has all else
        return _note(f"{title}: {error}")
    from matplotlib import rc_context

    file = io.StringIO()
    with rc_context(_STYLE):
        figure = new_figure(figsize=(4.6, 2.7), layout="constrained")
        plot(figure.subplots())
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r' (?:width|height)="[\d.]+pt"', "", svg, count=2)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)  # would be there several times
    svg = re.sub("<style.*?</style>", "", svg, flags=re.DOTALL)  # see `style`
    names = {_TEXT: "text", _LINE: "line"} | {each: name for name, each in _SERIES.items()}
    for ours, name in names.items():
        svg = svg.replace(ours, f"var(--{name})")
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1)
    return f"<figure>{svg}<figcaption>{escape(title)}. {key}</figcaption></figure>"

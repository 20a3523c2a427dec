"""Choose the size of a vocabulary: tokens of held-out text and cost of the embedding by size.

One training of the largest size and one encoding give all sizes: `preprocess.run.vocab_curve`.
Nothing is written but a plot, if one is asked for.
"""

from __future__ import annotations

from typing import Any

from bpe.files.temporary import temporary_directory
from preprocess.options import BuildSettings, VocabCurveSettings
from preprocess.report.plots import check_plot, new_figure, save_figure
from preprocess.report.progress import progress_of
from preprocess.report.summary import LeftOut, table
from preprocess.run.compiling import compile_training
from preprocess.run.count_pass import train_tokenizer
from preprocess.run.journal import Journal
from preprocess.run.memory_limit import apply_profile, fit_to_memory
from preprocess.run.plan import Plan
from preprocess.run.vocab_curve import measure_curve
from preprocess.settings import SettingsError, takes
from preprocess.storage import open_storage

_OWN = ("paths", "sizes", "width", "layers", "plot", "progress")  # not options of `build`


@takes(VocabCurveSettings)
def vocab_curve(settings: VocabCurveSettings) -> dict[str, Any]:
    """Train once, and count the tokens of held-out text for several sizes of the vocabulary.

    The held-out text is `val`, else a share of the documents, and never trained on. The number of
    tokens of a size is that of `val.bin` of a `build` with that `vocab_size`.

    Options: docs/options.md or `tokenmill vocab-curve --help`; `progress=False` shows none.

    Returns:
        A dictionary for JSON: `text`, the documents and bytes of the held-out text; `width` and
        `layers`; `sizes`, for each its vocab_size, tokens, bytes_per_token, embedding_parameters,
        embedding_share of the model, untied_share if embedding and output have weights of their
        own, and multiply_adds_per_byte; `vocab_size`, the recommended one, and its `reason`. If the
        text gives fewer merges than a size needs, the last size is that of all merges.

    Raises:
        TokenmillError: As `build`.
    """
    if settings.plot is not None:
        check_plot(settings.plot)
    given = {name: value for name, value in settings.given.items() if name not in _OWN}
    build = BuildSettings(train=settings.paths, vocab_size="auto", **given)
    least = 256 + len(build.all_special_tokens)
    if min(settings.sizes) < least:
        raise SettingsError(
            f"--sizes {min(settings.sizes):,} is below {least:,}, the 256 bytes and"
            f" {least - 256} special tokens; give larger sizes"
        )
    build = fit_to_memory(apply_profile(build.replace(vocab_size=max(settings.sizes))))
    progress = progress_of(settings.progress)
    progress.begin(None)
    with (
        temporary_directory() as directory, open_storage(directory, "curve") as storage,
        Journal(storage) as journal,
    ):
        plan = Plan(build)
        compile_training(build.pattern, progress, True)
        plan.prepare(journal, progress)
        tokenizer = train_tokenizer(plan.passes[0].sources, build, journal, progress, LeftOut())
        found = measure_curve(
            plan.passes[-1], build, tokenizer, progress, settings.sizes, settings.width,
            settings.layers,
        )
    if settings.plot is not None:
        save_figure(_draw(found), settings.plot)
    return found


def format_lines(found: dict[str, Any]) -> list[str]:
    """Format the result of `vocab_curve` for people."""
    columns = {
        "tokens": "{tokens:,}", "bytes/token": "{bytes_per_token:.3f}",
        "embedding": "{embedding_parameters:,}", "of the model": "{embedding_share:.1%}",
        "if untied": "{untied_share:.1%}", "compute/byte": "{multiply_adds_per_byte:,.0f}",
        "size": "{vocab_size:,}",
    }
    rows = [[text.format_map(one) for text in columns.values()] for one in found["sizes"]]
    text = found["text"]
    return [
        *table([[*columns], *rows]),
        f"held-out text: {text['documents']:,} documents, {text['bytes']:,} bytes",
        f"recommended: {found['reason']}",
    ]


def _draw(found: dict[str, Any]) -> Any:
    """Draw bytes per token and compute per byte by size; return the figure of matplotlib."""
    figure = new_figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    sizes = [each["vocab_size"] for each in found["sizes"]]
    of_size = {name: [each[name] for each in found["sizes"]] for name in found["sizes"][0]}
    (tokens,) = axes.plot(sizes, of_size["bytes_per_token"], "o-", label="bytes per token")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes], rotation=30)
    axes.set_xlabel("size of the vocabulary")
    axes.set_ylabel("bytes per token of held-out text")
    of_compute = axes.twinx()
    (compute,) = of_compute.plot(
        sizes, of_size["multiply_adds_per_byte"], "s--", color="C1", label="compute per byte"
    )
    of_compute.set_ylabel("multiply-adds per byte of held-out text")
    best = axes.axvline(found["vocab_size"], color="0.7", zorder=0, label="recommended")
    axes.legend(handles=[tokens, compute, best], loc="center right")
    axes.set_title(f"{found['layers']:,} layers of width {found['width']:,}")
    return figure

"""Show what the rows of a training step are, of a sampler or mixture in a configuration."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from bpe.errors import TokenmillError
from preprocess.dataset.places import shown_source
from preprocess.dataset.reader import open_tokens
from preprocess.options import ShowSettings
from preprocess.run.outputs import open_one
from preprocess.sampling.data import SamplingError
from preprocess.sampling.mixture import Mixture
from preprocess.sampling.sampler import Sampler
from preprocess.settings import SettingsError, takes

Facts = dict[str, Any]

_OF_MIXTURE = ("weights", "unit", "seed", "exhausted")


@takes(ShowSettings)
def show(settings: ShowSettings) -> Facts:
    """Describe rows of a step of a sampler, or of a mixture, as its `describe`.

    Options: docs/options.md or `tokenmill show --help`; docs/sampling.md has the keys.

    Raises:
        TokenFileError: A dataset is missing or damaged.
        SamplingError: The configuration does not work, or the step has no such row.
    """
    sampler = read_sampler(settings)
    rows = sampler.describe(settings.step)
    first = settings.row
    if first >= len(rows):
        raise SamplingError(
            f"step {settings.step:,} has {len(rows):,} rows, numbered from 0; there is no row"
            f" {first:,}"
        )
    shown = rows[first : first + settings.rows]
    return {"step": settings.step, "n_rows": len(rows), "rows": shown}


def read_sampler(settings: ShowSettings) -> Sampler | Mixture:
    """Make the sampler or mixture of a configuration; raise SamplingError if it is none."""
    path = settings.config
    try:
        given = msgspec.json.decode(Path(path).read_bytes(), type=Facts)
    except (OSError, msgspec.MsgspecError) as error:
        raise SamplingError(
            f"{path}: expected a JSON object with the arguments of a Sampler, such as"
            f' {{"global_batch_size": 8, "context_length": 1024}} (--config); reading it failed'
            f" ({error})"
        ) from error
    try:
        if (samplers := given.pop("samplers", None)) is None:
            return _sampler(settings, given)
        of_mixture = {name: given.pop(name) for name in _OF_MIXTURE if name in given}
        members = {name: _sampler(settings, given | each) for name, each in samplers.items()}
        return Mixture(members, **{"weights": {}} | of_mixture)
    except (TokenmillError, TypeError, AttributeError) as error:
        raise SamplingError(f"{path}: {error}") from error


def _sampler(settings: ShowSettings, given: Facts) -> Sampler:
    """Make a sampler of its arguments; the dataset of one without is that of the settings."""
    location = given.get("dataset", settings.path)
    if location is None:
        raise SettingsError("there is no dataset; give its path, or name it in the configuration")
    file = open_tokens(open_one(location).absolute_path, tokenizer=settings.tokenizer)
    return Sampler(**given | {"dataset": file})


# --- text for people ---


def format_rows(found: Facts) -> list[str]:
    """Format the rows that `show` found, in colours if the terminal has them."""
    has_colours = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return [line for row in found["rows"] for line in _format_row(row, has_colours)]


def _format_row(row: Facts, has_colours: bool) -> Iterator[str]:
    def coloured(text: str, code: int) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if has_colours else text

    of = f" of {row['dataset']}" if "dataset" in row else ""
    n_padding = row["segments"].count(0)
    yield coloured(f"row {row['row']:,}{of}" + f", {n_padding:,} padding" * (n_padding > 0), 1)
    for number, each in enumerate(row["documents"]):
        span = range(each["start"], each["stop"])
        place = f"  {span.start:,} to {span.stop:,}: token {each['token']:,} on of document"
        of_source = f"{each['document']:,}{shown_source(each['source'])}"
        yield coloured(f"{place} {of_source}", 36 - number % 2)
        ids = " ".join(str(row["ids"][i]) for i in span)
        for mask, text in each.get("texts", [[1, ids]]):
            yield coloured(f"    {'+' if mask else '-'} {text!r}", 0 if mask else 2)

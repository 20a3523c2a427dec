"""The settings of train_gpt.py: its options and the keys of its configuration file."""

from __future__ import annotations

import argparse
import json
import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch


class ExampleError(Exception):
    """The run cannot go on, for a reason that the message tells."""


def option(default: Any, description: str, *, least: float | None = None) -> Any:
    """A field with the description of its option, and the least value if it is a number."""
    return field(default=default, metadata={"help": description, "least": least})


@dataclass(frozen=True)
class Settings:
    """Settings of a training run: each is an option and a key of the configuration file."""

    data: str = option("data", "directory with tokenizer.json and the token files")
    name: str = option("", "NAME of NAME_train.bin and NAME_val.bin; none: train.bin and val.bin")
    checkpoint: str = option(
        "checkpoints/gpt.pt", "file where the state is saved and continued from"
    )
    batch_size: int = option(16, "windows in a step", least=1)
    context_length: int = option(128, "tokens in a window", least=1)
    n_layers: int = option(3, "blocks of attention and multilayer perceptron", least=1)
    n_heads: int = option(4, "attention heads in each block", least=1)
    width: int = option(128, "features of a token, a multiple of 2 * n_heads", least=1)
    learning_rate: float = option(
        4e-3, "learning rate at its highest; it warms up and then falls to 0", least=1e-9
    )
    weight_decay: float = option(0.1, "weight decay of matrices other than the embedding", least=0)
    max_iters: int = option(500, "steps, with windows drawn at random", least=1)
    epochs: int = option(
        0, "passes that have each window once, in a random order; instead of max_iters", least=0
    )
    report_every: int = option(50, "steps between reports; the state is saved with each", least=1)
    validation_windows: int = option(
        160, "windows that the validation loss is measured on", least=1
    )
    sample_tokens: int = option(200, "length of the text written at the end", least=0)
    seed: int = option(0, "seed of the weights, the windows and the sample", least=0)
    device: str = option("", "cpu, cuda, mps, ...; none: cuda where there is one, else cpu")
    csv_log: str = option("", "file that gets a line with the losses for each report")
    wandb_project: str = option("", "log to Weights & Biases as well, under this project")


def parse_arguments(arguments: Sequence[str] | None) -> tuple[Settings, bool]:
    """Settings from options, over those of --config, over defaults; and whether to start anew."""
    parser = argparse.ArgumentParser(
        prog="train_gpt.py",
        usage="%(prog)s [--config FILE] [--overwrite] [--OPTION VALUE ...]",
        description="Train a small GPT on the token files of `tokenmill build`.",
        argument_default=argparse.SUPPRESS,  # so that only options that were given are found
    )
    parser.add_argument(
        "--config", "--use_params", metavar="FILE", help="TOML or JSON file with the same settings"
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="start anew, over a saved state and its log if there are any",
    )
    for each in fields(Settings):
        names = {f"--{each.name.replace('_', '-')}", f"--{each.name}"}
        kind = type(each.default)
        default = "" if each.default == "" else f" (default: {each.default})"
        parser.add_argument(
            *sorted(names),
            type=kind,
            metavar=kind.__name__.upper(),
            help=each.metadata["help"] + default,
        )
    given = vars(parser.parse_args(arguments))
    overwrite = given.pop("overwrite", False)
    try:
        if config := given.pop("config", ""):
            given = read_config(Path(config)) | given
        if given.get("epochs") and "max_iters" in given:
            raise ExampleError(
                f"--epochs {given['epochs']} and --max-iters {given['max_iters']} both say when "
                "to end; give one of them, as an option or in the configuration file"
            )
        settings = Settings(**given)
        check(settings)
    except ExampleError as error:
        parser.error(str(error))
    return settings, overwrite


def check(settings: Settings) -> None:
    """Raise ExampleError for a value that cannot work."""
    for each in fields(Settings):
        value, least = getattr(settings, each.name), each.metadata["least"]
        if least is not None and not least <= value < math.inf:
            kind = "an integer" if type(each.default) is int else "a finite number"
            raise ExampleError(
                f"--{each.name.replace('_', '-')} should be {kind} of at least {least}; got {value}"
            )
    if settings.seed >= 2**63:
        raise ExampleError(f"--seed should be below 2**63; got {settings.seed}")
    if settings.width % (2 * settings.n_heads):
        # A head has pairs of features, which its rotary positions turn.
        raise ExampleError(
            f"--width should be a multiple of 2 * n_heads, {2 * settings.n_heads}; "
            f"got {settings.width}"
        )
    try:
        torch.zeros(1, device=settings.device or "cpu").item()
    except (RuntimeError, AssertionError, ImportError) as error:
        raise ExampleError(
            "--device should be cpu, cuda, mps or another one that PyTorch has on this machine; "
            f"got {settings.device!r} ({str(error).partition(chr(10))[0]})"
        ) from error


def read_config(path: Path) -> dict[str, Any]:
    """The settings in a TOML or JSON file.

    Raises:
        ExampleError: It cannot be read, or has a key or a value that is no setting.
    """
    try:
        text = path.read_text("utf-8")
        values = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (OSError, ValueError) as error:
        raise ExampleError(f"{path}: cannot be read as TOML (.toml) or JSON: {error}") from error
    kinds = {each.name: type(each.default) for each in fields(Settings)}
    if not isinstance(values, dict) or not values.keys() <= kinds.keys():
        unknown = sorted(values.keys() - kinds.keys()) if isinstance(values, dict) else values
        raise ExampleError(f"{path}: {unknown} are no settings; there are {', '.join(kinds)}")
    for key, value in values.items():
        if kinds[key] is float and type(value) is int:
            values[key] = float(value)
        elif type(value) is not kinds[key]:
            raise ExampleError(f"{path}: {key} should be {kinds[key].__name__}; got {value!r}")
    return values

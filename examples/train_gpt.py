"""Train a small GPT on the token files of `tokenmill build`, on a CPU in a minute or two.

    python examples/train_gpt.py --data data
    python examples/train_gpt.py --data data --epochs 2 --csv_log losses.csv
    python examples/train_gpt.py --config settings.toml --max-iters 2000

Every setting is an option, with hyphens or underscores, and a key of the configuration file (TOML
or JSON); options win; `--help` lists them. The state is saved with every report, and the same
command continues from there, with the batches that a run which was never stopped would have: it
prints the same losses.

Losses are in nats per token. Bits per byte, which compare between tokenizers, are made from them
with the counts of the manifest: loss / ln 2 * n_tokens / n_bytes, where n_bytes counts the UTF-8
bytes of the documents.
"""

from __future__ import annotations

import csv
import errno
import hashlib
import math
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpt import GPT, GPTShape
from gpt_settings import ExampleError, Settings, parse_arguments

from bpe import Tokenizer
from bpe.errors import TokenmillError
from preprocess import Sampler, TokenFile, get_batch, open_tokens

# The embedding learns this much faster: most of its rows are met only now and then.
EMBEDDING_RATE = 4.0

# These do not change what is learnt, so a run may be continued with others.
NOT_LEARNT_FROM = {"checkpoint", "sample_tokens", "csv_log", "wandb_project"}


def bits_per_byte(loss: float, file: TokenFile) -> float:
    """A loss in nats per token of this file, in bits per byte of its text."""
    return loss / math.log(2) * file.n_tokens / max(1, file.manifest.n_bytes)


def unigram_entropy(counts: np.ndarray) -> float:
    """Nats per token that a model without context cannot get below; counts is int64[vocab_size]."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def learning_rate_share(step: int, max_iters: int) -> float:
    """The share of the highest learning rate in a step: warm up, hold, fall to 0."""
    warm_up = min(1.0, (step + 1) / min(30, max_iters))
    return warm_up * min(1.0, (max_iters - step) / (0.6 * max_iters))


class Run:
    """A model, its optimizer and its random numbers, at some step; all of it saved and restored."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.device = settings.device or ("cuda" if torch.cuda.is_available() else "cpu")
        data = Path(settings.data)
        prefix = f"{settings.name}_" if settings.name else ""
        self.tokenizer = Tokenizer.from_file(data / "tokenizer.json")
        self.train, self.validation = (
            open_tokens(data / f"{prefix}{split}.bin", tokenizer=self.tokenizer)
            for split in ("train", "val")
        )
        if self.validation.n_tokens < 2:
            raise ExampleError(
                f"{data / f'{prefix}val.bin'}: has {self.validation.n_tokens} tokens, and a "
                "validation loss needs at least 2; build it from more text"
            )
        self.counts = np.bincount(self.train.tokens, minlength=self.train.vocab_size)
        ranks = np.empty(self.train.vocab_size, np.int64)
        ranks[np.argsort(-self.counts, kind="stable")] = np.arange(self.train.vocab_size)
        torch.manual_seed(settings.seed)
        shape = GPTShape(
            self.train.vocab_size,
            settings.context_length,
            settings.n_layers,
            settings.n_heads,
            settings.width,
        )
        self.model = GPT(shape, torch.from_numpy(ranks)).to(self.device)
        embedding = [self.model.embedding.weight]
        others = [p for name, p in self.model.named_parameters() if name != "embedding.weight"]
        self.optimizer = torch.optim.AdamW(
            [
                {"params": embedding, "weight_decay": 0.0, "rate": EMBEDDING_RATE},
                {"params": [p for p in others if p.ndim < 2], "weight_decay": 0.0, "rate": 1.0},
                {"params": [p for p in others if p.ndim >= 2], "rate": 1.0},
            ],
            lr=settings.learning_rate,
            betas=(0.9, 0.95),
            weight_decay=settings.weight_decay,
            fused=True,  # a fifth less work on a CPU
        )
        self.sampler = Sampler(
            self.train,
            settings.batch_size,
            settings.context_length,
            order="epoch" if settings.epochs else "random",
            seed=settings.seed,
            device=self.device,
        )
        self.max_iters = settings.max_iters
        if settings.epochs:
            self.max_iters = settings.epochs * len(self.sampler)

    @property
    def step(self) -> int:
        """The number of steps taken, which is that of batches drawn."""
        return self.sampler.step

    def advance(self) -> float:
        """Take one step; the loss of its batch, in nats per token."""
        settings = self.settings
        share = learning_rate_share(self.step, self.max_iters)
        for group in self.optimizer.param_groups:
            group["lr"] = settings.learning_rate * group["rate"] * share
        batch = self.sampler.batch(self.step)
        loss = self.model(batch["inputs"], batch["targets"])
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.sampler.step += 1
        return float(loss.detach())

    @torch.no_grad()
    def validation_loss(self) -> float:
        """Mean loss over the same windows of the validation file every time, in nats per token."""
        settings = self.settings
        length = min(settings.context_length, self.validation.n_tokens - 1)
        rng = np.random.default_rng(0)
        losses, left = 0.0, settings.validation_windows
        while left > 0:
            size = min(left, settings.batch_size)
            batch = get_batch(self.validation, size, length, self.device, rng=rng)
            losses += size * float(self.model(*batch))
            left -= size
        return losses / settings.validation_windows

    def sample(self) -> str:
        """Text that the model writes from the start of a document."""
        ids: list[int] = []
        end_of_text = self.train.manifest.end_of_text_id
        generator = torch.Generator().manual_seed(self.settings.seed)
        for token in self.model.generate(
            [end_of_text], temperature=0.7, top_k=50, generator=generator
        ):
            if len(ids) == self.settings.sample_tokens or token == end_of_text:
                break
            ids.append(token)
        return self.tokenizer.decode(ids)

    def identity(self) -> dict[str, Any]:
        """What must be the same for a saved state to be continued."""
        settings = asdict(self.settings) | {"device": self.device}
        learnt_from = {k: v for k, v in settings.items() if k not in NOT_LEARNT_FROM}
        for split, file in (("train.bin", self.train), ("val.bin", self.validation)):
            manifest = file.manifest.to_json().encode()
            learnt_from[f"contents of {split}"] = hashlib.sha256(manifest).hexdigest()[:16]
        # The place does not matter where the contents are the same.
        del learnt_from["data"], learnt_from["name"]
        return learnt_from

    def save(self) -> None:
        """Write the state, under its final name only once it is complete."""
        path = Path(self.settings.checkpoint)
        partial = path.with_name(path.name + ".partial")
        state = {
            "identity": self.identity(),
            "sampler": self.sampler.state_dict(),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "torch_rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state_all() if self.device.startswith("cuda") else [],
        }
        with open(partial, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)

    def restore(self) -> None:
        """Continue from the saved state.

        Raises:
            ExampleError: It is not a state, or one of other settings or data.
        """
        path = Path(self.settings.checkpoint)
        try:
            # weights_only: a checkpoint from a stranger cannot run code.
            state = torch.load(path, map_location="cpu", weights_only=True)
            saved = state["identity"]
        except Exception as error:
            raise ExampleError(
                f"{path}: cannot be read as a saved state ({error}); remove it or choose another "
                "--checkpoint"
            ) from error
        wanted = self.identity()
        differ = [key for key in wanted if saved.get(key) != wanted[key]]
        if differ:
            changes = "; ".join(f"{key} was {saved.get(key)}, is {wanted[key]}" for key in differ)
            raise ExampleError(
                f"{path}: saved by a run with other settings ({changes}): continue it with its "
                "own, start anew with --overwrite, or choose another --checkpoint"
            )
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["torch_rng"])
        if state["cuda_rng"]:
            torch.cuda.set_rng_state_all(state["cuda_rng"])
        self.sampler.load_state_dict(state["sampler"])


def start_wandb(run: Run) -> Any:
    """A Weights & Biases run, or None if none was asked for."""
    if not run.settings.wandb_project:
        return None
    try:
        import wandb
    except ImportError as error:
        raise ExampleError(
            "--wandb-project needs Weights & Biases: pip install wandb, or leave the option out"
        ) from error
    return wandb.init(project=run.settings.wandb_project, config=asdict(run.settings))


def prepare_to_write(path: Path, option: str) -> None:
    """Make the directory of a file; raise ExampleError if the file could not be written there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        taken = isinstance(error, FileExistsError)
        reason = f"{path.parent} is no directory" if taken else error.strerror
        raise ExampleError(
            f"{path}: cannot be written ({reason}); choose another {option}"
        ) from error


class CSVLog:
    """A CSV file with a line for each report.

    Args:
        path: The file.
        step: Of the saved state that the run continues from; later lines are dropped.
        may_exist: False for a new run, which must not erase the log of another.

    Raises:
        ExampleError: The file exists and is no such log, or must not exist; or cannot be written.
    """

    COLUMNS = "step", "train_loss", "train_bits_per_byte", "val_loss", "val_bits_per_byte"

    def __init__(self, path: Path, step: int, *, may_exist: bool) -> None:
        prepare_to_write(path, "--csv-log")
        self.path = path
        self.rows: list[list[str]] = []
        if path.exists():
            # Bytes that are no text make a head that is not that of a log.
            with open(path, newline="", encoding="utf-8", errors="replace") as file:
                try:
                    head, *rows = [*csv.reader(file)] or [[]]
                except csv.Error:  # a line that is too long for a log
                    head, rows = [], []
            if tuple(head) != self.COLUMNS or not all(row and row[0].isdigit() for row in rows):
                raise ExampleError(
                    f"{path}: is no log of losses, whose first line is {','.join(self.COLUMNS)}; "
                    "choose another --csv-log"
                )
            if not may_exist:
                raise ExampleError(
                    f"{path}: is the log of another run, and this run is new; choose another "
                    "--csv-log, remove the file, continue that run with its --checkpoint, or "
                    "replace it with --overwrite"
                )
            self.rows = [row for row in rows if int(row[0]) <= step]

    def write(self, step: int, values: dict[str, float]) -> None:
        """Add a line, and replace the file."""
        self.rows.append([str(step), *(f"{values[name]:.6f}" for name in self.COLUMNS[1:])])
        partial = self.path.with_name(self.path.name + ".partial")
        with open(partial, "w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([self.COLUMNS, *self.rows])
        os.replace(partial, self.path)


def train(settings: Settings, *, overwrite: bool) -> None:
    """Train to the end, from the start or the saved state, and print a sample of text."""
    run = Run(settings)
    n_weights = sum(weights.numel() for weights in run.model.parameters())
    print(
        f"{n_weights / 1e6:.1f} million weights, {run.train.n_tokens:,} tokens to train on, "
        f"{run.validation.n_tokens:,} to validate on, on {run.device}"
    )
    for split, counts, file in (
        ("train", run.counts, run.train),
        ("val", np.bincount(run.validation.tokens), run.validation),
    ):
        entropy = unigram_entropy(counts)
        print(
            f"unigram entropy of {split}: {entropy:.4f} nats per token, "
            f"{bits_per_byte(entropy, file):.4f} bits per byte"
        )
    prepare_to_write(Path(settings.checkpoint), "--checkpoint")
    resumes = Path(settings.checkpoint).exists() and not overwrite
    if resumes:
        run.restore()
        print(f"continued from step {run.step} of {settings.checkpoint}")
    csv_log = None
    if settings.csv_log:
        csv_log = CSVLog(Path(settings.csv_log), run.step, may_exist=resumes or overwrite)
    wandb_run = start_wandb(run)
    losses: list[float] = []
    began = time.perf_counter()
    while run.step < run.max_iters:
        losses.append(run.advance())
        if run.step % settings.report_every and run.step < run.max_iters:
            continue
        measured = {"train": sum(losses) / len(losses), "val": run.validation_loss()}
        seconds = time.perf_counter() - began
        rate = len(losses) * settings.batch_size * settings.context_length / seconds
        per_byte = {
            "train": bits_per_byte(measured["train"], run.train),
            "val": bits_per_byte(measured["val"], run.validation),
        }
        values = {f"{k}_loss": v for k, v in measured.items()}
        values |= {f"{k}_bits_per_byte": v for k, v in per_byte.items()}
        # Before the state is saved: if a kill comes between, the line is written again.
        if csv_log is not None:
            csv_log.write(run.step, values)
        run.save()
        print(
            f"step {run.step}/{run.max_iters}: "
            + ", ".join(
                f"{k} loss {measured[k]:.4f} ({per_byte[k]:.4f} bits/byte)" for k in per_byte
            )
            + f", {rate:,.0f} tokens/s",
            flush=True,
        )
        if wandb_run is not None:
            named = {name.replace("_", "/", 1): value for name, value in values.items()}
            wandb_run.log(named, step=run.step)
        losses = []
        began = time.perf_counter()
    if wandb_run is not None:
        wandb_run.finish()
    print(f"\na sample:\n{run.sample()}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    settings, overwrite = parse_arguments(arguments)
    try:
        train(settings, overwrite=overwrite)
    except (ExampleError, TokenmillError, OSError) as error:
        print(f"train_gpt.py: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; the same command continues from the last report", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

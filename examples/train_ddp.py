"""Train a small GPT in several processes on a CPU, each with its share of every batch.

    torchrun --nproc-per-node 2 examples/train_ddp.py --data data

The state is saved every few steps, and the same command continues from there, also with another
number of processes: the batches are those of a run that was never stopped. With the same number of
processes the losses are equal to the last bit.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from gpt import GPT, GPTShape
from torch.nn.parallel import DistributedDataParallel

from bpe.errors import TokenmillError
from preprocess import Sampler, open_tokens

START = "torchrun --nproc-per-node 2 examples/train_ddp.py --data data"


def at_least_one(text: str) -> int:
    """The value of an option."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"should be an integer of at least 1; got {text}")
    return int(text)


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line, and check that torchrun started this process."""
    parser = argparse.ArgumentParser(
        prog="train_ddp.py",
        usage="torchrun --nproc-per-node N examples/%(prog)s [--OPTION VALUE ...]",
        description="Train a small GPT in several processes.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--data", type=Path, default=Path("data"), help="directory with train.bin")
    parser.add_argument(
        "--checkpoint",
        type=Path,
        default=Path("checkpoints/ddp.pt"),
        help="file where the state is saved and continued from",
    )
    for name, default, description in (
        ("--global-batch-size", 16, "windows in a step, of all processes"),
        ("--context-length", 128, "tokens in a window"),
        ("--epochs", 1, "passes that have each window once"),
        ("--max-steps", 200, "steps at most, if the epochs have more"),
        ("--save-every", 10, "steps between saves"),
    ):
        parser.add_argument(name, type=at_least_one, default=default, metavar="N", help=description)
    settings = parser.parse_args(arguments)
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        parser.error(f"it has to be started by torchrun: {START}")
    world_size = int(os.environ["WORLD_SIZE"])
    if settings.global_batch_size % world_size:
        # Gradients are averaged over processes, so each must have as many windows as the others.
        parser.error(
            f"--global-batch-size should be a multiple of the {world_size} processes; got"
            f" {settings.global_batch_size}"
        )
    return settings


def train(settings: argparse.Namespace) -> None:
    """Train from the start or the saved state; process 0 prints and saves."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(0)  # the same first weights everywhere

    file = open_tokens(settings.data / "train.bin")
    sampler = Sampler(
        file,
        settings.global_batch_size,
        settings.context_length,
        order="epoch",
        rank=rank,
        world_size=world_size,
        device="cpu",
    )
    shape = GPTShape(file.vocab_size, settings.context_length, n_layers=2, n_heads=2, width=64)
    plain = GPT(shape, torch.arange(file.vocab_size))
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3)
    settings.checkpoint.parent.mkdir(parents=True, exist_ok=True)
    if settings.checkpoint.exists():
        state = torch.load(settings.checkpoint, weights_only=True)
        sampler.load_state_dict(state["sampler"])  # first: it refuses a state of other data
        plain.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    # The softmax leaves out parts of itself whose tokens are not in a batch.
    model = DistributedDataParallel(plain, find_unused_parameters=True)

    n_steps = min(settings.epochs * len(sampler), settings.max_steps)
    for step in range(sampler.step, n_steps):
        batch = sampler.batch(step)
        loss = model(batch["inputs"], batch["targets"])
        optimizer.zero_grad()
        loss.backward()  # gradients are means over the processes
        optimizer.step()
        sampler.step = step + 1
        total = loss.detach().clone()
        dist.all_reduce(total)
        if rank == 0:
            print(f"step {step + 1}/{n_steps}: loss {float(total) / world_size!r}", flush=True)
            if (step + 1) % settings.save_every == 0 or step + 1 == n_steps:
                partial = settings.checkpoint.with_suffix(".partial")
                state = {
                    "model": plain.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "sampler": sampler.state_dict(),
                }
                torch.save(state, partial)
                os.replace(partial, settings.checkpoint)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    settings = parse_arguments(arguments)
    dist.init_process_group("gloo")
    try:
        train(settings)
    except (TokenmillError, OSError) as error:
        print(f"train_ddp.py: error: {error}", file=sys.stderr)
        return 1
    finally:
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())

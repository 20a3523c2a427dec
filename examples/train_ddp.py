"""Train a small GPT in several processes on a CPU, each with its share of every batch.

    torchrun --nproc-per-node 2 examples/train_ddp.py --data data

The state is saved every few steps, and the same command continues from there, also with another
number of processes: the batches are those of a run that was never stopped. With the same number of
processes the losses are equal to the last bit.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from gpt import GPT, GPTShape
from torch.nn.parallel import DistributedDataParallel

from preprocess import Sampler, open_tokens


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Train a small GPT in several processes.")
    parser.add_argument("--data", type=Path, default=Path("data"), help="has train.bin")
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoints/ddp.pt"))
    parser.add_argument("--global-batch-size", type=int, default=16, help="of all processes")
    parser.add_argument("--context-length", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--max-steps", type=int, default=200, help="at most so many")
    parser.add_argument("--save-every", type=int, default=10, help="steps")
    return parser.parse_args()


def main() -> None:
    """Train from the start or the saved state; process 0 prints and saves."""
    settings = parse_arguments()
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if settings.global_batch_size % world_size:
        # Gradients are averaged over processes, so each must have as many windows as the others.
        raise SystemExit(
            f"--global-batch-size should be a multiple of the {world_size} processes; got"
            f" {settings.global_batch_size}"
        )
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
    if settings.checkpoint.exists():
        state = torch.load(settings.checkpoint, weights_only=True)
        plain.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        sampler.load_state_dict(state["sampler"])
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
                settings.checkpoint.parent.mkdir(parents=True, exist_ok=True)
                partial = settings.checkpoint.with_suffix(".partial")
                state = {
                    "model": plain.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "sampler": sampler.state_dict(),
                }
                torch.save(state, partial)
                os.replace(partial, settings.checkpoint)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

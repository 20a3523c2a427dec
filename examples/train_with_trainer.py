"""Train a model of transformers with its Trainer, on packed documents.

    pip install 'tokenmill[torch,hf]' accelerate
    python examples/train_with_trainer.py data
    python examples/train_with_trainer.py data --max-steps 200 --resume

The Trainer shuffles windows, divides them among processes, saves and resumes by itself.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from bpe.errors import TokenmillError
from preprocess import Sampler, WindowDataset, open_tokens

CONTEXT_LENGTH = 128


def train(data: Path, output: Path, max_steps: int, *, resume: bool) -> Trainer:
    """Train on the train.bin of a directory."""
    file = open_tokens(data / "train.bin")
    end_of_text = file.manifest.end_of_text_id
    sampler = Sampler(
        file,
        global_batch_size=1,  # the Trainer makes batches
        context_length=CONTEXT_LENGTH,
        windows="packed",
        order="sequential",  # the Trainer shuffles
        fields=("input_ids", "labels", "position_ids"),
    )
    config = GPT2Config(
        vocab_size=file.vocab_size, n_positions=CONTEXT_LENGTH, n_embd=64, n_layer=2, n_head=2,
        bos_token_id=end_of_text, eos_token_id=end_of_text,
    )  # fmt: skip
    arguments = TrainingArguments(
        output_dir=str(output), per_device_train_batch_size=16, max_steps=max_steps,
        learning_rate=1e-3, logging_steps=10, save_steps=50, report_to=[],
        dataloader_pin_memory=torch.cuda.is_available(),
    )  # fmt: skip
    trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=WindowDataset(sampler))
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="train_with_trainer.py",
        description="Train a small model of transformers with its Trainer, on packed documents.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("data", type=Path, help="directory with train.bin")
    parser.add_argument(
        "--output", type=Path, default=Path("checkpoints/trainer"), help="directory of checkpoints"
    )
    parser.add_argument("--max-steps", type=int, default=100, help="steps, at least 1")
    parser.add_argument(
        "--resume", action="store_true", help="continue from the last checkpoint in --output"
    )
    settings = parser.parse_args(arguments)
    if settings.max_steps < 1:
        parser.error(f"--max-steps should be at least 1; got {settings.max_steps}")
    return settings


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    settings = parse_arguments(arguments)
    has_checkpoints = any(settings.output.glob("checkpoint-*"))
    problem = ""
    if has_checkpoints and not settings.resume:
        problem = (
            f"{settings.output}: has checkpoints of another run; continue it with --resume, "
            "choose another --output, or remove them"
        )
    elif settings.resume and not has_checkpoints:
        problem = (
            f"{settings.output}: has no checkpoint to continue from; leave out --resume, or name "
            "the --output of the run"
        )
    else:
        try:
            train(settings.data, settings.output, settings.max_steps, resume=settings.resume)
        except (TokenmillError, OSError) as error:
            problem = str(error)
    if problem:
        print(f"train_with_trainer.py: error: {problem}", file=sys.stderr)
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())

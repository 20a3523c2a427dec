"""Conversations to token ids, through a chat template, beside transformers.

Law: both sides render the same conversations with the same template, and the ids are equal. Ours
makes a loss mask as well, and files. The first conversations, which load libraries and compile the
template, are not timed.
"""

from __future__ import annotations

import json
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.job import OURS, Clock, Job, Result, digest_of, documents, side
from benchmarks.token_files import new_directory

_TURNS = 6
_CHARACTERS = 200  # of a turn
_BYTES = 60_000_000
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' }}{% if message['role'] == 'assistant'"
    " %}{% generation %}{{ message['content'] + '<|endoftext|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '\n' }}{% endif %}{% endfor %}"
)


def conversations(job: Job) -> Path:
    """Write pieces of the documents, repeated, as turns, JSON Lines, if the file is not there."""
    path = job.directory / f"{job.corpus.stem}-chats.jsonl"
    if path.exists():
        return path
    turns = (
        text[at : at + _CHARACTERS]
        for text in cycle(documents(job.corpus))
        for at in range(0, len(text), _CHARACTERS)
    )
    roles = ("user", "assistant")
    with open(path, "w", encoding="utf-8") as file:
        rows: list[dict[str, str]] = []
        for turn in turns:
            rows.append({"role": roles[len(rows) % 2], "content": turn})
            if len(rows) == _TURNS:
                file.write(f"{json.dumps({'messages': rows})}\n")
                rows = []
            if file.tell() > _BYTES:
                break
    return path


@side("chats", OURS, package="transformers")
def chats_tokenmill(job: Job, clock: Clock) -> Result:
    """Ours: `encode`."""
    from preprocess import open_tokens
    from preprocess.pipeline import encode

    path, directory = conversations(job), new_directory(job)
    template = directory / "template.jinja"
    template.write_text(TEMPLATE)
    few = directory / "few.jsonl"
    few.write_text("".join(path.read_text("utf-8").splitlines(keepends=True)[:10]), "utf-8")

    def work(source: Path) -> Any:
        return encode(
            paths=[source], tokenizer=job.tokenizer, chat_template=str(template),
            workers=job.threads, out=directory / f"{source.stem}.bin", overwrite=True,
        )

    work(few)
    clock.time("chats", lambda: work(path))
    ids = open_tokens(directory / f"{path.stem}.bin").tokens
    return Result(path.stat().st_size, digest_of(np.asarray(ids).astype(np.int64)))


@side("chats", "apply_chat_template", package="transformers")
def chats_transformers(job: Job, clock: Clock) -> Result:
    """By transformers, one conversation after another; it makes no mask, and no files."""
    import transformers

    path = conversations(job)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(job.tokenizer))
    tokenizer.chat_template = TEMPLATE

    def work(n: int | None) -> list[Any]:
        # Few objects are kept, for Python would look through them again and again.
        with open(path, "rb") as file:
            return [
                np.array(
                    tokenizer.apply_chat_template(
                        msgspec.json.decode(line)["messages"], return_dict=False
                    ),
                    np.int64,
                )
                for line in islice(file, n)
            ]

    work(10)
    found = clock.time("chats", lambda: work(None))
    return Result(path.stat().st_size, digest_of(np.concatenate(found)))

"""Conversations, chat templates and a tokenizer, for tests."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from bpe import Tokenizer, train_bpe

SPECIAL = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>",
    "<|end_header_id|>", "<|eot_id|>", "<s>", "</s>", "[INST]", "[/INST]", "<bos>",
    "<start_of_turn>", "<end_of_turn>", "<|system|>", "<|user|>", "<|assistant|>",
]  # fmt: skip
# Of the shape of the published ones.
TEMPLATES = {
    "chatml": "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] +"
    " '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}",
    "llama3": "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m['role'] +"
    " '<|end_header_id|>\n\n' + m['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
    "{% endif %}",
    "qwen": "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are helpful."
    "<|im_end|>\n' }}{% endif %}{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' +"
    " m.content + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}",
    "mistral": "{{ '<s>' }}{% for m in messages %}{% if m['role'] == 'assistant' %}"
    "{{ ' ' + m['content'] + '</s>' }}{% else %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
    "{% endif %}{% endfor %}",
    "gemma": "{{ '<bos>' }}{% for m in messages %}{% set role = 'model' if m['role'] =="
    " 'assistant' else m['role'] %}{{ '<start_of_turn>' + role + '\n' + m['content'] | trim +"
    " '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<start_of_turn>model\n' }}{% endif %}",
    "zephyr": "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + '</s>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}",
}


def say(*contents: str, system: str | None = None) -> list[dict[str, Any]]:
    """A conversation in which user and assistant take turns."""
    roles = ("user", "assistant")
    found = [{"role": roles[i % 2], "content": text} for i, text in enumerate(contents)]
    return ([] if system is None else [{"role": "system", "content": system}]) + found


DIALOGUES = [
    say("Hello there", "Hi! How can I help?", "Count to three", "1, 2, 3"),
    say("Merhaba, nasılsın?", "İyiyim 🙂 teşekkürler", system="Be kind."),
    say("  leading and trailing  ", "\n\nlines\n", "", "an empty question"),
    say("e\u0301 and é", "naïve 👩‍👩‍👧 ok", "x", "y", "z", "last words"),
    say("Only a question? ", "yes", "and one more"),
]


def make_model(path: Path) -> Path:
    """Write a tokenizer with the special tokens into a directory."""
    text = " ".join(m["content"] for each in DIALOGUES for m in each) * 3
    tokenizer: Tokenizer = train_bpe([text], 340, special_tokens=SPECIAL)
    tokenizer.save(path / "tokenizer.json")
    config = json.loads((path / "tokenizer_config.json").read_text())
    config |= {"bos_token": "<|begin_of_text|>", "eos_token": "<|endoftext|>"}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


def with_template(model: Path, directory: Path, template: str) -> Path:
    """A copy of the model with a chat template."""
    shutil.copytree(model, directory)
    (directory / "chat_template.jinja").write_text(template)
    return directory


def write(path: Path, dialogues: list[Any]) -> Path:
    path.write_text("".join(json.dumps({"messages": each}) + "\n" for each in dialogues))
    return path

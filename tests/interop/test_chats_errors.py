"""Conversations, templates and options that cannot be used; each says why."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from chat_cases import DIALOGUES, TEMPLATES, say, with_template, write

from bpe import ArgumentError, train_bpe
from preprocess import ChatTemplateTransform, CorpusError, build, open_tokens
from preprocess.documents import chat_template, template_sandbox
from preprocess.documents.chat_template import ChatFormat, render
from preprocess.documents.template_sandbox import ChatTemplateError
from preprocess.settings import SettingsError

transformers = pytest.importorskip("transformers", reason="needs the extra `chat`")


# Templates of strangers.


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ ''.__class__.__mro__ }}", "refuses the conversation: SecurityError"),
        ("{{ messages.append(1) }}", "refuses the conversation: SecurityError"),
        ("{{ range(10 ** 9) }}", "refuses the conversation: OverflowError"),
        ("{{ 'x' * 10000000 * 10000000 }}", "a value would have more than 67,108,864 elements"),
        ("{{ 10 ** 100000 }}", "a power would have more than 65,536 bits"),
        (
            "{% set a = 10 ** 1000 %}{% set b = a ** 1000 %}{{ b ** 300 }}",
            "a power would have more than 65,536 bits",
        ),
        ("{{ '%0999999999d' % 3 }}", "the format '%0999999999d' has a large width"),
        ("{{ 'x' | center(99999999999) }}", "the argument 99999999999 is above 67,108,864"),
        ("{{ 'x'.ljust(99999999999) }}", "the argument 99999999999 is above 67,108,864"),
        ("{% set x = 'x' * 60000000 %}{{ x }}{{ x }}", "it writes more than 67,108,864 characters"),
        ("{% raise_exception('roles') %}", "is no Jinja template .*; correct it"),
        ("{{ raise_exception('roles must alternate') }}", "TemplateError: roles must alternate"),
    ],
)
def test_hostile_templates(template: str, message: str) -> None:
    with pytest.raises(ChatTemplateError, match=message):
        render(say("a", "b"), ChatFormat(template, ()))


def test_a_template_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_sandbox, "_SECONDS", 0.05)
    monkeypatch.setattr(template_sandbox, "_LOOK_SECONDS", 0.01)
    loops = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(ChatTemplateError, match=r"takes more than 0.05 seconds for a conversation"):
        render(say("a", "b"), ChatFormat(loops, ()))


# Errors.


@pytest.mark.parametrize(
    ("template", "message"),
    [("{% for", "template is no Jinja template .*; correct it$"),
     ("{{ strftime_now('%Y') }}", "template writes the date of today, .* give the date"),
     ("chatml", "^conversations are rendered with transformers, which is not installed; install")],
)  # fmt: skip
def test_templates_that_cannot_be_used_make_no_record_bad(
    template: str, message: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "template").write_text(template)
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": say("a", "b")}) + "\n")
    if template == "chatml":
        template_sandbox._environment.cache_clear()
        chat_template._template.cache_clear()
        monkeypatch.setitem(sys.modules, "transformers.utils.chat_template_utils", None)
    with pytest.raises(CorpusError, match=message):
        build(
            train=tmp_path / "chats.jsonl", val_fraction=0, tokenizer=model, out=tmp_path / "out",
            chat_template=str(tmp_path / "template"), on_bad_record="skip",
        )
    assert not [*tmp_path.glob("out/.*")]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"messages": []}, "line 2 .*: the conversation has no message; remove it"),
        ({"messages": 5}, "messages is a number, expected a list of messages; correct"),
        ({"messages": ["a"]}, "message 1 is text, expected an object with a role; correct or"),
        (
            {"messages": [{"role": "<|im_start|>", "content": "a"}]},
            r"message 1 has the role '<\|im_start\|>', expected one of system, developer, us",
        ),
        ({"messages": [{"role": "user"}]}, "message 1: content is null, expected text; corr"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "message 1: content has a part that is not text; remove it, for only text",
        ),
        ({"messages": say("a")}, "the conversation has nothing to train on; remove it, or train"),
        (
            {"messages": [{"role": "assistant", "content": "a"}], "tools": "{"},
            r"tools is no JSON \(.*\); correct it",
        ),
        (
            {"messages": say("a", "b"), "tools": ["a"]},
            "an element of tools is text, expected an object; correct or remove it",
        ),
        ({"other": 1}, "has no field 'messages', its fields are 'other'; choose another"),
    ],
)
def test_bad_conversations(record: Any, message: str, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps(x) + "\n" for x in ({"messages": say("a", "b")}, record)))
    options: dict[str, Any] = {"train": path, "val_fraction": 0, "tokenizer": model}
    options["chat_template"] = "chatml"
    with pytest.raises(CorpusError, match=message):
        build(**options, out=tmp_path / "out")
    build(**options, on_bad_record="skip", out=tmp_path / "skipped")
    assert open_tokens(tmp_path / "skipped" / "train.bin").n_documents == 1
    (rejected,) = (tmp_path / "skipped" / "rejects.jsonl").read_text().splitlines()
    assert json.loads(rejected)["record"] == 2


def test_a_transform_that_cannot_be(model: Path, tmp_path: Path) -> None:
    for options, kind, message in [
        ({"train_on": "last"}, SettingsError, "train_on: should be 'assistant', 'all' or 'last-a"),
        ({"chat": "message"}, SettingsError, r"chat: should be 'auto', .*'messages', 'sharegpt'"),
        *(({"chat_date": day}, SettingsError, "chat_date: should be a date, YYYY-MM-DD; got")
          for day in ("2025-2-3", "20250203", "2025-W06-1", "2025-02-03T00:00")),
        ({}, CorpusError, "the tokenizer has no chat template; give one: chat_template, a file"),
    ]:
        with pytest.raises(kind, match=message):
            ChatTemplateTransform(model, **options)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="tokenizer: should be a path, a name or a tok"):
        ChatTemplateTransform(object())


def test_bad_kinds(model: Path, tmp_path: Path) -> None:
    transform = ChatTemplateTransform(model, chat_template="chatml")
    for record, message in (
        ({"prompt": 5, "completion": "a"}, "prompt is a number, expected text or a list of m"),
        ({"conversations": [{"from": "gpt"}]}, "message 1: value is null, expected text; corre"),
        *(({"messages": say(*texts)}, "^has a lone surrogate, which is no character; correct or")
          for texts in (("a\ud800", "b"), ("a", "<\udc00"))),
        ({"x": 1}, "a record should have a conversation, such as messages; it has x"),
    ):
        with pytest.raises(CorpusError, match=message):
            transform(record)
    for wrong in (3, None, "x", [record]):
        with pytest.raises(ArgumentError, match="record: should be a mapping; got "):
            transform(wrong)  # type: ignore[arg-type]
    pa = pytest.importorskip("pyarrow", reason="needs the extra `formats`")
    from pyarrow import parquet

    rows = [{"messages": say("a", "b")}, {"messages": say("a")}]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    options = {"val_fraction": 0, "tokenizer": model, "chat_template": "chatml"}
    with pytest.raises(CorpusError, match=r"x\.parquet: row 1: the conversation has nothing to"):
        build(train=tmp_path / "x.parquet", **options, out=tmp_path / "out")  # type: ignore[arg-type]
    with pytest.raises(CorpusError, match="has 0 columns named 'prompt', expected one, for conver"):
        build(
            train=tmp_path / "x.parquet", chat="prompt-completion", **options,  # type: ignore[arg-type]
            out=tmp_path / "out",
        )


def test_what_cannot_be_chosen(model: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "chats.jsonl", [say("a", "b")])
    both = tmp_path / "both.jsonl"
    both.write_text(json.dumps({"messages": say("a", "b"), "text": "a b"}) + "\n")
    (tmp_path / "x.txt").write_text("text")
    (tmp_path / "bad.jinja").write_bytes(b"\xff")
    options: dict[str, Any] = {"val_fraction": 0, "tokenizer": model, "out": tmp_path / "out"}
    chatml = {"chat_template": "chatml"}
    found: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"train": path}, CorpusError, "and no chat template is known; give a tokenizer"),
        ({"train": path, "tokenizer": None}, CorpusError, "and no chat template is known; give a"),
        ({"train": both, **chatml}, CorpusError, r"records have conversations \('messages'\) and"),
        ({"train": tmp_path / "x.txt", "chat": "messages"}, CorpusError,
         "chat messages is given, and no file has conversations; leave"),
        ({"train": path, "chat": "messages", "content_field": "x"}, SettingsError,
         "chat 'messages' has fields of its own; leave out content_field"),
        ({"train": path, "max_characters": 1, "cut_documents": True, **chatml}, SettingsError,
         "conversations are not cut; leave out cut_documents"),
        ({"train": path, "chat_template": str(tmp_path / "no")}, SettingsError,
         r"chat_template .* cannot be read \(No such file or directory\); give a file with"),
        ({"train": path, "chat_template": str(tmp_path / "bad.jinja")}, SettingsError,
         r"cannot be read \(it is not UTF-8\); give a file with"),
        ({"train": path, "chat_template": "/dev/null"}, SettingsError, r"\(it is a device\)"),
    ]  # fmt: skip
    for more, kind, message in found:
        with pytest.raises(kind, match=message):
            build(**options | more)
    plain = train_bpe(["some text"], 260, special_tokens=["<|endoftext|>"])
    plain.save(tmp_path / "plain.json")
    with pytest.raises(ChatTemplateError, match=r"no special token <\|im_start\|>, <\|im_end\|>"):
        build(**options | {"train": path, "tokenizer": tmp_path / "plain.json", **chatml})
    named = with_template(model, tmp_path / "named", "")
    (named / "chat_template.jinja").unlink()
    config = json.loads((named / "tokenizer_config.json").read_text())
    lists = [{"name": "default", "template": TEMPLATES["chatml"]}]
    # transformers reads both.
    for given in (lists, {"default": TEMPLATES["chatml"]}):
        (named / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": given}))
        assert ChatTemplateTransform(named)({"messages": say("a", "b")})["loss_mask"].any()
    (named / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": 5}))
    with pytest.raises(Exception, match="chat_template is no text: expected a Jinja template"):
        ChatTemplateTransform(named)


def test_outputs_of_another_template_are_out_of_date(model: Path, tmp_path: Path) -> None:
    own = with_template(model, tmp_path / "model", TEMPLATES["chatml"])
    path = write(tmp_path / "chats.jsonl", DIALOGUES)
    options: dict[str, Any] = {"train": path, "val_fraction": 0, "tokenizer": own}
    build(**options, out=tmp_path / "out")
    (own / "chat_template.jinja").write_text(TEMPLATES["gemma"])
    with pytest.raises(Exception, match=r"chat_template was '.*' and is '.*'"):
        build(**options, out=tmp_path / "out")

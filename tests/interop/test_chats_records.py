"""Conversations as real data has them: each part is used, or the record is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from chat_cases import TEMPLATES, say, with_template

from bpe.errors import TokenizerFileError
from preprocess import ChatTemplateTransform, CorpusError, build, open_tokens
from preprocess.cli import run
from preprocess.settings import SettingsError

transformers = pytest.importorskip("transformers", reason="needs the extra `chat`")

TURN = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
# Writes calls after content, results of tools, reasoning and tools.
FULL = (
    "{% if tools %}{{ '<|system|>' + tools | tojson }}{% endif %}" + TURN
    + "{% if m.reasoning_content %}{{ '<think>' + m.reasoning_content + '</think>' }}{% endif %}"
    "{{ m.content or '' }}{% for call in m.tool_calls or [] %}{% set f = call.function or call %}"
    "{{ '<tool_call>' + f.name }}"
    "{{ f.arguments if f.arguments is string else f.arguments | tojson }}"
    "{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Asks whether the content is null, and only then writes calls.
OF_NULL = (
    "{% for m in messages %}{% if m.role == 'assistant' and m['content'] is none %}"
    "{{ '<|assistant|>' }}{% for c in m['tool_calls'] %}{{ c['function']['name'] + ': ' +"
    " c['function']['arguments'] }}{% endfor %}{{ '</s>' }}{% elif m.role == 'assistant' %}"
    "{{ '<|assistant|>' + m['content'] + '</s>' }}{% else %}{{ '<|user|>' + m['content'] }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
CALL = {"type": "function", "function": {"name": "weather", "arguments": '{"at": "Rome"}'}}
OF_LIST = {"type": "function", "function": {"name": "other", "arguments": {"x": None}}}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
USER = {"role": "user", "content": "q"}
RESULT = {"role": "tool", "content": "sun", "tool_call_id": "1"}


@pytest.fixture
def of(model: Path, tmp_path: Path) -> Any:
    """Returns what is encoded and trained on of a record, with a template."""

    def encode(record: Any, template: str = FULL, **options: Any) -> tuple[str, str]:
        path = tmp_path / str(len([*tmp_path.iterdir()]))
        transform = ChatTemplateTransform(with_template(model, path, template), **options)
        found = transform(record)
        ids, mask = found["input_ids"], found["loss_mask"]
        decode = transform.tokenizer.decode
        return decode(ids), decode(ids[mask == 1])

    return encode


# Parts of a record.


@pytest.mark.parametrize(
    ("record", "messages", "tools"),
    [
        ({"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}]},
         [USER, {"role": "assistant", "tool_calls": [CALL]}], None),
        ({"messages": [USER, {"role": "assistant", "tool_calls": [CALL, OF_LIST]}, RESULT]},
         [USER, {"role": "assistant", "tool_calls": [CALL, OF_LIST]}, RESULT], None),
        ({"messages": [{**USER, "tool_calls": None, "name": None}, *say("", "b")[1:]]},
         say("q", "b"), None),
        ({"messages": [USER, {"role": "assistant", "content": "b", "tool_calls": []}]},
         say("q", "b"), None),
        ({"messages": [USER, {"role": "assistant", "content": "b", "thinking": "c"}]},
         [USER, {"role": "assistant", "content": "b", "reasoning_content": "c"}], None),
        ({"messages": [USER, {"role": "assistant", "content": "b", "thinking": "c",
                              "reasoning": "c", "reasoning_content": "", "refusal": None}]},
         [USER, {"role": "assistant", "content": "b", "reasoning_content": "c"}], None),
        ({"messages": [USER, {"role": "assistant", "function_call": CALL["function"]}]},
         [USER, {"role": "assistant", "tool_calls": [CALL]}], None),
        ({"conversations": [{"from": "human", "value": "q"},
                            {"from": "function_call", "value": json.dumps(CALL["function"])},
                            {"from": "observation", "value": "sun"}]},
         [USER, {"role": "assistant", "tool_calls": [CALL]}, RESULT], None),
        ({"conversations": say("q", "b")}, say("q", "b"), None),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "q"}]},
                       *say("", "b")[1:]]}, say("q", "b"), None),
        ({"messages": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "b"}]},
         say("q", "b"), None),
        *(({"messages": [USER, {"role": role, "content": "sun"}, *say("", "b")[1:]]},
           [USER, RESULT, *say("", "b")[1:]], None)
          for role in ("observation", "ipython", "environment", "function")),
        *(({"messages": say("q", "b"), name: "kind"}, say("q", "b", system="kind"), None)
          for name in ("system", "system_prompt", "system_message")),
        ({"conversations": [{"role": "user", "value": "q", "weight": 1, "train": True},
                            {"role": "gpt", "value": "b"}]}, say("q", "b"), None),
        ({"prompt": "q", "completion": "b", "system": "kind"}, say("q", "b", system="kind"), None),
        ({"prompt": "q", "completion": "b", "label": True, "kto_tag": None}, say("q", "b"), None),
        ({"messages": say("q", "b"), "label": 0}, say("q", "b"), None),
        ({"messages": say("q", "b"), "system": None, "tools": "[]", "images": []},
         say("q", "b"), None),
        ({"messages": say("q", "b"), "tools": "{}"}, say("q", "b"), None),
        ({"messages": say("q", "b"), "tools": TOOLS}, say("q", "b"), TOOLS),
        ({"messages": say("q", "b"), "tools": json.dumps(TOOLS), "functions": []},
         say("q", "b"), TOOLS),
        ({"messages": say("q", "b"), "functions": [TOOLS[0]["function"]]}, say("q", "b"), TOOLS),
    ],
)  # fmt: skip
def test_parts_reach_the_template_as_those_of_transformers(
    record: Any, messages: Any, tools: Any, model: Path, of: Any
) -> None:
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(model)
    text = theirs.apply_chat_template(messages, tools, chat_template=FULL, tokenize=False)
    assert of(record)[0] == text


@pytest.mark.parametrize(
    ("record", "template", "message"),
    [
        ({"messages": [USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}]}, OF_NULL,
         "writes the call of 'weather' in message 2 nowhere, so it would be lost; use another te"),
        ({"messages": [USER, {"role": "assistant", "content": "a", "tool_calls": [CALL]}]},
         "chatml", "writes the call of 'weather' in message 2 nowhere, so it would be"),
        ({"messages": [USER, {"role": "assistant", "content": "Let me look.",
                              "tool_calls": [OF_LIST]}]},
         FULL.replace("{{ m.content or", "{{ '' if m.tool_calls else m.content or"),
         "writes the content beside a call in message 2 nowhere, so it would be lost"),
        *(({"messages": [USER, {"role": "assistant", "tool_calls": [
            {"function": {"name": "weather", "arguments": arguments}}]}]},
           FULL.replace("f.arguments if f.arguments is string else f.arguments | tojson", "''"),
           "writes arguments of the call of 'weather' in message 2 nowhere, so it would be lost")
          for arguments in ({"at": ["Rome"]}, '{"at": "Rome"}', {"n": 1}, {"at": [[2.5]]},
                            {"is": True})),
        ({"messages": [USER, RESULT, *say("", "b")[1:]]},
         FULL.replace("{{ m.content or", "{{ m.content if m.role != 'tool' else"),
         "writes message 2, of the role tool, nowhere, so it would be lost; use another"),
        ({"messages": say("q", "b", system="s")},
         TURN + "{% if m.role != 'system' %}{{ m.content }}{% endif %}{% endfor %}",
         "writes message 1, of the role system, nowhere, so it would be lost"),
        ({"messages": say("q", "b")},
         "{% for m in messages %}{% for x in m.content %}{{ x.text }}{% endfor %}{% endfor %}",
         "writes message 1, of the role user, nowhere, so it would be lost"),
        ({"messages": [USER, {"role": "assistant", "content": "b", "reasoning": "c"}]}, "chatml",
         "does not write reasoning_content, which would be lost; use another template, or"),
        *(({"messages": [USER, {"role": "assistant", "content": "b", **thoughts}]}, FULL, message)
          for thoughts, message in (
            ({"thinking": ["c"]}, "message 2: thinking is a list, expected text; correct or"),
            ({"reasoning": True}, "message 2: reasoning is a truth value, expected text"),
            ({"reasoning": "d", "thinking": "c"},
             "message 2 has thinking and reasoning, which say different things; remove one of"),
          )),
        ({"messages": say("q", "b"), "tools": TOOLS}, "chatml",
         "does not write tools, which would be lost; use another template, or remove it"),
        ({"messages": say("q", "b", system="s"), "tools": TOOLS},
         TURN + "{{ m.content }}{% if m.role == 'system' %}{{ m.tools }}{% endif %}{% endfor %}",
         "writes the tool 'weather' nowhere, so it would be lost; use another template"),
        ({"messages": say("q", "b"), "tools": [*TOOLS, {"name": "flat"}]},
         TURN + "{{ m.content }}{% endfor %}{{ tools[0].function | tojson(ensure_ascii=True) }}",
         "writes the tool 'flat' nowhere, so it would be lost; use another template"),
        ({"messages": [USER, {"role": "assistant", "tool_calls": [{"function": "weather"}]}]}, FULL,
         "message 2 has a call without a name; correct it"),
        *(({"prompt": "q", "completion": "b", name: False}, FULL,
           f"has {name} false, which says of a preference that the answer is a bad one; remove the")
          for name in ("label", "kto_tag")),
        ({"messages": say("q", "b"), "images": ["x.png"]}, FULL,
         "has the field 'images', which would be lost: it is not used; remove it"),
        ({"messages": say("q", "b", system="s"), "system": "t"}, FULL,
         "has the field 'system' and another system message; remove one of them"),
        *(({"messages": [{**USER, key: given}, *say("", "b")[1:]]}, "chatml",
           f"does not write the {key} of message ")
          for key, given in (("images", ["x.png"]), ("audio", {"id": "1"}), ("tools", TOOLS),
                             ("functions", "[{}]"), ("function_calls", "weather(at='Rome')"),
                             ("tool_responses", [{"response": "sun"}]),
                             ("refusal", "I can not."))),
        ({"messages": [USER, {"role": "assistant", "tool_calls": [{**CALL, "id": "weather:0"}]}]},
         FULL.replace("{{ '<tool_call>' + f.name }}", ""),
         "writes the call of 'weather' in message 2 nowhere, so it would be lost"),
        ({"messages": say("q", "b"), "system": "s", "system_prompt": "t"}, FULL,
         "has the field 'system' and another system message; remove one of them"),
        ({"messages": say("q", "b"), "system": {"text": "s"}}, FULL,
         "system is an object, expected text; correct or remove it"),
        ({"messages": say("q", "b"), "tools": TOOLS, "functions": TOOLS}, FULL,
         "has tools and functions; remove one of them"),
        ({"messages": [USER, {"role": "assistant", "content": "b", "tool_calls": "call"}]}, FULL,
         "message 2: tool_calls is no JSON .*; correct it"),
        ({"conversations": [{"from": "function_call", "value": "weather in Rome"}]}, FULL,
         "message 1: content is no JSON .*; correct it"),
        ({"messages": say("q", "b"), "tools": "[" * 5000}, FULL,
         "has values that are nested too deep; correct or remove them"),
        ({"messages": [{**USER, "value": "r"}, *say("", "b")[1:]]}, FULL,
         "message 1 has content and value; remove one of them"),
        *(({"messages": [USER, {**say("", "b")[1], key: True}]}, FULL,
           f"message 2 has the key '{key}', which may mean that it is trained on, or that it is no")
          for key in ("mask", "masked", "loss_mask", "train_mask", "train_detail")),
        ({"messages": say("q", "b"), "loss_mask": [0, 1]}, FULL,
         "has the field 'loss_mask', which would be lost: it is not used; remove it"),
        ({"messages": [USER, {**say("", "b")[1], "weight": 0, "train": True}]}, FULL,
         "message 2 has weight 0, train True, expected 0 or 1, in all of them the same, for it is"),
        ({"messages": [USER, {**say("", "b")[1], "loss_weight": 0.5}]}, FULL,
         "message 2 has loss_weight 0.5, expected 0 or 1, in all of them the same, for it is"),
        ({"messages": [USER, {**say("", "b")[1], "weight": 0}]}, FULL,
         "the conversation has nothing to train on; remove it"),
        *(({"messages": say("q", "b", "c", "b")}, template,
           "writes message 2 of 4 nowhere, for it says nothing, in pieces, or in another way bec")
          for template in (
            "{{ messages | map(attribute='content') | unique | join }}{{ messages | length }}",
            "{{ messages | length }}{% for i in 'ab' %}{% for m in messages %}{{ m.content }}"
            "{% endfor %}{% endfor %}",
            "{{ messages[0].content[0] }}{{ messages | length }}{% for m in messages %}"
            "{{ m.content ~ (m.content == 'b') }}{% endfor %}",
          )),
    ],
)  # fmt: skip
def test_what_would_be_lost_is_refused(record: Any, template: str, message: str, of: Any) -> None:
    options = {"chat_template": template} if template == "chatml" else {}
    with pytest.raises(CorpusError, match=message):
        of(record, template, **options)


NAMED = {**CALL, "id": "functions.weather:0"}  # as in Kimi K2
FROM_CALLS = (  # finds the call of a result by its id
    "{% if m.role != 'tool' %}{{ m.content or '' }}{% endif %}{% for x in messages %}"
    "{% for c in x.tool_calls or [] %}{{ m.content if c.id == m.tool_call_id }}{% endfor %}"
    "{% endfor %}"
)
WRITES_CALL = "{{ '<tool_call>' + f.name }}"
WRITES_ARGUMENTS = "{{ f.arguments if f.arguments is string else f.arguments | tojson }}"


@pytest.mark.parametrize(("turn", "template", "trained"), [
    *(({"tool_calls": [CALL], **content}, OF_NULL, 'weather: {"at": "Rome"}</s>')
      for content in ({}, {"content": None})),
    # The name of a call may be in its id alone.
    *(({"tool_calls": [NAMED]}, FULL.replace(WRITES_CALL, f"{{{{ {form} }}}}"),
       f'{shown}{{"at": "Rome"}}<|im_end|>b<|im_end|>')
      for form, shown in (("call.id", "functions.weather:0"),
                          ("call['id'].split('.')[1]", "weather:0"),
                          ("'<s>' + call.id", "<s>functions.weather:0"))),
    ({"tool_calls": [NAMED]}, FULL.replace("{{ m.content or '' }}", FROM_CALLS),
     '<tool_call>weather{"at": "Rome"}<|im_end|>b<|im_end|>'),
    ({"content": "", "function_calls": "weather('Rome')"},
     FULL.replace("{{ m.content or", "{{ m.content or m['function_calls'] or"),
     "weather('Rome')<|im_end|>b<|im_end|>"),
    *(({"tool_calls": [{"function": {"name": "weather", "arguments": {"at": "Rome", "no": ""}}}]},
       FULL.replace(WRITES_ARGUMENTS, f"{{{{ f.arguments{form} }}}}"),
       f"<tool_call>weather{shown}<|im_end|>b<|im_end|>")
      for form, shown in (("", "{'at': 'Rome', 'no': ''}"), ("['at']", "Rome"),
                          (" | tojson(ensure_ascii=True)", '{"at": "Rome", "no": ""}'),
                          (".values() | join", "Rome"))),
])  # fmt: skip
def test_parts_that_are_written_in_any_form(
    turn: Any, template: str, trained: str, of: Any
) -> None:
    messages = [USER, {"role": "assistant", **turn}]
    if template != OF_NULL:
        result = {**RESULT, "tool_call_id": NAMED["id"]} if turn.get("tool_calls") else USER
        messages += [result, *say("", "b")[1:]]
    assert of({"messages": messages}, template)[1] == trained


# What is trained on.


@pytest.mark.parametrize("template", ["chatml", TEMPLATES["chatml"]])
def test_turns_that_are_not_trained_on(template: str, of: Any) -> None:
    def turn(text: str, **more: Any) -> dict[str, Any]:
        return {"role": "assistant", "content": text, **more}

    options = {"chat_template": template} if template == "chatml" else {}
    for first, second, expected in (
        ({"weight": 0}, {"weight": 1}, "c"), ({"training": False}, {}, "c"),
        ({"loss_weight": 1.0}, {"loss_weight": 0.0}, "b"), ({"weight": None}, {}, "bc"),
        ({"loss": True}, {"loss": False}, "b"), ({}, {"trainable": 0}, "b"),
    ):
        messages = [USER, turn("b", **first), {**USER, "weight": 0}, turn("c", **second)]
        trained = "".join(f"{x}<|im_end|>" for x in expected)
        assert of({"messages": messages}, template, **options)[1] == trained
    messages = [*say("q", "b", "r"), turn("c", train=False), USER, turn("d")]
    messages[0] = {**USER, "weight": 1}
    text, trained = of({"messages": messages}, template, train_on="all", **options)
    assert trained == text.replace("c<|im_end|>", "")
    record = {"prompt": say("q", "b", "r"), "completion": [turn("c")]}
    assert of(record, template, **options)[1] == "c<|im_end|>"
    assert of(record, template, train_on="all", **options)[0] == of(
        record, template, train_on="all", **options
    )[1]
    first = {"messages": [turn("b"), *say("q", "c")]}
    assert of(first, template, **options)[1] == "b<|im_end|>c<|im_end|>"


@pytest.mark.parametrize(("template", "trained"), [
    ("{% for m in messages %}{{ m.role + ': ' + m.content + '</s>' }}{% endfor %}", " b</s>"),
    ("{% for m in messages %}{{ m.role + ':\n' + m.content + '</s>' }}{% endfor %}", "b</s>"),
    ("{% for m in messages %}{{ '[INST]' + m.content + '[/INST]' if m.role == 'user' else ' ' +"
     " m.content + '</s>' }}{% endfor %}", " b</s>"),
])  # fmt: skip
def test_the_header_of_a_template_without_a_generation_prompt(
    template: str, trained: str, of: Any
) -> None:
    assert of({"messages": say("q", "b")}, template)[1] == trained


# Formats, templates, dates.


def test_records_of_all_formats_give_the_same_bytes(model: Path, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs the extra `formats`")
    from pyarrow import feather, parquet

    call = {"type": "function", "function": {"name": "weather", "arguments": {"at": "Rome"}}}
    rows = [
        {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [call]}, RESULT,
                      {"role": "assistant", "content": "b", "tool_calls": None}],
         "system": "kind", "tools": TOOLS, "images": None},
        {"messages": [USER, {"role": "assistant", "content": "b", "weight": 1}], "system": None,
         "tools": None, "images": None},
    ]  # fmt: skip
    own, found = with_template(model, tmp_path / "own", FULL), set()
    for name in ("a.jsonl", "a.json", "a.parquet", "a.arrow"):
        path = tmp_path / name
        if name.endswith("jsonl"):
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        elif name.endswith("json"):
            path.write_text(json.dumps(rows))
        elif name.endswith("parquet"):
            parquet.write_table(pa.Table.from_pylist(rows), path)
        else:
            feather.write_feather(pa.Table.from_pylist(rows), str(path), "uncompressed")
        build(train=path, val_fraction=0, tokenizer=own, out=tmp_path / f"{name}-out")
        parts = ("bin", "docs", "mask")
        found.add(tuple((tmp_path / f"{name}-out" / f"train.{x}").read_bytes() for x in parts))
    assert len(found) == 1
    file = open_tokens(tmp_path / "a.jsonl-out" / "train.bin")
    assert '<tool_call>weather{"at": "Rome"}<|im_end|>' in file.decode(file.doc(0))


def test_json_and_maps_inside_of_columns(model: Path, tmp_path: Path) -> None:
    """As the type `Json` of `datasets`, to which it gives columns of mixed types, and of Spark."""
    pa = pytest.importorskip("pyarrow", reason="needs the extra `formats`")
    from pyarrow import feather, parquet

    def of_json(name: str) -> Any:
        marks = {"ARROW:extension:name": "arrow.json", "ARROW:extension:metadata": ""}
        return pa.field(name, pa.string(), metadata=marks)

    text, each = pa.string(), of_json("item")
    call = {"type": "function", "function": {"name": "weather", "arguments": {"at": None, "n": 2}}}
    messages = [USER, {"role": "assistant", "content": 'a "b"', "tool_calls": [call]}]
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"a": [None]}}}]
    inside = pa.struct([("name", text), of_json("parameters")])
    of_tools = pa.list_(pa.struct([("type", text), ("function", inside)]))
    parts = pa.struct([("role", text), of_json("content"), pa.field("tool_calls", pa.list_(each))])
    calls = [json.dumps(call)]

    def parameters(given: Any) -> list[Any]:
        return [{"type": "function", "function": {"name": "weather", "parameters": given}}]

    given = [
        (pa.list_(each), [*map(json.dumps, messages)], of_tools, parameters('{"a": [null]}')),
        (pa.list_(parts), [{"role": "user", "content": '"q"'},
                           {"role": "assistant", "content": r'"a \"b\""', "tool_calls": calls}],
         text, json.dumps(tools)),
        (pa.list_(pa.map_(text, each)),
         [{name: json.dumps(part) for name, part in message.items()} for message in messages],
         pa.list_(each), [*map(json.dumps, tools)]),
    ]  # fmt: skip
    own = with_template(model, tmp_path / "own", FULL)
    transform = ChatTemplateTransform(own)
    expected = transform({"messages": messages, "tools": tools})["input_ids"].tolist()
    for number, (kind, row, kind_of_tools, row_of_tools) in enumerate(given):
        table = pa.table(
            [pa.array([row, None], kind), pa.array([row_of_tools] * 2, kind_of_tools)],
            pa.schema([("messages", kind), ("tools", kind_of_tools)]),
        )
        for name in (f"{number}.parquet", f"{number}.arrow"):
            path = tmp_path / name
            if name.endswith("parquet"):
                parquet.write_table(table, path)
            else:
                feather.write_feather(table, str(path), "uncompressed")
            out = tmp_path / f"{name}-out"
            build(train=path, val_fraction=0, tokenizer=own, out=out, on_bad_record="skip")
            file = open_tokens(out / "train.bin")
            assert file.n_documents == 1
            assert file.doc(0).tolist()[:-1] == expected
            (bad,) = map(json.loads, (out / "rejects.jsonl").read_text().splitlines())
            assert bad["reason"].startswith("messages is null, expected a list of messages")
    for wrong in ("{1}", "[" * 100_000):
        rows, path = pa.array([[wrong]], pa.list_(each)), tmp_path / "x.parquet"
        parquet.write_table(pa.table([rows], pa.schema([("messages", rows.type)])), path)
        message = r"x.parquet: row 0: a value of the type JSON is none \(.*\): '.{1,100}'; correct"
        with pytest.raises(CorpusError, match=message):
            build(train=path, val_fraction=0, tokenizer=own, out=tmp_path / "out")


def test_templates_with_names(model: Path, tmp_path: Path) -> None:
    """In all places in which transformers looks, and as it chooses."""
    templates = {"default": TEMPLATES["chatml"], "tool_use": FULL, "rag": "no"}
    listed = [{"name": name, "template": text} for name, text in templates.items()]
    records = [{"messages": say("q", "b")}, {"messages": say("q", "b"), "tools": TOOLS}]
    config = json.loads((model / "tokenizer_config.json").read_text())
    for place in ("list", "files"):
        own = with_template(model, tmp_path / place, templates["default"])
        if place == "list":
            (own / "chat_template.jinja").unlink()
            given = json.dumps(config | {"chat_template": listed})
            (own / "tokenizer_config.json").write_text(given)
        else:
            (own / "additional_chat_templates").mkdir()
            for name in ("tool_use", "rag"):
                path = own / "additional_chat_templates" / f"{name}.jinja"
                path.write_text(templates[name])
        theirs = transformers.PreTrainedTokenizerFast.from_pretrained(own)
        for record in records:
            given = record["messages"], record.get("tools")
            expected = theirs.apply_chat_template(*given, return_dict=False)
            assert ChatTemplateTransform(own)(record)["input_ids"].tolist() == expected
    (own / "chat_template.jinja").unlink()
    with pytest.raises(TokenizerFileError, match=r"its chat templates are named 'rag', 'tool_use'"):
        ChatTemplateTransform(own)


def closing(closes: str, form: str = "") -> str:
    """Return a template with a text after each turn of the assistant."""
    return (
        f"{{% for m in messages %}}{{{{ '<|' + m.role + '|>\n' + (m.content{form}) }}}}"
        f"{{% if m.role == 'assistant' %}}{{{{ {closes!r} }}}}{{% endif %}}{{% endfor %}}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
    )


@pytest.mark.parametrize(
    ("closes", "train_on", "is_warned"),
    [("", "assistant", True), ("", "last-assistant", True), ("", "all", False),
     ("<|im_end|>", "assistant", False), ("<|im_end|>\n", "assistant", False)],
)  # fmt: skip
def test_turns_that_nothing_ends(
    closes: str, train_on: Any, is_warned: bool, model: Path, tmp_path: Path, caplog: Any
) -> None:
    """As in GLM-4.5, where the next turn's first token is what the model stops at."""
    template = tmp_path / "template"
    template.write_text(closing(closes))
    for _ in range(2):  # and is said once
        transform = ChatTemplateTransform(model, chat_template=str(template), train_on=train_on)
        found = transform({"messages": say("a", "b", "c", "d")})
    trained = transform.tokenizer.decode(found["input_ids"][found["loss_mask"] > 0])
    ends = {"assistant": "b<|user|>d", "last-assistant": "d"}
    assert closes or trained == ends.get(train_on, trained)
    said = [x.getMessage() for x in caplog.records if "not taught to stop" in x.getMessage()]
    assert len(said) == is_warned
    assert all(x.startswith(f"{template} writes no special token after the last") for x in said)


def test_the_token_of_an_answer_ends_a_call(of: Any) -> None:
    """As in Gemma 4, whose template writes it after a call that nothing answers, too."""
    template = (
        "{% for m in messages %}{% if m.role == 'tool' %}{{ m.content + '[/INST]' }}{% else %}"
        "{% if not loop.first and loop.previtem.role == 'tool' %}{% else %}"
        "{{ '<bos>' + m.role + '\n' }}{% endif %}{{ m.content or '' }}"
        "{% for c in m.tool_calls or [] %}{{ '<s>' + c.function.name + '</s>[INST]' }}{% endfor %}"
        "{{ '' if m.tool_calls else '<|eot_id|>\n' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt and messages[-1].role != 'tool' %}"
        "{{ '<bos>assistant\n' }}{% endif %}"
    )
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "now"}}]}
    for more, trained in (([], ""), ([RESULT, *say("", "noon")[1:]], "noon<|eot_id|>")):
        assert of({"messages": [USER, call, *more]}, template)[1] == f"<s>now</s>[INST]{trained}"


@pytest.mark.parametrize(("closes", "said", "trained", "form"), [
    ("", "b\n", "b\n<|user|>", ""), ("", "b\n\n ", "b\n\n <|user|>", ""),
    ("", "\tb\t", "\tb\t<|user|>", ""), ("\n", "b", "b\n", ""), ("\n", "b\n", "b\n\n", ""),
    ("\n", "", "\n", ""), ("<|im_end|>\n", "b\n", "b\n<|im_end|>", ""),
    # As Nemotron-Mini, which removes white space and writes its own.
    ("\n", "b", "b\n", " | trim"), ("\n", "b\n", "b\n", " | trim"),
    ("", "b\n", "b<|user|>", " | trim"),
])  # fmt: skip
def test_only_white_space_of_the_template_ends_a_turn(
    closes: str, said: str, trained: str, form: str, of: Any
) -> None:
    record = {"messages": say("a", said, "c", "d")}
    last = f"d{closes}".removesuffix("\n" * ("<" in closes))
    assert of(record, closing(closes, form))[1] == trained + last


def test_templates_of_a_name_on_the_hub(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """All are downloaded, of the commit of the tokenizer; without a network those are used."""
    import huggingface_hub

    there, here = tmp_path / "there", tmp_path / "snapshots" / "c0ffee"
    with_template(model, there, TEMPLATES["chatml"])
    more = there / "additional_chat_templates"
    more.mkdir()
    (more / "tool_use.jinja").write_text(FULL)

    def download(name: str, file: str, revision: str | None = None) -> str:
        if not (there / file).exists():
            raise huggingface_hub.errors.EntryNotFoundError(file)
        assert revision == (None if file.startswith("tokenizer") else "c0ffee")
        (here / file).parent.mkdir(parents=True, exist_ok=True)
        return str(shutil.copy(there / file, here / file))

    def listed(name: str, path: str, revision: str | None = None) -> Any:
        if name == "some/offline":
            raise OSError("no network")
        return [SimpleNamespace(path=f"{path}/{each.name}") for each in (there / path).iterdir()]

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_: None)
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda url: None)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr(huggingface_hub, "list_repo_tree", listed)
    record = {"messages": say("q", "b"), "tools": TOOLS}
    expected = ChatTemplateTransform(there)(record)["input_ids"].tolist()
    for name in ("some/model", "some/offline"):
        assert ChatTemplateTransform(name)(record)["input_ids"].tolist() == expected
    config = {"chat_template": TEMPLATES["chatml"]}
    (there / "tokenizer_config.json").write_text(json.dumps(config))
    (there / "chat_template.jinja").unlink()
    (more / "tool_use.jinja").unlink()
    shutil.rmtree(here)
    record = {"messages": say("q", "b")}
    found = ChatTemplateTransform("some/other")(record)["input_ids"].tolist()
    assert found == ChatTemplateTransform(there)(record)["input_ids"].tolist()
    (message,) = (x.getMessage() for x in caplog.records if "chat templates" in x.getMessage())
    assert message.startswith("some/offline: Hugging Face's hub gave no chat templates (OSErr")


def test_dates_and_variables(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """On the command line and in a file; they are in the record of the run."""
    template = "{{ strftime_now('%d %B %Y') + ' ' + style + bos_token }}" + TEMPLATES["chatml"]
    own = with_template(model, tmp_path / "own", template)
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": say("q", "b")}) + "\n")
    options = ["--train", "chats.jsonl", "--tokenizer", "own", "--val-fraction", "0"]
    options += ["--out", "out"]
    variables = ["--chat-template-kwargs", '{"style": "terse", "bos_token": "<s>"}']

    monkeypatch.chdir(tmp_path)

    def said(*arguments: str) -> str:
        capsys.readouterr()
        return capsys.readouterr().err if run(arguments) else ""

    assert "--chat-date YYYY-MM-DD" in said("build", *options, *variables)
    assert said("build", *options, *variables, "--chat-date", "2024-07-26") == ""
    text = "26 July 2024 terse<s><|im_start|>user\nq"
    file = open_tokens(tmp_path / "out" / "train.bin")
    assert file.decode(file.doc(0)).startswith(text)
    assert file.doc(0)[len("26 July 2024 terse") :][0] != 0
    changed = said("build", *options, *variables, "--chat-date", "2024-07-27")
    assert "chat_date was '2024-07-26' and is '2024-07-27'" in changed
    changed = said("build", *options, "--chat-template-kwargs", "{}", "--chat-date", "2024-07-26")
    assert "chat_template_kwargs was" in changed
    (tmp_path / "corpus.yaml").write_text(
        "datasets:\n  - {name: a, data_files: chats.jsonl, tokenizer: own/tokenizer.json,"
        " val_fraction: 0}\n"
        "tokenize: {chat_date: 2024-07-26, chat_template_kwargs: {style: terse, bos_token: <s>}}\n"
        "output_path: root\n"
    )
    assert said("build", "corpus.yaml") == ""
    for name in ("train.bin", "train.mask"):
        assert (tmp_path / "root/a" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()
    for given, message in (
        ("{1}", "should be a mapping or None"), ([], "should be a mapping or None"),
        ({"tools": 1}, "should not have 'tools', which is set for each conversation"),
    ):
        with pytest.raises(SettingsError, match=message):
            ChatTemplateTransform(own, chat_template_kwargs=given)  # type: ignore[arg-type]


@pytest.mark.parametrize("command", ["count CHATS --tokenizer MODEL", "compare MODEL MODEL CHATS"])
def test_commands_that_read_no_conversations(
    command: str, model: Path, tmp_path: Path, capsys: Any
) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps({"messages": say("q", "b")}) + "\n")
    given = {"CHATS": str(path), "MODEL": str(model)}
    assert run([given.get(each, each) for each in command.split()]) == 1
    message = "has conversations ('messages'), which build and encode read without"
    assert message in capsys.readouterr().err

"""JSON Lines: the same documents as in a text file give the same bytes; bad records are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from source_cases import check_units, documents_of

from preprocess import CorpusError, JsonShardedSource, RowsError
from preprocess.documents.batch import ReadOptions
from preprocess.sources import find_sources


def lines(documents: list[str], **dumps: Any) -> str:
    return "".join(
        json.dumps({"id": i, "text": text, "meta": {"n": [i, None]}}, **dumps) + "\n"
        for i, text in enumerate(documents)
    )


characters = st.characters(exclude_categories=["Cs"])


@settings(max_examples=60)
@given(
    st.lists(st.text(characters, max_size=40), max_size=12), st.booleans(),
    st.sampled_from(["\n", "\r\n", "\n\n \n"]), st.booleans(), st.integers(1, 200), st.booleans(),
)
def test_documents_are_those_of_json(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], ascii: bool, end: str, marked: bool,
    unit_size: int, ends: bool,
) -> None:
    path = tmp_path_factory.mktemp("lines") / "x.jsonl"
    records = [json.dumps({"x": {"text": "other"}, "text": t}, ensure_ascii=ascii) for t in texts]
    content = end.join(records) + (end if ends else "")
    path.write_bytes(b"\xef\xbb\xbf" * marked + content.encode())
    assert documents_of(path, unit_size=unit_size) == [text for text in texts if text]
    check_units(path, unit_size)


@pytest.mark.parametrize(("record", "fields", "text"), [
    ({"text": "a"}, (), "a"),
    ({"content": "a", "id": 1}, (), "a"),
    ({"code": "a", "Text": 1}, (), "a"),
    ({"text": "a", "content": "b"}, ("content",), "b"),
    ({"data": {"text": "a", "n": 1}}, ("data.text",), "a"),
    ({"title": "a", "data": {"a b": {"body": "c"}}}, ("title", "data.a b.body"), "a\nc"),
    ({"b": "1", "a": "2"}, ("a", "b"), "2\n1"),
])  # fmt: skip
def test_the_field_with_the_text(
    tmp_path: Path, record: Any, fields: tuple[str, ...], text: str
) -> None:
    path = tmp_path / "x.ndjson"
    path.write_text("\n" + json.dumps(record))
    assert documents_of(path, content_field=fields) == [text]


@pytest.mark.parametrize("quotes", ["[", '\\"[\\\\'])
def test_values_are_nested_up_to_a_limit(tmp_path: Path, quotes: str) -> None:
    (path := tmp_path / "x.jsonl").write_text(
        '{"text": "' + quotes * 400 + '", "x": ' + "[" * 299 + "]" * 299 + "}\n"
    )
    assert documents_of(path) == [json.loads(f'"{quotes}"') * 400]
    (record,) = JsonShardedSource(str(path))
    assert len(record["text"]) == 400 * len(json.loads(f'"{quotes}"'))
    path.write_text(path.read_text().replace("[]", "[[]]"))
    with pytest.raises(RowsError, match=r"line 1 is no JSON object .*nested more than 300 levels"):
        [*JsonShardedSource(str(path))]


def test_of_a_repeated_key_the_last_value_counts(tmp_path: Path) -> None:
    repeated = '{"text": "a", "text": "b"}\n{"text": 5, "text": "\\u00e9"}\n'
    for other in ("", '{"text": "b", "text": 5}'):  # bad: its unit is decoded line by line
        (tmp_path / "x.jsonl").write_text(repeated + other)
        assert documents_of(tmp_path / "x.jsonl", skip_bad_records=True) == ["b", "é"]


@pytest.mark.parametrize(("record", "message"), [
    ("{'text': 1}", r"is not JSON \(.*keys must be strings \(byte 1\)\); correct or rem"),
    ('{"text": "a"', r"is not JSON \(Input data was truncated"),
    ('{"text": "a"} x', r"is not JSON \(.*trailing characters"),
    ('{"text": "a", "x": NaN}', r"is not JSON \(.*invalid character"),
    ('{"text": "a\tb"}', r"is not JSON \(.*invalid character"),
    ('{"x": "a"}', r"\(Object missing required field `text`; its fields are 'x'\); choose an"),
    ('{"a.b": ""}', r"its fields are 'a.b', where a dot divides the names of levels\); choose"),
    ('{\n"text": "a"}', r"a value must be in one line \(jq -c \. writes it so\)"),
    ('{"text": "a"} {"text":\n"b"}', r"is not JSON \(.*trailing characters"),
    ('{"text": "a"} {"text": "b"}\n', r"is not JSON \(.*trailing characters"),
    ('{"text": null}', r"\(Expected `str`, got `null` - at `\$\.text`\); choose an"),
    ('{"text": 3}', r"\(Expected `str`, got `int`"),
    ('{"text": {"a": "b"}}', r"\(Expected `str`, got `object`"),
    ('["a"]', r"Expected `object`, got `array`.*--format json|format json reads a"),
    ('{"text": "\\ud800"}', r"is not JSON \(.*, which may be the escape of a lone sur"),
    ('{"text": "a 1e400", "x": "\\udc00"}', r"may be the escape of a lone surrogate"),
    ('{"text": "a", "x": ' + "[" * 300 + "]" * 300 + "}", r"its values are nested too deep"),
    ('{"text": "a", "x": ' + "[" * 5000 + "]" * 5000 + "}", r"its values are nested too deep"),
    ('{"text": ' + "[" * 5000, r"its values are nested too deep"),
])  # fmt: skip
@pytest.mark.parametrize("first", [True, False])
def test_a_bad_record_is_named(tmp_path: Path, record: str, message: str, first: bool) -> None:
    path = tmp_path / "x.jsonl"
    good = '{"text": "' + "good " * 20 + '"}\n'
    before = "" if first else good * 3 + "\n"
    path.write_text(before + record + "\n" + good)
    place = rf"x\.jsonl: line {5 - 4 * first} \(byte {len(before)}\): "
    with pytest.raises(CorpusError, match=place + f".*{message}"):
        documents_of(path, unit_size=150, content_field=("text",))


def test_a_byte_order_mark_inside_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"text": "a"}\n\ufeff{"text": "b"}')
    with pytest.raises(CorpusError, match=r"line 2 \(byte 14\): begins with a byte order m"):
        documents_of(tmp_path / "x.jsonl")


def test_a_field_that_is_not_known_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    for value in ('[{"c": "x"}]', '"x"', "null"):
        path.write_text(f'{{"text": {value}}}\n')
        message = r"Expected `object`, got `(array|str|null)` - at `\$\.text`"
        with pytest.raises(CorpusError, match=message):
            documents_of(path, content_field=("text.c",))
    path.write_text(json.dumps({f"x{i}": i for i in range(52)}) + "\n")
    with pytest.raises(CorpusError, match=r"; the first record has 'x0', .* 'x49' and 2 more$"):
        documents_of(path)
    path.write_text('{"body": "a", "id": 1}\n')
    message = "text is not known, because no field is 'text', 'content', 'code': choose it with c"
    with pytest.raises(CorpusError, match=message + r".*; the first record has 'body', 'id'"):
        documents_of(path)
    path.write_text('{"text": "a", "code": 1}\n')
    message = r"because several are 'text', 'code': choose it with content_field"
    with pytest.raises(CorpusError, match=message):
        documents_of(path)
    # What is no record is reported when it is read.
    path.write_text("[1]\n")
    with pytest.raises(CorpusError, match=r"line 1 \(byte 0\): .*Expected `object`, got `arr"):
        documents_of(path)


def test_invalid_utf8(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    good = b'{"text": "good"}\n'
    path.write_bytes(good + b'{"text": "b\xffd", "x": "\xfe"}\n' + good)
    with pytest.raises(CorpusError, match=r"x\.jsonl: byte 28: not valid UTF-8 .*on_invalid"):
        documents_of(path)
    for unit_size in (1, 10**6):
        for choice, texts, counts in (
            ("replace", ["good", "b\ufffdd", "good"], (2, 0)), ("skip", ["good", "good"], (0, 1)),
        ):
            options: dict[str, Any] = {"on_invalid_utf8": choice, "unit_size": unit_size}
            assert documents_of(path, **options) == texts
            (source,) = find_sources([path], ReadOptions(**options))
            batches = [unit.read() for unit in source.units()]
            found = sum(x.n_replaced for x in batches), sum(x.n_skipped for x in batches)
            assert found == counts
    # The place of another bad line is that in the file.
    path.write_bytes(b'{"text": "\xff"}\n{"text": 1}\n')
    with pytest.raises(CorpusError, match=r"line 2 \(byte 14\): .*Expected `str`, got `int`"):
        documents_of(path, on_invalid_utf8="replace")


def test_files_without_records(tmp_path: Path) -> None:
    for content in (b"", b"\n", b"\xef\xbb\xbf", b" \r\n\n"):
        (tmp_path / "x.jsonl").write_bytes(content)
        assert documents_of(tmp_path / "x.jsonl") == []
        assert check_units(tmp_path / "x.jsonl", 1000) == 1


def test_a_line_that_is_longer_than_a_unit(tmp_path: Path) -> None:
    texts = ["a", "a long line, é\n " * 300_000, "b"]
    (tmp_path / "x.jsonl").write_text(lines(texts))
    assert documents_of(tmp_path / "x.jsonl", unit_size=1000) == texts

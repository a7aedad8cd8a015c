"""`python -m benchmarks schemas`: what is counted for schemas that compile, and for those that do not."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.core.schemas import SchemaCompiler, bench_suite, error_of, schemas_in, try_schema
from tests.inference_core.grammar.byte_vocabulary import EOS, ByteVocabulary

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 4}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def compiler() -> Iterator[SchemaCompiler]:
    made = SchemaCompiler(ByteVocabulary(), (EOS,))
    yield made
    made.close()


def outcomes(compiler: SchemaCompiler, schema: Any, tokens: int = 200) -> list[str]:
    row = try_schema(compiler, "s", schema, answers=4, tokens=tokens, seed=1)
    return [answer.outcome for answer in row.answers]


def test_random_answers_that_end_are_valid(compiler: SchemaCompiler) -> None:
    assert outcomes(compiler, PERSON) == ["valid"] * 4


def test_a_dot_of_a_pattern_is_no_line_terminator() -> None:
    """ECMA-262: the name with a carriage return is not of the pattern, so that its value may be anything."""
    schema = {"patternProperties": {"^.*$": {"type": "string"}}, "properties": {"pattern": {"const": 1}}}
    assert error_of(schema, '{"a\\rb": 1}') is None
    assert error_of(schema, '{"ab": 1}') is not None
    assert error_of({"pattern": r"^[.]\.$"}, '".."') is None
    assert error_of({"const": {"pattern": "."}}, '{"pattern": "."}') is None


def test_answers_without_an_end_are_unfinished(compiler: SchemaCompiler) -> None:
    assert outcomes(compiler, PERSON, tokens=3) == ["unfinished"] * 4


def test_answers_that_cannot_end_have_failed(compiler: SchemaCompiler) -> None:
    none_of_both = {"type": "integer", "oneOf": [{"minimum": 0, "maximum": 9}, {"minimum": -3, "maximum": 50}]}
    assert "failed" in outcomes(compiler, none_of_both)


def test_refusals_are_counted_by_their_kind(compiler: SchemaCompiler) -> None:
    rows = [
        try_schema(compiler, name, {"properties": {name: {"type": "array", "uniqueItems": True}}}, answers=1, tokens=9,
                   seed=0)
        for name in "ab"
    ]  # fmt: skip
    assert {row.reason for row in rows} == {'Unimplemented keys: ["uniqueItems"]'}


def test_the_second_opinion_finds_what_is_invalid_and_nothing_else() -> None:
    assert error_of(PERSON, '{"name": "a", "age": 100}')
    assert error_of(PERSON, '{"name": "a", "age": 9}') is None
    assert error_of({"type": "number"}, "1e999") is None


def test_schemas_are_files_or_rows(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.json").write_text('{"type": "null"}')
    (tmp_path / "rows.jsonl").write_text(json.dumps({"json_schema": '{"type": "boolean"}'}) + "\n")
    assert dict(schemas_in(tmp_path)) == {"sub/a.json": {"type": "null"}, "rows.jsonl:1": {"type": "boolean"}}


def test_the_command_prints_the_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "good.json").write_text(json.dumps(PERSON))
    (tmp_path / "odd.json").write_text('{"type": "odd"}')
    monkeypatch.setattr(SchemaCompiler, "of_laptop", lambda: SchemaCompiler(ByteVocabulary(), (EOS,)))
    said = CliRunner().invoke(main, ["schemas", str(tmp_path), "--answers", "2"]).output
    assert "schemas: 2, compiled 1, refused 1" in said
    assert "answers: 2 finished valid, 0 finished invalid, 0 failed in the answer, 0 unfinished" in said


def test_instances_of_the_suite_are_tried_in_every_order_of_their_properties(
    tmp_path: Path, compiler: SchemaCompiler
) -> None:
    groups = [
        {
            "description": "known",
            "schema": PERSON,
            "tests": [
                {"description": "other order", "data": {"age": 1, "name": "b"}, "valid": True},
                {"description": "too old", "data": {"name": "b", "age": 100}, "valid": False},
                {"description": "said to be invalid", "data": {"name": "b", "age": 9}, "valid": False},
            ],
        },
        {"description": "refused", "schema": {"uniqueItems": True}, "tests": []},
    ]
    (tmp_path / "tests" / "draft7").mkdir(parents=True)
    (tmp_path / "tests" / "draft7" / "some.json").write_text(json.dumps(groups))
    known, refused = bench_suite(compiler, tmp_path)
    assert (known.valid, known.valid_accepted, known.invalid) == (1, 1, 2)
    assert known.invalid_accepted == [("said to be invalid", '{"name": "b", "age": 9}')]
    assert "uniqueItems" in refused.refused

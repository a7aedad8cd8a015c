"""What adapters learn from: files of examples, and recorded answers of consenting keys (SPEC TI-10)."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_core.tokenization.load_tokenizer import load_tokenizer
from quality.distillation.examples import Example, ExampleFileError, encoded_split, read_examples, recorded_examples
from quality.store.queries import insert_records
from tests.inference_core.quantization.tiny_model import END, alphabet, write_tiny_model
from tests.quality.distillation.tiny_students import questions
from tests.quality.store.records import make_record

HELLO = [{"role": "user", "content": "Hello"}]


def test_lines_are_prompts_or_messages(tmp_path: Path) -> None:
    file = tmp_path / "examples.jsonl"
    file.write_text(
        '{"prompt": "Hello", "answer": "Hi"}\n\n'
        '{"messages": [{"role": "user", "content": "Hello"}], "answer": "Hi"}\n'
        '{"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]}\n'
    )
    assert read_examples(file) == [Example(turns=HELLO, answer="Hi")] * 3


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "line 1: "),
        ('{"answer": "Hi"}', "expected either messages or prompt"),
        ('{"prompt": "Hello"}', "expected an answer"),
        ('{"messages": [{"role": "user", "content": "Hello"}]}', "expected an answer"),
        ('{"messages": [{"role": "user"}], "answer": "Hi"}', "every message needs role and content"),
    ],
)
def test_a_line_that_is_no_example_is_named(line: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text(line)
    with pytest.raises(ExampleFileError, match=why):
        read_examples(tmp_path / "bad.jsonl")


def test_held_out_prompts_are_never_trained_on_and_are_the_same_each_time(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_tiny_model(tmp_path / "model"))
    few = [*questions(100), *questions(100)]
    split = encoded_split(few, tokenizer, held_out=0.1, max_tokens=64)
    held = {tuple(example.prompt) for example in split.held_out}
    assert (len(split.training), len(split.held_out), len(held)) == (180, 20, 10)
    assert held.isdisjoint(tuple(example.prompt) for example in split.training)
    assert all(example.answer[-1] == alphabet().index(END) for example in split.training)
    again = encoded_split(few[:100], tokenizer, held_out=0.1, max_tokens=64)
    assert {tuple(example.prompt) for example in again.held_out} == held


async def test_recorded_answers_are_those_that_may_be_learned_from(engine: AsyncEngine) -> None:
    changes: list[dict[str, Any]] = [
        {"answer": "Yes"},
        {"answer": "of another tier", "tier": 2},
        {"messages": None, "answer": None},  # without consent
        {"answer": "cut", "finish_reason": "length"},
        {"answer": "a copy", "cache": "hit"},
        {"answer": "aborted", "status": "aborted"},
        {"answer": "continued", "api": "completion"},
        {"answer": "seen", "messages": [{"role": "user", "content": "What is it?", "attachments": "[image]"}]},
    ]
    records = [
        make_record(f"r-{i}", **{"tier": 4, "messages": HELLO, "created_at": float(i)} | change)
        for i, change in enumerate([*changes, {"answer": "newest"}])
    ]
    async with engine.begin() as connection:
        await insert_records(connection, records)
    wanted = [Example(turns=HELLO, answer="newest"), Example(turns=HELLO, answer="Yes")]
    assert await recorded_examples(engine, 4, 100) == wanted
    assert await recorded_examples(engine, 4, 1) == wanted[:1]

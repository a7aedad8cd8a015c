"""Files that an operator imports or writes: outcomes, logs, catalogues, knobs, answers to be judged."""

import asyncio
import json
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path

from gateway.batches.batch import InputLine, InputRefusedError, checked_lines
from gateway.planning.backtests.log import BacktestLogError, read_log
from quality.judges.json_answers import JsonValidityJudge
from quality.learning.outcome_import import OutcomeFileError, read_outcomes
from tests.fuzz.mutations import json_lines_mutated, json_mutated
from tests.fuzz.pieces import pieces_of
from tests.fuzz.scratch import scratch_folder
from tests.hostile.target import fuzz_target
from tiers.catalog.load import parse_catalog
from tiers.catalog.validate import check_rules
from tiers.errors import CatalogError


def _written(name: str, data: bytes) -> Path:
    path = scratch_folder("files") / name
    path.write_bytes(data)
    return path


_OUTCOMES = [
    {"prompt": "a", "scores": {"1": 0.5, "3": 1}},
    {"messages": [{"role": "user", "content": "a"}], "scores": {"2": 0, "3": 1}},
]


@fuzz_target(
    [b"\n".join(json.dumps(one).encode() for one in _OUTCOMES), b"[" * 3000],
    [b"\n", b'"scores"', b'"1"', b"1e999", b"NaN"],
    json_lines_mutated,
)
def outcomes(data: bytes) -> str:
    """Scores of tiers' answers, or the line that is wrong."""
    try:
        return f"{min(len(read_outcomes(_written('outcomes', data), 3)), 3)} lines"
    except OutcomeFileError as error:
        str(error).encode(errors="replace")
        return "refused"


_LOG = [
    {"prompt": "a", "answer_tokens": 5, "cost_usd": 0.1, "scores": {"tier-1": 1}},
    {"messages": [{"role": "user", "content": [{"text": "a"}]}]},
]


@fuzz_target(
    [b"\n".join(json.dumps(one).encode() for one in _LOG)],
    [b"\n", b'"prompt"', b'"text"', b'"scores"'],
    json_lines_mutated,
)
def backtest_logs(data: bytes) -> str:
    """Prompts of a log, or the line that is wrong."""
    try:
        rows = list(read_log(_written("log", data)))
    except BacktestLogError as error:
        str(error).encode(errors="replace")
        return "refused"
    for row in rows:
        assert all(isinstance(turn.text, str) for turn in row.turns)
    return f"{min(len(rows), 3)} lines"


_loop = asyncio.new_event_loop()
_ENDPOINT = "/v1/chat/completions"
_LINE = {"custom_id": "a", "method": "POST", "url": _ENDPOINT, "body": {"model": "auto", "messages": []}}


async def _lines(pieces: list[bytes]) -> tuple[list[InputLine], list[str]]:
    async def content() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    found: list[InputLine] = []
    try:
        async for line in checked_lines(content(), _ENDPOINT, 1024):
            found.append(line)  # noqa: PERF401 - those before an error count
    except InputRefusedError as error:
        return found, [f"{one.line} {one.code}" for one in error.errors]
    return found, []


@fuzz_target(
    [
        b"\n".join(json.dumps(_LINE | {"custom_id": name}).encode() for name in "abc"),
        b"\xef\xbb\xbf{}\n\n",
        b"x" * 2000,
    ],
    [b"\n", b"\r\n", b'"custom_id"', b'"body": {', b"\xef\xbb\xbf", b"\xff"],
    json_lines_mutated,
)
def batch_lines(data: bytes) -> str:
    """Requests of a batch, or errors by line; the same however the file is cut."""
    whole, cut = (_loop.run_until_complete(_lines(pieces)) for pieces in ([data], list(pieces_of(data))))
    assert whole == cut
    assert all(line.body.lstrip().startswith("{") for line in whole[0])
    assert whole[0] or whole[1]
    return f"{min(len(whole[0]), 3)} lines, {whole[1][:1]}"[:40]


_CATALOGUE = b"""
name = "c"
[[tiers]]
name = "a"
url = "http://127.0.0.1:8001/v1"
model = "m"
input_usd_per_million = 0.1
output_usd_per_million = 0.2
[[tiers]]
name = "b"
provider = "anthropic"
model = "claude-sonnet-4-5"
[tiers.remote]
kind = "anthropic"
base_urls = ["https://api.anthropic.com/v1"]
api_key_env = "KEY"
"""


@fuzz_target(
    [_CATALOGUE, b"[[tiers]]\nname = 'a'\n", b"[cores.cpu]\nthreads = 2\n[[tiers]]\ncore = 'cpu'\n"],
    [
        b"[[tiers]]\n",
        b"[tiers.remote]\n",
        b"name = ",
        b"url = ",
        b"[cores.a]\n",
        b"replicas = []\n",
        b"= 1e999",
        b"= nan",
        b"= -1",
        b"{}",
        b"[[tiers.remote.replicas]]\n",
        b"embeddings = []\n",
        b"http://169.254.169.254/",
        b"max_context = ",
        b"= true",
    ],
)
def catalogues(data: bytes) -> str:
    """A catalogue that keeps the rules, or all of its problems in one error."""
    try:
        table = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError):
        return "no TOML"
    try:
        catalog = parse_catalog({"name": "c"} | table, "c.toml")
    except CatalogError as error:
        str(error).encode(errors="replace")
        return f"{min(str(error).count(chr(10)), 5)} problems"
    assert not check_rules(catalog)
    return f"{len(catalog.tiers)} tiers"


_FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "a", "schema": {"type": "object", "properties": {"a": {"$ref": "#"}}}},
}
_ANSWERS = [
    ['```json\n{"a": 1}\n```', '{"a": 1.0}', None],
    ['{"a": 1}', "[1]", _FORMAT],
    ["NaN", "{}", {"type": "json_object"}],
]


@fuzz_target(
    [json.dumps(one).encode() for one in _ANSWERS],
    [b'"$ref": "http://127.0.0.1:1/"', b'"#/a"', b'"pattern": "(a+)+$"'],
    json_mutated,
)
def json_judgements(data: bytes) -> str:
    """A verdict on any two answers by any schema."""
    try:
        answer, reference, form = json.loads(data)
    except (ValueError, TypeError, RecursionError):
        return "no case"
    if not isinstance(answer, str) or not isinstance(reference, str) or not (form is None or isinstance(form, dict)):
        return "no case"
    inner = (form or {}).get("json_schema")
    if form and (
        form.get("type") not in ("json_schema", "json_object") or not (inner is None or isinstance(inner, dict))
    ):
        return "no format"
    verdict = _loop.run_until_complete(_judged(answer, reference, form))
    return f"{verdict}"


async def _judged(answer: str, reference: str, form: dict[str, object] | None) -> bool | None:
    judge = JsonValidityJudge()
    verdict = await judge.judge(
        prompt="Answer as JSON.", answer=answer, reference_answer=reference, response_format=form
    )
    assert verdict.score is None or 0 <= verdict.score <= 1
    return verdict.no_worse

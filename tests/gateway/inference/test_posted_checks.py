"""A caller's own check of an agent's work is how it ended: the session's next turn moves, the answer has a label."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from sqlalchemy import select

from migrations.tables.quality import verifications
from migrations.tables.requests import session_steps
from quality.estimates.session_work import finished_work
from tests.polling import eventually
from tests.support.app import RunningGateway, StartApp
from tests.support.served import UNCACHED

pytestmark = pytest.mark.asyncio(loop_scope="module")
ADA, BOB = "test-ada-5d39fd58a07dfb842367e2346d8f7434", "test-bob-884bcff941cbb51fff0185636af3489f"
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
TASK = {"role": "user", "content": "Fix the parser."}
DONE = {"role": "assistant", "content": "Done."}
NEXT = {"role": "user", "content": "And now the writer."}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def keyed(tmp_path_factory: pytest.TempPathFactory, module_app: StartApp) -> RunningGateway:
    data = str(tmp_path_factory.mktemp("data"))
    gateway = await module_app(data_dir=data, api_keys=f"ada={ADA},bob={BOB}")
    gateway.classifier.p_ok = [0.99, 0.99, 0.99, 1.0]
    return gateway


async def ask(gateway: RunningGateway, session: str, *messages: dict[str, Any]) -> tuple[int, str]:
    """The tier and the id of the answer to a turn of Claude Code's session, once its step is stored."""
    headers = {"user-agent": "claude-cli/2.1.197 (external, cli)", "x-claude-code-session-id": session}
    body = {"model": "auto", "messages": list(messages), "tools": TOOLS}
    answer = await gateway.http.post(
        "/v1/chat/completions", json=body, headers=UNCACHED | headers | {"authorization": f"Bearer {ADA}"}
    )
    assert answer.status_code == 200, answer.text

    async def stored() -> bool:
        async with gateway.serving.database.connect() as connection:
            query = select(session_steps.c.step).where(session_steps.c.request_id == answer.json()["id"])
            return await connection.scalar(query) is not None

    assert await eventually(stored)
    return int(answer.headers["x-aio-tier"]), str(answer.json()["id"])


async def post(gateway: RunningGateway, body: dict[str, Any], key: str = ADA) -> httpx.Response:
    return await gateway.http.post("/v1/feedback", json=body, headers={"authorization": f"Bearer {key}"})


async def test_a_failed_check_moves_the_sessions_next_turn_up_and_is_the_answers_label(keyed: RunningGateway) -> None:
    first, request_id = await ask(keyed, "s-failed", TASK)
    posted = await post(keyed, {"session": "s-failed", "check": "failed"})
    assert (posted.status_code, posted.json()["request_id"], posted.json()["label"]) == (200, request_id, "worse")
    second, _ = await ask(keyed, "s-failed", TASK, DONE, NEXT)
    third, _ = await ask(keyed, "s-failed", TASK, DONE, NEXT, DONE, NEXT)
    # The check is of one answer: the turn after the next has no end of its own.
    assert (first, second, third) == (1, 2, 2)
    async with keyed.serving.database.connect() as connection:
        label = select(verifications.c.judge, verifications.c.label).where(verifications.c.request_id == request_id)
        assert (await connection.execute(label)).all() == [("user", "worse")]
        ends = select(session_steps.c.ended, session_steps.c.end_sign).order_by(session_steps.c.created_at)
        steps = [tuple(row) for row in await connection.execute(ends)]
    assert steps == [(None, None), ("bad", "check"), (None, None)]


async def test_a_check_may_name_the_answer_and_a_passed_one_lets_the_session_stay(keyed: RunningGateway) -> None:
    _, request_id = await ask(keyed, "s-passed", TASK)
    posted = await post(keyed, {"request_id": request_id, "check": "passed"})
    assert (posted.status_code, posted.json()["label"]) == (200, "no_worse")
    tier, _ = await ask(keyed, "s-passed", TASK, DONE, NEXT)
    assert tier == 1
    work = [one for one in await finished_work(keyed.serving.database) if one.good]
    assert [(one.client, one.tier) for one in work] == [("claude-code", 1)]


async def test_a_check_may_name_the_conversation_of_a_client_that_no_rule_knows(keyed: RunningGateway) -> None:
    headers = UNCACHED | {"authorization": f"Bearer {ADA}", "x-aio-conversation": "c-own"}
    body = {"model": "auto", "messages": [TASK], "tools": TOOLS}
    answer = await keyed.http.post("/v1/chat/completions", json=body, headers=headers)

    async def posted() -> bool:
        said = await post(keyed, {"session": "c-own", "check": "failed"})
        return said.status_code == 200 and said.json()["request_id"] == answer.json()["id"]

    assert await eventually(posted)


async def test_what_a_check_is_of_must_be_the_callers_own_and_named_once(keyed: RunningGateway) -> None:
    await ask(keyed, "s-own", TASK)
    foreign = await post(keyed, {"session": "s-own", "check": "failed"}, BOB)
    assert (foreign.status_code, foreign.json()["error"]["code"]) == (404, "session_not_found")
    for body, param in (
        ({"check": "failed"}, "request_id"),
        ({"session": "s-own", "request_id": "chatcmpl-1", "check": "failed"}, "request_id"),
        ({"session": "s-own", "check": "failed", "rating": "up"}, "check"),
        ({"session": "s-own", "check": "maybe"}, "check"),
    ):
        refused = await post(keyed, body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(("check", "label"), [("exit 1", "worse"), ("true", "no_worse")])
async def test_the_hook_of_a_launched_client_runs_the_check_and_posts_how_it_ended(
    keyed: RunningGateway, tmp_path: Path, check: str, label: str
) -> None:
    session = f"s-hook-{label}"
    _, request_id = await ask(keyed, session, TASK)
    seen = tmp_path / "seen"
    variables = {
        "AIO_CHECK": f"env > {seen}; {check}", "AIO_URL": keyed.url, "AIO_API_KEY": ADA, "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(sys.path),
    }  # fmt: skip
    event = f'{{"session_id": "{session}", "hook_event_name": "Stop", "stop_hook_active": false}}'
    command = [sys.executable, "-m", "gateway.cli.live.session_check"]

    async def labels() -> list[str]:
        async with keyed.serving.database.connect() as connection:
            query = select(verifications.c.label).where(verifications.c.request_id == request_id)
            return list(await connection.scalars(query))

    process = await asyncio.create_subprocess_exec(
        *command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert await process.communicate(event.encode()) == (b"", b"")
    assert process.returncode == 0
    assert await labels() == [label]
    assert ADA not in seen.read_text()

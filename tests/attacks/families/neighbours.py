"""What one caller's costly schemas do to the requests of another."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from statistics import median
from typing import Any

from tests.attacks.exchange import Answer, Client
from tests.attacks.families.framing import outcome_of
from tests.attacks.targets import CHAT, HELLO, Target
from tests.hostile.target import Outcome, attack_class
from tests.inference_core.grammar.hostile_grammars import gbnf_chain, many_properties

MOST_SECONDS = 0.05
"""That the median of paired runs may be longer beside a schema that is compiled."""
# Until a schema is being compiled.
BEGUN_SECONDS = 0.1


@attack_class("neighbours of grammars", 120, "laptop")
def neighbours(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Schemas that take seconds to compile, from one caller; chats of another are timed in pairs, with and without."""
    longer = []
    with target.new_client() as other, ThreadPoolExecutor(1) as pool:
        for number in range(max(count // 3, 5)):
            bomb = draw.choice(BOMBS)(draw.randrange(1000))
            alone, answer = _timed(target, draw)
            yield outcome_of(answer, f"alone #{number}", _served(answer))
            running = pool.submit(_attack, target, other, bomb)
            time.sleep(BEGUN_SECONDS)
            beside, answer = _timed(target, draw)
            is_beside = not running.done()
            yield outcome_of(answer, f"beside {json.dumps(bomb)[:80]} #{number}", _served(answer))
            yield outcome_of(running.result(), f"{json.dumps(bomb)[:80]} #{number}")
            if is_beside:
                longer.append(beside - alone)
    if longer and median(longer) > MOST_SECONDS:
        yield Outcome(f"{len(longer)} pairs", 200, bypass=f"chats take {median(longer) * 1e3:.0f} ms longer")


def _schema(schema: dict[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


# Each is refused after two seconds of a processor, and of each number another one, so that none is known already.
BOMBS = (
    lambda number: _schema(many_properties(5000 + number)),
    lambda number: {"structured_outputs": {"grammar": gbnf_chain(4000 + number)}},
)


def _attack(target: Target, client: Client, fields: dict[str, Any]) -> Answer:
    body = {"model": "tier-1", "messages": HELLO, "max_tokens": 4} | fields
    return client.ask("POST", CHAT, body, key=target.keys["bob"])


def _timed(target: Target, draw: Random) -> tuple[float, Answer]:
    """Seconds of a chat of another tenant, with its answer."""
    messages = [{"role": "user", "content": f"Say {draw.randrange(10**6)}."}]
    began = time.monotonic()
    answer = target.client.ask(
        "POST", CHAT, {"model": "tier-1", "messages": messages, "max_tokens": 4}, key=target.keys["ann"],
        headers={"x-aio-cache": "off"},
    )  # fmt: skip
    return time.monotonic() - began, answer


def _served(answer: Answer) -> str:
    return "" if answer.status == 200 else f"another caller's chat got {answer.status}"

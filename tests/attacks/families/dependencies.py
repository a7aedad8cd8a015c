"""Dependencies that hang: PostgreSQL and Redis are stopped with open connections while callers ask."""

import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from random import Random
from typing import Any

from tests.attacks.exchange import Answer
from tests.attacks.families.framing import BODY, outcome_of
from tests.attacks.targets import CHAT, Target, multipart
from tests.hostile.target import Outcome, attack_class
from tests.support.administrator import ADMIN_KEY

CROWD = 40
# Of the median of some probes: one of them may have waited for the machine.
PROBE_SECONDS, PROBES = 0.1, 5
# Far above the documented limits (docs/results/reliability.md), far below waiting without one.
ANSWER_SECONDS = 20.0
_FORM = {"content_type": "multipart/form-data; boundary=b"}


@attack_class("dependencies that hang", 240, "shared")
def hanging_dependencies(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Chats with and without limits and budgets, files, batches, responses and administration while PostgreSQL, Redis
    or both are stopped; probes meanwhile; afterwards everything is answered as before."""
    done = 0
    while done < count:
        stopped = draw.sample(sorted(target.services), draw.randint(1, len(target.services)))
        label = f"{' and '.join(stopped)} stopped"
        crowd = [_request(target, draw) for _ in range(min(CROWD, count - done))]
        done += len(crowd)
        with ExitStack() as stack, ThreadPoolExecutor(len(crowd)) as pool:
            for name in stopped:
                stack.enter_context(target.services[name].suspended())
            running = [pool.submit(_timed, target, *request) for request in crowd]
            yield _probed(target, label)
            for (method, path, _, _), asked in zip(crowd, running, strict=True):
                answer, seconds = asked.result()
                late = f"answered after {seconds:.0f} s" if seconds > ANSWER_SECONDS else ""
                unlimited = path == CHAT and answer.status == 503 and answer.code == "database_unavailable"
                yield outcome_of(answer, f"{method} {path}, {label}", late or ("a chat waits" if unlimited else ""))
        answer = _until_answered(target)
        yield outcome_of(answer, f"a chat after {label}", "" if answer.status == 200 else "it is not served again")


def _request(target: Target, draw: Random) -> tuple[str, str, Any, dict[str, Any]]:
    form = multipart({"purpose": "batch"}, b"{}\n", "late.jsonl")
    return draw.choice(
        [
            ("POST", CHAT, BODY, {}),
            ("POST", CHAT, BODY, {"key": target.keys["narrow"]}),
            ("POST", CHAT, BODY, {"key": target.keys["budgeted"]}),
            ("POST", "/v1/responses", {"model": "tier-1", "input": "Hi", "max_output_tokens": 2}, {}),
            ("GET", "/v1/responses/resp_0", None, {}),
            ("GET", "/v1/files", None, {}),
            ("POST", "/v1/files", form, _FORM),
            ("GET", "/v1/batches", None, {}),
            ("GET", "/v1/requests/chatcmpl-0", None, {}),
            ("GET", "/admin/api/keys", None, {"key": ADMIN_KEY}),
            ("GET", "/admin/api/budgets", None, {"key": ADMIN_KEY}),
            ("GET", "/metrics", None, {}),
        ]
    )


def _timed(target: Target, method: str, path: str, body: Any, more: dict[str, Any]) -> tuple[Answer, float]:
    with target.new_client() as client:
        began = time.monotonic()
        answer = client.ask(method, path, body, **({"key": target.caller} | more))
        return answer, time.monotonic() - began


def _probed(target: Target, label: str) -> Outcome:
    """The probes of an orchestrator, on a kept connection."""
    seconds = []
    with target.new_client() as client:
        answer = client.ask("GET", "/health/ready")
        for _ in range(PROBES):
            began = time.monotonic()
            answer = client.ask("GET", "/health/ready")
            seconds.append(time.monotonic() - began)
    median = statistics.median(seconds)
    slow = f"the probe took {median * 1e3:.0f} ms" if median > PROBE_SECONDS else ""
    return outcome_of(answer, f"/health/ready, {label}", slow)


def _until_answered(target: Target) -> Answer:
    """A chat of the key with a budget, once its budget can be leased again."""
    until = time.monotonic() + ANSWER_SECONDS
    while True:
        answer = target.ask("POST", CHAT, BODY, key=target.keys["budgeted"])
        if answer.status == 200 or time.monotonic() > until:
            return answer
        time.sleep(0.1)

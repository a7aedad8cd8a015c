"""The work of route, schedule and stream around a model that computes nothing, in calls of the project's functions.

SPEC GW-02 gives these stages 10 ms of an answer of 100 tokens. Calls are counted instead of milliseconds: they are
the same on every machine. The gateway is that of `walk.py`: one process, the laptop's catalogue, hash models.
"""

import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator
from functools import cache
from itertools import pairwise
from types import FrameType
from typing import Any

import pytest
import pytest_asyncio

from gateway.base.settings import Settings
from tests.gateway.walk import BODY, BOUNDED, ROOT
from tests.support.app import RunningGateway, running_gateway
from tests.support.core import laptop_hash_core

pytestmark = pytest.mark.asyncio(loop_scope="module")

# Where each stage's functions are.
ROUTING = (
    "gateway/inference/classifier_versions.py",
    "gateway/inference/conversations.py",
    "gateway/inference/exclusions.py",
    "gateway/inference/request_context.py",
    "gateway/inference/router.py",
    "gateway/inference/routing_knobs.py",
    "gateway/inference/rules_and_chains.py",
)
ROUTE = ("classifier/", *ROUTING)
SCHEDULE = (
    "inference_core/engine/",
    "inference_core/kv_cache/",
)
STREAM = ("gateway/", "inference_core/tokenization/", "inference_core/transport/", "tiers/")
# An eighth to a quarter more than was counted when this was written: 132, 187 and 42.
MOST_TO_ROUTE = 149
MOST_TO_SCHEDULE_A_TOKEN = 225
MOST_TO_STREAM_A_TOKEN = 48


class CallCounter:
    """Counts the calls of each of the project's files; a profile function of the interpreter."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            path = _path(frame.f_code.co_filename)
            if path is not None:
                self.calls[path] += 1

    def within(self, places: tuple[str, ...]) -> int:
        """Calls of files whose paths begin with one of `places`."""
        # Copied at once: threads that end go on counting.
        return sum(count for path, count in dict(self.calls).items() if path.startswith(places))


@cache
def _path(file: str) -> str | None:
    path = file.removeprefix(ROOT)
    return None if path == file or path.startswith(("tests/", ".venv/")) else path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def counted(tmp_path_factory: Any) -> AsyncIterator[tuple[RunningGateway, CallCounter]]:
    """A gateway that has answered once, and the counter of its calls."""
    counter = CallCounter()
    settings = Settings(
        data_dir=str(tmp_path_factory.mktemp("counted")), monitor=False, drain_seconds=5, keys_poll_seconds=3600,
        artefact_poll_seconds=3600,
    )  # fmt: skip
    # Threads take their profile function along when they start; this thread would only count how a gateway is made.
    threading.setprofile(counter)
    try:
        async with running_gateway(
            settings, core=laptop_hash_core(settings), scripted=False, protocol=BOUNDED
        ) as gateway:
            sys.setprofile(counter)
            await calls_of(gateway, counter, 8)
            yield gateway, counter
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


async def calls_of(gateway: RunningGateway, counter: CallCounter, tokens: int) -> dict[str, int]:
    """Stream an answer of so many tokens; return the calls of each stage until its last byte."""
    counter.calls.clear()
    async with gateway.http.stream("POST", "/v1/chat/completions", json=BODY | {"max_tokens": tokens}) as response:
        response.raise_for_status()
        last = [line async for line in response.aiter_lines() if line][-1]
    assert last == "data: [DONE]"
    routed = counter.within(ROUTE)
    return {
        "route": routed,
        "schedule": counter.within(SCHEDULE),
        "stream": counter.within(STREAM) - counter.within(ROUTING),
    }


async def least_calls_of(gateway: RunningGateway, counter: CallCounter, tokens: int) -> dict[str, int]:
    """The fewest of three answers: the gateway's own timers, which any of them may meet, are no work of an answer."""
    answers = [await calls_of(gateway, counter, tokens) for _ in range(3)]
    return {stage: min(answer[stage] for answer in answers) for stage in answers[0]}


async def test_route_schedule_and_stream_are_little_work(counted: tuple[RunningGateway, CallCounter]) -> None:
    gateway, counter = counted
    short, long = await least_calls_of(gateway, counter, 10), await least_calls_of(gateway, counter, 40)
    per_token = {stage: (long[stage] - short[stage]) / 30 for stage in short}

    assert 0 < short["route"] <= MOST_TO_ROUTE
    assert 0 < per_token["schedule"] <= MOST_TO_SCHEDULE_A_TOKEN, per_token
    assert 0 < per_token["stream"] <= MOST_TO_STREAM_A_TOKEN, per_token


async def test_a_token_late_in_an_answer_is_no_more_work_than_an_early_one(
    counted: tuple[RunningGateway, CallCounter],
) -> None:
    gateway, counter = counted
    lengths = [await least_calls_of(gateway, counter, tokens) for tokens in (10, 40, 70)]
    for stage in ("schedule", "stream"):
        early, late = (after[stage] - before[stage] for before, after in pairwise(lengths))
        assert late <= 1.5 * early, stage

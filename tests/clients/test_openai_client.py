"""The official client, synchronous and asynchronous: answers, errors, and retries."""

import asyncio
from typing import Literal

import openai
import pytest
from pydantic import BaseModel

from gateway.base.settings import Settings
from gateway.tenancy.keys.key_secrets import new_key
from tests.support.app import StartApp, running_gateway
from tests.support.served import ServedProcess
from tiers.errors import TierUnavailableError

pytestmark = pytest.mark.processes

HELLO = [{"role": "user", "content": "Say hello."}]


class Answer(BaseModel):
    word: Literal["yes", "no"]


class AfterAWhile(TierUnavailableError):
    retry_after_seconds = 2.0


def test_the_synchronous_client_puts_a_stream_together_and_parses_it(aio: ServedProcess) -> None:
    fields = {"model": "tier-1", "messages": HELLO, "response_format": Answer, "temperature": 0}
    with aio.client.chat.completions.stream(**fields) as stream:
        said = "".join(event.delta for event in stream if event.type == "content.delta")
        message = stream.get_final_completion().choices[0].message
    assert message.content == said
    assert isinstance(message.parsed, Answer)


async def test_the_asynchronous_client_says_the_same_many_times_at_once(aio: ServedProcess) -> None:
    async with openai.AsyncOpenAI(base_url=f"{aio.url}/v1", api_key="unused", max_retries=0) as client:
        fields = {"model": "tier-1", "messages": HELLO, "max_tokens": 8, "temperature": 0}
        answers = await asyncio.gather(*(client.chat.completions.create(**fields) for _ in range(8)))
    alone = aio.client.chat.completions.create(**fields)
    assert {answer.choices[0].message.content for answer in answers} == {alone.choices[0].message.content}


def test_what_the_caller_can_mend_has_the_clients_error_for_it(aio: ServedProcess) -> None:
    chat = aio.client.chat.completions
    with pytest.raises(openai.NotFoundError) as missing:
        chat.create(model="gpt-9", messages=HELLO)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as unknown:
        chat.create(model="auto", messages=HELLO, modalities=["text", "audio"])
    assert (unknown.value.param, unknown.value.code) == ("modalities", "unsupported_parameter")


async def test_a_missing_key_is_an_authentication_error(settings: Settings, app: StartApp) -> None:
    key, digest = new_key()
    gateway = await app(api_keys=f"team={digest}")
    with pytest.raises(openai.AuthenticationError) as caught:
        await gateway.openai.chat.completions.create(model="auto", messages=HELLO)
    assert caught.value.code == "invalid_api_key"
    answer = await gateway.openai.with_options(api_key=key).chat.completions.create(model="auto", messages=HELLO)
    assert answer.choices[0].message.content == "Hello there, how are you?"


async def test_a_client_that_retries_obeys_retry_after(settings: Settings) -> None:
    async with running_gateway(settings) as gateway:
        tier = gateway.tier(2)
        tier.fail_at, tier.error = 0, AfterAWhile("loading")
        asking = asyncio.create_task(
            gateway.openai.with_options(max_retries=1).chat.completions.create(model="tier-2", messages=HELLO)
        )
        await tier.ended.wait()
        tier.fail_at = None
        assert (await asking).choices[0].message.content == "Hello there, how are you?"
    first, second = tier.requests
    # By default the client retries within a second.
    assert second.arrival - first.arrival >= AfterAWhile.retry_after_seconds


async def test_a_tier_that_stays_away_is_an_internal_server_error(settings: Settings) -> None:
    async with running_gateway(settings) as gateway:
        gateway.tier(2).fail_at, gateway.tier(2).error = 0, TierUnavailableError("gone")
        with pytest.raises(openai.InternalServerError) as caught:
            await gateway.openai.chat.completions.create(model="tier-2", messages=HELLO)
    assert caught.value.code == "tier_unavailable"
    assert caught.value.response.headers["retry-after"] == "1"

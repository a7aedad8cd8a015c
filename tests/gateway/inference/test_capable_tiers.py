"""Requests go only to tiers that support what they need: images, audio, files, tools, structured output."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import openai
import pytest
import pytest_asyncio

from tests.gateway.capable_tiers import Noting, capable_tiers
from tests.support.app import RunningGateway
from tiers.catalog.tier_spec import Capabilities

PNG = "data:image/png;base64," + "iVBORw0KGgoAAAANSUhEUgAA" * 40
IMAGE = {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}}
SOUND = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
FILE = {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}}
QUESTION = [
    {"type": "text", "text": "Compare "},
    IMAGE,
    {"type": "text", "text": " with this."},
    SOUND,
    FILE,
]
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
TIERS = {1: "small-model", 2: "own-model", 3: "large-model"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def capable(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[RunningGateway, Noting]]:
    async with capable_tiers(tmp_path_factory.mktemp("capable")) as running:
        yield running


@pytest.fixture
def gateway(capable: tuple[RunningGateway, Noting]) -> RunningGateway:
    return capable[0]


@pytest.fixture
def noting(capable: tuple[RunningGateway, Noting]) -> Noting:
    capable[1].bodies.clear()
    return capable[1]


async def ask(gateway: RunningGateway, content: Any, model: str = "auto", **fields: Any) -> Any:
    messages: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}]
    return await gateway.openai.chat.completions.create(model=model, messages=messages, **fields)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("stream", [False, True])
async def test_the_official_clients_image_audio_and_file_reach_a_capable_tier_as_they_were_sent(
    gateway: RunningGateway, noting: Noting, stream: bool
) -> None:
    answer = await ask(gateway, QUESTION, stream=stream)
    if stream:
        chunks = [chunk async for chunk in answer]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "A cat."
    (body,) = noting.bodies
    assert body["model"] == "large-model"
    assert body["messages"][1] == {"role": "user", "content": QUESTION}


@pytest.mark.asyncio(loop_scope="module")
async def test_a_plain_question_still_goes_to_any_tier_as_text(gateway: RunningGateway, noting: Noting) -> None:
    await ask(gateway, [{"type": "text", "text": "Say"}, {"type": "text", "text": "hello."}], model="tier-1")

    assert noting.bodies[0]["messages"][1]["content"] == "Say\nhello."


@pytest.mark.asyncio(loop_scope="module")
async def test_the_decision_says_which_tiers_were_ruled_out_and_why(gateway: RunningGateway, noting: Noting) -> None:
    answer = await gateway.http.post(
        "/v1/chat/completions", json={"model": "auto", "messages": [{"role": "user", "content": [IMAGE]}]}
    )

    assert answer.headers["x-aio-tier"] == "3"
    record = (await gateway.http.get(f"/v1/requests/{answer.headers['x-aio-decision-id']}")).json()
    reason = record["decision"]["reason"]
    assert "not tier 1: it does not support images" in reason
    assert "not tier 2: it does not support images" in reason


@pytest.mark.asyncio(loop_scope="module")
async def test_a_pinned_tier_that_reads_text_only_is_refused_and_the_capable_one_named(
    gateway: RunningGateway, noting: Noting
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await ask(gateway, [{"type": "text", "text": "What is it?"}, IMAGE], model="tier-2")

    assert refused.value.code == "unsupported_content"
    assert refused.value.param == "messages[1].content[1].image_url"
    assert "tier 2 does not support images; it is supported by tier-3 (large)" in refused.value.message
    assert noting.bodies == []


@pytest.mark.asyncio(loop_scope="module")
async def test_without_any_capable_tier_the_refusal_says_how_one_is_declared(gateway: RunningGateway) -> None:
    reading = gateway.serving.routing.served.catalog.tiers
    before = list(reading)
    reading[:] = [msgspec.structs.replace(spec, capabilities=Capabilities()) for spec in before]
    try:
        with pytest.raises(openai.BadRequestError) as refused:
            await ask(gateway, [IMAGE])
    finally:
        reading[:] = before

    assert refused.value.code == "unsupported_content"
    assert "no tier of the catalogue is declared to (capabilities = { vision = true })" in refused.value.message


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("fields", "tier"),
    [
        ({"tools": [WEATHER]}, "own-model"),
        ({"response_format": {"type": "json_object"}}, "own-model"),
        ({"logprobs": True}, "own-model"),
    ],
)
async def test_tools_formats_and_logprobs_go_past_a_tier_that_declares_it_has_none(
    gateway: RunningGateway, noting: Noting, fields: dict[str, Any], tier: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await ask(gateway, "Hello.", model="tier-1", **fields)
    await ask(gateway, "Hello.", **fields)

    assert (refused.value.code, refused.value.param) == ("unsupported_parameter", next(iter(fields)))
    assert noting.bodies[0]["model"] != "small-model"


@pytest.mark.asyncio(loop_scope="module")
async def test_an_image_by_the_address_of_clouds_credentials_or_of_a_disk_is_refused(
    gateway: RunningGateway, noting: Noting
) -> None:
    for url in ("file:///etc/passwd", "http://169.254.169.254/latest/meta-data", "http://[", "https://", "cat.png"):
        with pytest.raises(openai.BadRequestError) as refused:
            await ask(gateway, [{"type": "image_url", "image_url": {"url": url}}])
        assert refused.value.param == "messages[1].content[0].image_url.url"
    assert noting.bodies == []


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("part", [{"type": "image_url"}, {"type": "input_audio", "input_audio": {"format": "wav"}}])
async def test_a_part_without_its_data_is_refused_by_name(gateway: RunningGateway, part: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await ask(gateway, [part])

    assert str(refused.value.param).startswith(f"messages[1].content[0].{part['type']}")


@pytest.mark.asyncio(loop_scope="module")
async def test_the_record_keeps_kind_and_size_and_no_picture(gateway: RunningGateway) -> None:
    answer = await gateway.http.post(
        "/v1/chat/completions", json={"model": "auto", "messages": [{"role": "user", "content": QUESTION}]}
    )
    decision = answer.headers["x-aio-decision-id"]
    found = await gateway.http.get(f"/v1/requests/{decision}")
    turn = found.json()["messages"][0]

    assert PNG[30:80] not in found.text
    assert turn["content"] == "Compare \n with this."
    assert turn["attachments"].startswith("[image, 720 bytes, ")
    assert [kind.split(",")[0] for kind in turn["attachments"].split("[")[1:]] == ["image", "audio", "file"]


@pytest.mark.asyncio(loop_scope="module")
async def test_another_picture_is_another_request_to_the_cache(gateway: RunningGateway, noting: Noting) -> None:
    def asking(data: str) -> dict[str, Any]:
        content = [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": PNG + data}}]
        return {"model": "auto", "messages": [{"role": "user", "content": content}], "temperature": 0}

    for data in ("AAAA", "AAAA", "BBBB"):
        assert (await gateway.http.post("/v1/chat/completions", json=asking(data))).status_code == 200

    assert len(noting.bodies) == 2

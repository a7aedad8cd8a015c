"""What a response's input holds beyond text reaches the tiers that take it, also from stored responses."""

from pathlib import Path
from typing import Any

import openai
import pytest

from tests.gateway.capable_tiers import capable_tiers

PIXEL = "data:image/png;base64,iVBORw0KGgo="


async def test_an_image_goes_to_a_tier_that_sees_and_stays_in_the_conversation(tmp_path: Path) -> None:
    question: Any = [
        {"role": "user", "content": [
            {"type": "input_text", "text": "What is this?"},
            {"type": "input_image", "image_url": PIXEL, "detail": "low"},
        ]},
    ]  # fmt: skip
    async with capable_tiers(tmp_path) as (gateway, noting):
        responses = gateway.openai.responses
        first = await responses.create(model="auto", input=question)
        await responses.create(model="auto", input="What colour?", previous_response_id=first.id)
        assert [body["model"] for body in noting.bodies] == ["large-model"] * 2
        image = {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}}
        assert noting.bodies[1]["messages"][0]["content"] == [{"type": "text", "text": "What is this?"}, image]
        with pytest.raises(openai.BadRequestError) as refused:
            await responses.create(model="small", input=question)
        assert refused.value.body["param"].startswith("input")  # type: ignore[index]
        page = await responses.input_items.list(first.id)
        assert page.data[0].content[1].image_url == PIXEL  # type: ignore[union-attr]


async def test_stored_thoughts_are_given_back_to_servers_that_read_them(tmp_path: Path) -> None:
    async with capable_tiers(tmp_path) as (gateway, noting):
        responses = gateway.openai.responses
        first = await responses.create(model="own-server", input="What is it?")
        await responses.create(model="own-server", input="Sure?", previous_response_id=first.id)
        assert noting.bodies[1]["messages"][1]["reasoning_content"] == "Whiskers."

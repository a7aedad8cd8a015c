"""Presidio's recognisers of patterns as a guardrail, through a running gateway."""

from pathlib import Path

import pytest

from gateway.inference.screening.guardrail import Asked, AskedText
from gateway.inference.screening.presidio import PatternRecognizers
from tests.gateway.inference.screening.test_guardrails import chat, guarded, seen

TABLE = """
[[guardrails]]
name = "presidio"
python = "gateway.inference.screening.presidio:PatternRecognizers"
timeout_seconds = 60
"""
SAID = (
    "I am Ada: ada@example.com, (212) 555-2368, card 4111 1111 1111 1111, account DE89370400440532013000, from 10.0.0.1"
)
REPLACED = "I am Ada: <EMAIL_ADDRESS>, <PHONE_NUMBER>, card <CREDIT_CARD>, account <IBAN_CODE>, from <IP_ADDRESS>"


async def test_it_replaces_what_it_finds_in_requests_and_answers(tmp_path: Path) -> None:
    async with guarded(tmp_path, TABLE) as aio:
        aio.tier(1).words = ("Write", " to", " ada@exam", "ple.com", " again")
        answer = (await chat(aio, SAID)).json()
        assert (seen(aio)[0].messages or [])[0].text == REPLACED
        assert answer["choices"][0]["message"]["content"] == "Write to <EMAIL_ADDRESS> again"


async def test_it_blocks_where_it_is_to(tmp_path: Path) -> None:
    options = 'options = { action = "block", entities = ["CREDIT_CARD"] }\n'
    async with guarded(tmp_path, TABLE + options) as aio:
        assert (await chat(aio, "ada@example.com")).status_code == 200
        error = (await chat(aio, SAID)).json()["error"]
        assert (error["code"], "it contains CREDIT_CARD" in error["message"]) == ("content_filter", True)


def test_a_text_without_any_passes_and_an_unknown_entity_is_refused() -> None:
    texts = [AskedText("user", "What is the capital of France?"), AskedText("assistant", "Paris, since 987.")]
    asked = Asked(stage="request", request_id="a", model="auto", texts=texts)
    assert PatternRecognizers().check(asked).action == "pass"
    with pytest.raises(ValueError, match="no recogniser in 'en' for PERSON"):
        PatternRecognizers(entities=["EMAIL_ADDRESS", "PERSON"])

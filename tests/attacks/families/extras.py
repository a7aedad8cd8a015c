"""Attacks by what providers bill besides tokens: classes of service, tools that they run, searches, audio, images."""

import asyncio
import base64
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from tests.attacks.targets import Target
from tests.bills.row import Body, Row, Server, chat, message, response, words
from tests.bills.runner import bills, line
from tests.hostile.target import Outcome, attack_class

OPENAI = Server("openai", "openai", "gpt-5", "capabilities = { vision = true, files = true }")
OLDER = Server("openai-older", "openai", "gpt-4o-mini", "capabilities = { vision = true }")
SPEAKING = Server("openai-audio", "openai", "gpt-audio", "capabilities = { audio = true }")
CLAUDE = Server("claude", "anthropic", "claude-opus-4-6")
XAI = Server("xai", "xai", "grok-4")
OPENROUTER = Server("openrouter", "openrouter", "openai/gpt-4o")
PROMPT, ANSWER = 1000, 100
ODD_BOUNDS = (None, -1, 0.5, True, "many")
"""Bounds that are none: a server may take them for any number."""


def _usd(prompt: float, answer: float, prompt_tokens: int = PROMPT, answer_tokens: int = ANSWER) -> float:
    return (prompt * prompt_tokens + answer * answer_tokens) / 1e6


GPT_5, OPUS, GROK = _usd(1.25, 10), _usd(5, 25), _usd(3, 15)


def _chat(server: Server, asked: Body, usage: Body, usd: float, told: Body | None = None, **more: Any) -> Row:
    counts = {"prompt_tokens": PROMPT, "completion_tokens": ANSWER} | usage
    body = {"messages": [{"role": "user", "content": words(PROMPT)}], "max_tokens": 300} | asked
    return Row(f"chat {asked}"[:200], server, "chat/completions", body, chat(counts, **(told or {})), usd, "", **more)


def _message(asked: Body, usage: Body, usd: float, **more: Any) -> Row:
    counts = {"input_tokens": PROMPT, "output_tokens": ANSWER} | usage
    body = {"messages": [{"role": "user", "content": words(PROMPT)}], "max_tokens": 300} | asked
    return Row(f"message {asked}"[:200], CLAUDE, "messages", body, message(counts), usd, "", **more)


def _response(asked: Body, items: list[Body], usd: float, told: Body | None = None, **more: Any) -> Row:
    counts = {"input_tokens": PROMPT, "output_tokens": ANSWER}
    body = {"input": words(PROMPT), "max_output_tokens": 300} | asked
    return Row(f"response {asked}"[:200], OPENAI, "responses", body, response(counts, items, **(told or {})), usd, "",
               **more)  # fmt: skip


def _tier(draw: Random) -> Row:
    asked, told = (
        draw.choice(["priority", "flex", "default", "auto", None]),
        draw.choice(["priority", "flex", "default"]),
    )
    usd = GPT_5 * {"priority": 2.0, "flex": 0.5, "default": 1.0}[told]
    fields: Body = {} if asked is None else {"service_tier": asked}
    if draw.random() < 0.5:
        return _response(fields, [], usd, {"service_tier": told})
    return _chat(OPENAI, fields, {}, usd, {"service_tier": told})


def _speed(draw: Random) -> Row:
    told, place = draw.choice(["fast", "standard"]), draw.choice(["us", "global"])
    usd = OPUS * (6.0 if told == "fast" else 1.0) * (1.1 if place == "us" else 1.0)
    return _message({"speed": "fast", "inference_geo": place}, {"speed": told, "inference_geo": place}, usd)


def _searches(draw: Random) -> Row:
    uses, tool = draw.randrange(10), {"type": "web_search_20250305", "name": "web_search"}
    if draw.random() < 0.5:
        tool["max_uses"] = draw.choice((uses, 25, *ODD_BOUNDS))
    read = PROMPT * (1 + uses)
    usage = {"input_tokens": read, "server_tool_use": {"web_search_requests": uses}}
    return _message({"tools": [tool]}, usage, 0.01 * uses + _usd(5, 25, read))


def _opened(draw: Random) -> Row:
    uses = draw.randrange(10)
    asked: Body = {"tools": [{"type": draw.choice(["web_search", "web_search_2025_08_26"])}] * draw.choice([1, 2])}
    if draw.random() < 0.5:
        asked["max_tool_calls"] = max(1, uses)
    items = [{"id": f"ws_{n}", "type": "web_search_call", "status": "completed",
              "action": {"type": draw.choice(["search", "open_page"])}} for n in range(uses)]  # fmt: skip
    billed = sum(item["action"]["type"] == "search" for item in items)  # type: ignore[index]
    return _response(asked, items, 0.01 * billed + GPT_5)


def _containers(draw: Random) -> Row:
    memory, usd = draw.choice([("1g", 0.03), ("4g", 0.12), ("16g", 0.48), ("64g", 1.92)])
    tool = {"type": "code_interpreter", "container": {"type": "auto", "memory_limit": memory}}
    items = [{"id": f"ci_{n}", "type": "code_interpreter_call", "status": "completed", "container_id": "c", "code": "1"}
             for n in range(draw.randrange(4))]  # fmt: skip
    return _response({"tools": [tool]}, items, (usd if items else 0.0) + GPT_5)


def _live_search(draw: Random) -> Row:
    most = draw.choice([None, 1, 30])
    used = draw.randrange((20 if most is None else most) + 1)
    search = {"mode": "on"} if most is None else {"mode": "on", "max_search_results": most}
    return _chat(XAI, {"search_parameters": search}, {"num_sources_used": used}, 0.025 * used + GROK)


def _images(draw: Random) -> Row:
    server, low, most, prices = draw.choice([(OPENAI, 70, 1190, (1.25, 10)), (OLDER, 2833, 48_169, (0.15, 0.6))])
    # As many as the models' contexts hold.
    details = [draw.choice(["low", "high"]) for _ in range(2)] + ["low"] * draw.randrange(4)
    url = "data:image/png;base64," + base64.b64encode(b"\x89PNG" + draw.randbytes(64)).decode()
    parts: list[Body] = [{"type": "image_url", "image_url": {"url": url, "detail": one}} for one in details]
    read = 20 + sum(low if one == "low" else most for one in details)
    asked = {"messages": [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, *parts]}]}
    return _chat(server, asked, {"prompt_tokens": read}, _usd(*prices, read))


def _spoken(draw: Random) -> Row:
    spoken = draw.randrange(ANSWER)
    usd = (PROMPT * 2.5 + (ANSWER - spoken) * 10 + spoken * 64) / 1e6
    asked = {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}}
    return _chat(SPEAKING, asked, {"completion_tokens_details": {"audio_tokens": spoken}}, usd)


def _unknown(draw: Random) -> Row:
    """What has no known price, or no bound."""
    more: Body = {"expected": "refused"}
    tool = draw.choice(["mcp", "image_generation", f"tool_{draw.randrange(10**6)}"])
    run = draw.choice(["code_execution_20250825", "mcp_toolset", f"advisor_{draw.randrange(10**6)}"])
    return draw.choice([
        lambda: _response({"tools": [{"type": tool, "server_label": "x"}]}, [], GPT_5, **more),
        lambda: _message({"tools": [{"type": run, "name": "x"}]}, {}, OPUS, **more),
        lambda: _message({"mcp_servers": [{"type": "url", "url": "https://x.example/"}]}, {}, OPUS, **more),
        lambda: _message({"inference_geo": draw.choice(["eu", "mars"])}, {}, OPUS, **more),
        lambda: _chat(XAI, {"service_tier": "priority"}, {}, GROK, **more),
        lambda: _chat(OPENROUTER, {"plugins": [{"id": draw.choice(["web", "file-parser", "new"])}]}, {"cost": 3.0}, 3.0,
                      **more),
        lambda: _chat(OPENROUTER, {"provider": {"sort": "throughput"}}, {"cost": 3.0}, 3.0, **more),
    ])()  # fmt: skip


_KINDS: list[Callable[[Random], Row]] = [
    _tier, _speed, _searches, _opened, _containers, _live_search, _images, _spoken, _unknown,
]  # fmt: skip


@attack_class("extras of providers", 270, "keyed")
def extras(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """What providers bill besides tokens, asked of its own gateways by keys with and without budgets: the bill is the
    published one, or the request is refused, or the record of a key without a budget says that something is
    unpriced."""
    rows = []
    for number in range(count):
        row = _KINDS[number % len(_KINDS)](draw)
        request = row.request | ({"stream": True} if draw.random() < 0.5 else {})
        budget = draw.choice([None, 1e6])
        expected = "billed" if budget is None else row.expected
        rows.append(row._replace(request=request, budget=budget, expected=expected))
    for number, bill in enumerate(asyncio.run(bills(rows))):
        is_open = bill.row.budget is None and bill.is_unpriced and bill.outcome == "billed"
        bypass = "" if bill.is_right or is_open else line(bill)
        yield Outcome(f"{number} {bill.row.name}", 400 if bill.outcome == "refused" else 200, bypass=bypass)

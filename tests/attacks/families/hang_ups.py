"""Callers that leave a stream before its counts, so that the thoughts that it hides are free."""

import asyncio
import json
from collections.abc import Iterator
from random import Random

from tests.attacks.targets import Target
from tests.bills.hang_ups import PROMPT, TEXT, Leaving, left_row
from tests.bills.row import Body, Row, Server, words
from tests.bills.runner import bills
from tests.hostile.target import Outcome, attack_class
from tests.support.upstream import Call

MOST_TOKENS = 8_000
_SHOWN = 105
_APIS = ("chat/completions", "messages", "responses", "ws")
# One bills a stream to its end, read or not; the other stops when its connection is closed.
_GOES_ON = Server("goes-on", "mistral", "magistral-medium-latest")
_STOPS = Server("stops", "openai", "gpt-5")
_PRICES = {_GOES_ON: (2.0, 5.0), _STOPS: (1.25, 10.0)}
_REPORTS = ("late", "in pieces", "with every event", "never")


@attack_class("hang-ups", 240, "open")
def hang_ups(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Streams that are left once their text is read, over every API, at servers that report their counts late, in
    pieces, with every event, or never: each bill is the provider's, or a marked estimate within what was held."""
    rows = [_row(draw, number) for number in range(count)]
    for row, bill in zip(rows, asyncio.run(bills(rows)), strict=True):
        read, written = _PRICES[row.server]
        most = (2 * PROMPT * read + MOST_TOKENS * written) / 1e6
        bypass = ""
        if not (bill.outcome == "estimate" and row.expected == "either") and not bill.is_right:
            is_billed = row.expected == "either" and bill.outcome == "billed" and bill.billed >= row.usd / 1.05
            bypass = "" if is_billed else f"{bill.outcome}: ${bill.billed:.6f} of ${row.usd:.6f}"
        if bill.billed > most:
            bypass = f"${bill.billed:.6f} is billed, and ${most:.6f} was held"
        yield Outcome(f"{row.name}: {bill.outcome}, ratio {bill.ratio or 0.0:.2f}", 200, bypass=bypass)


def _row(draw: Random, number: int) -> Row:
    api, report = draw.choice(_APIS), draw.choice(_REPORTS)
    server, hidden = draw.choice((_GOES_ON, _STOPS)), draw.randint(0, MOST_TOKENS - _SHOWN)
    request: Body = {"messages": [{"role": "user", "content": words(PROMPT)}], "max_tokens": MOST_TOKENS}
    if api == "responses":
        request = {"input": words(PROMPT), "max_output_tokens": MOST_TOKENS}
    expected = "estimate" if report == "never" else "billed" if server is _GOES_ON else "either"
    name = f"{number}: {api} at a server that {server.name}, counts {report}, {hidden} tokens hidden"
    leaving = _leaving(report, hidden)
    return left_row(name, server, api, request, leaving, _PRICES[server], "", expected, hidden + _SHOWN)


def _leaving(report: str, hidden: int) -> Leaving:
    def counts(shown: int) -> Body:
        details = {"reasoning_tokens": hidden}
        return {"prompt_tokens": PROMPT, "completion_tokens": hidden + shown, "completion_tokens_details": details}

    async def first(call: Call) -> None:
        usage = counts(_SHOWN) if report == "with every event" else None
        choice = {"index": 0, "delta": {"content": TEXT}, "finish_reason": None}
        await call.begin()
        await call.event({"object": "chat.completion.chunk", "choices": [choice], "usage": usage})

    async def then(call: Call) -> None:
        await call.chunk(finish="stop")
        event = f"data: {json.dumps({'object': 'chat.completion.chunk', 'choices': [], 'usage': counts(_SHOWN)})}\n\n"
        pieces = [event] if report != "in pieces" else [event[place : place + 7] for place in range(0, len(event), 7)]
        for piece in pieces:
            await call.send(piece.encode())
        await call.send(b"data: [DONE]\n\n")

    return Leaving(first, None if report == "never" else then)

"""`python -m tests.gateway.tenancy.budget_days [--limit whole] [--seed N]`: two days of keys with small budgets, whose
requests set no `max_tokens`: whole answers and streams of two APIs, several at once, an outage of a provider and one of
the database, and a renewal at midnight. It prints what was spent and refused, by key and day.

A gateway serves over HTTP; its clock is moved to the next day. Its servers draw how long their answers are, hidden
thoughts included, and stop at the limit that they are sent.
"""

import argparse
import asyncio
import itertools
import json
import random
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec

from tests.database_outage import outage
from tests.polling import eventually
from tests.support.administrator import bearer
from tests.support.app import RunningGateway, gateway_of
from tests.support.upstream import Call, LoopbackServer

# Of each model: dollars per million tokens of prompt and answer, the median answer, and the share of its thoughts.
MODELS = {"cheap": (0.1, 0.4, 250, 0.0), "middle": (0.5, 2.0, 300, 0.0), "dear": (1.25, 10.0, 450, 0.6)}
SPREAD = 0.8
"""Standard deviation of the logarithm of an answer's length."""
CONTEXT = 100_000
BUDGETS_USD = {"ada": 0.3, "bob": 0.12, "eve": 0.06}
IN_OUTAGE = 8
"""Requests of a key while the database is away."""
AT_ONCE = 4
"""Requests of a key."""
ENOUGH = 0.95
DAY = 86_400
MOST_REQUESTS, MOST_LATE = 600, 8
"""Of a key a phase of the day; and so many refusals at its end."""
_ENTRY = """
[[tiers]]
name = "{name}"
url = "{url}"
model = "{name}"
max_context = {context}
price = {{ input_usd_per_million = {input}, output_usd_per_million = {output} }}
"""


class Asked(msgspec.Struct):
    """A request as its caller has it. `started`: how many of its key had started
    that day when it was answered."""

    key: str
    day: int
    status: int = 0
    code: str = ""
    cost_usd: float = 0.0
    started: int = 0


class Servers:
    """Answers all models. `down`: those that fail. `usd`: what they would bill."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.down: set[str] = set()
        self.usd = 0.0
        self.unlimited = self.cut = self.answers = 0

    async def answer(self, call: Call) -> None:
        model = call.body["model"]
        if model in self.down:
            await call.reply(503, {"error": {"message": "overloaded"}})
            return
        price_in, price_out, median, thoughts = MODELS[model]
        tokens, most = max(1, int(median * self._random.lognormvariate(0, SPREAD))), call.body.get("max_tokens")
        self.answers += 1
        self.unlimited += most is None
        finish = "stop"
        if most is not None and tokens > most:
            self.cut += 1
            tokens, finish = most, "length"
        prompt = sum(len(turn["content"]) for turn in call.body["messages"]) // 4 + 8
        self.usd += (prompt * price_in + tokens * price_out) / 1e6
        usage: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
        usage["completion_tokens_details"] = {"reasoning_tokens": int(tokens * thoughts)}
        # Answers overlap: each takes a few turns of the loop.
        for _ in range(self._random.randrange(40)):
            await asyncio.sleep(0)
        if call.body.get("stream"):
            await call.begin()
            await call.chunk("As ")
            await call.chunk("asked.")
            await call.end(usage, finish)
        else:
            await call.whole("As asked.", usage, finish)


class Days:
    """The callers' log of two days. `refusals_counted`: as the gateway counts them; `over_usd`: the most that a budget
    was exceeded by, as the gateway has it; `billed_usd`: by all servers."""

    def __init__(self) -> None:
        self.log: list[Asked] = []
        self.refusals_counted: dict[str, int] = {}
        self.over_usd = 0.0
        self.servers: Servers | None = None

    def of(self, key: str, day: int) -> list[Asked]:
        return [one for one in self.log if (one.key, one.day) == (key, day)]

    def spent_usd(self, key: str, day: int) -> float:
        return sum(one.cost_usd for one in self.of(key, day))

    def early(self, key: str, day: int) -> tuple[int, int]:
        """Requests while less than `ENOUGH` of the budget was spent, by them and all that had started, and the refused
        among them."""
        every = self.of(key, day)
        spent = list(itertools.accumulate((one.cost_usd for one in every), initial=0.0))
        asked = [one for one in every if spent[one.started] < ENOUGH * BUDGETS_USD[key]]
        return len(asked), sum(is_refused(one) for one in asked)

    def table(self) -> Iterator[str]:
        yield "| key | day | budget | spent | requests | until 95% were spent | of these refused |"
        yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
        for key, day in itertools.product(BUDGETS_USD, (1, 2)):
            asked, refused = self.early(key, day)
            share = f"{refused} ({100 * refused / max(1, asked):.1f}%)"
            spent = f"${self.spent_usd(key, day):.4f}"
            budget, every = f"${BUDGETS_USD[key]:.2f}", len(self.of(key, day))
            yield f"| {key} | {day} | {budget} | {spent} | {every} | {asked} | {share} |"


def is_refused(asked: Asked) -> bool:
    """Whether its budget did not cover it."""
    return asked.code == "insufficient_quota"


@asynccontextmanager
async def _gateway(folder: Path, servers: Servers) -> AsyncIterator[RunningGateway]:
    async with LoopbackServer(servers.answer) as loopback:
        entries = [
            _ENTRY.format(name=name, url=loopback.base_url, context=CONTEXT, input=price_in, output=price_out)
            for name, (price_in, price_out, *_) in MODELS.items()
        ]
        async with gateway_of(folder, 'name = "days"\n' + "".join(entries)) as running:
            yield running


class Caller:
    """Asks with one key until its budget is spent."""

    def __init__(self, gateway: RunningGateway, days: Days, name: str, key: str, seed: int) -> None:
        self._gateway, self._days, self._name, self._headers = gateway, days, name, bearer(key) | {"x-aio-cache": "off"}
        self._random, self._numbers = random.Random(f"{name}{seed}"), itertools.count()

    async def day(self, number: int, until_usd: float, most: int = MOST_REQUESTS) -> None:
        """Ask, several at once, until so much is spent, or so little is left that nothing is answered any more; at most
        so many requests."""
        self._refused_late, self._rest = 0, most
        await asyncio.gather(*(self._asks(number, until_usd) for _ in range(AT_ONCE)))

    async def _asks(self, day: int, until_usd: float) -> None:
        while self._rest > 0:
            self._rest -= 1
            spent = self._days.spent_usd(self._name, day)
            if spent >= until_usd or self._refused_late >= MOST_LATE:
                return
            asked = Asked(self._name, day)
            self._days.log.append(asked)
            await self._ask(asked)
            asked.started = len(self._days.of(self._name, day))
            self._refused_late += is_refused(asked) and spent >= ENOUGH * BUDGETS_USD[self._name]

    async def _ask(self, asked: Asked) -> None:
        number = next(self._numbers)
        model = self._random.choices(["auto", "dear", "middle"], [6, 2, 2])[0]
        text = f"Question {number}: " + "why is that so? " * self._random.randrange(1, 120)
        stream = number % 2 == 1
        if number % 3 == 2:
            path, body = "/v1/responses", {"model": model, "input": text, "stream": stream}
        else:
            path, body = "/v1/chat/completions", {"model": model, "messages": [{"role": "user", "content": text}]}
            body |= {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        answer = await self._gateway.http.post(path, json=body, headers=self._headers)
        asked.status = answer.status_code
        if answer.status_code != 200:
            asked.code = answer.json()["error"]["code"] or ""
            if answer.status_code == 503:
                # As clients do.
                await asyncio.sleep(float(answer.headers["retry-after"]))
        elif not stream:
            asked.cost_usd = float(answer.headers["x-aio-cost-usd"])
        else:
            asked.cost_usd = max(map(_cost_of, _events(answer)))


def _events(answer: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]


def _cost_of(event: dict[str, Any]) -> float:
    own = event.get("x_aio") or (event.get("response") or {}).get("x_aio") or {}
    return float(own.get("cost_usd") or 0.0)


async def two_days(folder: Path, seed: int = 1, limit: str = "learned", most: int = MOST_REQUESTS) -> Days:
    """Run the two days, with at most so many requests of a key in each phase, and return their log."""
    days, servers = Days(), Servers(seed)
    days.servers = servers
    async with _gateway(folder, servers) as gateway:
        gateway.serving.routing.knobs.change({"budget_limit": limit})
        # Of requests for auto the tiers answer a part each, by their lengths.
        gateway.classifier.p_ok = (0.5, 0.8, 1.0)
        budgets, callers, names = {}, {}, {}
        for name, usd in BUDGETS_USD.items():
            made = await gateway.order("POST", "/keys", {"name": name})
            names[name] = made["key_id"]
            budgets[name] = await gateway.budget(name, usd, "day")
            callers[name] = Caller(gateway, days, name, made["key"], seed)

        async def until(day: int, share: float, most: int = most) -> None:
            await asyncio.gather(*(callers[name].day(day, share * usd, most) for name, usd in BUDGETS_USD.items()))

        for day in (1, 2):
            await until(day, 0.3)
            servers.down = {"dear"}
            await until(day, 0.35)
            servers.down = set()
            await until(day, 0.6)
            with outage(gateway.serving.database):
                await until(day, 2.0, IN_OUTAGE)
            await until(day, 2.0)
            await _check_spending(gateway, days, budgets)
            clock = gateway.access.tenancy.clock
            clock._wall = lambda ahead=day * DAY: time.time() + ahead  # type: ignore[misc]
            async with gateway.serving.database.connect() as connection:
                await clock.look(connection)

        async def counted() -> bool:
            for name, key in names.items():
                rows = (await gateway.order("GET", f"/refused-requests?key_id={key}&code=insufficient_quota"))["rows"]
                days.refusals_counted[name] = sum(row["count"] for row in rows)
            return sum(days.refusals_counted.values()) >= sum(map(is_refused, days.log))

        await eventually(counted)
    return days


async def _check_spending(gateway: RunningGateway, days: Days, budgets: dict[str, str]) -> None:
    rows = {row["budget_id"]: row for row in await gateway.budgets()}
    for name, budget_id in budgets.items():
        days.over_usd = max(days.over_usd, rows[budget_id]["spent_usd"] - BUDGETS_USD[name])


def main() -> None:
    """Parse the command line, run, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.gateway.tenancy.budget_days")
    parser.add_argument("--limit", choices=["learned", "whole"], default="learned", help="the knob budget_limit")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most", type=int, default=MOST_REQUESTS, help="requests of a key in each phase of a day")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="aio-days-") as folder:
        days = asyncio.run(two_days(Path(folder), given.seed, given.limit, given.most))
    print("\n".join(days.table()))
    assert days.servers is not None
    asked = [days.early(key, day) for key in BUDGETS_USD for day in (1, 2)]
    total, refused = map(sum, zip(*asked, strict=True))
    print(f"refused until 95% are spent: {refused} of {total} ({100 * refused / total:.2f}%)")
    codes = {code: sum(one.code == code for one in days.log) for code in {one.code for one in days.log}}
    errors = ", ".join(f"{code} {count}" for code, count in sorted(codes.items()) if code)
    print(f"errors: {errors}; most over a budget ${days.over_usd:.6f}")
    print(f"answers of servers: {days.servers.answers}, cut by a limit: {days.servers.cut}")


if __name__ == "__main__":
    main()

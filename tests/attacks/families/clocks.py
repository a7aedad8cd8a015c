"""A machine's clock that jumps while a gateway serves."""

import time
from collections.abc import Iterator
from random import Random

from tests.attacks.exchange import Answer
from tests.attacks.families.framing import outcome_of
from tests.attacks.targets import CHAT, HELLO, Browser, Target
from tests.hostile.target import Outcome, attack_class

HOUR, DAY = 3600.0, 86_400.0
JUMPS = (-400 * DAY, -31 * DAY, -7 * DAY, -DAY, -HOUR, -61.0, -1.0, 1.0, 61.0, HOUR, DAY, 7 * DAY, 31 * DAY)
# The gateway looks at its clock as often as at its keys, AIO_KEYS_POLL_SECONDS.
LOOKED_SECONDS = 0.5
# Inputs from one jump to the next.
BETWEEN = 10
PER_MINUTE, DAILY_USD = 4, 1e-4
# Of a chat whose answer takes no time, on a busy machine.
MOST_SECONDS = 10.0


@attack_class("jumps of the clock", 300, "clock", privileged=True)
def clock_jumps(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Jumps of a second to a year, forward and back: a jump back gives no budget, limit, key or session again, and
    every other chat is answered in time."""
    name, began = f"clock-{draw.randrange(10**9)}", time.monotonic()
    keys = {kind: _key(target, f"{name}-{kind}", **terms) for kind, terms in TERMS.items()}
    budget = {"kind": "key", "subject": f"{name}-daily", "period": "day", "amount_usd": DAILY_USD}
    target.order("PUT", "/admin/api/budgets", budget)
    leaver = Browser(target.client)
    leaver.sign_in(target.keys["second admin"])
    ended, at, furthest, served = False, 0.0, 0.0, 0
    for number in range(count):
        if number % BETWEEN == 0:
            if at >= furthest:
                yield from _spend(target, keys["daily"])
            at = max(at + draw.choice(JUMPS), -500 * DAY)
            if draw.random() < 0.3:
                at = draw.choice((0.0, -DAY, furthest))
            target.set_clock(at)
            time.sleep(LOOKED_SECONDS)
        label = f"{at:+.0f} s #{number}"
        kind = draw.choice(("plain", "plain", "daily", "limited", "expired", "revoked", "session"))
        if kind == "session":
            opens = leaver.is_signed_in
            yield Outcome(label, 200, bypass="a session that had ended" if opens and ended else "")
            ended = ended or not opens
            continue
        asked = time.monotonic()
        answer = _chat(target, keys[kind] if kind in keys else target.keys.get(kind, target.keys["bob"]))
        seconds, bypass = time.monotonic() - asked, ""
        if kind == "plain" and (answer.status != 200 or seconds > MOST_SECONDS):
            bypass = f"a chat got {answer.status} after {seconds:.1f} s"
        elif kind in ("expired", "revoked") and answer.status != 401:
            bypass = f"a key that is {kind} is served"
        elif kind == "daily" and answer.status == 200 and at < furthest:
            bypass = "a day's budget that was spent is served again"
        elif kind == "limited":
            served += answer.status == 200
            if served > PER_MINUTE * (2 + (time.monotonic() - began) // 60):
                bypass = f"{served} requests of a key that may have {PER_MINUTE} in a minute"
        yield outcome_of(answer, f"{kind} {label}", bypass)
        furthest = max(furthest, at)


TERMS: dict[str, dict[str, object]] = {"daily": {}, "limited": {"requests_per_minute": PER_MINUTE}}


def _key(target: Target, name: str, **terms: object) -> str:
    return str(target.order("POST", "/admin/api/keys", {"name": name, "terms": terms})["key"])


def _chat(target: Target, key: str) -> Answer:
    body = {"model": "tier-1", "messages": HELLO, "max_tokens": 8}
    return target.client.ask("POST", CHAT, body, key=key, headers={"x-aio-cache": "off"})


def _spend(target: Target, key: str) -> Iterator[Outcome]:
    """Use up the day's budget."""
    for number in range(200):
        answer = _chat(target, key)
        yield outcome_of(answer, f"spending #{number}")
        if answer.status == 429:
            return
    yield Outcome("spending", 200, bypass="a budget has no end")

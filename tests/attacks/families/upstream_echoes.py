"""Attacks by servers whose errors repeat the key of their tier, or their address, to the caller."""

import base64
import time
from collections.abc import Iterator
from random import Random
from urllib.parse import quote

from tests.attacks.exchange import Answer
from tests.attacks.families.upstream_floods import hostile_outcome, hostile_request
from tests.attacks.hostile_catalog import TIERS
from tests.attacks.targets import Target
from tests.attacks.upstream_echoes import KEY
from tests.hostile.target import Outcome, attack_class

_TIERS = tuple(tier for tier in TIERS if tier != "engine")
"""Of these the key is `KEY`; a child engine's is made at its start."""
# Characters of a key by which it would be known.
_PART = 12
_SECRETS = {
    "its key": KEY[:_PART], "its key, percent-encoded": quote(f"={KEY}", safe="")[3 : 3 + _PART],
    "its key in base64": base64.b64encode(KEY.encode()).decode()[:_PART],
}  # fmt: skip


@attack_class("keys that upstreams repeat", 420, "hostile")
def echoes(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Errors that repeat the tier's key or address in any field, form and place: no caller reads them, neither in the
    answer nor in the record of the request."""
    assert target.hostile is not None
    addresses = [target.hostile.url.removeprefix("http://"), target.hostile.url.rpartition(":")[2]]
    for number in range(count):
        tier, stream = _TIERS[number % len(_TIERS)], draw.random() < 0.5
        path, body = hostile_request(tier, "echoes", draw.randrange(10**6), stream=stream)
        began = time.monotonic()
        answer = target.ask("POST", path, body)
        outcome = hostile_outcome(answer, f"echoes on {tier} #{number}", time.monotonic() - began)
        yield outcome._replace(bypass=outcome.bypass or _shown(answer, addresses))
        if number % 5 == 0 and (request_id := answer.headers.get("x-aio-decision-id")):
            record = target.ask("GET", f"/v1/requests/{request_id}")
            yield Outcome(f"the record of #{number}", record.status, record.code, _shown(record, addresses))


def _shown(answer: Answer, addresses: list[str]) -> str:
    said = f"{answer.headers} {answer.text}"
    for what, secret in _SECRETS.items():
        if secret in said:
            return f"a caller is shown {what}: {said[max(0, said.index(secret) - 150) :][:300]}"
    address = next((one for one in addresses if one in said), "")
    return f"a caller is shown its address: {said[max(0, said.index(address) - 150) :][:300]}" if address else ""

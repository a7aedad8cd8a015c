"""JSON bodies of every endpoint that takes one, through the whole application: never a 5xx, always the envelope."""

import json
from random import Random
from typing import Any

from tests.fuzz.asgi_gateway import ADMIN, JSON, gateway
from tests.fuzz.bodies import BODIES
from tests.fuzz.mutations import json_mutated
from tests.hostile.target import FuzzTarget, fuzz_target


def json_seeds(bodies: list[Any]) -> list[bytes]:
    """Encode seeds, and bodies that are none."""
    return [*(json.dumps(body).encode() for body in bodies), b"", b"{", b"[]", b'{"model": "\xff"}']


def names_in(value: Any) -> set[str]:
    """Return every key and short text of the seeds: the words of their format."""
    if isinstance(value, dict):
        return set(value).union(*map(names_in, value.values()))
    if isinstance(value, list):
        return set().union(*map(names_in, value))
    return {value} if isinstance(value, str) and len(value) < 24 else set()


def endpoint(method: str, path: str) -> FuzzTarget:
    """Return a target that sends its input as the body of this endpoint."""

    def run(data: bytes) -> str:
        return gateway().ask(method, path, data, JSON).label

    bodies = BODIES[path]
    words = [b'"' + word.encode() + b'"' for word in sorted(names_in(bodies)) if word]
    run.__name__, run.__module__ = path.removeprefix("/v1/").replace("/", "_"), __name__
    return fuzz_target(json_seeds(bodies), words, json_mutated)(run)


chat_completions = endpoint("POST", "/v1/chat/completions")
completions = endpoint("POST", "/v1/completions")
embeddings = endpoint("POST", "/v1/embeddings")
responses = endpoint("POST", "/v1/responses")
messages = endpoint("POST", "/v1/messages")
messages_count_tokens = endpoint("POST", "/v1/messages/count_tokens")
route = endpoint("POST", "/v1/route")
tokenize = endpoint("POST", "/v1/tokenize")
detokenize = endpoint("POST", "/v1/detokenize")
feedback = endpoint("POST", "/v1/feedback")
batches = endpoint("POST", "/v1/batches")

_TERMS = {
    "scopes": ["inference"],
    "tiers": [1, 2],
    "models": ["auto"],
    "quality": 0.9,
    "min_tier": 1,
    "consent": True,
    "priority_ceiling": 1,
    "requests_per_minute": 5,
    "tokens_per_minute": 9,
    "concurrency": 2,
    "strict": False,
    "aliases": {"a": "auto"},
    "expires_at": 2e9,
}
_ARMS = {
    "name": "e",
    "share": 0.1,
    "a": {"tier": 1},
    "b": {"version": "v"},
    "level": 0.05,
    "most_probes": 9,
    "by": "user",
    "guardrails": {"cost": 0.5, "ttft": None},
}
CHANGES: dict[tuple[str, str], list[Any]] = {
    ("PATCH", "/v1/admin/knobs/core"): [{"max_running": 8, "model": "m", "core": "cpu", "keep": False, "reason": "r"}],
    ("PATCH", "/v1/admin/knobs/routing"): [{"target": 0.9, "reason": "r"}],
    ("PATCH", "/v1/admin/knobs/cache"): [{"max_entries": 5, "enabled": True, "ttl_seconds": 60, "reason": "r"}],
    ("PATCH", "/v1/admin/knobs/batches"): [{"max_running": 1, "reason": "r"}],
    ("PATCH", "/v1/admin/knobs/replicas"): [{"tier": 1, "slow_start_seconds": 1.0, "reason": "r"}],
    ("POST", "/v1/admin/adapters"): [{"model": "m", "name": "a", "path": "/tmp/a"}],
    ("POST", "/admin/api/keys"): [{"name": "a", "team": None, "terms": _TERMS, "reason": "r"}],
    ("PATCH", "/admin/api/keys/k"): [{"terms": _TERMS, "reason": "r"}],
    ("POST", "/admin/api/keys/k/rotate"): [{"grace_seconds": 5, "reason": "r"}],
    ("POST", "/admin/api/teams"): [{"name": "t", "reason": "r"}],
    ("PUT", "/admin/api/budgets"): [{"kind": "key", "subject": "k", "period": "month", "amount_usd": 5, "reason": "r"}],
    ("POST", "/admin/api/experiments"): [_ARMS | {"reason": "r"}],
    ("PUT", "/admin/api/trial"): [{"version": "v", "share": 0.1, "reason": "r"}],
    ("POST", "/admin/api/artefacts/rollback"): [{"reason": "r"}],
    ("POST", "/admin/api/verifications/1/review"): [{"verdict": "no_worse", "comment": "n"}],
    ("POST", "/admin/api/retrainings"): [{"reason": "r"}],
    ("POST", "/v1/admin/reload"): [{"reason": "r"}],
}


def _all_changes() -> list[bytes]:
    return [
        bytes([place]) + json.dumps(body).encode() for place, bodies in enumerate(CHANGES.values()) for body in bodies
    ]


def _change_mutated(data: bytes, random: Random) -> bytes:
    return data[:1] + json_mutated(data[1:], random)


@fuzz_target(
    _all_changes(),
    [b'"' + word.encode() + b'"' for word in sorted(names_in(list(CHANGES.values()))) if word],
    _change_mutated,
)
def changes(data: bytes) -> str:
    """Bodies of an administrator's changes; the first byte chooses the endpoint."""
    method, path = list(CHANGES)[data[0] % len(CHANGES)] if data else ("POST", "/admin/api/keys")
    return f"{path} {gateway().ask(method, path, data[1:], ADMIN + JSON).label}"

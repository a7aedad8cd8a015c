"""What one tenant may learn of another: by ids, by names, by what is cached, and by how long it takes."""

import json
import statistics
import time
from collections.abc import Iterator
from random import Random
from typing import Any

from tests.gateway.attacks.exchange import Answer
from tests.gateway.attacks.families.framing import outcome_of
from tests.gateway.attacks.outcome import Outcome, attack_class
from tests.gateway.attacks.targets import CHAT, Target

WORDS = (
    "harbour", "lantern", "granite", "meadow", "cobalt", "thistle", "anchor", "velvet", "quarry", "ember",
    "saffron", "willow", "cinder", "marble", "falcon", "orchid",
)  # fmt: skip


@attack_class("ids of other tenants", 700, "keyed", "shared")
def foreign_ids(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Every id of a tenant on every route that takes one: read, continue, rate, cancel, delete, use as an input."""
    ids = target.ids
    for number in range(count):
        kind = draw.choice(list(ids))
        one = (
            ids[kind]
            if draw.random() < 0.85
            else draw.choice(
                [ids[kind].upper(), ids[kind] + "%20", "%2e/" + ids[kind], ids[kind] + "/", ids[kind] + "%00"]
            )
        )
        chat: dict[str, Any] = {"model": "tier-1", "max_tokens": 4}
        asks: list[tuple[str, str, Any]] = [
            ("GET", f"/v1/requests/{one}", None), ("GET", f"/v1/responses/{one}", None), ("DELETE",
            f"/v1/responses/{one}", None),
            ("GET", f"/v1/responses/{one}/input_items", None), ("POST", "/v1/responses", {"model": "tier-1",
            "input": "x", "previous_response_id": one}),
            ("GET", f"/v1/files/{one}", None), ("GET", f"/v1/files/{one}/content", None), ("DELETE",
            f"/v1/files/{one}", None), ("GET", f"/v1/batches/{one}", None),
            ("POST", f"/v1/batches/{one}/cancel", None), ("POST", "/v1/batches", {"input_file_id": one,
            "endpoint": CHAT, "completion_window": "24h"}),
            ("POST", "/v1/feedback", {"request_id": one, "rating": "down", "comment": "from another"}), ("GET",
            f"/v1/files?after={one}", None), ("GET", f"/v1/batches?after={one}", None),
            ("POST", CHAT, chat | {"messages": [{"role": "user", "content": [{"type": "file",
            "file": {"file_id": one}}]}]}), ("GET", f"/v1/models/{one}", None),
            ("GET", f"/admin/api/requests/{one}", None), ("DELETE", f"/admin/api/users/{one}", None), ("POST",
            f"/v1/responses/{one}/cancel", None),
        ]  # fmt: skip
        method, path, body = draw.choice(asks)
        answer = target.ask(method, path, body)
        # Lists of nothing, and 404 alike for what is another's and what does not exist.
        mine = answer.status == 200 and not path.startswith(("/v1/files?", "/v1/batches?"))
        bypass = "another tenant's thing was found" if mine else ""
        if answer.status == 403 and not path.startswith(("/admin", "/v1/admin")):
            bypass = "403 tells that it exists"
        yield outcome_of(answer, f"{method} {path} {body} #{number}", bypass)
    # ada still has everything.
    for kind, path in (
        ("request", "/v1/requests/{}"),
        ("file", "/v1/files/{}"),
        ("batch", "/v1/batches/{}"),
        ("response", "/v1/responses/{}"),
    ):
        if kind in ids:
            answer = target.ask("GET", path.format(ids[kind]), key=target.keys["ada"])
            yield Outcome(
                f"ada's {kind} afterwards",
                answer.status,
                answer.code,
                "" if answer.status == 200 else f"ada's {kind} was taken away",
            )


@attack_class("names that tenants share", 240, "keyed", "shared")
def shared_names(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Equal conversations, request ids, prompts and idempotency keys of two tenants: no answer is the other's."""
    for number in range(count):
        question = f"What did {draw.choice(WORDS)} and {draw.choice(WORDS)} ask, #{number}?"
        body = {
            "model": "tier-1",
            "messages": [{"role": "user", "content": question}],
            "max_tokens": 8,
            "temperature": 0,
            "seed": 1,
            "user": "u",
        }
        headers = draw.choice(
            [
                {"x-aio-conversation": "c"},
                {"x-request-id": f"r{number}"},
                {"idempotency-key": "i"},
                {"x-aio-cache": "use"},
                {},
            ]
        )
        first = target.ask("POST", CHAT, body, key=target.keys["ada"], headers=headers)
        asked = target.upstream.asked
        second = target.ask("POST", CHAT, body, key=target.keys["bob"], headers=headers)
        cached = second.status == 200 and target.upstream.asked == asked
        equal = first.headers.get("x-aio-decision-id") == second.headers.get("x-aio-decision-id")
        bypass = "another tenant's answer was given" if cached else "two tenants' requests have one id" if equal else ""
        yield outcome_of(first, f"ada: {question} {headers}") if first.status != 200 else Outcome("ada", 200)
        yield outcome_of(second, f"bob: {question} {headers} {second.headers.get('x-aio-cache')}", bypass)


def _usage_of(answer: Answer) -> int:
    usage = (answer.json or {}).get("usage") or {}
    return int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)


@attack_class("prefix cache of other tenants", 60, "laptop")
def prefix_cache(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """A prompt that another tenant has asked: `cached_tokens` and the time to the first token are as for a new one.

    Three prompts of equal length in turns: one that ada has asked, asked by bob; one that is new, asked by bob; and one
    of bob's own, again. Times are compared by their medians: bob's second one shows that the cache could tell.
    """
    seen: dict[str, list[float]] = {"ada's": [], "new": [], "own": []}
    template = 0
    for number in range(max(count // 4, 3)):
        texts = {kind: " ".join(draw.choices(WORDS, k=150)) for kind in ("ada's", "new")}
        first = _first_token(target, "ada", texts["ada's"])
        yield outcome_of(first[0], f"ada #{number}", "") if first[0].status != 200 else Outcome("ada", 200)
        kinds = ["ada's", "new"]
        draw.shuffle(kinds)
        for kind in [*kinds, "own"]:
            answer, seconds = _first_token(target, "bob", texts["ada's" if kind == "own" else kind])
            cached = _cached_in(answer)
            if kind == "new":
                # The start of the chat template is cached from bob's own requests.
                template = max(template, cached)
            bypass = (
                f"{cached} tokens of another tenant's prompt were cached"
                if kind == "ada's" and cached > max(template, 48)
                else ""
            )
            seen[kind].append(seconds)
            yield Outcome(f"{kind} prompt #{number}", answer.status, answer.code, bypass)
    foreign, new, own = (statistics.median(seen[kind]) for kind in ("ada's", "new", "own"))
    # A cached prompt saves its whole prefill; half of that would already tell.
    tells = own < 0.7 * new and foreign < new - 0.5 * (new - own)
    yield Outcome(
        f"median seconds to the first token: ada's {foreign:.3f}, new {new:.3f}, own {own:.3f}",
        200,
        bypass="the time tells what another tenant asked" if tells else "",
    )


def _first_token(target: Target, who: str, text: str) -> tuple[Answer, float]:
    body = {
        "model": "tier-1",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began = time.perf_counter()
    answer = target.ask("POST", CHAT, body, key=target.keys[who], headers={"x-aio-cache": "off"})
    return answer, time.perf_counter() - began


def _cached_in(answer: Answer) -> int:
    for line in reversed(answer.text.splitlines()):
        if line.startswith("data: {") and '"usage":{' in line:
            return _usage_of(Answer(200, {}, json.dumps(json.loads(line[6:])).encode()))
    return 0

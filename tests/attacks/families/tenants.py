"""What one tenant may learn of another, by ids, by names, by what is cached and by how long it takes; and whether its
labels move the other's routing."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from random import Random
from typing import Any

from classifier.local.cells import LABELS_BOUND
from tests.attacks.exchange import Answer
from tests.attacks.families.framing import outcome_of
from tests.attacks.targets import CHAT, Target
from tests.hostile.target import Outcome, attack_class
from tests.polling import until

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


QUESTIONS = (
    "What is the capital of {}?", "Say hello to {}.", "Summarise the arguments for and against remote work in {}.",
    "Prove that there are infinitely many primes, as {} did.", "Write a function that sorts the words of {}.",
)  # fmt: skip


# As many verified prompts as cost an attacker $0.002.
HOSTILE_OUTCOMES = 720
# Of probabilities with six digits: other sums of the same prompt may round another way.
ROUNDING = 5e-6


@attack_class("labels of other tenants", 160, "keyed", "shared")
def labels(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """ada's feedback, as much and as one-sided as she can send, leaves bob's probabilities alone; hundreds of outcomes
    of her key, by which tier 1 fails, change one in six of bob's decisions at most, and no probability by more than the
    bound."""
    ada = target.keys["ada"]
    before, own = _probabilities(target, target.keys["bob"]), _probabilities(target, ada)
    strangers = target.ask("POST", CHAT, _question(QUESTIONS[0], "tier-1"), key=target.keys["bob"])
    rating = draw.choice([{"rating": "down"}, {"rating": "up"}, {"score": 0}, {"correction": "no"}])
    for number in range(count):
        asked = target.ask("POST", CHAT, _question(draw.choice(QUESTIONS), f"tier-{draw.randint(1, 3)}"), key=ada)
        foreign = draw.random() < 0.1
        body = {"request_id": (strangers if foreign else asked).headers.get("x-aio-decision-id", "none")} | rating
        if not foreign:
            _recorded(target, ada, body["request_id"])
        answer = target.ask("POST", "/v1/feedback", body, key=ada)
        yield outcome_of(answer, f"{body} #{number}", "another's answer was rated" if foreign and answer.status == 200
        else "")  # fmt: skip
    until(lambda: _probabilities(target, ada) != own, 0.5)
    now = _probabilities(target, target.keys["bob"])
    moved = _most_moved(before, now)
    yield Outcome(f"bob after {count} of ada's", 200, bypass=f"moved {before} to {now}" if moved > ROUNDING else "")
    if target.name != "keyed":
        return
    own, tiers = _probabilities(target, ada), {text: _decided(target, text) for text in QUESTIONS}
    each = HOSTILE_OUTCOMES // len(QUESTIONS)
    _import(target, [_question(text, "")["messages"][0]["content"] for text in QUESTIONS for _ in range(each)], draw)
    until(lambda: _probabilities(target, ada) != own, 0.5)
    asked = [text for text in QUESTIONS for _ in range(each)]
    changed = sum(_decided(target, text) != tiers[text] for text in asked)
    said = f"{HOSTILE_OUTCOMES} outcomes of ada's changed {changed} of {len(asked)} of bob's decisions"
    yield Outcome(said, 200, bypass=said if changed > len(asked) / 6 else "")
    now = _probabilities(target, target.keys["bob"])
    moved = _most_moved(before, now)
    yield Outcome(f"imports for ada moved bob by {moved:.3f}", 200, bypass="beyond it" if moved > LABELS_BOUND else "")


def _decided(target: Target, text: str) -> str:
    headers = {"x-aio-cache": "off"}
    answer = target.ask("POST", CHAT, _question(text, "auto"), key=target.keys["bob"], headers=headers)
    return answer.headers["x-aio-tier"]


def _most_moved(before: list[list[float]], now: list[list[float]]) -> float:
    return max(abs(p - q) for one, other in zip(before, now, strict=True) for p, q in zip(one, other, strict=True))


def _question(text: str, model: str) -> dict[str, Any]:
    question = {"role": "user", "content": text.format("Euclid")}
    return {"model": model, "messages": [question], "max_tokens": 1}


def _recorded(target: Target, key: str, request_id: str) -> Any:
    until(lambda: target.ask("GET", f"/v1/requests/{request_id}", key=key).status == 200)
    return target.ask("GET", f"/v1/requests/{request_id}", key=key).json


def _probabilities(target: Target, key: str) -> list[list[float]]:
    """P of each tier for each question, as decided for this key now."""
    headers = {"x-aio-cache": "off"}
    found = []
    for text in QUESTIONS:
        answer = target.ask("POST", CHAT, _question(text, "auto"), key=key, headers=headers)
        record = _recorded(target, key, answer.headers["x-aio-decision-id"])
        found.append(record["decision"]["inputs"]["prediction"]["p_ok"])
    return found


def _import(target: Target, prompts: list[str], draw: Random) -> None:
    """Import for ada's key that tier 1 fails and the strongest does not, for as many prompts as are given."""
    [key_id] = [row["key_id"] for row in target.order("GET", "/admin/api/keys")["rows"] if row["name"] == "ada"]
    file, catalog = target.data / "outcomes.jsonl", target.data / "catalog.toml"
    lines = [{"prompt": f"{one} {draw.random()}", "scores": {"1": 0, "2": 0, "4": 1}} for one in prompts]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = [sys.executable, "-c", "from gateway.cli import main; main()", "outcomes", "import", str(file)]
    command += ["--key", key_id, "--catalog", str(catalog), "--data-dir", str(target.data)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AIO_")}
    subprocess.run(command, env=kept, check=True, capture_output=True, timeout=120)

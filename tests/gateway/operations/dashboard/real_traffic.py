"""Traffic over HTTP until the pages have content: requests, feedback, and admin commands."""

import httpx

from tests.gateway.operations.dashboard.real_prompts import real_prompts
from tests.polling import until
from tests.support.served import ServedProcess

ADMIN = "test-admin-07158b06243a3ef4b8e7746013aa659a"
WATCHED = {
    "AIO_SAMPLING_RATE": "1",
    "AIO_VERIFICATION_BUDGET": "1000",
    "AIO_SECOND_OPINIONS": "0",
    "AIO_ARTEFACT_POLL_SECONDS": "0.5",
}
"""Settings that verify everything possible, at any price, believe the strongest tier, and apply changes quickly."""

# A judge compares only whole answers; of other multiple choice, one of two or three is cut off or equal.
WHOLE_ANSWER, MOST_QUESTIONS = 128, 40
# Feedback counts for a quarter of a verification; these are more than enough evidence.
COMPLAINTS = 20


def ask(gateway: ServedProcess, model: str, prompt: str, tokens: int = 12) -> str:
    """Return the id of an answer."""
    answer = gateway.client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": prompt}], max_tokens=tokens, temperature=0, stream=False
    )
    return answer.id


def administration(gateway: ServedProcess) -> httpx.Client:
    """A client with the admin key."""
    headers = {"authorization": f"Bearer {ADMIN}"}
    return httpx.Client(base_url=gateway.url, headers=headers, timeout=60, event_hooks={"response": [_refused]})


def ask_until_judged_worse(gateway: ServedProcess, wanted: int) -> None:
    """Ask the two cheap tiers multiple choice until this many answers wait for a review and none for its judge. An
    answer that a judge called worse may be one of another tier than was served, which is not reviewed."""
    questions = [prompt for number, prompt in enumerate(real_prompts(3 * MOST_QUESTIONS // 2)) if number % 3]
    with administration(gateway) as admin:
        for number, question in enumerate(questions):
            until_judged(gateway)
            if len(admin.get("/admin/api/reviews").json()["rows"]) >= wanted:
                return
            ask(gateway, f"tier-{1 + number % 2}", question, WHOLE_ANSWER)
    raise AssertionError(f"of {MOST_QUESTIONS} answers fewer than {wanted} were judged worse")


def until_judged(gateway: ServedProcess) -> None:
    """Wait until no answer waits for a judge other than people."""
    with administration(gateway) as admin:

        def pending() -> int:
            rows = admin.get("/admin/api/verifications", params={"status": "pending", "limit": "200"}).json()["rows"]
            return sum(row["judge"] != "user" for row in rows)

        until(lambda: not pending(), every=0.5)


def complain(gateway: ServedProcess, prompt: str) -> None:
    """Ask tier 1 the same repeatedly, and rate each answer as bad."""
    for _ in range(COMPLAINTS):
        rate(gateway, ask(gateway, "tier-1", prompt, 2), "down")


def rate(gateway: ServedProcess, request_id: str, rating: str) -> None:
    """Rate an answer as good (`up`) or bad (`down`)."""
    with administration(gateway) as admin:
        admin.post("/v1/feedback", json={"request_id": request_id, "rating": rating})


def retrain(gateway: ServedProcess) -> None:
    """Start a retraining, and wait until it has ended."""
    with administration(gateway) as admin:
        admin.post("/admin/api/retrainings", json={"reason": "people complain"})
        until(lambda: any(run["finished_at"] for run in admin.get("/admin/api/retrainings").json()["rows"]), every=0.5)


def order(gateway: ServedProcess) -> None:
    """Make a team with keys and budgets, change a knob, start an experiment; from then on the team's key asks."""
    with administration(gateway) as admin:
        admin.post("/admin/api/teams", json={"name": "research"})
        limited = {"tiers": [1, 2], "consent": False, "tokens_per_minute": 20_000}
        admin.post("/admin/api/keys", json={"name": "intern", "team": "research", "terms": limited})
        bounded = {"requests_per_minute": 600, "concurrency": 8}
        made = admin.post("/admin/api/keys", json={"name": "reports", "team": "research", "terms": bounded})
        for kind, subject, period, usd in (("team", "research", "month", 25.0), ("key", "reports", "day", 0.05)):
            budget = {"kind": kind, "subject": subject, "period": period, "amount_usd": usd, "reason": "as agreed"}
            admin.put("/admin/api/budgets", json=budget)
        knobs = {"model": "smollm2-bf16", "prefill_chunk": 128, "reason": "shorter steps"}
        admin.patch("/v1/admin/knobs/core", json=knobs)
        plan = {"name": "small or large", "share": 0.5, "a": {"tier": 1}, "b": {"tier": 3}, "reason": "is it worth it?"}
        admin.post("/admin/api/experiments", json=plan)
    gateway.client = gateway.client.with_options(api_key=made.json()["key"])


def meet_limits(gateway: ServedProcess) -> None:
    """Let a key exceed its rate limit and another its budget, and reload the catalogue; then a third one asks."""
    with administration(gateway) as admin:

        def key(name: str, **terms: int) -> str:
            secret: str = admin.post("/admin/api/keys", json={"name": name, "terms": terms}).json()["key"]
            return secret

        nightly, trial = key("nightly-batch", requests_per_minute=6), key("trial")
        budget = {"kind": "key", "subject": "trial", "period": "month", "amount_usd": 0.00003}
        admin.put("/admin/api/budgets", json=budget)
        for secret, count in ((nightly, 40), (trial, 12)):
            for _ in range(count):
                gateway.ask(key=secret, max_tokens=2)
        admin.post("/v1/admin/reload", json={"reason": "after a check of the file"})
        gateway.client = gateway.client.with_options(api_key=key("reports"))


def _refused(answer: httpx.Response) -> None:
    if answer.is_error:
        answer.read()
        raise AssertionError(f"{answer.request.url}: {answer.status_code} {answer.text}")

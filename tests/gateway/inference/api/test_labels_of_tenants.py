"""One key's feedback floods a real gateway: another key is routed as before, and feedback counts as requests."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.attacks.echo_upstream import echo_upstream
from tests.polling import until
from tests.support.served import ServedProcess, served
from tests.support.upstream import write_remote_catalog

pytestmark = pytest.mark.processes
# Tier 1 is good enough for the first kind, and not for the second.
SIMPLE = "What is the capital of {}?"
MEDIUM = "Summarise the main arguments for and against remote work in {}, with two reasons for each side."
PLACES = ("France", "Peru", "Norway", "Kenya", "Japan", "Chile", "Italy", "Ghana", "Nepal", "Cuba")


@pytest.fixture(scope="module")
def aio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedProcess]:
    data = tmp_path_factory.mktemp("tenants")
    environment = {"AIO_VERIFICATION_BUDGET": "0", "AIO_KEYS_POLL_SECONDS": "0.5", "AIO_ARTEFACT_POLL_SECONDS": "0.2"}
    with echo_upstream() as upstream:
        catalog = write_remote_catalog(data / "catalog.toml", upstream.base_url, own_models=True)
        with served(data, data / "cache", "--catalog", str(catalog), environment=environment) as process:
            yield process


def key_of(aio: ServedProcess, name: str, **terms: Any) -> httpx.Client:
    answer = aio.admin.post("/admin/api/keys", json={"name": name, "terms": terms})
    assert answer.is_success, answer.text
    headers = {"authorization": f"Bearer {answer.json()['key']}", "x-aio-cache": "off"}
    client = httpx.Client(base_url=aio.url, timeout=60, headers=headers)
    until(lambda: client.get("/v1/models").status_code == 200)
    return client


def ask(client: httpx.Client, prompt: str, model: str = "auto") -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": 1}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer


def decisions(client: httpx.Client, prompt: str) -> list[tuple[str, str]]:
    answers = [ask(client, prompt.format(place)) for place in PLACES]
    return [(answer.headers["x-aio-tier"], answer.headers["x-aio-p-ok"]) for answer in answers]


def flood(client: httpx.Client, prompt: str, count: int, rating: str) -> None:
    def one(number: int) -> None:
        answer = ask(client, prompt.format(PLACES[number % len(PLACES)]), "tier-1")
        told = {"request_id": answer.headers["x-aio-decision-id"], "rating": rating}
        # The record is found once it is in the journal.
        until(lambda: client.get(f"/v1/requests/{told['request_id']}").status_code == 200)
        # On a busy machine the file of the database may be locked for longer than a request waits.
        while (taken := client.post("/v1/feedback", json=told)).status_code == 503:
            pass
        assert taken.json().get("learned") is True, taken.text

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(count)))


@pytest.mark.parametrize(("prompt", "count", "rating"), [(SIMPLE, 20, "down"), (MEDIUM, 300, "up")])
def test_thumbs_of_one_key_move_its_own_decisions_and_no_other_keys(
    aio: ServedProcess, prompt: str, count: int, rating: str
) -> None:
    loud, quiet = key_of(aio, f"loud-{rating}"), key_of(aio, f"quiet-{rating}")
    before = decisions(quiet, prompt)
    assert decisions(loud, prompt) == before
    flood(loud, prompt, count, rating)
    # All are taken in: the key's own decisions have moved.
    until(lambda: decisions(loud, prompt) != before)
    assert decisions(quiet, prompt) == before


def test_feedback_counts_against_the_keys_requests_per_minute(aio: ServedProcess) -> None:
    limited = key_of(aio, "limited", requests_per_minute=4)
    request_id = ask(limited, "Hello", "tier-1").headers["x-aio-decision-id"]
    until(lambda: limited.get(f"/v1/requests/{request_id}").status_code == 200)
    answers = [limited.post("/v1/feedback", json={"request_id": request_id, "rating": "up"}) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert answers[0].headers["x-ratelimit-remaining-requests"] == "2"
    assert answers[3].json()["error"]["code"] == "rate_limit_exceeded"

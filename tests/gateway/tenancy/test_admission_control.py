"""Admission without HTTP: what a request is counted with, what its refusal says, and that it settles once."""

import base64
from typing import Any

import pytest

from gateway.base.errors import ApiError
from gateway.base.inference_request import Allowance, BudgetRef, Caller
from gateway.tenancy.admission import Admission, AdmissionControl
from gateway.tenancy.budgets.lease_book import Grant
from gateway.tenancy.windows import LocalWindows
from tests.gateway.chats import chat
from tests.gateway.tenancy.test_budget_slices import ERROR, TOTAL, World
from tests.quality.store.records import make_record
from tests.tiers.audio import samples
from tiers.conversation import Text, Turn, media

SILENCE = base64.b64encode(samples.flac(20, total=1)).decode()
AUDIO = media("audio", {"data": SILENCE, "format": "flac"})
IMAGE = media("image", {"url": "https://images.example/1", "detail": "low"})
ALL = {"requests_per_minute": 10, "tokens_per_minute": 1000, "concurrency": 1}


class Admissions:
    """Admission control by a clock that stands still, over budgets that `grants` are leased of."""

    def __init__(self, *grants: Grant | Exception | None, open_: bool = False) -> None:
        self.budgets = World(*grants, open_=open_)
        self.control = AdmissionControl(LocalWindows(lambda: 1000.25), self.budgets.leases, 100)

    async def enter(self, request: Any = None, *budgets: BudgetRef, **limits: int) -> Admission:
        caller = Caller(key_id="ada", allowance=Allowance(**limits, budgets=budgets))
        if request is None:
            return await self.control.enter_call(caller, "r")
        return await self.control.enter(request(caller=caller))

    async def refusal(self, request: Any = None, **limits: int) -> ApiError:
        with pytest.raises(ApiError) as refused:
            await self.enter(request, **limits)
        return refused.value

    async def spent(self) -> tuple[int, int]:
        """Micro-dollars that are reported as spent, and still held."""
        await self.budgets.leases.tell()
        (statement,) = self.budgets.book.told[-1]
        return statement.spent, statement.granted - statement.spent


def asking(text: str = "Say hello.", **fields: Any) -> Any:
    return lambda caller: chat(text, caller=caller, **fields)


@pytest.mark.parametrize(
    ("request_", "tokens"),
    [
        (asking(max_tokens=5), 1 + 10 // 4 + 5),
        (asking(), 1 + 10 // 4 + 100),
        (asking(n=3), 1 + 10 // 4 + 3 * 100),
        (asking("é" * 10, max_tokens=5), 1 + 20 // 4 + 5),
        (asking(messages=[Turn.of("user", one) for one in ("abc", "abcde")], max_tokens=5), 1 + 2 + 5),
        (asking(messages=[Turn.of("user", [Text("Look"), *(IMAGE,)])], max_tokens=5), 1 + 1 + 85 + 5),
        (asking(messages=[Turn.of("user", [Text("Hear"), *(AUDIO,)])], max_tokens=5), 1 + 1 + 251 + 5),
        (asking(messages=None, prompts=["abcdefgh", "abcdefg"], max_tokens=5), 1 + 2 + 1 + 2 * 5),
        (asking(messages=None, prompts=[[1, 2, 3], [4]], max_tokens=5, n=2), 1 + 4 + 4 * 5),
        (None, 0),
    ],
)  # fmt: skip
async def test_a_request_counts_with_a_quarter_of_its_bytes_and_the_most_of_its_answer(
    request_: Any, tokens: int
) -> None:
    admission = await Admissions().enter(request_, tokens_per_minute=1000)
    assert admission.headers["x-ratelimit-remaining-tokens"] == str(1000 - tokens)


async def test_without_a_limit_of_tokens_none_are_counted() -> None:
    admissions = Admissions()
    first = await admissions.enter(asking(), requests_per_minute=9)
    assert first.headers == {
        "x-ratelimit-limit-requests": "9",
        "x-ratelimit-remaining-requests": "8",
        "x-ratelimit-reset-requests": "1m0.75s",
    }
    # The limit is new.
    later = await admissions.enter(None, tokens_per_minute=10)
    assert later.headers["x-ratelimit-remaining-tokens"] == "10"


async def test_who_has_no_limits_or_no_key_is_not_counted() -> None:
    admissions = Admissions()
    for caller in (Caller(key_id="ada"), Caller(allowance=Allowance(requests_per_minute=0))):
        admission = await admissions.control.enter(chat(caller=caller))
        assert (admission.entry, admission.headers) == (None, {})
        admission.close(None)
    assert admission.affords(1e9)


async def test_a_request_is_charged_once_with_what_its_record_says() -> None:
    admissions = Admissions(Grant(100, 0))
    admission = await admissions.enter(asking(max_tokens=50), TOTAL, **ALL)
    await admission.reserve(Caller(allowance=Allowance(budgets=(TOTAL,))), 80e-6)
    assert await admissions.spent() == (0, 80)
    assert (await admissions.enter(asking(max_tokens=50), **(ALL | {"concurrency": 2}))).entry is not None
    record = make_record(cost_usd=30e-6, prompt_tokens=12, completion_tokens=7)
    admission.close(record)
    admission.close(record)
    admission.settle(1.0, 500)
    assert await admissions.spent() == (30, 50)
    after = await admissions.enter(None, **(ALL | {"concurrency": 2}))
    # The second one is in flight, and counts as it asked: 53 tokens.
    assert after.headers["x-ratelimit-remaining-tokens"] == str(1000 - 19 - 53)
    assert (await admissions.refusal(**(ALL | {"concurrency": 2}))).body.type == "requests"


async def test_a_request_without_a_record_costs_nothing() -> None:
    admissions = Admissions(Grant(100, 0))
    admission = await admissions.enter(asking(max_tokens=50), TOTAL, **ALL)
    await admission.reserve(Caller(allowance=Allowance(budgets=(TOTAL,))), 80e-6)
    admission.close(None)
    assert await admissions.spent() == (0, 0)
    assert (await admissions.enter(None, **ALL)).headers["x-ratelimit-remaining-tokens"] == "1000"


async def test_another_attempt_is_afforded_from_what_is_leased() -> None:
    admissions = Admissions(Grant(100, 0))
    admission = await admissions.enter(None, TOTAL)
    assert admission.affords(1.0), "nothing is reserved"
    await admission.reserve(Caller(allowance=Allowance(budgets=(TOTAL,))), 80e-6)
    assert not admission.affords(21e-6)
    assert admission.affords(19.5e-6)
    assert not admission.affords(1e-6)
    admission.settle(0.0, 0)
    assert admission.affords(1.0), "it has been charged"


async def test_what_a_budget_does_not_cover_is_refused_until_its_next_period() -> None:
    caller = Caller(allowance=Allowance(budgets=(BudgetRef(budget_id="d", period="day", amount_usd=1.0),)))
    # It is 17:46:40.
    midnight = 6 * 3600 + 13 * 60 + 20
    for wait, said in ((0.0, str(midnight)), (midnight - 0.25, "1"), (midnight - 1.5, "2")):
        admissions = Admissions(Grant(0, 20))
        admissions.budgets.step(wait)
        with pytest.raises(
            ApiError, match=r"You exceeded your current quota: this request may cost up to \$0.000050"
        ) as refused:
            await (await admissions.enter()).reserve(caller, 50e-6)
        error = refused.value
        assert (error.status, error.headers) == (429, {"retry-after": said})
        assert (error.body.code, error.body.type) == ("insufficient_quota", "insufficient_quota")
    total = Caller(allowance=Allowance(budgets=(TOTAL,)))
    with pytest.raises(ApiError) as refused:
        await (await Admissions(Grant(0, 20)).enter()).reserve(total, 50e-6)
    assert refused.value.headers == {}


async def test_whether_budgets_bear_more_is_answered_and_in_an_outage_they_do_not() -> None:
    caller = Caller(allowance=Allowance(budgets=(TOTAL,)))
    admission = await Admissions(Grant(50, 0), Grant(50, 0)).enter()
    assert not await admission.reserves(caller, 51e-6)
    assert admission.hold is None
    assert await admission.reserves(caller, 50e-6)
    assert admission.hold is not None
    admission = await Admissions(ERROR).enter()
    assert not await admission.reserves(caller, 50e-6)
    with pytest.raises(ApiError, match="the database is down") as refused:
        await admission.reserve(caller, 50e-6)
    assert (refused.value.status, refused.value.body.code) == (503, "budget_unavailable")
    assert await Admission().reserves(caller, 50e-6), "no control, no bound"


@pytest.mark.parametrize(
    ("limits", "asked", "message", "kind", "wait"),
    [
        ({"concurrency": 0}, 0, "this key's limit is 0 requests in flight. Try again in 1s.", "requests", "1"),
        ({"requests_per_minute": 1}, 0, "this key's limit is 1 requests per minute. Try again in 1m0.75s.",
         "requests", "61"),
        ({"tokens_per_minute": 20}, 13, "this key's limit is 20 tokens per minute. Try again in 1m0.75s.", "tokens",
         "61"),
        ({"tokens_per_minute": 7}, 8, "The request asks for up to 8 tokens; this key's limit is 7 tokens per minute. "
         "Send a smaller one.", "tokens", None),
    ],
)  # fmt: skip
async def test_a_refusal_says_which_limit_and_when_to_come_back(
    limits: dict[str, int], asked: int, message: str, kind: str, wait: str | None
) -> None:
    admissions = Admissions()
    if asked != 8 and "concurrency" not in limits:
        await admissions.enter(asking(max_tokens=5), **limits)
    error = await admissions.refusal(asking(max_tokens=max(0, asked - 3)), **limits)
    assert str(error).endswith(message)
    assert str(error).startswith("Rate limit reached: ") == (wait is not None)
    assert (error.status, error.body.code, error.body.type) == (429, "rate_limit_exceeded", kind)
    assert error.headers.get("retry-after") == wait
    assert ("x-ratelimit-limit-requests" in error.headers) == ("requests_per_minute" in limits)
    assert ("x-ratelimit-limit-tokens" in error.headers) == ("tokens_per_minute" in limits)

"""The page Try: a prompt, and at once, without asking a model, its class, P(good enough) and price by tier, and the
tier that would answer; then that tier's answer with the strongest one's, and a person's label: which is better. Where
routing chooses the strongest tier, the next cheaper one's answer is compared with it.

The decision is that of a key's own requests. Asked answers take the path of every request: they are recorded and billed
under the administrator who asks, within the budgets of that key or team, and only tiers that may see the simulated
key's requests see them (`Caller.consent`). An audit row names each ask. They are no sample of the traffic
(`quality.records.record.TRIED_OUT`), so none of them is ever verified or probed.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Annotated, Any

import msgspec
from litestar import get, post
from litestar.response import Response, Stream
from msgspec import Meta

from classifier.complexity.classes import Complexity, likeliest
from classifier.complexity.quality_setting import QUALITY_SETTINGS
from classifier.decision import Decision
from gateway.admin.resource import target_of
from gateway.admin.tier_chances import TierChance, chances_of
from gateway.base.errors import ApiError, as_api_error, bad_request
from gateway.base.identity import new_request_id
from gateway.base.inference_request import KEYLESS, Caller, InferenceRequest
from gateway.base.stores.database import reached
from gateway.edge.asgi import HttpRequest, root_of
from gateway.inference.api.build_request import RequestHead, chat_request
from gateway.inference.service import Serving, serving_of
from gateway.operations.dashboard.html.forms import Form, WrongField, filled_in, given_of, parse_form, text_of
from gateway.operations.dashboard.html.rendering import HEADERS, TEMPLATES, Page, back_to, below, page, tier_names
from gateway.tenancy.admin_guard import actor_of, session_token
from gateway.tenancy.budgets.budget_commands import id_of
from gateway.tenancy.guard import access_of, caller_of
from gateway.tenancy.keys.directory import KeysUnavailableError, UnknownKeyError
from gateway.tenancy.users.sessions import csrf_of
from quality.records.record import TRIED_OUT, Record
from quality.store.queries import record_audit
from quality.verification.feedback import Feedback, FeedbackTaken
from tiers.dialects.chat_schemas import ChatRequest, Message

PATH = "/admin/try"
EVENTS_TYPE = "application/x-ndjson"
_FIELDS = ("prompt", "system", "key", "quality_target", "max_tokens")
_SCORES = {"cheaper": 1.0, "equal": 0.5, "strongest": 0.0}
_VIEWER = {"role": "viewer"}

# By class as SPEC RT-01 describes them; a small model can answer the easy ones.
EXAMPLES: tuple[tuple[str, str], ...] = (
    ("SIMPLE", "What is the capital of Australia?"),
    ("SIMPLE", "Put these words in alphabetical order: pear, apple, fig."),
    ("MEDIUM", "Write a polite e-mail to a customer whose parcel is a week late, and offer a refund of the postage."),
    ("MEDIUM", "Summarise in three points why a small shop should keep its accounts apart from the owner's."),
    ("COMPLEX", "Write a Python function that merges overlapping intervals, and explain its running time."),
    (
        "COMPLEX",
        "Compare optimistic and pessimistic locking for bookings with many readers and rare conflicts.",
    ),
    ("EXPERT", "Prove that every continuous function on a compact metric space is uniformly continuous."),
    ("EXPERT", "Design a protocol by which five machines agree on a log while two fail, and prove that it is safe."),
)


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What is tried."""

    prompt: Annotated[str, Meta(min_length=1, max_length=20_000)]
    system: Annotated[str, Meta(max_length=20_000)] = ""
    key: Annotated[str, Meta(max_length=256)] = ""
    """The name or id of the key whose rules hold; "" for the signed-in caller's own."""
    quality_target: Annotated[str, Meta(max_length=32)] = ""
    """A number or a name; "" for the usual target."""
    max_tokens: Annotated[int, Meta(ge=1, le=16_384)] = 512


class Routed(msgspec.Struct, frozen=True, kw_only=True):
    """The decision on a trial."""

    decision: Decision
    tier: int
    """The tier that routing chooses, also where it is only observed."""
    chances: list[TierChance]
    complexity: tuple[Complexity, float] | None
    """The likeliest class with its probability; None where no class was read."""


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """An asked answer."""

    tier: int
    request_id: str
    text: str = ""
    failed: str = ""
    """Why there is no answer, in words; else its record is set."""
    record: Record | None = None


async def simulated_caller(request: HttpRequest, key: str) -> Caller:
    """Return the caller with the key of this name or id, as its requests have it now; without one the signed-in caller,
    or callers without a key where none is asked for. Raises `ApiError` 400 and 503."""
    directory = access_of(request).tenancy.directory
    if not key:
        return caller_of(request) if directory.asks_for_keys else KEYLESS
    key_id = key if directory.is_static(key) else await reached(_key_id(serving_of(request), key))
    try:
        if key_id is None:
            raise UnknownKeyError("There is no such key.")
        caller = directory.caller_of(key_id)
    except UnknownKeyError as error:
        raise bad_request(f"Key {key[:64]!r}: {error}", "key", "invalid_value") from None
    except KeysUnavailableError:
        raise ApiError(503, "Keys cannot be checked yet. Try again later.", code="keys_unavailable") from None
    if "inference" not in caller.scopes:
        raise bad_request(f"Key {key[:64]!r} may not ask for answers.", "key", "invalid_value")
    return caller


async def _key_id(serving: Serving, key: str) -> str | None:
    async with serving.database.connect() as connection:
        return await id_of(connection, "key", key)


def billed_to(asker: Caller, simulated: Caller) -> Caller:
    """Return who asks for an answer: `simulated` in what its requests may do and who may see them, `asker` in whose
    they are, what is left of limits and budgets, and which caches are shared."""
    return msgspec.structs.replace(
        simulated,
        key_id=asker.key_id,
        name=asker.name,
        team=asker.team,
        team_name=asker.team_name,
        allowance=asker.allowance,
        # A model named `tier-1` is asked for, whatever the key calls so.
        aliases={},
    )


def request_of(serving: Serving, trial: Trial, caller: Caller, model: str, tag: str | None = None) -> InferenceRequest:
    """Return the request as the API would read it. `tag`: the simulated key of one asked. Raises `ApiError` 400."""
    turns = [("system", trial.system)] if trial.system else []
    messages = [Message(role=role, content=text) for role, text in (*turns, ("user", trial.prompt))]
    metadata = None if tag is None else {TRIED_OUT: tag}
    body = ChatRequest(
        model=model, messages=messages, max_tokens=trial.max_tokens, stream=tag is not None, metadata=metadata
    )
    # Cached answers would say nothing about time and cost.
    headers = {"x-aio-cache": "off"}
    if trial.quality_target:
        headers["x-aio-quality"] = trial.quality_target
    head = RequestHead(request_id=new_request_id("try"), arrival=time.monotonic(), caller=caller, headers=headers)
    return chat_request(serving, head, body)


async def routed(serving: Serving, trial: Trial, caller: Caller) -> Routed:
    """Return the decision that the caller's request would get; no model is asked, and nothing is recorded or counted.
    Raises `ApiError`."""
    decision = await serving.service.decided(request_of(serving, trial, caller, "auto"))
    classes = decision.inputs.prediction.classes
    complexity = likeliest(classes) if classes else None
    return Routed(
        decision=decision,
        tier=decision.tier if decision.would_be is None else decision.would_be,
        chances=chances_of(decision, tier_names(serving)),
        complexity=None if complexity is None else (complexity, classes[complexity - 1]),
    )


async def answered(serving: Serving, tier: int, asked: InferenceRequest, say: Callable[[str], None]) -> Tried:
    """Return the whole answer; `say` gets its text as it comes. A refusal or a failure is its `failed`."""
    text = ""
    try:
        answer = await serving.service.start(asked)
        try:
            async for delta in answer:
                if delta.text:
                    text += delta.text
                    say(delta.text)
        finally:
            await answer.aclose()
    except Exception as error:
        return Tried(tier=tier, request_id=asked.request_id, text=text, failed=as_api_error(error).body.message)
    return Tried(tier=tier, request_id=asked.request_id, text=text, record=answer.record)


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """The answers that were ordered, by tier: routing's choice or, where that is the strongest tier, the next cheaper
    one; then the strongest tier. `consents`: whether the texts may be stored and learned from, without which there is
    no label."""

    found: Routed
    requests: list[tuple[int, InferenceRequest]]

    @property
    def consents(self) -> bool:
        """Whether both texts may be learned from."""
        return all(asked.consent.reuse for _, asked in self.requests)


async def order_answers(request: HttpRequest, trial: Trial) -> Ask:
    """Decide, and write down who asks which tiers by whose rules. Raises `ApiError` 400 and 503."""
    serving, asker = serving_of(request), caller_of(request)
    simulated = await simulated_caller(request, trial.key)
    route = await routed(serving, trial, simulated)
    caller, strongest = billed_to(asker, simulated), serving.routing.served.strongest
    cheaper = min(route.tier, strongest - 1)
    tiers = [tier for tier in (cheaper, strongest) if tier > 0]
    tag, target = simulated.key_id or "", route.decision.target
    # A rule may give the chosen tier's requests to a target in its place.
    models = {tier: f"tier-{tier}" for tier in tiers} | ({route.tier: target} if target else {})
    ordered = [(tier, request_of(serving, trial, caller, model, tag)) for tier, model in models.items()]
    details = {"key": simulated.key_id, "requests": {f"tier-{tier}": asked.request_id for tier, asked in ordered}}
    now, subject = access_of(request).tenancy.clock.now(), ordered[0][1].request_id
    audit = record_audit(
        serving.database, at=now, actor=actor_of(request), action="answer.tried", subject=subject, details=details
    )
    await reached(audit)
    return Ask(found=route, requests=ordered)


async def order_verdict(request: HttpRequest, request_id: str, better: str) -> FeedbackTaken:
    """Store which answer was better as a label of the cheaper tier's answer, for the key whose rules it was asked by.
    Raises `ApiError` 400, 404, 409 and 503."""
    serving, actor = serving_of(request), actor_of(request)
    if better not in _SCORES:
        raise bad_request(f"Invalid better: {better[:64]!r}; allowed: {', '.join(_SCORES)}.", "better", "invalid_value")
    record = await reached(serving.records.find(request_id))
    tags = record.tags if isinstance(record, Record) and record.key_id == actor else None
    if not isinstance(record, Record) or tags is None or TRIED_OUT not in tags:
        raise ApiError(404, f"You tried no answer {request_id[:128]!r}.", code="request_not_found")
    if not record.messages or not record.consent.reuse:
        raise ApiError(409, "The key does not let its requests be learned from: there is no label.", code="no_consent")
    if record.status != "ok" or record.tier >= serving.routing.served.strongest:
        raise ApiError(409, "There is no answer of a cheaper tier to compare with.", code="not_reviewable")
    about = msgspec.structs.replace(record, key_id=tags[TRIED_OUT] or None)
    return await reached(serving.feedback.take(about, Feedback(score=_SCORES[better]), reviewer=actor))


async def _shown(
    request: HttpRequest, form: Form, status: int = 200, wrong: WrongField | None = None, **more: Any
) -> Response[Any]:
    """Return the page with the form as it was filled in; `route`: a decision, `tried`: the answers."""
    context = _parts(serving_of(request), more.pop("route", None)) | {
        "tried": [],
        "consents": False,
        "given": given_of(form, *_FIELDS),
        "examples": EXAMPLES,
        "settings": list(QUALITY_SETTINGS),
        "needs_key": access_of(request).tenancy.directory.asks_for_keys,
        "wrong": wrong,
    }
    return page(request, "tryout.html", "Try", status=status, **context | more)


def _parts(serving: Serving, route: Routed | None) -> dict[str, Any]:
    """Return what the parts of the page that change show of the tiers and of a decision."""
    tiers = serving.routing.served.catalog.tiers
    return {
        "route": route,
        "tier_names": tier_names(serving),
        "models": {spec.number: spec.served_name for spec in tiers},
        "estimated": {spec.number: spec.price.estimated for spec in tiers},
        "strongest": len(tiers),
    }


@get("/try")
async def show_try(request: HttpRequest) -> Response[Any]:
    """The empty form. Query: `key`, whose rules are simulated."""
    return await _shown(request, {"key": [request.query_params.get("key", "")]})


@post("/try", opt=_VIEWER, status_code=200)
async def try_route(request: HttpRequest) -> Response[Any]:
    """Show the decision on the prompt, or on the `example` that was clicked; nothing is asked, billed or recorded."""

    async def work(form: Form) -> Response[Any]:
        number = text_of(form, "example")
        if number is not None and number.isdecimal() and int(number) < len(EXAMPLES):
            form = {**form, "prompt": [EXAMPLES[int(number)][1]]}
        trial = _trial_of(form)
        serving = serving_of(request)
        route = await routed(serving, trial, await simulated_caller(request, trial.key))
        return await _shown(request, form, route=route)

    return await _refused_in_page(request, work)


@post("/try/ask", status_code=200)
async def try_answers(request: HttpRequest) -> Response[Any]:
    """Ask a cheaper tier, which is routing's choice if that is one, and the strongest one at once. The page with both
    answers or, where the client accepts `application/x-ndjson`, a line of JSON per piece of text, then one with the end
    of the page."""

    async def work(form: Form) -> Response[Any]:
        trial = _trial_of(form)
        ask = await order_answers(request, trial)
        if EVENTS_TYPE in request.headers.get("accept", ""):
            headers = {**HEADERS, "x-accel-buffering": "no"}
            return Stream(_events(request, ask), media_type=EVENTS_TYPE, headers=headers)
        serving = serving_of(request)
        tried = await asyncio.gather(
            *(answered(serving, tier, asked, lambda text: None) for tier, asked in ask.requests)
        )
        return await _shown(request, form, route=ask.found, tried=tried, consents=ask.consents)

    return await _refused_in_page(request, work)


@post("/try/verdict", status_code=200)
async def try_verdict(request: HttpRequest) -> Response[Any]:
    """Store which of two tried answers was better."""
    form = await request.form()
    request_id, better = str(form.get("request_id", "")), str(form.get("better", ""))
    done = await order_verdict(request, request_id, better)
    learned = "routing follows it" if done.learned else done.reason
    name, label = tier_names(serving_of(request))[done.tier], done.label.replace("_", " ")
    return back_to(PATH, f"The answer of {name} is labelled {label}: {learned}.")


def _trial_of(form: Form) -> Trial:
    fields = given_of(form, *_FIELDS)
    if "prompt" not in fields:
        raise bad_request("Write a prompt first.", "prompt", "missing_required_parameter")
    texts = {name: fields[name].replace("\r\n", "\n") for name in fields}
    trial = parse_form(texts, Trial)
    target_of(trial.quality_target)
    return trial


async def _refused_in_page(request: HttpRequest, work: Callable[[Form], Awaitable[Response[Any]]]) -> Response[Any]:
    """Return what `work` makes of the form; what is wrong with a field is shown at the field."""

    async def again(wrong: WrongField, status: int) -> Response[Any]:
        return await _shown(request, wrong.given, status, wrong)

    return await filled_in(request, work, again)


async def _events(request: HttpRequest, ask: Ask) -> AsyncIterator[bytes]:
    """Yield the pieces of all answers as they come, with the place of the answer; then the end of the page."""
    serving = serving_of(request)
    said: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def answer(position: int, tier: int, asked: InferenceRequest) -> Tried:
        def say(text: str) -> None:
            said.put_nowait(msgspec.json.encode({"place": position, "text": text}) + b"\n")

        return await answered(serving, tier, asked, say)

    def parts(tried: Sequence[Tried]) -> bytes:
        context = {"tried": tried, "consents": ask.consents, "csrf": csrf_of(session_token(request)), "wrong": None}
        html = TEMPLATES.get_template("tryout_parts.html").render(_parts(serving, ask.found) | context)
        return msgspec.json.encode({"html": below(root_of(request), html)}) + b"\n"

    tasks = [asyncio.create_task(answer(position, tier, asked)) for position, (tier, asked) in enumerate(ask.requests)]
    both = asyncio.gather(*tasks)
    both.add_done_callback(lambda _: said.put_nowait(None))
    try:
        yield parts([Tried(tier=tier, request_id=asked.request_id) for tier, asked in ask.requests])
        while (line := await said.get()) is not None:
            yield line
        yield parts(await both)
    finally:
        both.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


TRY_PAGE = Page(title="Try", path="/try", handlers=(show_try, try_route, try_answers, try_verdict))

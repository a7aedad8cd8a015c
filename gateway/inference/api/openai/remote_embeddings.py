"""`POST /v1/embeddings` for a model of a provider: limits, budget, the call itself, the bill and the record."""

import logging
import time
from typing import TYPE_CHECKING, Any

from gateway.base.errors import ApiError, bad_request
from gateway.base.numbers import usd_text
from gateway.base.requests.inference_request import PrivateMark, Prompt
from gateway.inference.api.reading.aio_headers import routing_headers
from gateway.inference.api.reading.build_request import Received, reading_request
from gateway.inference.embedding.recording import embedding_record
from gateway.inference.serving import Serving
from tiers.errors import TierAnswerError, TierError, TierRequestError, TierUnavailableError
from tiers.remote.embedding_client import Embedded, EmbeddingClient, EmbeddingCounter

if TYPE_CHECKING:
    from gateway.inference.api.openai.embeddings import EmbeddingsRequest

log = logging.getLogger(__name__)


async def passed_through(
    serving: Serving,
    head: Received,
    body: "EmbeddingsRequest",
    prompts: list[Prompt],
    client: EmbeddingClient,
    priority: int,
) -> tuple[Embedded, int, list[tuple[str, str]]]:
    """Return the vectors as the server gives them, the tokens that are billed, and headers that say what they cost.

    The budget holds the most that the texts can cost; finished calls are billed, also where another one fails, and
    calls under way if the caller leaves. Raises `ApiError`.
    """
    spec = client.spec
    own = routing_headers(head.headers, serving.routing.served.strongest)
    if (head.caller.consent.local or own.consent.local) and own.private is None and not spec.local:
        raise ApiError(
            403, f"{spec.name} is on a server elsewhere, and the texts of this key or request stay here: name a model "
            "of this gateway.", param="model", code="model_not_allowed",
        )  # fmt: skip
    if not spec.local:
        await _refuse_private(serving, head, body, prompts, own.private)
    for place, prompt in enumerate(prompts):
        if not prompt:
            raise bad_request("An input is empty: give some text.", f"input[{place}]", "empty")
    inference_request = reading_request(head, body.model, prompts=prompts, priority=priority, metadata=body.metadata)
    counter = EmbeddingCounter()
    async with serving.service.reading(inference_request) as admission:
        await admission.reserve(head.caller, client.most_tokens(prompts) * spec.usd_per_million / 1e6)
        # A reload may change it meanwhile: the record says what was billed.
        price, started = spec.price, time.monotonic()
        failure: BaseException | None = None
        try:
            answer = await client.embed(prompts, _fields(body), counter)
        except TierError as error:
            failure = _as_api_error(error)
            raise failure from error
        except BaseException as error:
            failure = error
            raise
        finally:
            gone = failure is not None and not isinstance(failure, Exception)
            used = counter.with_sent if gone else counter.finished
            spent = used * price.input_usd_per_million / 1e6
            admission.settle(spent, used)
            replica = serving.service.replica
            serving.records.append(
                embedding_record(inference_request, spec.name, started, failure, used, spent, replica, price)
            )
    if answer.disputed:
        log.warning(
            "request %s: %s reported tokens that cannot be: %s", head.request_id, spec.name, answer.disputed[:8]
        )
    headers = admission.headers | {"x-request-id": head.request_id, "x-aio-cost-usd": usd_text(spent)}
    return answer, used, list(headers.items())


async def _refuse_private(
    serving: Serving, head: Received, body: "EmbeddingsRequest", prompts: list[Prompt], mark: PrivateMark | None
) -> None:
    """Raise `ApiError` 403 if a rule of the catalogue finds something in what would be sent."""
    screen = serving.service.screen
    if mark is None and screen is not None and screen.has_rules:
        from gateway.inference.screening.sent_texts import texts_of_inputs

        texts = texts_of_inputs(prompts, _fields(body))
        mark = await screen.mark_of(texts, head.caller.tenant, serving.routing.threads)
    if mark is not None:
        raise ApiError(
            403, f"{body.model} is on a server elsewhere, and the request is private ({mark}): name a model of this "
            "gateway.", param=mark.where, code="no_tier_may_see",
        )  # fmt: skip


def _fields(body: "EmbeddingsRequest") -> dict[str, Any]:
    """What the server gets of the caller's fields besides the texts: those that are set."""
    given = {name: getattr(body, name) for name in ("encoding_format", "dimensions", "user")}
    return {name: value for name, value in given.items() if value is not None}


def _as_api_error(error: TierError) -> ApiError:
    if isinstance(error, TierRequestError):
        param = error.param if error.param in ("input", "dimensions", "encoding_format", "user") else None
        return ApiError(400, str(error), param=param, code=error.code)
    if isinstance(error, TierUnavailableError):
        return ApiError(
            503, f"{error}. Try again later.", code="model_unavailable", retry_after_seconds=error.retry_after_seconds
        )
    return ApiError(502, str(error), code="tier_failed" if isinstance(error, TierAnswerError) else "server_error")

"""Makes the record of an embeddings request when it ends."""

import time
from typing import Literal

from gateway.base.errors import CLIENT_CLOSED_REQUEST, as_api_error, mark_recorded
from gateway.base.requests.inference_request import InferenceRequest
from quality.records.record import Attempt, EmbeddingRecord
from tiers.catalog.tier_spec import Price


def embedding_record(
    request: InferenceRequest,
    model: str,
    started: float,
    error: BaseException | None,
    tokens: int,
    cost_usd: float,
    replica: str | None,
    price: Price,
) -> EmbeddingRecord:
    """Return the record of `request`, which ends now.

    `started`: when `model` was asked, monotonic seconds; `error`: its failure, if any, not an Exception if the caller
    disconnected; `tokens`, `cost_usd` and `price` as charged.
    """
    now = time.monotonic()
    status: Literal["ok", "error", "aborted"] = "ok"
    http_status, said = 200, None
    if isinstance(error, Exception):
        mark_recorded(error)
        status, http_status, said = "error", as_api_error(error).status, f"{type(error).__name__}: {error}"
    elif error is not None:
        status, http_status = "aborted", CLIENT_CLOSED_REQUEST
    return EmbeddingRecord(
        request_id=request.request_id,
        created_at=request.created_at,
        requested_model=request.requested_model,
        key_id=request.key_id,
        status=status,
        http_status=http_status,
        error=said,
        model=model,
        prompt_tokens=tokens,
        cost_usd=cost_usd,
        e2e_ms=(now - request.generation.arrival) * 1e3,
        overhead_ms=(started - request.generation.arrival) * 1e3,
        tags=request.metadata,
        replica=replica,
        attempts=[Attempt(tier=0, model=model, status=status, cost_usd=cost_usd, prompt_tokens=tokens, price=price)],
    )

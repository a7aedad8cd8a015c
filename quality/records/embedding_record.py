"""The EmbeddingRecord: one request for vectors, without tier, routing decision or texts."""

from typing import Literal

import msgspec

from quality.records.record import Attempt

PassedApi = Literal["embedding", "rerank", "moderation", "image", "speech", "transcription"]


class EmbeddingRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One request that `model`, one of the catalogue's embedding models or one whose endpoint was passed through,
    answered or started; see `quality.records.record` for the shared fields. `overhead_ms` is the time before the model
    was asked. A request without vectors is charged for no tokens, but those of a server's finished calls. `attempts`:
    what was charged, at which price, of tier 0, which is none; empty in old records. Of what was passed through the
    attempt's `reason` says the units and their price, or that they have none."""

    request_id: str
    created_at: float
    api: PassedApi = "embedding"
    requested_model: str
    key_id: str | None
    status: Literal["ok", "error", "aborted"]
    http_status: int
    error: str | None
    model: str
    prompt_tokens: int
    cost_usd: float
    e2e_ms: float
    overhead_ms: float
    tags: dict[str, str] | None = None
    replica: str | None = None
    attempts: list[Attempt] = []

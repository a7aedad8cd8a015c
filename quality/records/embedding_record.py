"""The EmbeddingRecord: one request for vectors. No tier answered it, nothing was decided, and it holds no texts."""

from typing import Literal

import msgspec


class EmbeddingRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One request that `model`, one of the catalogue's embedding models, answered or began to; see
    `quality.records.record` for what the fields have in common. `overhead_ms` is the time before the model was
    asked. Who got no vectors was charged for no tokens."""

    request_id: str
    created_at: float
    api: Literal["embedding"] = "embedding"
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

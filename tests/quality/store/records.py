"""Records for tests of the store."""

from typing import Any

import msgspec

from classifier.decision import Decision, Exclusion, PolicyInputs, Prediction
from quality.records.record import Attempt, EmbeddingRecord, Record, Timings


def make_record(request_id: str = "r-1", **changes: Any) -> Record:
    """A served chat request with nothing left empty; `changes` replaces fields."""
    record = Record(
        request_id=request_id,
        created_at=1_700_000_000.25,
        api="chat",
        requested_model="auto",
        key_id="key-1",
        stream=True,
        status="ok",
        http_status=200,
        error=None,
        decision=Decision(
            tier=2,
            reason="tier 2 is good enough",
            scores=[None, 0.25, 0.5, 1.0],
            inputs=PolicyInputs(
                prediction=Prediction(
                    p_ok=[0.25, 0.875, 0.9375, 1.0],
                    kind="measured",
                    novelty=0.125,
                    classifier_version="v1",
                    contributions=[("digits", -0.5), ("length", 0.25)],
                ),
                costs=[1e-5, 2e-5, 3e-5, 4e-5],
                quality_target=0.0625,
                tau=0.75,
                min_tier=2,
                exclusions=[Exclusion(1, "below the minimum tier")],
            ),
        ),
        tier=3,
        model="laptop-3",
        attempts=[
            Attempt(tier=2, model="laptop-2", status="error", cost_usd=1e-6, error="queue full"),
            Attempt(tier=3, model="laptop-3", status="ok", cost_usd=2e-5),
        ],
        messages=[{"role": "user", "content": "Wie heißt die Hauptstadt? 🏙"}],
        answer="Bern.",
        reasoning="Switzerland, presumably.",
        finish_reason="stop",
        prompt_tokens=12,
        completion_tokens=7,
        cached_tokens=4,
        reasoning_tokens=3,
        cost_usd=2.1e-5,
        baseline_cost_usd=4e-5,
        timings=Timings(route_ms=0.5, ttft_ms=20.5, e2e_ms=100.25, overhead_ms=1.5),
    )
    return msgspec.structs.replace(record, **changes)


def make_embedding(request_id: str = "e-1", **changes: Any) -> EmbeddingRecord:
    """A served request for embeddings with nothing left empty; `changes` replaces fields."""
    record = EmbeddingRecord(
        request_id=request_id,
        created_at=1_700_000_000.25,
        requested_model="embed",
        key_id="key-1",
        status="ok",
        http_status=200,
        error="nothing, really",
        model="embed",
        prompt_tokens=12,
        cost_usd=2.5e-5,
        e2e_ms=100.25,
        overhead_ms=1.5,
        tags={"project": "search"},
        replica="replica_1",
    )
    return msgspec.structs.replace(record, **changes)

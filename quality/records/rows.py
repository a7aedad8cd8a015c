"""Convert `Recorded` to rows of `requests` and `routing_decisions`, and back."""

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, TypeVar

import msgspec

from classifier.decision import Decision
from quality.records.record import Attempt, EmbeddingRecord, Record, Recorded, Timings
from tiers.catalog.consent import ALL, Consent

# Embeddings have no generation, no decision and no saving.
_NO_ANSWER: dict[str, Any] = {
    "stream": False, "tier": None, "messages": None, "answer": None, "reasoning": None,
    "response_format": None, "consent": None, "finish_reason": None,
    "completion_tokens": 0, "cached_tokens": 0, "reasoning_tokens": 0, "compared": None,
    "route_ms": 0.0, "ttft_ms": None, "queue_ms": None, "prefill_ms": None, "decode_ms": None, "cache": None,
}  # fmt: skip
# Fields of a record that are columns of `requests`, as they are.
_PLAIN = tuple(name for name in Record.__struct_fields__ if name not in ("decision", "timings"))
_plain_of = attrgetter(*_PLAIN)


def consent_of(stored: Any) -> Consent:
    """Return the consent that a row of `requests` or `stored_responses` has stored."""
    return ALL if stored is None else msgspec.convert(stored, Consent)


_read_decision = msgspec.json.Decoder(Decision).decode
Inputs = TypeVar("Inputs")


def inputs_reader(kind: type[Inputs]) -> Callable[[bytes], Inputs]:
    """Return what reads the inputs of a stored decision as `kind`, a struct of those that are needed: decoding all
    takes several times as long. It raises `msgspec.ValidationError` for those of a release that this one cannot
    read."""
    decode = msgspec.json.Decoder(msgspec.defstruct("_Decided", [("inputs", kind)])).decode

    def read(decision: bytes) -> Inputs:
        found: Inputs = decode(decision).inputs  # type: ignore[attr-defined]
        return found

    return read


class _Predicted(msgspec.Struct):
    p_ok: list[float]
    classes: list[float] = []
    labels: list[float] = []


class _OfPrediction(msgspec.Struct):
    prediction: _Predicted


_read_predicted = inputs_reader(_OfPrediction)


def predicted_of(decision: bytes) -> _Predicted:
    """Return what was predicted for a stored decision. Raises as `inputs_reader`."""
    return _read_predicted(decision).prediction


def request_row(record: Recorded) -> dict[str, Any]:
    """Return the row of `requests`."""
    if isinstance(record, EmbeddingRecord):
        return msgspec.structs.asdict(record) | _NO_ANSWER | {"baseline_cost_usd": record.cost_usd}
    row = dict(zip(_PLAIN, _plain_of(record), strict=True)) | msgspec.structs.asdict(record.timings)
    if record.consent == ALL:
        # As a row without any: most are, and each value of JSON has its price.
        row["consent"] = None
    # Nearly all requests have one attempt.
    found = record.comparison if len(record.attempts) > 1 and record.is_made else None
    row["compared"] = None if found is None else found.compared_as.kind
    return row


def decision_row(record: Record) -> dict[str, Any]:
    """Return the row of `routing_decisions`: the whole decision, with the filtered values in their own columns."""
    decision = record.decision
    prediction = decision.inputs.prediction
    return {
        "request_id": record.request_id,
        "created_at": record.created_at,
        "tier": decision.tier,
        "would_be_tier": decision.would_be,
        "classifier_version": prediction.classifier_version,
        "prediction_kind": prediction.kind,
        "novelty": prediction.novelty,
        "decision": decision,
        "experiment_id": decision.inputs.experiment_id,
        "arm": decision.inputs.arm,
        "unit": decision.inputs.unit if decision.inputs.experiment_id is not None else None,
    }


def session_row(record: Record) -> dict[str, Any] | None:
    """Return the row of `session_steps`; None for a request that is no step of an agent's session."""
    inputs = record.decision.inputs
    step = inputs.session
    if step is None:
        return None
    same = ("session", "client", "step", "loop_step", "at", "rule", "gap_seconds", "errors", "repeats", "bad_calls")
    row = {name: getattr(step, name) for name in (*same, "last_exit", "end_sign", "trouble")}
    answered = {name: getattr(record, name) for name in ("request_id", "created_at", "key_id", "tier", "cost_usd")}
    tokens = {name: getattr(record, name) for name in ("prompt_tokens", "cached_tokens", "completion_tokens")}
    return (row | answered | tokens) | {
        "purpose": inputs.purpose or "main",
        "previous": step.previous or None,
        "reason": step.because,
        "written_tokens": record.attempts[-1].cache_write_tokens if record.attempts else 0,
        "strongest_usd": record.baseline_cost_usd,
        "ended": step.end,
        "end_weight": step.end_weight or None,
    }


def recorded_of(request: Mapping[str, Any], decision: Mapping[str, Any]) -> Recorded:
    """Rebuild the record from its `request_row` and `decision_row`; an embedding ignores `decision`."""
    if request["api"] not in ("chat", "completion"):
        fields = {name: request[name] for name in EmbeddingRecord.__struct_fields__}
        return EmbeddingRecord(**fields | {"attempts": msgspec.convert(request["attempts"], list[Attempt])})
    timings = Timings(**{name: request[name] for name in Timings.__struct_fields__})
    plain = {name: request[name] for name in _PLAIN}
    plain["attempts"] = msgspec.convert(request["attempts"], list[Attempt])
    plain["consent"] = consent_of(request["consent"])
    return Record(**plain, timings=timings, decision=_read_decision(decision["decision"]))

"""Writes one log line per finished request, if enabled: tier, duration, cost."""

import logging

from gateway.base.logs.log_format import FIELDS
from gateway.inference.answering.answer import Answer
from quality.records.record import Record

log = logging.getLogger("aio.requests")


def log_request(answer: Answer, record: Record) -> None:
    """Write the line; no texts, and the key only by its pseudonym."""
    timings, trace = record.timings, answer.request.trace
    fields = {
        "request_id": record.request_id,
        **({} if trace is None else {"trace_id": f"{trace.trace_id:032x}"}),
        "api": record.api,
        "key": record.key_id,
        "tier": record.tier,
        "model": record.model,
        "status": record.status,
        "http_status": record.http_status,
        "prompt_tokens": record.prompt_tokens,
        "completion_tokens": record.completion_tokens,
        "cost_usd": record.cost_usd,
        "ttft_ms": None if timings.ttft_ms is None else round(timings.ttft_ms, 3),
        "e2e_ms": round(timings.e2e_ms, 3),
    }
    log.info("finished", extra={FIELDS: fields})

"""An OTLP/HTTP collector on loopback: keeps the spans that an exporter sends, decoded from protobuf."""

import base64
import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.http_server import Asked, Reply, answering


class Collector:
    """`spans` as received, with their resource's service name as `services`; `paths`, `types`, `tokens`
    (`x-token`) and `sizes` in bytes of the requests. With `basic`, a user and a password as `user:password`, other
    callers are refused, as Langfuse does."""

    def __init__(self, basic: str | None = None) -> None:
        self.expected = None if basic is None else f"Basic {base64.b64encode(basic.encode()).decode()}"
        self.refused = 0
        self.sizes: list[int] = []
        self.spans: list[Any] = []
        self.services: set[str] = set()
        self.paths: set[str] = set()
        self.types: set[str] = set()
        self.tokens: set[str | None] = set()
        self.versions: set[str | None] = set()
        self.url = ""

    def take(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.services |= {a.value.string_value for a in resource.resource.attributes if a.key == "service.name"}
            for scope in resource.scope_spans:
                self.spans += scope.spans


@contextmanager
def running_collector(basic: str | None = None) -> Iterator[Collector]:
    """Serve until the block ends."""
    collector = Collector(basic)

    def answer(asked: Asked) -> Reply:
        if collector.expected not in (None, asked.headers["authorization"]):
            collector.refused += 1
            return Reply(status=401)
        collector.sizes.append(len(asked.body))
        collector.versions.add(asked.headers["x-langfuse-ingestion-version"])
        is_packed = asked.headers["content-encoding"] == "gzip"
        collector.take(gzip.decompress(asked.body) if is_packed else asked.body)
        collector.paths.add(asked.path)
        collector.types.add(asked.headers["content-type"])
        collector.tokens.add(asked.headers["x-token"])
        reply = ExportTraceServiceResponse().SerializeToString()
        return Reply(reply, headers={"content-type": "application/x-protobuf"})

    with answering(answer) as collector.url:
        yield collector


def attribute(span: Any, key: str) -> Any:
    """The value of a span's attribute, None without it."""
    for one in span.attributes:
        if one.key == key:
            kind = one.value.WhichOneof("value")
            value = getattr(one.value, kind)
            return [item.string_value for item in value.values] if kind == "array_value" else value
    return None

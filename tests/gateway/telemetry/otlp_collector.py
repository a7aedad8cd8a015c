"""An OTLP/HTTP collector on loopback: keeps the spans that an exporter sends, decoded from protobuf."""

import base64
import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


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

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if collector.expected not in (None, self.headers["authorization"]):
                collector.refused += 1
                self.send_response(401)
                self.send_header("content-length", "0")
                self.end_headers()
                return
            collector.sizes.append(len(body))
            collector.versions.add(self.headers["x-langfuse-ingestion-version"])
            collector.take(gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
            collector.paths.add(self.path)
            collector.types.add(self.headers["content-type"])
            collector.tokens.add(self.headers["x-token"])
            reply = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def attribute(span: Any, key: str) -> Any:
    """The value of a span's attribute, None without it."""
    for one in span.attributes:
        if one.key == key:
            kind = one.value.WhichOneof("value")
            value = getattr(one.value, kind)
            return [item.string_value for item in value.values] if kind == "array_value" else value
    return None

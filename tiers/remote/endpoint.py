"""Where and how a server of each kind is reached: health, queue and models, and the headers of its key."""

from functools import partial
from importlib import import_module
from typing import NamedTuple, Protocol
from urllib.parse import quote

import httpx
import msgspec

from tiers.catalog.tier_spec import RemoteSpec
from tiers.remote.server_state import QueueReport, sum_of_samples

MOST_REQUESTS = 1_000_000
"""Of a server at one time: a report of more is none."""


class QueueMetric(NamedTuple):
    """Where a server tells its queue."""

    path: str
    """Path of a Prometheus page, relative to `base_url`."""
    running: str
    """The gauge of its running requests."""
    waiting: str
    """The gauge of its waiting requests."""
    finished: str = ""
    """The counter of its answers; "" if it has none."""

    def read(self, page: bytes) -> QueueReport | None:
        """Return what `page` tells; None if it lacks one of the gauges, or tells of more requests than can be."""
        running, waiting = sum_of_samples(page, [self.running]), sum_of_samples(page, [self.waiting])
        if running is None or waiting is None or running + waiting > MOST_REQUESTS:
            return None
        return QueueReport(running, waiting, sum_of_samples(page, [self.finished]) if self.finished else None)


class Credentials(Protocol):
    """Credentials of a cloud. Both calls block, from any thread, and raise `TierUnavailableError` for what may still
    come."""

    def find(self) -> None:
        """Find them; called before any request, possibly more than once."""

    def signature(self, request: httpx.Request) -> list[tuple[bytes, bytes]]:
        """Return the headers that sign `request`."""


class Endpoint(msgspec.Struct, kw_only=True):
    """Where one server is reached. Paths are relative to its `base_url`."""

    health_path: str = "models"
    """Answers a GET when the server is ready; "" if there is none."""
    queue: QueueMetric | None = None
    """Where it reports the number of its requests, if it does."""
    model_path: str | None = None
    """Where it describes the model, if it does."""
    models_path: str | None = None
    """Where it lists all its models, if it does."""
    key_header: tuple[bytes, str] = (b"authorization", "Bearer {}")
    """The header of an API key, and its value."""
    headers: list[tuple[bytes, bytes]] = []
    """Further headers of every request."""
    credentials: Credentials | None = None
    """With which each request is signed, in place of a key."""

    def key_headers(self, key: str) -> list[tuple[bytes, bytes]]:
        """Return the headers of every request, with those of the API key; `key` is "" without one."""
        name, value = self.key_header
        is_sent = key and self.credentials is None
        return [*self.headers, (name, value.format(key).encode())] if is_sent else list(self.headers)


_compatible = partial(Endpoint, models_path="models")
_own = partial(_compatible, health_path="../health")
_PAGE = partial(QueueMetric, "../metrics")


def endpoint_of(remote: RemoteSpec) -> Endpoint:
    """Return where such a server is reached."""
    kind, model = remote.kind, quote(remote.model, safe="")
    match kind:
        case "openai" | "openai-provider":
            return _compatible()
        case "azure":
            return _compatible(key_header=(b"api-key", "{}"))
        case "vllm":
            names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:request_success_total")
            return _own(queue=_PAGE(*names))
        case "llama-server":
            # Its metrics need `--metrics`.
            return _own(queue=_PAGE("llamacpp:requests_processing", "llamacpp:requests_deferred"))
        case "sglang":
            # Its metrics need `--enable-metrics`.
            names = ("sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:num_requests_total")
            return _own(queue=_PAGE(*names))
        case "tensorrt-llm":
            return _own()
        case "tgi":
            return _own(queue=_PAGE("tgi_batch_current_size", "tgi_queue_size", "tgi_request_success"))
        case "triton-tensorrt-llm" | "triton-vllm":
            return Endpoint(health_path="v2/health/ready", model_path=f"v2/models/{remote.model}")
        case "anthropic":
            path, version = f"models/{model}", [(b"anthropic-version", b"2023-06-01")]
            return Endpoint(health_path=path, model_path=path, key_header=(b"x-api-key", "{}"), headers=version)
        case "gemini":
            path = f"models/{quote(remote.model.removeprefix('models/'), safe='')}"
            return Endpoint(health_path=path, model_path=path, key_header=(b"x-goog-api-key", "{}"))
        case "bedrock":
            # The runtime answers only paid calls, so a start only looks for credentials.
            return Endpoint(
                health_path="", credentials=_credentials("aws", remote, is_needed=remote.api_key_env is None)
            )
        case "vertex-gemini" | "vertex-anthropic":
            # No page describes the model to those who may only ask it.
            return Endpoint(health_path="", credentials=_credentials("google", remote))


def _credentials(cloud: str, remote: RemoteSpec, *, is_needed: bool = True) -> Credentials | None:
    """Return the credentials of a cloud, whose module is imported with the first server there; None where the caller
    has its own, or a key is enough."""
    if not is_needed or remote.credentials == "caller":
        return None
    credentials: Credentials = import_module(f"tiers.remote.{cloud}_credentials").credentials_of(remote)
    return credentials

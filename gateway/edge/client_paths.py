"""The paths under which clients look for an API: without `/v1`, with it twice, below a provider's name, Azure's."""

import re
from typing import NamedTuple

DEPLOYMENT = "aio.deployment"
"""The extension of a request's scope with the deployment that its path names: the model, whatever the body says."""

OLD_PATHS = ("/v1/v1/", "/v1/engines/")
"""Beginnings of paths below `/v1` that are not this server's own."""
_VERSION = "/v1"
# Endpoints that clients with a base URL without `/v1` ask for. The gateway's own paths stay as they are.
_ENDPOINT = (
    r"/(?:audio|batches|chat|completions|embeddings|files|images|messages|models|moderations|rerank|responses)(?:/.*)?"
)
# https://learn.microsoft.com/azure/ai-foundry/openai/reference (2026-11). A deployment's name may have slashes.
# OpenAI's first clients called it an engine.
_DEPLOYMENT = re.compile(rf"(?:/openai/deployments|(?:/v1)?/engines)/(.+?)({_ENDPOINT})", re.DOTALL)
# What SDKs of a provider put before their paths, such as Cohere's second version; anything before /v1; and /v1 twice,
# where a base URL ends with it.
_PREFIXED = re.compile(
    rf"(?:/openai|/anthropic|/cursor|/v1beta/openai|/v2(?=/rerank)|(?:/[\w.-]+){{0,3}}?/v1)?(?:/v1)?({_ENDPOINT})", re.S
)
# Where clients and load balancers look whether a server is there, as at others: Claude Code, LiteLLM, vLLM, SageMaker.
_PROBES = dict.fromkeys(("/api/hello", "/healthz", "/health/liveliness", "/health/liveness", "/ping"), "/health/live")
_PROBES |= dict.fromkeys(("/health", "/health/readiness"), "/health/ready")
_SLASHES = re.compile("/{2,}")


class ServedPath(NamedTuple):
    """The path of the endpoint, and the deployment that the client's path names, if any."""

    path: str
    deployment: str | None = None


def served_path(path: str) -> ServedPath:
    """Return the path that this server has for what a client asked as `path`."""
    if path.startswith("//"):
        # A base URL that ends with a slash, and a path that begins with one.
        path = _SLASHES.sub("/", path, count=1)
    if path.startswith("/v1/") and not path.startswith(OLD_PATHS):
        return ServedPath(_PROBES.get(path.removeprefix(_VERSION), path))
    if (azure := _DEPLOYMENT.fullmatch(path)) is not None:
        return ServedPath(_VERSION + azure[2], azure[1])
    prefixed = _PREFIXED.fullmatch(path)
    return ServedPath(_PROBES.get(path, path) if prefixed is None else _VERSION + prefixed[1])

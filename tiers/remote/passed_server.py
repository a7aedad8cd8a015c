"""A server elsewhere for endpoints that are passed through: a body goes out as it is, an answer comes in pieces."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import msgspec

from tiers.catalog.replica_spec import server_key
from tiers.catalog.tier_spec import TierSpec
from tiers.dialects.dialect import dialect_of
from tiers.dialects.server_error import parse_error
from tiers.errors import CallerCredential, CatalogError, MissingKeyError, TierError
from tiers.remote.endpoint import endpoint_of
from tiers.remote.http_exchange import IDENTITY, pieces_of, up_to
from tiers.remote.http_transport import transport_to
from tiers.remote.server_failures import FAILURES, MAX_ERROR_BYTES, ServerFailures, ServerRequest, is_secret

# Of these an error may be a part, such as an event of a stream.
_TEXTS = ("application/json", "text/")


class PassedAnswer(msgspec.Struct, frozen=True):
    """An answer with status 200: its content type, and its body as it arrives, read in the context of `sent`."""

    kind: str
    pieces: AsyncIterator[bytes]


class PassedServer:
    """The server of `spec`. The key is read from the environment once, never shown. Of one event loop; `close` it."""

    def __init__(self, spec: TierSpec) -> None:
        if spec.remote is None:
            raise CatalogError(f"tier '{spec.name}' has no remote table")
        self.spec, self._remote = spec, spec.remote
        self._dialect, self._endpoint = dialect_of(spec.remote, spec.provider), endpoint_of(spec.remote)
        self._key = server_key(os.environ, spec.remote.api_key_env)
        self._base = httpx.URL(spec.remote.base_url.rstrip("/") + "/")
        lists = self._endpoint.models_path is not None
        self._failures = ServerFailures(
            f"tier '{spec.name}'", spec.remote, self._key, 0.0, time.monotonic, lists_models=lists
        )
        transport = transport_to(self._base, self._remote.tls)
        self._client = httpx.AsyncClient(transport=transport, trust_env=False, follow_redirects=False)

    async def close(self) -> None:
        await self._client.aclose()

    @asynccontextmanager
    async def sent(
        self, path: str, kind: str, body: bytes, credential: CallerCredential | None
    ) -> AsyncIterator[PassedAnswer]:
        """Post `body`, of the content type `kind`, and yield the answer, all within `total_timeout_seconds`.

        `credential`: the caller's own, for a tier that asks for one. Raises `TierError`."""
        if self._remote.api_key_env is not None and not self._key:
            raise MissingKeyError(
                f"tier '{self.spec.name}': its API key is expected in the environment variable "
                f"{self._remote.api_key_env}, which is not set"
            )
        headers = [*self._endpoint.key_headers(self._key), (b"content-type", kind.encode()), (b"accept", b"*/*")]
        if credential is not None and self.spec.asks_credential:
            headers += credential.headers(self._endpoint.key_headers)
        request = self._client.build_request("POST", self._base.join(path), headers=headers, content=body)
        request.headers.update(IDENTITY)
        remote = self._remote
        timeout = httpx.Timeout(remote.read_timeout_seconds, connect=remote.connect_timeout_seconds)
        request.extensions["timeout"] = timeout.as_dict()
        try:
            async with asyncio.timeout(remote.total_timeout_seconds):
                response = await self._client.send(request, stream=True)
                try:
                    if response.status_code != 200:
                        raise await self._refusal(response, body, credential)
                    kind = self._failures.scrub(response.headers.get("content-type", ""), credential)
                    pieces = pieces_of(response)
                    if is_secret(self._key) and kind.lower().startswith(_TEXTS):
                        pieces = _without(self._key.encode(), pieces)
                    yield PassedAnswer(kind, pieces)
                finally:
                    await response.aclose()
        except FAILURES as error:
            named = self._failures.of_answer(error, credential=credential)
            if named is error:
                raise
            raise named from error

    async def _refusal(self, response: httpx.Response, body: bytes, credential: CallerCredential | None) -> TierError:
        request = ServerRequest(self._dialect, self.spec.model_name, body, credential)
        error = await self._failures.read(parse_error(await up_to(MAX_ERROR_BYTES, pieces_of(response))), request)
        return self._failures.of_caller(response, error, request) or self._failures.of_status(response, error, request)


async def _without(key: bytes, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield a body without `key`, wherever it is cut. What may be the beginning of it waits for the next piece."""
    held = b""
    async for piece in pieces:
        data = (held + piece).replace(key, b"[key]")
        most = min(len(key) - 1, len(data))
        size = next((size for size in range(most, 0, -1) if data.endswith(key[:size])), 0)
        data, held = data[: len(data) - size], data[len(data) - size :]
        if data:
            yield data
    if held:
        yield held

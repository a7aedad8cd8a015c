"""Google's Vertex AI as remote wires: Gemini's API and Anthropic's Messages at addresses of a project's own, with
tokens of Google Cloud instead of keys.

Access tokens come by google-auth: of a service account, workload identity, `gcloud` or the machine.
"""

import importlib
import os
import re
import threading
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import msgspec

from tiers.catalog.tier_spec import RemoteSpec
from tiers.dialects.dialect import WireCall, media_of, media_parts
from tiers.errors import TierRequestError, TierUnavailableError
from tiers.remote.anthropic_wire import AnthropicWire
from tiers.remote.gemini_wire import GeminiWire
from tiers.remote.http_transport import BlockingTransport
from tiers.remote.wire import RemoteWire
from tiers.server_words import one_line
from tiers.tier import GenerationRequest

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
MISSING_EXTRA = (
    "Google Cloud's credentials need google-auth, which is not installed: pip install 'aio-gateway[providers]'"
)
MISSING_CREDENTIALS = (
    "no credentials of Google Cloud found: set GOOGLE_APPLICATION_CREDENTIALS to the file of a service account or of a "
    "workload identity, or run `gcloud auth application-default login`, or run where a service account is attached"
)
# Of one request to a token endpoint, and of its answer.
SECONDS, MAX_BYTES = 10.0, 256 * 1024


class GoogleCredentials:
    """Finds credentials once and renews their token shortly before it expires; every call may block, from any thread.

    `variable`: the environment variable with the path of a service account's file; None: what google-auth finds
    (https://cloud.google.com/docs/authentication/application-default-credentials).
    """

    def __init__(self, variable: str | None = None) -> None:
        self._variable = variable
        self._found: Any = None
        self._lock = threading.Lock()

    def find(self) -> None:
        """Find the credentials. Raises `TierUnavailableError`."""
        with self._lock:
            self._find()

    def headers(self, method: str, url: str) -> dict[str, str]:
        """Return a request's authorising headers: token, and project that pays. Raises `TierUnavailableError`."""
        headers: dict[str, str] = {}
        with self._lock:
            self._find()
            try:
                self._found.before_request(_fetched, method, url, headers)
            except importlib.import_module("google.auth.exceptions").GoogleAuthError as error:
                said = one_line(str(error.args[0] if error.args else error))
                raise TierUnavailableError(f"the token of Google Cloud cannot be renewed: {said}") from error
        return headers

    def _find(self) -> None:
        if self._found is not None:
            return
        try:
            # Imported here: an extra of the package has it.
            auth = importlib.import_module("google.auth")
            errors = importlib.import_module("google.auth.exceptions")
        except ImportError as error:
            raise TierUnavailableError(MISSING_EXTRA) from error
        try:
            if self._variable is None:
                self._found, _ = auth.default(scopes=[SCOPE], request=_fetched)
            else:
                path = os.environ.get(self._variable, "").strip()
                account = importlib.import_module("google.oauth2.service_account").Credentials
                self._found = account.from_service_account_file(path, scopes=[SCOPE])
        except (errors.GoogleAuthError, OSError, ValueError) as error:
            where = MISSING_CREDENTIALS if self._variable is None else f"look at the file that {self._variable} names"
            raise TierUnavailableError(f"{one_line(str(error))} ({where})") from error


class _Fetched(NamedTuple):
    """What google-auth reads of an answer."""

    status: int
    headers: dict[str, str]
    data: bytes


def _fetched(
    url: str,
    method: str = "GET",
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
    timeout: float | None = None,
    **_: Any,
) -> _Fetched:
    """google-auth's transport."""
    seconds = min(timeout or SECONDS, SECONDS)
    try:
        with (
            httpx.Client(transport=BlockingTransport(), timeout=seconds, follow_redirects=False) as client,
            client.stream(method, url, content=body, headers=headers) as response,
        ):
            data = bytearray()
            for piece in response.iter_bytes():
                data += piece
                if len(data) > MAX_BYTES:
                    raise httpx.DecodingError("the answer of the token endpoint is too large")
            return _Fetched(response.status_code, dict(response.headers), bytes(data))
    except httpx.HTTPError as error:
        raise importlib.import_module("google.auth.exceptions").TransportError(str(error)) from error


STANDARD = "GOOGLE_APPLICATION_CREDENTIALS"
NAME = "Claude on Vertex AI"
VERSION = "vertex-2023-10-16"
# Families of Anthropic's beta features that Vertex AI refuses by name, and one that has another name there
# (https://github.com/BerriAI/litellm/blob/main/litellm/anthropic_beta_headers_config.json, 2026-11).
_BETAS_REFUSED = re.compile(
    r"(advisor-tool|agent-memory|bash_|cache-diagnosis|code-execution|computer-use-2024|extended-cache-ttl|fast-mode"
    r"|files-api|managed-agents|mcp-|message-batches|message-threads|oauth|output-300k|prompt-caching|redact-thinking"
    r"|skills|text_editor_|user-profiles|web-fetch)"
)
_BETAS_RENAMED = {"advanced-tool-use-2025-11-20": "tool-search-tool-2025-10-19"}


class _OnVertex(RemoteWire):
    """What both have: no page describes the model to those who may only ask it, so a start looks for credentials."""

    _google: GoogleCredentials

    def _sign_in(self, remote: RemoteSpec) -> None:
        self.health_path, self.model_path = "", None
        self.signs = remote.credentials != "caller"
        variable = remote.api_key_env
        # google-auth's own variable may name a file of any kind.
        self._google = GoogleCredentials(None if variable == STANDARD else variable)

    def key_headers(self, key: str) -> list[tuple[bytes, bytes]]:
        """See `RemoteWire.key_headers`: the variable of the key names a file, so only a caller's is a token."""
        return [] if self.signs or not key else [(b"authorization", f"Bearer {key}".encode())]

    def prepare(self) -> None:
        """See `RemoteWire.prepare`: find the credentials."""
        if self.signs:
            self._google.find()

    def signature(self, request: httpx.Request) -> list[tuple[bytes, bytes]]:
        """See `RemoteWire.signature`: an access token."""
        headers = self._google.headers(request.method, str(request.url))
        return [(name.encode(), value.encode()) for name, value in headers.items()]


class VertexGeminiWire(_OnVertex, GeminiWire):
    """Gemini on Vertex AI."""

    def __init__(self, remote: RemoteSpec) -> None:
        super().__init__(remote)
        self._path = f"publishers/google/{self._path}"
        self._sign_in(remote)


class VertexAnthropicWire(_OnVertex, AnthropicWire):
    """Claude on Vertex AI."""

    def __init__(self, remote: RemoteSpec) -> None:
        super().__init__(remote)
        self._model = f"publishers/anthropic/models/{quote(remote.model, safe='@')}"
        self._sign_in(remote)

    def check(self, request: GenerationRequest) -> None:
        """See `RemoteWire.check`: images and files are sent as data, because Vertex AI fetches none."""
        super().check(request)
        for block in media_parts(request):
            if media_of(block, NAME).url:
                raise TierRequestError(f"messages: {NAME} fetches no image or file; send its data", "messages")

    def call(self, request: GenerationRequest, max_tokens: int | None) -> WireCall:
        """See `RemoteWire.call`. It has one class of service, and not all betas of Anthropic's own API."""
        native, passed = request.native, request.passed
        lost: tuple[str, ...] = ()
        if native is not None and native.betas and (betas := taken_betas(native.betas)) != native.betas:
            request = msgspec.structs.replace(request, native=msgspec.structs.replace(native, betas=betas))
            lost += ("anthropic-beta",)
        if "service_tier" in passed:
            others = {name: value for name, value in passed.items() if name != "service_tier"}
            request = msgspec.structs.replace(request, passed=others)
            lost += ("service_tier",)
        call = super().call(request, max_tokens)
        return msgspec.structs.replace(call, dropped=call.dropped + lost) if lost else call

    def _addressed(self, *, streamed: bool) -> tuple[str, dict[str, Any]]:
        method = "streamRawPredict" if streamed else "rawPredict"
        return f"{self._model}:{method}", {"anthropic_version": VERSION}


def taken_betas(betas: str) -> str:
    """Return those of the header `anthropic-beta` that Vertex AI takes, by its names."""
    named = (_BETAS_RENAMED.get(one.strip(), one.strip()) for one in betas.split(","))
    return ",".join(dict.fromkeys(one for one in named if one and not _BETAS_REFUSED.match(one)))

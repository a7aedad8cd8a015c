"""Google Cloud's credentials, for servers on Vertex AI: access tokens of a service account, workload identity, `gcloud`
or the machine, by google-auth."""

import importlib
import os
import threading
from typing import Any, NamedTuple

import httpx

from tiers.catalog.tier_spec import RemoteSpec
from tiers.errors import TierUnavailableError
from tiers.remote.http_transport import BlockingTransport
from tiers.server_words import one_line

STANDARD = "GOOGLE_APPLICATION_CREDENTIALS"
"""google-auth's own variable, which may name a file of any kind."""
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
        self._credentials: Any = None
        self._lock = threading.Lock()

    def find(self) -> None:
        """Find the credentials. Raises `TierUnavailableError`."""
        with self._lock:
            self._find()

    def signature(self, request: httpx.Request) -> list[tuple[bytes, bytes]]:
        """See `Credentials.signature`: an access token, and the project that pays."""
        headers: dict[str, str] = {}
        with self._lock:
            self._find()
            try:
                self._credentials.before_request(_fetched, request.method, str(request.url), headers)
            except importlib.import_module("google.auth.exceptions").GoogleAuthError as error:
                said = one_line(str(error.args[0] if error.args else error))
                raise TierUnavailableError(f"the token of Google Cloud cannot be renewed: {said}") from error
        return [(name.encode(), value.encode()) for name, value in headers.items()]

    def _find(self) -> None:
        if self._credentials is not None:
            return
        try:
            # Imported here: an extra of the package has it.
            auth = importlib.import_module("google.auth")
            errors = importlib.import_module("google.auth.exceptions")
        except ImportError as error:
            raise TierUnavailableError(MISSING_EXTRA) from error
        try:
            if self._variable is None:
                self._credentials, _ = auth.default(scopes=[SCOPE], request=_fetched)
            else:
                path = os.environ.get(self._variable, "").strip()
                account = importlib.import_module("google.oauth2.service_account").Credentials
                self._credentials = account.from_service_account_file(path, scopes=[SCOPE])
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


def credentials_of(remote: RemoteSpec) -> GoogleCredentials:
    """Return those of a server, whose `api_key_env` names a file."""
    return GoogleCredentials(None if remote.api_key_env == STANDARD else remote.api_key_env)

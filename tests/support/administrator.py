"""The administrator of gateways in tests, unless a test configures its own admin keys."""

from collections.abc import Generator

import httpx

ADMIN_NAME, ADMIN_KEY = "tester", "test-tester-e77c3f46b258125d23d8503416719450"
ADMIN_KEYS = f"{ADMIN_NAME}={ADMIN_KEY}"
ADMIN_HEADERS = {"authorization": f"Bearer {ADMIN_KEY}"}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


class Administrator(httpx.Auth):
    """Sends the key with administrative requests that have no key and no session."""

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        administers = request.url.path.startswith(("/v1/admin", "/admin/api"))
        if administers and "authorization" not in request.headers and "cookie" not in request.headers:
            request.headers.update(ADMIN_HEADERS)
        yield request

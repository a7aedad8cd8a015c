"""An OpenID provider in a process of its own."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager

import httpx

from tests.polling import until
from tests.ports import held_port


@contextmanager
def openid_provider() -> Iterator[str]:
    """The address of a provider that knows no account yet."""
    with closing(held_port()) as held:
        port = held.getsockname()[1]
        process = subprocess.Popen(
            [sys.executable, "-m", "oidc_provider_mock", "--port", str(port)], stderr=subprocess.DEVNULL
        )
        try:
            until(lambda: _answers(f"http://127.0.0.1:{port}"))
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()


def account(provider: str, name: str, *groups: str, sub: str = "") -> str:
    """Make or change the account of `name` at the provider; returns its subject."""
    sub = sub or f"sub-{name}"
    claims = {"preferred_username": name, "email": f"{name}@example.com", "groups": groups}
    httpx.put(f"{provider}/users/{sub}", json=claims).raise_for_status()
    return sub


def _answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False

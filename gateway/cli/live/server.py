"""A running server that commands ask, and where it is: `--url` and `--key`."""

from typing import Annotated, Any

import click
import msgspec
from msgspec import Meta


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """A running server, as the options of a command name it."""

    url: Annotated[str, Meta(extra={"envvar": "AIO_URL"})] = "http://127.0.0.1:8080"
    """Where the server listens. [AIO_URL]"""
    key: Annotated[str, Meta(extra={"envvar": "AIO_ADMIN_KEY"})] | None = None
    """An admin key of the server. [AIO_ADMIN_KEY]"""

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: dict[str, Any] | None = None,
        timeout: float = 30.0,
        root: str = "/v1/admin",
    ) -> Any:
        """Return the answer to a request for `path` below `root`. Raises `click.ClickException` with the server's error
        message, or why there is no answer."""
        import httpx

        from tiers.remote.http_transport import ask

        headers = {} if self.key is None else {"authorization": f"Bearer {self.key}"}
        address = f"{self.url.rstrip('/')}{root}{path}"
        try:
            answer = ask(method, address, timeout=timeout, headers=headers, json=body, params=query)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise click.ClickException(
                f"no answer from {self.url} ({error}). Is `aio serve` running there? Name another address with --url."
            ) from error
        try:
            content = msgspec.json.decode(answer.content)
            if answer.is_success:
                return content
            if answer.status_code == 404:
                raise click.ClickException(
                    f"{self.url} has no {path}: {content['error']['message']} ({answer.status_code})"
                )
            missing = " Give it as --key or in AIO_ADMIN_KEY." if answer.status_code == 401 else ""
            raise click.ClickException(content["error"]["message"] + missing)
        except (msgspec.DecodeError, KeyError, TypeError) as error:
            raise click.ClickException(f"{self.url} answered {answer.status_code} and is not an AIO server") from error

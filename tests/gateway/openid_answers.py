"""An OpenID provider whose every answer a test chooses: rightly signed, forged, or none at all."""

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from joserfc import jws
from joserfc.jwk import KeySet, RSAKey

KEY = RSAKey.generate_key(2048, auto_kid=True)


class Provider:
    """Answers discovery, keys, tokens and user information; a test changes `claims`, `key`, `algorithm` and `info`, the
    `metadata`, or how it answers: `status`, `raw`, by path `raw_of`, and `headers`. `payload`: signed in place of the
    claims. `asked`: the paths; `authorized`: how tokens were asked for.
    """

    def __init__(self) -> None:
        self.key: Any = KEY
        self.algorithm = "RS256"
        self.claims: dict[str, Any] = {}
        self.payload = b""
        self.info: dict[str, Any] = {}
        self.issuer: str | None = None
        self.forms: list[dict[str, list[str]]] = []
        self.metadata: dict[str, Any] = {}
        self.status, self.raw = 200, b""
        self.raw_of: dict[str, bytes] = {}
        self.headers: dict[str, str] = {}
        self.asked: list[str] = []
        self.authorized: list[str | None] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                self.reply(outer.answer(self.path))

            def do_POST(self) -> None:
                outer.forms.append(parse_qs(self.rfile.read(int(self.headers["content-length"])).decode()))
                outer.authorized.append(self.headers.get("authorization"))
                self.reply({"access_token": "a", "token_type": "Bearer", "id_token": outer.token()})

            def reply(self, body: dict[str, Any]) -> None:
                data = outer.raw_of.get(self.path) or outer.raw or json.dumps(body).encode()
                self.send_response(outer.status)
                self.send_header("content-length", str(len(data)))
                self.send_header("set-cookie", "who=ann")
                for name, value in outer.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                # A client may have read enough.
                with suppress(ConnectionError):
                    self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, path: str) -> dict[str, Any]:
        if path.endswith("openid-configuration"):
            ends = ("authorization_endpoint", "token_endpoint", "userinfo_endpoint")
            return (
                {"issuer": self.issuer or self.url, "jwks_uri": f"{self.url}/keys"}
                | {end: f"{self.url}/{end}" for end in ends}
                | self.metadata
            )
        return KeySet([KEY]).as_dict() if path == "/keys" else self.info

    def token(self) -> str:
        if self.algorithm == "none":
            parts = ({"alg": "none"}, self.claims)
            return ".".join(base64.urlsafe_b64encode(json.dumps(p).encode()).rstrip(b"=").decode() for p in parts) + "."
        header = {"alg": self.algorithm, "kid": KEY.kid}
        payload = self.payload or json.dumps(self.claims)
        return jws.serialize_compact(header, payload, self.key, algorithms=[self.algorithm])


@contextmanager
def running_provider() -> Iterator[Provider]:
    """Serve on a free loopback port until the block ends."""
    provider = Provider()
    # Its end is looked for so often; by default each test would wait for half a second.
    thread = threading.Thread(target=provider.server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield provider
    finally:
        provider.server.shutdown()
        provider.server.server_close()
        thread.join()


def claims_of(provider: Provider, of_attempt: str, **changes: Any) -> dict[str, Any]:
    """What an ID token of this provider rightly says of the user ann, who is in the group `ops`."""
    now = int(time.time())
    usual = {"iss": provider.url, "aud": "aio", "sub": "1", "exp": now + 300, "iat": now, "nonce": of_attempt}
    return usual | {"preferred_username": "ann", "groups": ["ops"]} | changes

"""An OpenID provider whose every answer a test chooses: rightly signed, forged, or none at all."""

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs

from joserfc import jws
from joserfc.jwk import KeySet, RSAKey

from tests.http_server import Asked, Reply, answering

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
        self.url = ""

    def reply(self, asked: Asked) -> Reply:
        if asked.body:
            self.forms.append(parse_qs(asked.body.decode()))
            self.authorized.append(asked.headers["authorization"])
            body = {"access_token": "a", "token_type": "Bearer", "id_token": self.token()}
        else:
            self.asked.append(asked.path)
            body = self.answer(asked.path)
        data = self.raw_of.get(asked.path) or self.raw or json.dumps(body).encode()
        return Reply(data, self.status, {"set-cookie": "who=ann"} | self.headers)

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
    with answering(provider.reply) as provider.url:
        yield provider


def claims_of(provider: Provider, of_attempt: str, **changes: Any) -> dict[str, Any]:
    """What an ID token of this provider rightly says of the user ann, who is in the group `ops`."""
    now = int(time.time())
    usual = {"iss": provider.url, "aud": "aio", "sub": "1", "exp": now + 300, "iat": now, "nonce": of_attempt}
    return usual | {"preferred_username": "ann", "groups": ["ops"]} | changes

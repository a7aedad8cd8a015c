"""A gateway in this process, called as its server would call it, without sockets: thousands of requests a second."""

import asyncio
import atexit
import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from litestar import Litestar

from gateway.app import create_app
from gateway.base.settings import Settings
from inference_core.tokenization.load_tokenizer import load_tokenizer
from tests.attacks.exchange import Answer
from tests.inference_core.tokenization.vocabularies import write_sentencepiece
from tests.support.administrator import ADMIN_HEADERS, ADMIN_KEYS
from tests.support.app import scripted_tiers
from tests.support.scripted_classifier import ScriptedClassifier

Headers = list[tuple[bytes, bytes]]
ADMIN: Headers = [(name.encode(), value.encode()) for name, value in ADMIN_HEADERS.items()]
JSON: Headers = [(b"content-type", b"application/json")]
# Longer than any answer of the scripted tiers takes.
_SECONDS = 20.0
# Turns of the loop that chats over a WebSocket have before their caller leaves.
_TURNS = 200


class InProcessGateway:
    """Scripted tiers behind the whole application, its lifespan running on a loop of its own."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="aio-fuzz-")
        self._loop = asyncio.new_event_loop()
        settings = Settings(
            data_dir=self._folder.name,
            monitor=False,
            drain_seconds=1,
            admin_keys=ADMIN_KEYS,
            # Nothing listens there: what comes back from a provider is read without one.
            oidc_issuer="http://127.0.0.1:1",
            oidc_client_id="aio",
            oidc_roles="*=viewer",
        )
        self._tiers = scripted_tiers()
        tokenizer = load_tokenizer(write_sentencepiece(Path(self._folder.name) / "vocabulary.gguf"))
        for tier in self._tiers:
            tier.vocabulary = tokenizer
        self._app = self._loop.run_until_complete(self._started(settings))
        atexit.register(self._folder.cleanup)

    async def _started(self, settings: Settings) -> Litestar:
        app = create_app(settings, tiers=self._tiers, classifier=ScriptedClassifier())
        self._lifespan = app.lifespan()
        await self._lifespan.__aenter__()
        return app

    def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Headers = JSON,
        query: bytes = b"",
        pieces: list[bytes] | None = None,
    ) -> Answer:
        """Send one request; an exception of the application is raised, and so is an answer of 5xx."""
        reply = self._loop.run_until_complete(self._ask(method, path, pieces or [body], headers, query))
        for tier in self._tiers:
            tier.requests.clear()
        assert reply.status < 500 or reply.status == 503, f"{reply.status}: {reply.body[:500]!r}"
        if reply.status >= 400 and path.startswith(("/v1", "/admin/api")) and method != "HEAD":
            assert "error" in json.loads(reply.body), reply.body[:200]
        return reply

    def talk(self, messages: list[str | bytes], headers: Headers) -> list[Any]:
        """Send messages over one WebSocket of chats, then leave; return what was sent back, decoded, without chunks."""
        sent = self._loop.run_until_complete(self._talk(messages, headers))
        for tier in self._tiers:
            tier.requests.clear()
        decoded = [json.loads(message["text"]) for message in sent if message["type"] == "websocket.send"]
        return [message for message in decoded if "choices" not in message]

    async def _talk(self, messages: list[str | bytes], headers: Headers) -> list[Any]:
        sent: list[Any] = []
        waiting: list[Any] = [
            {"type": "websocket.receive", "text": message} if isinstance(message, str)
            else {"type": "websocket.receive", "bytes": message}
            for message in messages
        ]  # fmt: skip
        waiting = [{"type": "websocket.connect"}, *waiting][::-1]

        async def receive() -> Any:
            if waiting:
                return waiting.pop()
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            return {"type": "websocket.disconnect", "code": 1000}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = self._scope("websocket", "/v1/chat/completions/ws", headers, b"")
        scope |= {"scheme": "ws", "subprotocols": [], "extensions": {"aio.admission": {"admit": lambda: None}}}
        async with asyncio.timeout(_SECONDS):
            await self._app(scope, receive, send)
        return sent

    def _scope(self, kind: str, path: str, headers: Headers, query: bytes) -> Any:
        host = [] if any(name == b"host" for name, _ in headers) else [(b"host", b"127.0.0.1:8080")]
        return {
            "type": kind,
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(errors="surrogateescape"),
            "root_path": "",
            "query_string": query,
            "headers": [*host, *headers],
            "client": ("127.0.0.1", 50000),
            "server": ("127.0.0.1", 8080),
            "state": {},
            "extensions": {},
        }

    async def _ask(self, method: str, path: str, pieces: list[bytes], headers: Headers, query: bytes) -> Answer:
        sent: list[Any] = []
        answered = asyncio.Event()
        waiting = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces[:-1]]
        waiting.append({"type": "http.request", "body": pieces[-1], "more_body": False})
        waiting.reverse()

        async def receive() -> Any:
            if waiting:
                return waiting.pop()
            await answered.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                answered.set()

        length = (b"content-length", b"%d" % sum(map(len, pieces)))
        scope = self._scope("http", path, [*headers, length], query) | {"method": method}
        async with asyncio.timeout(_SECONDS):
            await self._app(scope, receive, send)
        start = next(message for message in sent if message["type"] == "http.response.start")
        content = b"".join(message.get("body", b"") for message in sent if message["type"] == "http.response.body")
        named = {name.decode().lower(): value.decode("latin-1") for name, value in start["headers"]}
        return Answer(start["status"], named, content)


@cache
def gateway() -> InProcessGateway:
    """Return the gateway of this process, started at the first call."""
    return InProcessGateway()

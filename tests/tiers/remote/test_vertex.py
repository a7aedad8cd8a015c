"""Vertex AI: Gemini and Claude at a project's addresses, with tokens that google-auth fetches off the event loop."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import msgspec
import pytest

from tests.support.upstream import Call, LoopbackServer
from tests.tiers.remote.provider_shapes import (
    THINKING_AND_TOOLS,
    WHOLE_MESSAGE,
    anthropic_stream,
    gemini_event,
    gemini_stream,
)
from tests.tiers.tier_world import chat, collect, remote_spec
from tiers.catalog.load import parse_catalog
from tiers.catalog.tier_spec import RemoteKind
from tiers.conversation import OpaqueFields, Turn, media
from tiers.dialects.messages_server import taken_betas
from tiers.dialects.rules import rules_of, server_of
from tiers.errors import CallerCredential, CatalogError, TierUnavailableError
from tiers.remote import google_credentials
from tiers.remote.google_credentials import GoogleCredentials
from tiers.remote.remote_tier import RemoteTier

GEMINI, CLAUDE = "gemini-2.5-flash", "claude-sonnet-4-5@20250929"
MODELS: dict[RemoteKind, str] = {"vertex-gemini": GEMINI, "vertex-anthropic": CLAUDE}
STREAMS = {
    "vertex-gemini": gemini_stream([gemini_event({"text": "Hel"}), gemini_event({"text": "lo"}, finish="STOP")]),
    "vertex-anthropic": anthropic_stream(THINKING_AND_TOOLS),
}
WHOLE: dict[str, Any] = {
    "vertex-gemini": gemini_event({"text": "Hello"}, finish="STOP", candidatesTokenCount=1),
    "vertex-anthropic": WHOLE_MESSAGE,
}


async def vertex(call: Call) -> None:
    """Answer as Vertex AI does: by the path alone."""
    kind = "vertex-anthropic" if "/publishers/anthropic/" in call.path else "vertex-gemini"
    if "stream" in call.path.rpartition(":")[2]:
        await call.begin()
        await call.send(STREAMS[kind])
    else:
        await call.reply(200, WHOLE[kind])


def tier_of(server: LoopbackServer, kind: RemoteKind, **remote: Any) -> RemoteTier:
    base_url = f"{server.base_url}/projects/p/locations/global"
    return RemoteTier(remote_spec(base_url, kind=kind, **{"model": MODELS[kind]} | remote))


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source of tokens that needs no library."""
    monkeypatch.setattr(GoogleCredentials, "find", lambda self: None)
    monkeypatch.setattr(
        GoogleCredentials, "signature", lambda self, request: [(b"authorization", f"Bearer {request.method}".encode())]
    )


@pytest.mark.usefixtures("token")
@pytest.mark.parametrize(
    ("kind", "whole", "path"),
    [
        ("vertex-gemini", False, f"google/models/{GEMINI}:streamGenerateContent?alt=sse"),
        ("vertex-gemini", True, f"google/models/{GEMINI}:generateContent"),
        ("vertex-anthropic", False, f"anthropic/models/{CLAUDE}:streamRawPredict"),
        ("vertex-anthropic", True, f"anthropic/models/{CLAUDE}:rawPredict"),
    ],
)
async def test_the_model_is_in_the_path_and_the_version_in_claudes_body(
    kind: RemoteKind, whole: bool, path: str
) -> None:
    async with LoopbackServer(vertex) as server:
        tier = tier_of(server, kind)
        await tier.start()
        answers, _ = await collect(tier, chat(whole=whole))
        await tier.close()
        [call] = server.calls
        assert server.looks == [], "Vertex AI describes no model to those who may only ask it"
    assert answers[0].text in ("Hello", "I look it up: größe 🙂")
    assert call.path == f"/v1/projects/p/locations/global/publishers/{path}"
    assert call.headers["authorization"] == "Bearer POST"
    assert not {"x-goog-api-key", "x-api-key", "anthropic-version"} & call.headers.keys()
    if kind == "vertex-anthropic":
        assert call.body["anthropic_version"] == "vertex-2023-10-16"
        assert (call.body["stream"], call.body["max_tokens"]) == (not whole, 12)
    assert "model" not in call.body


@pytest.mark.usefixtures("token")
async def test_claude_gets_what_vertex_takes_and_the_rest_is_named() -> None:
    betas = "claude-code-20250219, advanced-tool-use-2025-11-20,files-api-2025-04-14"
    opaque = OpaqueFields("messages", {"anthropic-beta": f'"{betas}"'.encode()})
    request = chat(opaque=opaque, passed={"service_tier": "auto", "user": "ada"})
    async with LoopbackServer(vertex) as server:
        tier = tier_of(server, "vertex-anthropic")
        await collect(tier, request)
        await tier.close()
        [call] = server.calls
    assert call.headers["anthropic-beta"] == "claude-code-20250219,tool-search-tool-2025-10-19"
    assert "service_tier" not in call.body
    assert call.body["metadata"] == {"user_id": "ada"}
    assert {"anthropic-beta", "service_tier"} <= set(request.sent.dropped)
    assert taken_betas("files-api-2025-04-14") == ""


@pytest.mark.usefixtures("token")
async def test_claude_on_vertex_fetches_no_image() -> None:
    def request(url: str) -> Any:
        part = media("image", {"url": url})
        return msgspec.structs.replace(chat(), messages=[Turn.of("user", [part])])

    async with LoopbackServer(vertex) as server:
        tier = tier_of(server, "vertex-anthropic")
        refusal = tier.refusal(request("https://example.com/a.png"))
        assert refusal is not None
        assert refusal.param == "messages"
        assert tier.refusal(request("data:image/png;base64,iVBORw0KGgo=")) is None
        await tier.close()


async def test_a_callers_token_goes_as_it_is_and_no_credentials_are_looked_for() -> None:
    async with LoopbackServer(vertex) as server:
        tier = tier_of(server, "vertex-gemini", credentials="caller")
        await tier.start()
        await collect(tier, chat(credential=CallerCredential("ya29.own-token")))
        await tier.close()
        [call] = server.calls
    assert call.headers["authorization"] == "Bearer ya29.own-token"


@pytest.mark.parametrize(
    ("model", "kind", "rules"),
    [(GEMINI, "vertex-gemini", "gemini"), (CLAUDE, "vertex-anthropic", "anthropic")],
)
@pytest.mark.parametrize(
    ("location", "host"),
    [
        ("", "aiplatform.googleapis.com"),
        ("us-east5", "us-east5-aiplatform.googleapis.com"),
        ("eu", "aiplatform.eu.rep.googleapis.com"),
    ],
)
def test_the_provider_is_an_address_by_project_and_location(
    monkeypatch: pytest.MonkeyPatch, model: str, kind: str, rules: str, location: str, host: str
) -> None:
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "p-1")
    monkeypatch.setenv("GOOGLE_CLOUD_LOCATION", location)
    tiers = [{"name": "small", "url": "http://127.0.0.1:9/v1"}, {"name": "v", "provider": "vertex", "model": model}]
    spec = parse_catalog({"name": "c", "tiers": tiers}, "c").tier(2)
    assert spec.remote is not None
    assert spec.remote.kind == server_of(spec.remote, spec.provider) == kind
    assert rules_of(kind, model).server == rules
    assert spec.remote.base_url == f"https://{host}/v1/projects/p-1/locations/{location or 'global'}"
    assert spec.price.listed, "the list has the maker's price"


def test_a_provider_without_project_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT", raising=False)
    tiers = [{"name": "small", "url": "http://127.0.0.1:9/v1"}, {"name": "v", "provider": "vertex", "model": GEMINI}]
    with pytest.raises(CatalogError, match="GOOGLE_CLOUD_PROJECT"):
        parse_catalog({"name": "c", "tiers": tiers}, "c")


class TokenServer:
    """Google's token endpoint: gives a numbered token for each grant, unless it refuses."""

    def __init__(self) -> None:
        self.grants: list[dict[str, str]] = []
        self.refuses = False

    async def __call__(self, call: Call) -> None:
        self.grants.append({name: said[0] for name, said in parse_qs(call.raw.decode()).items()})
        if self.refuses:
            await call.reply(400, {"error": "invalid_grant", "error_description": "Invalid JWT Signature."})
        else:
            token = {"access_token": f"ya29.{len(self.grants)}", "expires_in": 3600, "token_type": "Bearer"}
            await call.reply(200, token | {"issued_token_type": "urn:ietf:params:oauth:token-type:access_token"})


def service_account(url: str) -> dict[str, str]:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    return {
        "type": "service_account",
        "project_id": "p",
        "private_key_id": "k",
        "private_key": pem,
        "client_email": "aio@p.iam.gserviceaccount.com",
        "token_uri": url,
    }


def workload_identity(url: str, folder: Path) -> dict[str, Any]:
    (folder / "subject").write_text("a-token-of-the-cluster")
    return {
        "type": "external_account",
        "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/pool/providers/k8s",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": url,
        "credential_source": {"file": str(folder / "subject")},
    }


@pytest.mark.parametrize(
    ("source", "own_variable"), [("service account", False), ("service account", True), ("workload identity", False)]
)
async def test_google_auth_fetches_a_token_and_renews_it_before_it_expires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, own_variable: bool
) -> None:
    """The endpoint runs on this event loop: a fetch that blocked it would never be answered."""
    pytest.importorskip("google.auth", reason="the extra `providers` is not installed")
    tokens = TokenServer()
    async with LoopbackServer(tokens) as endpoint, LoopbackServer(vertex) as server:
        url = endpoint.base_url.replace("/v1", "/token")
        content = service_account(url) if source == "service account" else workload_identity(url, tmp_path)
        (tmp_path / "google.json").write_text(json.dumps(content))
        variable = "AIO_TEST_GOOGLE" if own_variable else "GOOGLE_APPLICATION_CREDENTIALS"
        monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
        monkeypatch.setenv(variable, str(tmp_path / "google.json"))
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "p")  # else google-auth asks Google for its name
        tier = tier_of(server, "vertex-gemini", api_key_env=variable if own_variable else None)
        await tier.start()
        assert tokens.grants == [], "a start only looks for credentials"
        for _ in range(2):
            await collect(tier, chat())
        credentials: Any = tier._endpoint.credentials  # type: ignore[attr-defined]
        credentials._credentials.expiry = (datetime.now(UTC) + timedelta(seconds=60)).replace(tzinfo=None)
        await collect(tier, chat())
        tokens.refuses = True
        credentials._credentials.expiry = (datetime.now(UTC) - timedelta(seconds=60)).replace(tzinfo=None)
        with pytest.raises(TierUnavailableError, match=r"cannot be renewed.*invalid_grant"):
            await collect(tier, chat())
        await tier.close()
    assert [call.headers["authorization"] for call in server.calls] == ["Bearer ya29.1"] * 2 + ["Bearer ya29.2"]
    grant = tokens.grants[0]
    if source == "service account":
        assert grant["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer"
        assert grant["assertion"].count(".") == 2
    else:
        assert grant["subject_token"] == "a-token-of-the-cluster"
        assert grant["scope"] == google_credentials.SCOPE


@pytest.mark.parametrize(("missing", "said"), [("library", "aio-gateway\\[providers\\]"), ("file", "AIO_TEST_GOOGLE")])
async def test_what_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str, said: str
) -> None:
    if missing == "library":
        monkeypatch.setitem(__import__("sys").modules, "google.auth", None)
    else:
        pytest.importorskip("google.auth", reason="the extra `providers` is not installed")
    monkeypatch.setenv("AIO_TEST_GOOGLE", str(tmp_path / "none.json"))
    async with LoopbackServer(vertex) as server:
        tier = tier_of(server, "vertex-gemini", api_key_env="AIO_TEST_GOOGLE")
        with pytest.raises(TierUnavailableError, match=said):
            await tier.start()
        await tier.close()

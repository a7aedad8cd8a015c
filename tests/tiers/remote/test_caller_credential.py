"""A caller's credential at the tier itself: in which header it goes, what may hold it, what a catalogue may say."""

import pickle
from typing import Any

import msgspec
import pytest

from tests.support.upstream import Call, LoopbackServer
from tests.tiers.tier_world import chat, collect, remote_spec
from tiers.catalog.consent import (
    ALL,
    ANSWER_ALONE,
    NO_CREDENTIAL,
    NOT_LOCAL,
    Consent,
    CredentialConsent,
    Use,
    hidden_from,
)
from tiers.catalog.load import parse_catalog
from tiers.catalog.tier_spec import RemoteKind
from tiers.errors import HEADER, CallerCredential, CallerCredentialError, CatalogError
from tiers.remote.remote_tier import RemoteTier

KEY = "key-0123456789"
URL = "http://127.0.0.1:9/v1"
ENGINE = {"kind": "llama-server", "model": "m.gguf"}


async def refuse(call: Call) -> None:
    await call.reply(401, {"error": {"message": "no"}})


@pytest.mark.parametrize(
    ("kind", "header", "value"),
    [
        ("openai", "authorization", f"Bearer {KEY}"),
        ("vllm", "authorization", f"Bearer {KEY}"),
        ("openai-provider", "authorization", f"Bearer {KEY}"),
        ("azure", "api-key", KEY),
        ("anthropic", "x-api-key", KEY),
        ("gemini", "x-goog-api-key", KEY),
        ("bedrock", "authorization", f"Bearer {KEY}"),
    ],
)
async def test_a_key_goes_where_the_kind_of_server_has_its_keys_and_a_token_as_it_is(
    kind: RemoteKind, header: str, value: str
) -> None:
    async with LoopbackServer(refuse) as server:
        tier = RemoteTier(remote_spec(server.base_url, kind=kind, credentials="caller"), environ={})
        await tier.start()
        for sent in (KEY, f"Bearer {KEY}", f"basic {KEY}"):
            with pytest.raises(CallerCredentialError):
                await collect(tier, chat(credential=CallerCredential(sent)))
        with pytest.raises(CallerCredentialError, match=HEADER):
            await collect(tier, chat())
        assert tier.load().healthy, "one caller's key says nothing of the others'"
        await tier.close()
        alone, bearer, basic = server.calls
    assert alone.headers[header] == value
    assert (bearer.headers["authorization"], basic.headers["authorization"]) == (f"Bearer {KEY}", f"basic {KEY}")
    assert [name for name, said in bearer.headers.items() if KEY in said] == ["authorization"]


async def test_a_tier_of_the_operators_never_sends_it() -> None:
    async with LoopbackServer(refuse) as server:
        tier = RemoteTier(remote_spec(server.base_url), environ={})
        with pytest.raises(Exception, match="401"):
            await collect(tier, chat(credential=CallerCredential(KEY)))
        await tier.close()
        [call] = server.calls
    assert KEY not in str(call.headers)


def test_nothing_can_keep_or_show_it() -> None:
    credential = CallerCredential(f"Bearer {KEY}")
    assert KEY not in f"{credential!r} {credential} {chat(credential=credential)!r}"
    with pytest.raises(TypeError):
        pickle.dumps(credential)
    with pytest.raises(TypeError):
        msgspec.json.encode(chat(credential=credential))


@pytest.mark.parametrize(
    ("consent", "use", "why"),
    [
        (ALL, "answer", NO_CREDENTIAL),
        (CredentialConsent(), "answer", None),
        (CredentialConsent(), "reuse", NO_CREDENTIAL),
        (CredentialConsent(reuse=False), "reuse", ANSWER_ALONE),
        (CredentialConsent(local=True), "answer", NOT_LOCAL),
        (CredentialConsent.of(ALL), "answer", None),
        (CredentialConsent().recorded, "answer", NO_CREDENTIAL),
    ],
)
def test_the_tier_sees_a_request_that_brings_it_for_its_answer_alone(
    consent: Consent, use: Use, why: str | None
) -> None:
    spec = msgspec.structs.replace(remote_spec(URL, credentials="caller"), number=1)
    assert hidden_from(spec, consent, use) == why


@pytest.mark.parametrize(
    ("tier", "problem"),
    [
        ({"url": URL, "model": "m"}, None),
        ({"provider": "anthropic", "model": "claude-sonnet-4-5"}, None),
        ({"url": URL}, "model: is needed"),
        ({"url": URL, "model": "m", "api_key_env": "KEY"}, "leave out api_key_env"),
        ({"url": URL, "model": "m", "api_keys": [{"env": "KEY"}]}, "leave out api_keys"),
        ({"remote": {"base_urls": [URL, URL + "1"], "model": "m", "credentials": "caller"}}, "give base_url"),
        (
            {"remote": {"engine": ENGINE, "kind": "llama-server", "model": "m", "credentials": "caller"}},
            "leave out engine",
        ),
        ({"remote": {"kind": "triton-vllm", "base_url": URL, "model": "m", "credentials": "caller"}}, "takes none"),
    ],
)
def test_a_catalogue_says_it_of_one_address_without_keys(tier: dict[str, Any], problem: str | None) -> None:
    entry = {"name": "own", **tier} | ({} if "remote" in tier else {"credentials": "caller"})
    table = {"name": "c", "tiers": [{"name": "small", "url": URL}, entry]}
    if problem is None:
        spec = parse_catalog(table, "c").tier(2)
        assert spec.asks_credential
        assert spec.remote is not None
        assert spec.remote.api_key_env is None
    else:
        with pytest.raises(CatalogError, match=problem):
            parse_catalog(table, "c")


def test_no_rule_looks_at_it() -> None:
    rule = {"name": "r", "when": {"header": {HEADER: ["*"]}}, "allow": ["small"]}
    tiers = [{"name": name, "url": URL, "model": name} for name in ("small", "large")]
    with pytest.raises(CatalogError, match="is a caller's credential"):
        parse_catalog({"name": "c", "tiers": tiers, "rules": [rule]}, "c")

"""Where URLs and paths lead: what a caller names is not fetched, and nothing is sent to a cloud's metadata."""

import ipaddress
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest
import pytest_asyncio

from gateway.app import create_app
from gateway.base.settings import Settings, SettingsError
from tests.attacks.url_forms import PUBLIC, forbidden_urls
from tests.support.app import RunningGateway, StartApp
from tests.support.core import laptop_hash_core
from tests.support.upstream import Call, LoopbackServer
from tests.tiers.tier_world import remote_spec
from tiers import server_words
from tiers.catalog.load import load_catalog
from tiers.catalog.validate import check_rules
from tiers.dialects.caller_urls import refuse_turn, refuse_urls
from tiers.errors import BadRequestError
from tiers.remote.http_transport import HttpTransport
from tiers.server_words import is_metadata_address, is_metadata_host

pytestmark = pytest.mark.asyncio(loop_scope="module")
# One address, as it can be written, and where it hides in others.
WRITTEN = [
    "169.254.169.254",
    "169.254.170.2",
    "[fe80::1]",
    "fe80::1%eth0",
    "fd00:ec2::254",
    "::ffff:169.254.169.254",
    "::ffff:a9fe:a9fe",
    "64:ff9b::a9fe:a9fe",
    "2002:a9fe:a9fe::",
    "::169.254.169.254",
    "100.100.100.200",
    # As resolvers take them.
    "2852039166",
    "0xA9FEA9FE",
    "0251.0376.0251.0376",
    "169.254.43518",
    "169.0254.169.0254",
    # As browsers map and decode them.
    "１６９.２５４.１６９.２５４",
    "169。254．169｡254",
    "⑯9.254.①⑥⑨.254",
    "%31%36%39.254.169.254",
    "1\u00ad69.254.169.254",
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def aio(tmp_path_factory: pytest.TempPathFactory, module_app: StartApp) -> RunningGateway:
    folder = tmp_path_factory.mktemp("adapters")
    data = str(tmp_path_factory.mktemp("data"))
    return await module_app(core=laptop_hash_core, scripted=False, data_dir=data, adapter_dir=str(folder))


@pytest.mark.parametrize("address", WRITTEN)
async def test_metadata_addresses_are_known_however_they_are_written(address: str) -> None:
    assert is_metadata_address(address)
    assert is_metadata_host(address)


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "10.0.0.7", "::1", "192.168.1.1", "8.8.8.8", "fd00::1", "example.com"]
)
async def test_private_networks_are_where_model_servers_are(address: str) -> None:
    assert not is_metadata_host(address)


@pytest.mark.parametrize(
    "host", ["169.254.169.254", "[fe80::1]", "metadata.google.internal", "METADATA.google.internal."]
)
async def test_a_catalogue_that_names_a_metadata_server_is_refused(host: str) -> None:
    catalog = load_catalog("laptop")
    remote = remote_spec(f"http://{host}/latest").remote
    catalog.tiers[0] = msgspec.structs.replace(catalog.tier(1), model=None, remote=remote)
    assert any("metadata" in problem for problem in check_rules(catalog))


@pytest.mark.parametrize("url", forbidden_urls())
async def test_a_callers_url_is_refused_in_every_notation(url: str) -> None:
    with pytest.raises(BadRequestError) as refused:
        refuse_urls({"image_url": {"url": url}}, "input[0]")
    assert refused.value.param == "input[0].image_url.url"


@pytest.mark.parametrize(
    "value",
    [
        *({"image_url": url} for url in PUBLIC),
        {"image_url": "data:image/png;base64,AAAA"},
        {"image_url": "/9j/4AAQSkZJRg", "audio": "//uQxAAAAAAAAAAAAAAA", "url": "none yet"},
        {"voice": "alloy", "file_id": "file-abc", "image_size": "1024", "images": 2, "url": None},
        {"input": "http://127.0.0.1:3000 does not answer", "documents": ["http://localhost/"], "model": "http://0/"},
    ],
)
async def test_public_addresses_bytes_and_texts_go_on(value: Any) -> None:
    refuse_urls(value, "")


@pytest.mark.parametrize(
    "value",
    [
        {"imageUrl": "169.254.169.254/latest"},
        {"fileUri": "localhost:80/x"},
        {"image": "//127.0.0.1/x"},
        {"audio": {"data": "file:///etc/passwd"}},
        {"images": [{"link": "http://[::1]/"}]},
        {"URLs": ["https://example.com", "user@10.0.0.7/x"]},
    ],
)
async def test_a_field_that_names_a_url_is_known_by_its_name(value: Any) -> None:
    with pytest.raises(BadRequestError):
        refuse_urls(value, "")


async def test_what_calls_of_tools_hold_is_text() -> None:
    turn = [
        {"type": "tool_use", "input": {"url": "http://localhost:3000"}},
        {"type": "function_call", "arguments": {"url": "http://localhost:3000"}},
        {"type": "web_fetch_tool_result", "content": {"url": "http://localhost:3000"}},
        {"name": "open", "input_schema": {"properties": {"url": {"default": "http://localhost:3000"}}}},
    ]
    refuse_turn(json.dumps(turn).encode(), "content")
    with pytest.raises(BadRequestError):
        refuse_turn(json.dumps([*turn, {"type": "mcp", "server_url": "http://localhost"}]).encode(), "tools")


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254:4318",
        "http://[fd00:ec2::254]:4318",
        "http://[::ffff:a9fe:a9fe]/",
        "https://metadata.google.internal",
        "file:///etc/passwd",
        "http://",
    ],
)
async def test_traces_are_sent_to_no_metadata_server(settings: Settings, url: str) -> None:
    wanted = msgspec.structs.replace(settings, trace_exporter="otlp", otlp_endpoint=url)
    with pytest.raises(SettingsError, match="AIO_OTLP_ENDPOINT"):
        create_app(wanted)


async def test_a_name_that_resolves_to_a_forbidden_address_is_sent_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judged by the address that the connection has, so that no second answer of a name server changes it."""
    monkeypatch.setattr(server_words, "METADATA", [ipaddress.ip_network("127.0.0.0/8")])

    async def answer(call: Call) -> None:
        await call.reply(200, {})

    async with LoopbackServer(answer) as server:
        url = httpx.URL(server.base_url).copy_with(host="localhost")
        transport = HttpTransport(url)
        timeout = {"connect": 5.0, "read": 5.0}
        request = httpx.Request("POST", url, content=b"{}", extensions={"timeout": timeout})
        with pytest.raises(httpx.ConnectError, match="metadata"):
            await transport.handle_async_request(request)
        await transport.aclose()
        await server.drained()
        assert server.calls == []


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file"])
async def test_what_a_caller_names_in_a_content_part_is_not_fetched(aio: RunningGateway, kind: str) -> None:
    async with LoopbackServer(lambda call: call.reply(200, {})) as server:
        for url in (f"{server.base_url}/secret", "http://169.254.169.254/latest", "file:///etc/passwd"):
            part = {"type": kind, kind: {"url": url, "file_id": url, "data": url, "format": "wav"}}
            body = {"model": "tier-1", "messages": [{"role": "user", "content": [part]}]}
            refused = await aio.http.post("/v1/chat/completions", json=body)
            assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error")
            assert "root:" not in refused.text
        assert (server.calls, server.looks) == ([], [])


async def load(aio: RunningGateway, path: str) -> httpx.Response:
    body = {"model": "smollm2-int4", "name": "sql", "path": path}
    return await aio.http.post("/v1/admin/adapters", json=body)


async def test_adapters_are_loaded_from_their_folder_alone(aio: RunningGateway, tmp_path: Path) -> None:
    folder = Path(aio.serving.settings.adapter_dir)
    (folder / "sql").mkdir()
    (folder / "link").symlink_to(tmp_path)
    for path in ("/etc", f"{folder}/../elsewhere", f"{folder}/link", str(folder) + "-more", "sql"):
        refused = await load(aio, path)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "path"), path
    assert (await load(aio, str(folder / "sql"))).status_code == 200


@pytest.mark.parametrize("version", ["../../etc", "a/b", "/etc", ".hidden", "%2e%2e%2fetc", "a\x00b"])
async def test_a_version_of_the_classifier_is_no_path(aio: RunningGateway, version: str) -> None:
    orders: list[tuple[str, dict[str, Any]]] = [
        (f"/admin/api/artefacts/{quote(version, safe='')}/promote", {"reason": "a test"}),
        ("/admin/api/trial", {"version": version, "share": 0.5, "reason": "a test"}),
    ]
    for path, order in orders:
        answer = await aio.http.request("PUT" if path.endswith("trial") else "POST", path, json=order)
        assert 400 <= answer.status_code < 500, answer.text
        assert "root:" not in answer.text


@pytest.mark.parametrize("name", ["../../../etc/passwd", "..%2f..%2fetc%2fpasswd", "%2e%2e/settings", "a%00b"])
async def test_ids_in_paths_are_looked_up_and_no_files(aio: RunningGateway, name: str) -> None:
    for place in ("/v1/requests/", "/v1/models/", "/docs/"):
        answer = await aio.http.get(place + name)
        assert answer.status_code in (400, 404), answer.text
        assert "root:" not in answer.text

"""Bodies of requests in gzip, deflate and zstd: read on every route, within the limits of what they become."""

import contextlib
import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import pytest_asyncio
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from gateway.base.errors import ApiError
from gateway.edge.body_coding import CODINGS, PIECE_BYTES, DecodedBody
from tests.support.app import RunningGateway, StartApp

pytestmark = pytest.mark.asyncio(loop_scope="module")
HELLO: list[Any] = [{"role": "user", "content": "Say hello."}]
LIMIT = 3 * PIECE_BYTES


def bare(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(data) + stream.flush()


def halves(compress: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    return lambda data: compress(data[: len(data) // 2]) + compress(data[len(data) // 2 :])


COMPRESS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "gzip of two members": ("gzip", halves(gzip.compress)),
    "its old name": ("x-gzip", gzip.compress),
    "zlib": ("deflate", zlib.compress),
    "bare deflate": ("Deflate", bare),
    "zstd": ("zstd", zstandard.ZstdCompressor().compress),
    "zstd of two frames": ("zstd", halves(zstandard.ZstdCompressor().compress)),
    "zstd of unknown length": ("zstd", zstandard.ZstdCompressor(write_content_size=False).compress),
    "the slowest zstd": ("zstd", zstandard.ZstdCompressor(level=19).compress),
    "none": ("identity", bytes),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory, module_app: StartApp) -> RunningGateway:
    """Accepts bodies of a few pieces."""
    folder = str(tmp_path_factory.mktemp("data"))
    return await module_app(data_dir=folder, body_limit=LIMIT)


async def post(gateway: RunningGateway, path: str, coding: str, body: bytes) -> httpx.Response:
    headers = {"content-encoding": coding, "content-type": "application/json"}
    return await gateway.http.post(path, content=body, headers=headers)


@pytest.mark.parametrize("form", COMPRESS)
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": HELLO}),
        ("/v1/responses", {"input": "Say hello."}),
        ("/v1/messages", {"messages": HELLO, "max_tokens": 9}),
        ("/v1/messages/count_tokens", {"messages": HELLO}),
        ("/v1/route", {"messages": HELLO}),
    ],
)
async def test_a_body_is_read_in_every_coding_by_every_api(
    gateway: RunningGateway, form: str, path: str, fields: dict[str, Any]
) -> None:
    coding, compress = COMPRESS[form]
    answer = await post(gateway, path, coding, compress(json.dumps({"model": "tier-1"} | fields).encode()))
    assert answer.status_code in (200, 201), answer.text


async def test_a_form_is_read_decoded_too(gateway: RunningGateway) -> None:
    line = json.dumps({"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {}}).encode()
    form = httpx.Request("POST", "http://x", files={"file": ("in.jsonl", line)}, data={"purpose": "batch"})
    headers = {"content-type": form.headers["content-type"], "content-encoding": "zstd"}
    body = zstandard.ZstdCompressor().compress(form.read())
    answer = await gateway.http.post("/v1/files", content=body, headers=headers)
    assert (answer.status_code, answer.json()["bytes"]) == (200, len(line)), answer.text


@pytest.mark.parametrize("form", [form for form in COMPRESS if form != "none"])
async def test_what_becomes_larger_than_the_limit_is_a_413(gateway: RunningGateway, form: str) -> None:
    coding, compress = COMPRESS[form]
    for size, status in ((LIMIT - 1000, 200), (2 * LIMIT, 413)):
        padded = b'{"model": "tier-1", "input": "Hi"' + b" " * size + b"}"
        body = compress(padded)
        assert len(body) < LIMIT
        assert (await post(gateway, "/v1/responses", coding, body)).status_code == status


@pytest.mark.parametrize("coding", ["br", "gzip, zstd", "compress"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_another_coding_is_a_415_that_says_which_are_read(
    gateway: RunningGateway, coding: str, path: str
) -> None:
    answer = await post(gateway, path, coding, b"?")
    assert (answer.status_code, answer.headers["accept-encoding"]) == (415, ", ".join(CODINGS))


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("damage", [lambda body: b"{" + body, lambda body: body[:-6], lambda body: body + b"more"])
async def test_a_damaged_body_is_a_400(gateway: RunningGateway, coding: str, damage: Callable[[bytes], bytes]) -> None:
    compress = dict(COMPRESS.values())[coding]
    body = damage(compress(json.dumps({"model": "tier-1", "messages": HELLO}).encode()))
    answer = await post(gateway, "/v1/chat/completions", coding, body)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] in ("invalid_encoding", "invalid_json")


async def decoded(coding: str, body: bytes, most: int, cut: int) -> bytes:
    messages = [body[at : at + cut] for at in range(0, len(body), cut)] or [b""]

    async def receive() -> Any:
        return {"type": "http.request", "body": messages.pop(0), "more_body": bool(messages)}

    read, whole = DecodedBody(receive, coding, len(body)), b""  # type: ignore[arg-type]
    while True:
        message = await read()
        whole += message["body"]
        if not message["more_body"] or len(whole) > most:
            return whole


@given(data=st.binary(max_size=5000), repeat=st.sampled_from([1, 3, 300]), cut=st.sampled_from([1, 7, 100_000]))
async def test_every_body_comes_back_whole_however_it_arrives(data: bytes, repeat: int, cut: int) -> None:
    data *= repeat
    for form, (coding, compress) in COMPRESS.items():
        if form != "none":
            assert await decoded(coding, compress(data), len(data) + 1, cut) == data, form


@given(data=st.binary(min_size=1, max_size=300), coding=st.sampled_from(CODINGS))
async def test_any_other_bytes_are_read_or_refused(data: bytes, coding: str) -> None:
    with contextlib.suppress(ApiError):
        assert await decoded(coding, data, LIMIT, 100) is not None

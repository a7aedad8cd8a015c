"""Numbers, nesting and sizes that no caller means: each is a 400 or 413 in the envelope, and the process goes on."""

import json
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.polling import until
from tests.support.administrator import ADMIN_HEADERS
from tests.support.served import Serve, ServedProcess
from tests.support.upstream import Upstream

pytestmark = pytest.mark.processes

# One for all: a context of TLS takes longer than a test.
CLIENT = httpx.Client(timeout=60)
MIB = 1 << 20
QUOTA = 6 * MIB
KEY = "sk-ada-1c9e07b452d84f6aa3b1907e5d2cf886"
BEARER = {"authorization": f"Bearer {KEY}"}
JSON = BEARER | {"content-type": "application/json"}
USER = [{"role": "user", "content": "Hello"}]
DEEP, FLAT = '{"a":' * 980 + "1" + "}" * 980, "[" + "[]," * 140_000 + "[]]"
HUGE = "9" * 60
NUMBERS = ("", "-1", "0", "1.5", "1e400", "inf", "nan", "٣", "1_0", " 1", HUGE, "000003600" + "0" * 400, "9" * 5000)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def aio(upstream: Upstream, data: Path, module_served: Serve) -> ServedProcess:
    settings = {"AIO_API_KEYS": f"ada={KEY}", "AIO_FILES_QUOTA": str(QUOTA), "AIO_FILE_LIMIT": str(5 * MIB)}
    return module_served(upstream=upstream, data=data, environment=settings)


def posted(aio: ServedProcess, path: str, body: str) -> httpx.Response:
    return CLIENT.post(aio.url + path, content=body.encode(), headers=JSON)


def refused(answer: httpx.Response, param: str | None, code: str | None = None, status: int = 400) -> None:
    assert answer.status_code == status, answer.text[:300]
    error = answer.json()["error"]
    assert error.get("param") == param, error
    assert code in (None, error.get("code")), error


CHAT = {"model": "auto", "messages": USER}
NESTED: dict[str, tuple[str, dict[str, Any], str]] = {
    "response_format": ("/v1/chat/completions", CHAT, "response_format"),
    "tools": ("/v1/chat/completions", CHAT, "tools"),
    "template variables": ("/v1/chat/completions", CHAT, "chat_template_kwargs"),
    "an unknown field": ("/v1/chat/completions", CHAT, "unknown"),
    "metadata": ("/v1/responses", {"model": "auto", "input": "Hello"}, "metadata"),
    "items": ("/v1/responses", {"model": "auto"}, "input"),
    "a knob": ("/v1/admin/knobs/batches", {}, "concurrency"),
}
WRAPPED = {
    "response_format": '{"type":"json_schema","json_schema":{"name":"n","schema":%s}}',
    "tools": '[{"type":"function","function":{"name":"f","parameters":%s}}]',
    "chat_template_kwargs": '{"a":%s}',
    "input": '[{"type":"message","role":"user","content":[{"type":"input_text","text":"x","annotations":%s}]}]',
}


@pytest.mark.parametrize("what", NESTED)
@pytest.mark.parametrize(("value", "code"), [(DEEP, "invalid_json"), (FLAT, "array_too_long")], ids=["deep", "flat"])
def test_json_without_bounds_is_refused_by_the_name_of_its_field(
    aio: ServedProcess, what: str, value: str, code: str
) -> None:
    path, fields, name = NESTED[what]
    body = json.dumps(fields)[:-1] + f'{", " if fields else ""}"{name}": {WRAPPED.get(name, "%s") % value}}}'
    method = "PATCH" if "admin" in path else "POST"
    headers = JSON | ADMIN_HEADERS if "admin" in path else JSON
    answer = CLIENT.request(method, aio.url + path, content=body.encode(), headers=headers)
    refused(answer, name, code)


def test_no_depth_of_nesting_fails_the_server(aio: ServedProcess) -> None:
    fields = {"model": "auto", "max_tokens": 8, "messages": USER}
    for levels in range(850, 1000, 10):
        deep = '{"a":' * levels + "1" + "}" * levels
        for path, name, value in (
            ("/v1/messages", "tools", f'[{{"name": "f", "input_schema": {{"type": "object", "properties": {deep}}}}}]'),
            ("/v1/chat/completions", "response_format", WRAPPED["response_format"] % deep),
        ):
            answer = posted(aio, path, json.dumps(fields)[:-1] + f', "{name}": {value}}}')
            assert answer.status_code == 400, (levels, path, answer.text[:200])
            assert answer.json()["error"]["type"] == "invalid_request_error"


def test_brackets_in_a_text_are_no_nesting(aio: ServedProcess) -> None:
    text = '[{"' * 100_000 + '\\"'
    body = {"model": "auto", "messages": [USER[0] | {"content": text}]}
    answer = posted(aio, "/v1/chat/completions", json.dumps(body))
    assert answer.status_code in (200, 400)
    assert answer.is_success or answer.json()["error"]["code"] == "context_length_exceeded"


def test_a_request_that_no_record_can_hold_is_refused_and_not_answered_free_of_charge(aio: ServedProcess) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [int(HUGE)]}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    refused(posted(aio, "/v1/chat/completions", json.dumps(CHAT | {"response_format": wanted})), "response_format")


@pytest.mark.parametrize("levels", [99, 900, 50_000])
def test_a_schema_as_a_text_of_many_levels_is_refused_or_read(aio: ServedProcess, levels: int) -> None:
    text = '{"properties": {"a": ' * levels + "{}" + "}}" * levels
    for wanted in (
        {"type": "json_schema", "json_schema": text},
        {"type": "json_schema", "json_schema": {"schema": text}},
    ):
        answer = posted(aio, "/v1/chat/completions", json.dumps(CHAT | {"response_format": wanted}))
        assert answer.status_code == (200 if levels == 99 else 400), answer.text[:200]


@pytest.mark.parametrize("seconds", NUMBERS)
def test_an_expiry_that_is_no_time_is_refused_and_the_teams_listing_stays(aio: ServedProcess, seconds: str) -> None:
    form = {"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": seconds}
    answer = CLIENT.post(f"{aio.url}/v1/files", data=form, files={"file": ("a.jsonl", b"{}")}, headers=BEARER)
    refused(answer, "expires_after[seconds]")
    listed = CLIENT.get(f"{aio.url}/v1/files", headers=BEARER)
    assert (listed.status_code, listed.json()["data"]) == (200, [])


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file"])
def test_a_part_of_a_message_with_endless_fields_is_refused_and_others_are_served(
    aio: ServedProcess, kind: str
) -> None:
    data = {"url": "https://a/", "data": "", "file_id": "f"} | {f"k{n:06d}": 1 for n in range(60_000)}
    content = [{"type": kind, kind: data}]
    body = json.dumps({"model": "auto", "messages": [{"role": "user", "content": content}]})
    refused(posted(aio, "/v1/chat/completions", body), f"messages[0].content[0].{kind}", "invalid_value")
    refused(posted(aio, "/v1/chat/completions", body.replace(": 1", ": 1e30")), "messages", "array_too_long")


QUERIES = (
    ("/v1/files", "limit"), ("/v1/batches", "limit"), ("/admin/api/requests", "limit"), ("/admin/api/requests", "tier"),
    ("/v1/admin/knobs/changes", "limit"), ("/v1/admin/knobs/changes", "before"), ("/admin/api/report", "days"),
)  # fmt: skip
TIMES = (("/admin/api/requests", "since"), ("/admin/api/report", "until"), ("/admin/api/report", "since"))


@pytest.mark.parametrize(("path", "name"), [*QUERIES, *TIMES], ids=lambda value: value)
def test_a_number_of_a_query_is_read_whole_and_refused_by_name(aio: ServedProcess, path: str, name: str) -> None:
    headers = ADMIN_HEADERS if "admin" in path else BEARER
    meant = ("-1", "0", "1.5") if (path, name) in TIMES or name == "tier" else ()
    for given in NUMBERS:
        if given in meant:
            continue
        answer = CLIENT.get(aio.url + path, params={name: given}, headers=headers)
        assert answer.status_code == 400, (given, answer.text)
        assert answer.json()["error"]["param"] == name, given


@pytest.mark.parametrize("header", ["x-aio-quality", "x-aio-min-tier", "x-aio-max-cost", "x-aio-deadline-ms"])
@pytest.mark.parametrize("given", ["nan", "inf", "1e400", "1_0", HUGE, "9" * 5000])
def test_a_number_of_a_header_is_read_whole_and_refused_by_name(aio: ServedProcess, header: str, given: str) -> None:
    answer = CLIENT.post(f"{aio.url}/v1/chat/completions", json=CHAT, headers=BEARER | {header: given})
    refused(answer, header)


@pytest.mark.parametrize("end", ["1e300", "4102444801", "1", "-1", "true", '"inf"'])
def test_a_key_ends_at_a_time_that_a_clock_shows(aio: ServedProcess, end: str) -> None:
    body = f'{{"name": "eve", "terms": {{"expires_at": {end}}}}}'
    answer = CLIENT.post(f"{aio.url}/admin/api/keys", content=body.encode(), headers=JSON | ADMIN_HEADERS)
    refused(answer, "terms.expires_at")


class Upload:
    """A form that is sent piece by piece, so that it can be refused before its end."""

    HEAD = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
    TAIL = b'\r\n--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x--\r\n'

    def __init__(self, aio: ServedProcess, length: int | None) -> None:
        """`length`: of the body, as declared; None for chunks."""
        host, port = aio.url.removeprefix("http://").split(":")
        self._chunked = length is None
        self._socket = socket.create_connection((host, int(port)), timeout=30)
        size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
        self._socket.sendall(
            f"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n{size}\r\n"
            "Content-Type: multipart/form-data; boundary=x\r\n\r\n".encode()
        )

    def send(self, data: bytes) -> None:
        self._socket.sendall(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def answer(self) -> tuple[int, str | None]:
        """The status, and the code of the error."""
        head, body = b"", b""
        with self._socket:
            while b"\r\n\r\n" not in head:
                piece = self._socket.recv(65_536)
                assert piece, head
                head += piece
            head, _, body = head.partition(b"\r\n\r\n")
            lines = head.lower().split(b"\r\n")
            length = next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length"))
            while len(body) < length:
                body += self._socket.recv(65_536)
        return int(head.split()[1]), json.loads(body).get("error", {}).get("code")


@pytest.fixture
def emptied(aio: ServedProcess) -> Iterator[None]:
    yield
    for file in CLIENT.get(f"{aio.url}/v1/files", headers=BEARER).json()["data"]:
        CLIENT.delete(f"{aio.url}/v1/files/{file['id']}", headers=BEARER)


@pytest.mark.usefixtures("emptied")
def test_a_body_declared_too_long_is_refused_before_it_is_sent(aio: ServedProcess) -> None:
    assert Upload(aio, 1 << 40).answer() == (413, "file_too_large")


@pytest.mark.usefixtures("emptied")
def test_a_body_declared_beyond_what_is_left_of_the_quota_is_refused_before_it_is_sent(aio: ServedProcess) -> None:
    form = {"purpose": "batch"}
    kept = CLIENT.post(f"{aio.url}/v1/files", data=form, files={"file": ("a", b"x" * 4 * MIB)}, headers=BEARER)
    assert kept.is_success
    assert Upload(aio, 3 * MIB).answer() == (413, "storage_limit_exceeded")


def parts_stored(data: Path) -> int:
    with sqlite3.connect(f"file:{data / 'aio.sqlite3'}?mode=ro", uri=True) as database:
        return int(database.execute("SELECT count(*) FROM file_parts").fetchone()[0])


@pytest.mark.usefixtures("emptied")
def test_uploads_that_arrive_together_share_the_quota_and_the_refused_one_leaves_nothing(
    aio: ServedProcess, data: Path
) -> None:
    first, second = Upload(aio, None), Upload(aio, None)
    for upload in (first, second):
        upload.send(Upload.HEAD)
    for _ in range(4):
        first.send(b"x" * MIB)
    until(lambda: parts_stored(data) >= 4)
    # Of what is left of six, two more fit; the form does not end.
    with suppress(ConnectionError):
        for _ in range(4):
            second.send(b"y" * MIB)
    assert second.answer() == (413, "storage_limit_exceeded")
    assert parts_stored(data) == 4
    first.send(Upload.TAIL)
    first.send(b"")
    assert first.answer() == (200, None)

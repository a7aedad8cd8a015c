"""Everything of a request that is no JSON: headers, cookies, queries, paths, forms and uploads; never a 5xx."""

import string
from urllib.parse import quote

from tests.fuzz.asgi_gateway import ADMIN, Headers, gateway
from tests.fuzz.bodies import CHAT
from tests.fuzz.gateway.bodies import json_seeds
from tests.fuzz.pieces import pieces_of
from tests.fuzz.routes import paths_of
from tests.hostile.target import fuzz_target

_KEY = ADMIN[0][1]
_HEADERS = [
    b"authorization: " + _KEY,
    b"authorization: Basic dGVzdGVyOmFuLWFkbWluLWtleQ==\nx-api-key: sk-aio-abc",
    b"cookie: aio_session=abc; aio_oidc=7b7d; theme=dark\nsec-fetch-site: same-origin",
    b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\ntracestate: a=b,c=d",
    b"accept: text/event-stream;q=0.9, */*\naccept-encoding: gzip, br;q=0\naccept-language: de-DE,de;q=0.9",
    b"content-type: application/json; charset=utf-8\norigin: http://127.0.0.1:8080",
    b"content-type: multipart/form-data; boundary=x\nsec-fetch-site: cross-site",
    b"x-aio-quality-target: 0.9\nx-aio-min-tier: 2\nx-aio-max-cost-usd: 0.5\nx-aio-deadline-ms: 100\nx-aio-cache: off",
    b"x-request-id: abc\nx-aio-conversation: c\nx-aio-slo: interactive\nx-forwarded-for: 1.2.3.4\nforwarded: for=1",
    b'anthropic-version: 2023-06-01\nanthropic-beta: a,b\nif-none-match: "a"\nrange: bytes=0-5\nexpect: 100-continue',
    b"host: [::1]:8080\ncontent-length: 5",
]
_NAMES = (
    b"authorization",
    b"cookie",
    b"traceparent",
    b"tracestate",
    b"accept",
    b"origin",
    b"content-type",
    b"host",
    b"range",
    b"x-api-key",
    b"x-aio-conversation",
    b"x-aio-quality-target",
    b"x-aio-deadline-ms",
    b"sec-fetch-site",
    b"x-request-id",
    b"accept-encoding",
    b"if-none-match",
    b"x-forwarded-for",
    b"referer",
    b"anthropic-beta",
    b"x-csrf-token",
)
_TOKEN = frozenset(string.ascii_letters.encode() + string.digits.encode() + b"!#$%&'*+-.^_`|~")


def headers_of(data: bytes) -> Headers:
    """Return headers as the server's parser passes them on: names of token characters, values without control ones."""
    found: Headers = []
    for line in data.split(b"\n")[:100]:
        name, colon, value = line.partition(b":")
        if colon and name and _TOKEN.issuperset(name) and name.lower() not in (b"content-length", b"transfer-encoding"):
            found.append(
                (name.lower(), bytes(byte for byte in value if (byte >= 32 and byte != 127) or byte == 9).strip())
            )
    return found


@fuzz_target(
    _HEADERS,
    [name + b": " for name in _NAMES] + [b"\n", b"; ", b"=", b",", b"Bearer ", b"\xff", b"aio_session="],
    inputs=200,
)
def headers(data: bytes) -> str:
    """Of a chat, a list and a page."""
    given = headers_of(data)
    body = json_seeds(CHAT)[0]
    codes = [gateway().ask("POST", "/v1/chat/completions", body, given).label]
    codes += [
        gateway().ask("GET", path, b"", given).label for path in ("/v1/models", "/admin/login", "/admin/keys", "/docs")
    ]
    return " ".join(code[:3] for code in codes)


def _numbered(seeds: list[bytes], count: int) -> list[bytes]:
    """Put the number of a path before each seed, so that each of `count` paths has one."""
    return [bytes([number]) + seeds[number % len(seeds)] for number in range(count)]


_LISTS = paths_of("GET", "/v1", "/admin", "/metrics")
_QUERIES = [
    b"after=file-1&limit=5&order=asc&purpose=batch",
    b"cursor=1.5:abc&limit=10&since=0&until=1e9&status=open&tier=1&days=7",
    b"next=/admin/keys&error=access_denied&code=a&state=b",
    b"target=0.9&quality=0.5&from=2026-01-01&to=2026-02-01&group=team&format=csv",
]
_QUERY_WORDS = [
    b"limit=",
    b"cursor=",
    b"since=",
    b"until=",
    b"&",
    b"=",
    b"%00",
    b"%ff",
    b"1e999",
    b"nan",
    b"-1",
    b"after=",
    b"99999999999999999999",
    b"next=//a",
    b"order=desc",
    b"%F0%9F%98%80",
    b"days=",
    b"format=csv",
    b"tier=",
]


@fuzz_target(_numbered(_QUERIES, len(_LISTS)), _QUERY_WORDS)
def queries(data: bytes) -> str:
    """The first byte chooses the list or page."""
    path = _LISTS[data[0] % len(_LISTS)] if data else _LISTS[0]
    query = bytes(byte for byte in data[1:] if 32 < byte < 127 and byte != ord("#"))
    return f"{path} {gateway().ask('GET', path, b'', ADMIN, query).status}"


_PATHS = [
    b"/v1/models/a/b",
    b"/v1/files/file-1/content",
    b"/v1/requests/chatcmpl-1",
    b"/admin/static/1/a.css",
    *(
        b"/admin/api/users/k",
        b"/docs/a",
        b"/v1/responses/resp_1",
        b"/admin/requests/%2e%2e",
        b"/admin/api/verifications/1",
    ),
    *(
        b"/admin/api/budgets/b",
        b"/v1/admin/adapters/m/n",
        b"/admin/api/artefacts/v/promote",
        b"//v1//models",
        b"/admin/keys/k",
    ),
]


@fuzz_target(
    _PATHS, [b"/v1/", b"/admin/", b"/../", b"%00", b"%ff", b"..", b"//", b"%2f", b"/content", b"/static/", b"\xc3\xa9"]
)
def paths(data: bytes) -> str:
    """Any path, as the server decodes it, with each method."""
    text = "/" + data.decode(errors="replace").lstrip("/")
    method = ("GET", "DELETE", "POST", "PATCH", "HEAD", "PUT", "OPTIONS", "BREW")[len(data) % 8]
    return f"{method} {gateway().ask(method, text, b'', ADMIN).status}"


_FORMS = tuple(path for path in paths_of("POST", "/admin/") if not path.startswith("/admin/api"))
_FORM_SEEDS = [
    b"name=a&password=b&next=%2Fadmin&csrf_token=c&reason=r",
    b"name=team&scopes=inference&models=auto&monthly_usd=5&requests_per_minute=1&expires_at=2027-01-01&reason=r",
    b"target=0.9&was.target=0.8&reason=r&version=v&share=0.1&minimum=1&maximum=9",
]


@fuzz_target(
    _numbered(_FORM_SEEDS, len(_FORMS)),
    [*_QUERY_WORDS, b"reason=r&", b"was."],
)
def forms(data: bytes) -> str:
    """Forms of the dashboard, sent with an admin key; the first byte chooses the page."""
    path = _FORMS[data[0] % len(_FORMS)] if data else _FORMS[0]
    kind = [(b"content-type", b"application/x-www-form-urlencoded"), (b"sec-fetch-site", b"same-origin")]
    codes = [gateway().ask("POST", path, data[1:], kind + extra).status for extra in ([], ADMIN)]
    return f"{path} {codes}"


def _part(head: bytes, content: bytes) -> bytes:
    return b"--x\r\ncontent-disposition: form-data; " + head + b"\r\n\r\n" + content + b"\r\n"


_LINE = b'{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {}}\n'
_UPLOADS = [
    _part(b'name="purpose"', b"batch") + _part(b'name="file"; filename="a.jsonl"', _LINE) + b"--x--\r\n",
    _part(b'name="file"; filename="a"', b"") + b"--x--",
    _part(b'name="purpose"', b"user_data") + _part(b"name=\"file\"; filename*=utf-8''%c3%a9", b"--x") + b"--x--\r\n",
]
_UPLOAD_WORDS = [
    b"--x",
    b"--x--",
    b"\r\n",
    b'name="',
    b'filename="',
    b"content-type: text/plain; charset=utf-7\r\n",
    b"\r\n\r\n",
    b"content-disposition: form-data",
    b"expires_after[seconds]",
    b"content-transfer-encoding: base64\r\n",
]


@fuzz_target(_UPLOADS, _UPLOAD_WORDS)
def uploads(data: bytes) -> str:
    """A form with a file, in pieces; what is stored is read and deleted again."""
    kind = [(b"content-type", b"multipart/form-data; boundary=x")]
    reply = gateway().ask("POST", "/v1/files", b"", ADMIN + kind, pieces=list(pieces_of(data)) or [b""])
    if reply.status == 200:
        file_id = reply.json["id"]
        size, stored = reply.json["bytes"], gateway().ask("GET", f"/v1/files/{file_id}/content", b"", ADMIN)
        assert len(stored.body) == size <= len(data)
        assert gateway().ask("DELETE", f"/v1/files/{file_id}", b"", ADMIN).status == 200
    return reply.label


@fuzz_target(
    [b"x", b"----WebKitFormBoundary", b'"x"', b"x; charset=utf-8"], [b"boundary=", b";", b'"', b"\\", b"charset=", b"="]
)
def upload_boundaries(data: bytes) -> str:
    """A content type with any boundary, before a form with that boundary."""
    boundary = bytes(byte for byte in data if byte >= 32 and byte != 127)
    kind = [(b"content-type", b"multipart/form-data; boundary=" + boundary)]
    return gateway().ask("POST", "/v1/files", _UPLOADS[0].replace(b"--x", b"--" + boundary), ADMIN + kind).label


@fuzz_target(
    [
        b"7b7d",
        b'{"state": "a", "nonce": "b", "verifier": "c", "page": "/admin"}',
        b"/admin/keys",
        b"//evil",
        b"[" * 3000,
    ],
    [b"/", b"\\", b"%"],
)
def sign_in_cookies(data: bytes) -> str:
    """Cookies of sessions and of sign-ins under way, and where to go after them."""
    value = quote(data).encode()
    given = [(b"cookie", b"aio_oidc=" + data.hex().encode() + b"; aio_session=" + value)]
    back = gateway().ask("GET", "/admin/oidc/callback", b"", given, b"code=a&state=a&error=" + value)
    codes = [back.status, b"cannot be reached" in back.body]
    page = gateway().ask("GET", "/admin/login", b"", given, b"next=" + value)
    codes += [page.status, gateway().ask("GET", "/admin/keys", b"", given).status]
    return f"{codes}"

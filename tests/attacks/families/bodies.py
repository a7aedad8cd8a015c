"""Bodies, queries, forms and files: every documented operation with mutations of what it takes."""

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from random import Random
from typing import Any
from urllib.parse import quote

from tests.attacks.exchange import Answer
from tests.attacks.families.framing import leaks, outcome_of
from tests.attacks.targets import CHAT, HELLO, Target, multipart
from tests.fuzz.bodies import BODIES
from tests.fuzz.hostile_json import hostile, instance_of
from tests.fuzz.hostile_values import RAW
from tests.hostile.target import Outcome, attack_class

_SHORT: dict[str, dict[str, int]] = {
    CHAT: {"max_tokens": 4},
    "/v1/completions": {"max_tokens": 2},
    "/v1/responses": {"max_output_tokens": 4},
    "/v1/messages": {"max_tokens": 4},
}
VALID = [(path, body | _SHORT.get(path, {})) for path, bodies in BODIES.items() for body in bodies]
# What must not follow from an order of an attacker that administers: the gateway's end, and a foreign folder read.
_LEFT_OUT = {"POST /v1/admin/reload"}


@attack_class("JSON bodies", 4500, "keyed", "shared", "laptop")
def json_bodies(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Mutated bodies of every route for callers: types, sizes, numbers, nesting, repeated names, surrogates."""
    for number in range(count):
        path, valid = draw.choice(VALID)
        body = hostile(valid, draw)
        answer = target.ask("POST", path, body)
        yield outcome_of(answer, f"POST {path} #{number}: {body[:200]!r} … {len(body)} bytes")


@lru_cache(maxsize=4)
def _document(target: Target) -> Any:
    answer = target.client.ask("GET", "/docs/openapi.json")
    assert answer.status == 200
    return answer.json


def operations(target: Target, within: tuple[str, ...]) -> list[tuple[str, str, Mapping[str, Any]]]:
    paths = _document(target)["paths"].items()
    return [
        (method.upper(), path, operation)
        for path, of_path in paths
        if path.startswith(within)
        for method, operation in of_path.items()
        if f"{method.upper()} {path}" not in _LEFT_OUT
    ]


@attack_class("orders of an administrator", 1500, "administered", privileged=True)
def orders(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Bodies and queries for every administrative route, from who may: nothing that is accepted breaks the gateway."""
    routes = operations(target, ("/admin/api", "/v1/admin"))
    for number in range(count):
        method, path, operation = draw.choice(routes)
        for parameter in operation.get("parameters", ()):
            value = draw.choice([*ODD_IDS, "ada", "bob", "1", "smollm2-int4", target.ids["request"]])
            path = path.replace("{" + parameter["name"] + "}", quote(value, safe="", errors="surrogateescape"))
        if "ada" in path.split("/") or "tester" in path:
            continue
        body = None
        if "requestBody" in operation:
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            body = hostile(_plausible(instance_of(schema, _document(target), draw)), draw)
        else:
            path += f"?{_query(draw)}"
        answer = target.client.ask(method, path, body, key=target.keys["admin"])
        yield Outcome(f"{method} {path[:200]} {(body or b'')[:200]!r} #{number}", answer.status, answer.code)
    # What was accepted has left a gateway that can be administered and asked.
    for path in (
        "/admin/api/keys",
        "/admin/api/budgets",
        "/admin/api/transitions",
        "/v1/admin/knobs/routing",
        "/admin/api/requests",
    ):
        answer = target.client.ask("GET", path, key=target.keys["admin"])
        yield Outcome(
            f"afterwards: {path}", answer.status, answer.code, "" if answer.status == 200 else "an order broke it"
        )
    answer = target.client.ask("POST", CHAT, {"model": "tier-1", "messages": HELLO}, key=target.keys["ada"])
    yield Outcome("afterwards: a chat", answer.status, answer.code, "" if answer.status == 200 else "an order broke it")


def _plausible(body: Any) -> dict[str, Any]:
    """A body with a reason, as most orders need one."""
    body = body if isinstance(body, dict) else {}
    body.setdefault("reason", "an attack")
    return body


ODD_IDS = (
    "x", "-1", "0", "1e400", "9" * 400, "999999999999999999999", "\x00", "a\x00b", "%00", "ä", "\udcff", "..", "../..",
    "a/b", "'", '"',
    "' OR '1'='1", "%", "_", "*", "null", "NaN", "inf", "Infinity", "-inf", " ", "key_x", "team_x", "chatcmpl-x",
    "file-x", "batch_x", "resp_x",
    "a" * 5000, "😀", "\r\n", "{}", "[]", "<script>", "true", "1.5", "0x10", "٣", "１", "²", "1_0", "+1", " 1",
    "000000001" + "9" * 400, "000000002" + "0" * 50,
)  # fmt: skip


def _query(draw: Random) -> str:
    names = (
        "limit", "cursor", "after", "before", "order", "since", "until", "tier", "status", "days", "format", "last",
        "team_id", "purpose", "model", "key",
        "metadata", "group_by", "x", "conversation", "route", "version", "reason", "min", "max", "bucket", "page",
        "class", "outcome", "input_items",
    )  # fmt: skip
    values = (
        *ODD_IDS,
        "1",
        "20",
        "100",
        "desc",
        "asc",
        "csv",
        "json",
        "1e308",
        "2147483648",
        "9223372036854775808",
        "1" * 10,
        "1" * 17,
        "-0",
        "1e5",
        "nan",
    )
    pairs = [(draw.choice(names), draw.choice(values)) for _ in range(draw.randint(1, 3))]
    return "&".join(f"{name}={quote(value, safe='', errors='surrogateescape')}" for name, value in pairs)


@attack_class("queries and ids", 1800, "keyed", "shared")
def queries(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Numbers, cursors and ids of lists and single rows: infinite, endless, of other alphabets, of other tenants."""
    mine = [
        "/v1/files",
        "/v1/batches",
        "/v1/models",
        "/v1/requests/{}",
        "/v1/files/{}",
        "/v1/files/{}/content",
        "/v1/batches/{}",
    ]
    mine += ["/v1/responses/{}", "/v1/responses/{}/input_items", "/v1/models/{}"]
    admins = [path for method, path, _ in operations(target, ("/admin/api", "/v1/admin")) if method == "GET"]
    own = [
        *target.ids.values(),
        *(f"{value}x" for value in target.ids.values()),
        *(value[:-1] for value in target.ids.values()),
    ]
    for number in range(count):
        administers = draw.random() < 0.4
        path = draw.choice(admins if administers else mine)
        value = draw.choice([*ODD_IDS, *own])
        if "{" in path:
            path = (
                path[: path.index("{")] + quote(value, safe="", errors="surrogateescape") + path[path.index("}") + 1 :]
            )
        path += f"?{_query(draw)}"
        # A viewer reads what every caller's requests are.
        answer = target.ask("GET", path, key=target.keys["viewer"] if administers else target.caller)
        yield Outcome(f"GET {path[:250]} #{number}", answer.status, answer.code, "" if administers else leaks(answer))


@attack_class("uploads", 900, "keyed", "shared")
def uploads(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Multipart forms: wrong boundaries, endless parts, odd names, numbers of expiry, fields twice."""
    numbers = (
        "1e400",
        "inf",
        "NaN",
        "-1",
        "0",
        "3600",
        "2592000",
        "9" * 400,
        "9" * 10,
        "000003600" + "9" * 400,
        "000003600" + "0" * 30,
        "003600000" + "1",
        "1.5",
        "",
        " 3600",
        "٣600",
        "3600\x00",
        "1_000",
        "+3600",
    )
    for number in range(count):
        fields = {"purpose": draw.choice(["batch", "user_data", "assistants", "\x00", "x" * 2000, "", "fine-tune"])}
        if draw.random() < 0.6:
            fields["expires_after[anchor]"] = draw.choice(["created_at", "x", ""])
            fields["expires_after[seconds]"] = draw.choice(numbers)
        if draw.random() < 0.2:
            fields[draw.choice(["x", "", "a\x00", "é", 'a"; filename="b', "file", "purpose\r\nx: y"])] = "y"
        filename = draw.choice(
            [
                "a.jsonl",
                "../../../etc/passwd",
                "..\\x",
                "\x00",
                "a" * 600,
                "é😀",
                'a"b',
                "a\r\nx: y",
                "",
                "/etc/passwd",
                "=1+1",
                "<b>",
            ]
        )
        content = draw.choice(
            [
                b"",
                b"{}\n",
                b"x" * draw.randint(0, 200_000),
                draw.randbytes(5000),
                b"--b",
                b"\r\n--b--\r\n--b\r\n",
                b"\r\n" * 5000,
            ]
        )
        body, kind = multipart(fields, content, filename), "multipart/form-data; boundary=b"
        damage = draw.randrange(12)
        if damage == 0:
            body = body[: draw.randrange(len(body))]
        elif damage == 1:
            kind = draw.choice([
                "multipart/form-data", "multipart/form-data; boundary=", "multipart/form-data; boundary=" + "b" * 5000,
                'multipart/form-data; boundary="b',
                "multipart/form-data; boundary=\xff", "multipart/mixed; boundary=b",
                "multipart/form-data; boundary=b; boundary=c", "application/json",
                "multipart/form-data; boundary=c", "text/plain", "multipart/form-data; boundary=b; charset=utf-16",
                "multipart/form-data; boundary*=utf-8''b",
                "multipart/form-data; boundary=b; charset=nonsense", "application/x-www-form-urlencoded",
            ])  # fmt: skip
        elif damage == 2:
            body = body.replace(b"\r\n", draw.choice([b"\n", b"\r"]))
        elif damage == 3:
            body = b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n' * draw.choice([20, 5000]) + body
        elif damage == 4:
            body = body.replace(
                b"Content-Disposition",
                draw.choice(
                    [
                        b"X" * 20_000,
                        b"content-disposition: x\r\nContent-Disposition",
                        b"\0",
                        b"Content-Length: 5\r\nContent-Disposition",
                    ]
                ),
            )
        elif damage == 5:
            damaged = bytearray(body)
            for _ in range(9):
                damaged[draw.randrange(len(damaged))] = draw.randrange(256)
            body = bytes(damaged)
        answer = target.ask("POST", "/v1/files", body, content_type=kind)
        yield outcome_of(answer, f"upload #{number}: {kind[:60]} {fields} {filename!r} damage {damage}")
        if answer.status == 200:
            kept = answer.json["id"]
            # What was accepted can be listed, read and deleted.
            for method, path in (
                ("GET", "/v1/files"),
                ("GET", f"/v1/files/{kept}/content"),
                ("DELETE", f"/v1/files/{kept}"),
            ):
                after = target.ask(method, path)
                bypass = "" if after.status == 200 else "a file that was accepted breaks the list"
                yield outcome_of(after, f"{method} {path} after upload #{number} {fields}", bypass)


@attack_class("batch files", 600, "keyed", "shared")
def batch_files(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Lines of batches: each hostile one fails for itself, and its batch ends."""
    made, sent = [], 0
    while sent < count:
        lines = []
        for _ in range(draw.randint(5, 40)):
            valid = draw.choice(BODIES[CHAT])
            line = {
                "custom_id": f"c{draw.randrange(10**9)}",
                "method": "POST",
                "url": CHAT,
                "body": valid | _SHORT[CHAT],
            }
            encoded = hostile(line, draw).replace(b"\n", b" ")
            lines.append(encoded[:100_000])
        answer = target.ask(
            "POST",
            "/v1/files",
            multipart({"purpose": "batch"}, b"\n".join(lines), "b.jsonl"),
            content_type="multipart/form-data; boundary=b",
        )
        yield outcome_of(answer, f"upload of {len(lines)} lines")
        if answer.status != 200:
            continue
        order = {
            "input_file_id": answer.json["id"],
            "endpoint": CHAT,
            "completion_window": "24h",
            "metadata": draw.choice([{}, {"a\u202e": "\x1b[31m"}, {"a": "=1+1"}]),
        }
        answer = target.ask("POST", "/v1/batches", order)
        yield outcome_of(answer, f"batch of {lines[0][:100]!r}")
        sent += len(lines)
        if answer.status == 200:
            made.append(answer.json["id"])
            for _ in lines:
                yield Outcome("a line of a batch", answer.status)
        if len(made) % 3 == 0:
            yield from _ended(target, made)
            made.clear()
    yield from _ended(target, made)


def _ended(target: Target, made: list[str]) -> Iterator[Outcome]:
    import time

    for batch in made:
        until, shown = time.monotonic() + 60, Answer(0)
        while time.monotonic() < until:
            shown = target.ask("GET", f"/v1/batches/{batch}")
            if (shown.json or {}).get("status") in ("completed", "failed", "expired", "cancelled"):
                break
            time.sleep(0.05)
        else:
            yield Outcome(f"batch {batch} has not ended: {shown.text[:300]}", -1)
            continue
        for kind in ("output_file_id", "error_file_id"):
            if file := shown.json.get(kind):
                answer = target.ask("GET", f"/v1/files/{file}/content")
                failures = [line for line in answer.body.splitlines() if _status_of(line) >= 500]
                yield outcome_of(answer, f"{kind} of {batch}")
                for line in failures:
                    yield Outcome(f"a line of a batch: {line[:300]!r}", _status_of(line))


def _status_of(line: bytes) -> int:
    found = json.loads(line)
    response = found.get("response") or {}
    return int(response.get("status_code") or 0)


@attack_class("bodies as something else", 500, "keyed")
def media_types(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Bodies declared as forms, texts, compressed or in other encodings, and forms for routes of JSON."""
    kinds = (
        "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=b", "application/xml",
        "application/msgpack",
        "application/json; charset=utf-16", "application/json; charset=utf-7", "a" * 3000, "", "/", "application/",
        "\xff", "application/a+json", "APPLICATION/JSON",
    )  # fmt: skip
    for number in range(count):
        path, valid = draw.choice(VALID)
        kind = draw.choice(kinds)
        body = draw.choice(
            [
                hostile(valid, draw),
                b"a=b",
                multipart({"a": "b"}, b"x", "x"),
                b"<?xml version='1.0'?><!DOCTYPE x [<!ENTITY y SYSTEM 'file:///etc/passwd'>]><x>&y;</x>",
                RAW[draw.randrange(len(RAW))].encode(),
            ]
        )
        headers = draw.choice(
            [{}, {"content-encoding": "gzip"}, {"content-encoding": "br"}, {"expect": "100-continue"}]
        )
        answer = target.ask("POST", path, body, headers=headers, content_type=kind)
        yield outcome_of(answer, f"{path} as {kind[:40]!r} {headers} #{number}: {body[:80]!r}")

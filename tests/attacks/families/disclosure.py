"""What callers write and others read or open: URLs, logs, metrics, exports, pages, redaction."""

import csv
import io
import re
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from random import Random
from typing import Any
from urllib.parse import quote

from tests.attacks.families.framing import outcome_of
from tests.attacks.targets import CHAT, HELLO, Target, multipart
from tests.hostile.target import Outcome, attack_class

MARK = "pwned4711"
SCRIPTS = (
    f"<script>{MARK}()</script>", f'"><img src=x onerror={MARK}()>', f"'><svg/onload={MARK}()>",
    f"</title><script>{MARK}()</script>", f"javascript:{MARK}()", f'" autofocus onfocus={MARK}() x="',
    f"<iframe srcdoc='<script>{MARK}()</script>'>", f"{{{{constructor.constructor('{MARK}()')()}}}}",
    f"<a href=javascript:{MARK}()>x</a>", f"</script><script>{MARK}()</script>", f"<!--><script>{MARK}()</script>",
    f"\u003cscript\u003e{MARK}()\u003c/script\u003e", f"<style>@import'//{MARK}'</style>",
    f"<math><mtext></form><form><mglyph><style></math><img src onerror={MARK}()>", f"x\x00<script>{MARK}()</script>",
)  # fmt: skip
FORMULAS = (
    "=1+1",
    "=cmd|'/c calc'!A0",
    "+1+1",
    "-1+1",
    "@SUM(1)",
    "\t=1+1",
    "\r=1+1",
    '=HYPERLINK("http://127.0.0.1/","x")',
    "\n=1",
    " =1",
    '"=1',
    "=1\x00",
)
LOG_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.,]\d{3}Z? (DEBUG|INFO|WARNING|ERROR|CRITICAL) +\S+ | {4}")


@attack_class("URLs that are named", 500, "keyed", "laptop")
def urls(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Addresses of a listening canary in every field that can hold one: nothing connects to it."""
    before = target.canary.connections
    port = target.canary.port
    forms = (
        f"http://127.0.0.1:{port}/x", f"http://localhost:{port}/", f"https://127.0.0.1:{port}/",
        f"http://[::ffff:127.0.0.1]:{port}/", f"http://2130706433:{port}/", f"http://0x7f.1:{port}/",
        f"http://127.1:{port}/",
        f"//127.0.0.1:{port}/", f"ftp://127.0.0.1:{port}/", f"gopher://127.0.0.1:{port}/_x",
        f"dict://127.0.0.1:{port}/", f"http://a@127.0.0.1:{port}/", f"http://127.0.0.1:{port}#@example.org/",
        f"\thttp://127.0.0.1:{port}/",
        "file:///etc/passwd", "http://169.254.169.254/latest/meta-data/", "http://metadata.google.internal/",
        "http://[fd00:ec2::254]/", f"127.0.0.1:{port}", f"redis://127.0.0.1:{port}/", f"ws://127.0.0.1:{port}/",
        "data:image/png;base64,AA==", "data:text/html,<script>", f"http://127.0.0.1:{port}/{'a' * 3000}",
        f"http://0:{port}/", f"http://①②⑦.⓪.⓪.①:{port}/",
    )  # fmt: skip
    for number in range(count):
        url = draw.choice(forms)
        parts = draw.choice([
            {"type": "image_url", "image_url": {"url": url}}, {"type": "image_url", "image_url": url},
            {"type": "input_audio", "input_audio": {"data": url, "format": "wav"}}, {"type": "file",
            "file": {"file_data": url}},
            {"type": "file", "file": {"file_id": url}}, {"type": "video_url", "video_url": {"url": url}},
            {"type": "text", "text": url}, {"type": "refusal", "refusal": url},
        ])  # fmt: skip
        chat: dict[str, Any] = {"model": "tier-1", "messages": [{"role": "user", "content": [parts]}], "max_tokens": 1}
        asks: list[tuple[str, Any]] = [
            (CHAT, chat), (CHAT, chat), (CHAT, {"model": "tier-1", "messages": HELLO,
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": url}}},
            "max_tokens": 1}),
            ("/v1/responses", {"model": "tier-1", "input": [{"role": "user", "content": [{"type": "input_image",
            "image_url": url}]}]}), ("/v1/responses", {"model": "tier-1", "input": "x", "tools": [{"type": "mcp",
            "server_label": "x", "server_url": url}]}),
            ("/v1/responses", {"model": "tier-1", "input": [{"role": "user", "content": [{"type": "input_file",
            "file_url": url}]}]}), ("/v1/messages", {"model": "tier-1", "max_tokens": 1, "messages": [{"role": "user",
            "content": [{"type": "image", "source": {"type": "url", "url": url}}]}]}),
            (CHAT, {"model": url, "messages": HELLO}), (CHAT, {"model": "tier-1", "messages": HELLO,
            "metadata": {"webhook": url}, "callback_url": url, "base_url": url, "api_base": url, "max_tokens": 1}),
            (CHAT, {"model": "tier-1", "messages": HELLO, "web_search_options": {"url": url}}), ("/v1/messages",
            {"model": "tier-1", "max_tokens": 1, "messages": HELLO, "mcp_servers": [{"type": "url", "url": url,
            "name": "x"}]}),
            ("/v1/batches", {"input_file_id": url, "endpoint": url, "completion_window": "24h",
            "metadata": {"webhook": url}}), ("/v1/embeddings", {"model": url, "input": url}),
        ]  # fmt: skip
        path, body = draw.choice(asks)
        headers = draw.choice(
            [
                {},
                {},
                {"referer": url},
                {"x-forwarded-host": f"127.0.0.1:{port}"},
                {"origin": url},
                {"x-original-url": url},
                {"forwarded": f"host=127.0.0.1:{port}"},
            ]
        )
        answer = target.ask("POST", path, body, headers={name: value.strip() for name, value in headers.items()})
        asked = target.canary.connections - before
        before = target.canary.connections
        yield outcome_of(
            answer,
            f"{path} {url[:60]} {headers} #{number}",
            "" if asked == 0 else f"the gateway opened an address of a caller ({asked} connections)",
        )
    # What was queued, such as a batch, has had its turn.
    time.sleep(1)
    yield Outcome(
        "connections afterwards",
        200,
        bypass="" if target.canary.connections == before else "the gateway opened an address of a caller",
    )


@attack_class("lines of the log", 500, "keyed", "open")
def log_lines(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Line breaks, escape sequences and bidirectional marks in everything that may be logged."""
    target.new_log()
    forged = "2026-01-01 00:00:00.000Z ERROR forged entry"
    for number in range(count):
        text = (
            draw.choice(
                [
                    "\n",
                    "\r\n",
                    "\r",
                    "\x0b",
                    "\x0c",
                    "\x85",
                    "\u2028",
                    "\u2029",
                    "\x1b[2J",
                    "\x1b]0;x\x07",
                    "\x00\n",
                    "\u202e",
                    "%0a",
                    "\\n",
                ]
            )
            + forged
        )
        path, body = draw.choice([
            (CHAT, {"model": text, "messages": HELLO}), (CHAT, {"model": "tier-1", "messages": [{"role": text,
            "content": "x"}]}), (CHAT, {"model": "tier-1", "messages": HELLO, text: 1, "max_tokens": 1}),
            ("/v1/feedback", {"request_id": text, "rating": "up", "comment": text}), ("/v1/embeddings", {"model": text,
            "input": text}), ("/v1/batches", {"input_file_id": text, "endpoint": text, "completion_window": "24h"}),
            (f"/v1/requests/{quote(text, safe='')}", None), (f"/{quote(text, safe='')}?{quote(text, safe='')}=x",
            None), (CHAT, {"model": "tier-1", "messages": HELLO, "metadata": {text[:60]: text}, "user": text,
            "max_tokens": 1}),
        ])  # fmt: skip
        safe = quote(text, safe=" :")
        headers = draw.choice(
            [
                {},
                {"user-agent": safe},
                {"x-request-id": text.replace("\n", "\t").replace("\r", "\t").replace("\x00", "")},
                {"traceparent": safe},
                {"x-aio-conversation": safe},
            ]
        )
        answer = target.ask("GET" if body is None else "POST", path, body, headers=headers)
        written = target.new_log()
        wrong = [line for line in written.split("\n") if line and not LOG_LINE.match(line)]
        bypass = ""
        if wrong or re.search(r"^2026-01-01 00:00:00", written, re.M):
            bypass = f"a line of the log is a caller's: {wrong[:1]}"
        elif "\x1b" in written or "\u202e" in written:
            bypass = "an escape sequence reached the log"
        yield outcome_of(answer, f"{path[:60]} {text[:12]!r} #{number}", bypass)


@attack_class("labels of metrics", 400, "keyed", "open")
def metric_labels(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Thousands of names that could become labels: the page stays as long as it is, and well formed."""
    page = target.client.ask("GET", "/metrics", key=target.keys["admin"])
    before = len(page.body.splitlines())
    for number in range(count):
        name = draw.choice(
            [
                f"model-{number}",
                f'x"}}\naio_forged_total{{a="{number}',
                f"{number}\n# TYPE aio_forged counter",
                "\\",
                '"',
                f"tier-{number}",
                "é" * 99,
                f"m{number}\x00",
            ]
        )
        path, body, headers = draw.choice([
            (CHAT, {"model": name, "messages": HELLO}, {}), (CHAT, {"model": "tier-1", "messages": HELLO,
            "max_tokens": 1, "metadata": {f"k{number}"[:60]: name}, "user": name}, {}), ("/v1/embeddings",
            {"model": name, "input": "x"}, {}),
            (f"/{quote(name, safe='')}", {}, {}), (CHAT, {"model": "tier-1", "messages": HELLO, "max_tokens": 1},
            {"x-aio-conversation": f"c{number}", "user-agent": f"agent {number}"}), (CHAT, {"model": "tier-1",
            "messages": HELLO, f"field{number}": 1, "max_tokens": 1}, {}),
            ("/v1/messages", {"model": name, "messages": HELLO, "max_tokens": 1}, {"anthropic-version": f"v{number}"}),
        ])  # fmt: skip
        yield outcome_of(target.ask("POST", path, body, headers=headers), f"{path[:40]} {name[:60]!r} #{number}")
    page = target.client.ask("GET", "/metrics", key=target.keys["admin"])
    lines = page.text.splitlines()
    forged = any(line.startswith(("aio_forged", "# TYPE aio_forged")) for line in lines)
    grown = len(lines) - before
    bypass = (
        "a label became a metric"
        if forged
        else f"{grown} lines of metrics from names of callers"
        if grown > 400
        else ""
    )
    yield Outcome(f"metrics: {before} lines, then {len(lines)}", page.status, page.code, bypass)


@attack_class("exports", 120, "administered", privileged=True)
def exports(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Formulas in what callers write, then every CSV export: no cell begins as a formula does."""
    for number in range(count):
        text = draw.choice(FORMULAS)
        body = {
            "model": "tier-1",
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 1,
            "metadata": {f"=k{number % 5}": text[:200]},
            "user": text,
        }
        headers = {"x-aio-conversation": text.strip().replace("\x00", "")[:40]}
        key = target.keys[draw.choice(["ada", "bob"])]
        yield outcome_of(target.ask("POST", CHAT, body, key=key, headers=headers), f"{text!r} #{number}")
        target.ask(
            "POST",
            "/v1/files",
            multipart({"purpose": "user_data"}, b"x", "=1+1.csv"),
            content_type="multipart/form-data; boundary=b",
        )
    kinds = (
        "keys",
        "teams",
        "budgets",
        "requests",
        "batches",
        "verifications",
        "transitions",
        "costs",
        "overview",
        "artefacts",
        "retrainings",
        "experiments",
        "rollouts",
        "estimates",
        "slo",
        "system",
        "dashboard-users",
        "reviews",
        "learning",
        "shadow",
    )
    for kind in kinds:
        for query in ("", "&group_by=metadata", "&metadata==k1"):
            answer = target.client.ask("GET", f"/admin/api/{kind}?format=csv{query}", key=target.keys["admin"])
            bypass = ""
            if answer.status == 200 and answer.headers.get("content-type", "").startswith("text/csv"):
                cells = [cell for row in csv.reader(io.StringIO(answer.text)) for cell in row]
                formulas = [
                    cell
                    for cell in cells
                    if cell[:1] in "=+-@\t\r" and cell and not re.fullmatch(r"-?[\d.e+-]+|-?inf|nan|-", cell)
                ]
                bypass = f"a formula in a cell: {formulas[0][:80]!r}" if formulas else ""
            yield Outcome(f"/admin/api/{kind}?format=csv{query}", answer.status, answer.code, bypass)


class _Page(HTMLParser):
    """Whether a mark stands where a browser would run it."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.runs: list[str] = []
        self._in_script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_script = tag in ("script", "style")
        for name, value in attrs:
            given = value or ""
            runs = name.startswith("on") or (
                name in ("href", "src", "action", "formaction")
                and given.strip().lower().startswith(("javascript:", "data:"))
            )
            if MARK in given and (runs or name == "srcdoc"):
                self.runs.append(f"<{tag} {name}={given[:60]!r}>")
            if MARK in name:
                self.runs.append(f"<{tag} {name}>")

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False

    def handle_data(self, data: str) -> None:
        if self._in_script and MARK in data:
            self.runs.append(f"a script: {data[:60]!r}")


def running_marks(html: str) -> list[str]:
    """Where the page would run a caller's text."""
    page = _Page()
    page.feed(html)
    return page.runs


@attack_class("scripts in pages", 350, "administered", privileged=True)
def scripts(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Scripts in prompts, names, metadata, feedback, queries: every page shows them and runs none."""
    browser = target.browsers[0]
    requests = []
    for number in range(count // 2):
        text = draw.choice(SCRIPTS)
        body = {
            "model": draw.choice(["tier-1", "tier-1", text]),
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 1,
            "metadata": {"a": text[:200]},
            "user": text,
        }
        answer = target.ask("POST", CHAT, body)
        yield outcome_of(answer, f"{text[:60]!r} #{number}")
        if "x-aio-decision-id" in answer.headers:
            requests.append(answer.headers["x-aio-decision-id"])
            rated = target.ask("POST", "/v1/feedback", {"request_id": requests[-1], "rating": "down", "comment": text})
            yield outcome_of(rated, f"feedback {text[:60]!r} #{number}")
    key = target.keys["admin"]
    for text in SCRIPTS[:5]:
        target.client.ask("POST", "/admin/api/teams", {"name": "x", "reason": text}, key=key)
        target.client.ask(
            "PATCH", "/admin/api/keys/bob", {"terms": {"aliases": {text: "auto"}}, "reason": text}, key=key
        )
    pages = [
        "/",
        "/requests",
        "/routing",
        "/quality",
        "/quality/review",
        "/experiments",
        "/core",
        "/keys",
        "/keys/bob",
        "/users",
        "/system",
        *(f"/requests/{one}" for one in requests[-10:]),
    ]
    for number in range(count // 2):
        text = draw.choice(SCRIPTS)
        path = "/admin" + draw.choice(pages)
        if draw.random() < 0.7:
            name = draw.choice(["tier", "status", "key", "cursor", "class", "q", "model", "notice", text])
            path += f"?{name}={quote(text, safe='')}"
        if draw.random() < 0.1:
            path = draw.choice(
                [
                    f"/admin/{quote(text, safe='')}",
                    f"/admin/login?next={quote(text, safe='')}",
                    f"/admin/keys/{quote(text, safe='')}",
                    f"/admin/requests/{quote(text, safe='')}",
                    f"/docs/{quote(text, safe='')}",
                    f"/?{quote(text, safe='')}",
                ]
            )
        browser.cookies["aio_notice"] = quote(text, safe="") if draw.random() < 0.3 else ""
        answer = browser.ask("GET", path)
        is_page = answer.headers.get("content-type", "").startswith("text/html")
        runs = running_marks(answer.text) if is_page else []
        policy = answer.headers.get("content-security-policy", "")
        bypass = f"a script runs: {runs[0]}" if runs else ""
        if is_page and path.startswith("/admin") and "script-src 'self'" not in policy:
            bypass = "a page without its policy"
        yield Outcome(f"{path[:150]} #{number}", answer.status, answer.code, bypass)
    browser.cookies.pop("aio_notice", None)


@attack_class("texts that redaction searches", 40, "redacting")
def redaction(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Texts on which the operator's expressions backtrack: others are served, and no secret is kept."""
    for number in range(count):
        size = draw.choice([100, 2000, 50_000, 390 * 1024])
        text = (
            draw.choice(
                [
                    "a" * size,
                    "a.a" * (size // 3),
                    "1" * size,
                    " " * size,
                    "a@" * (size // 2),
                    "-" * size,
                    f"{'a' * size}@",
                    "é" * (size // 2),
                    "z" * 60,
                ]
            )
            + " ada@example.org"
        )
        answer = target.ask(
            "POST",
            CHAT,
            {"model": "tier-1", "messages": [{"role": "user", "content": text}], "max_tokens": 1},
            key=target.keys["ada"],
        )
        yield (
            outcome_of(answer, f"{text[:20]!r} {len(text)} bytes #{number}")
            if answer.status != 200
            else Outcome("redacted", 200)
        )
        if answer.status == 200 and number % 4 == 0:
            shown = target.ask("GET", f"/v1/requests/{answer.headers['x-aio-decision-id']}", key=target.keys["ada"])
            # What the upstream repeats is redacted, too.
            yield Outcome(
                f"the record of #{number}",
                shown.status,
                shown.code,
                "a secret is kept" if "ada@example.org" in shown.text else "",
            )


@attack_class("private prompts", 300, "keyed", "open")
def private_prompts(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Requests that consent to local tiers alone, where every tier is a server elsewhere: it is sent none of them."""
    wordings = (
        "local", "answer, local", "local,answer", " local ", "local,local", "LOCAL", "local;q=1", "local answer", "",
        "local\t", "*", "none, local", "true",
    )  # fmt: skip
    for number in range(count):
        prompt = f"{MARK} is private, #{number}"
        chat: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 4}
        body = {"model": draw.choice(("auto", "auto", "tier-1", "tier-2", "tier-4", "upstream"))}
        body |= draw.choice(
            ({}, {"stream": True}, {"n": 2}, {"temperature": 0}, {"user": "u"}, {"store": True}, {"metadata": {}})
        )
        path, asked = draw.choice([
            (CHAT, body | chat), (CHAT, body | chat), ("/v1/completions", {"model": body["model"], "prompt": prompt}),
            ("/v1/responses", {"model": body["model"], "input": prompt, "store": True}),
            ("/v1/messages", {"model": body["model"]} | chat),
            ("/v1/batches", {"input_file_id": target.ids.get("file", "file-1"), "endpoint": CHAT,
            "completion_window": "24h"}),
        ])  # fmt: skip
        headers = {"x-aio-consent": draw.choice(wordings)} | draw.choice(
            (
                {},
                {"x-aio-min-tier": "2"},
                {"x-aio-cache": "use"},
                {"x-aio-cache": "refresh"},
                {"x-aio-quality": "careful"},
                {"x-aio-conversation": "c"},
                {"x-aio-slo": "batch"},
            )
        )
        before = target.upstream.asked
        answer = target.ask("POST", path, asked, headers=headers)
        left = target.upstream.asked != before
        bypass = "a private prompt reached a server elsewhere" if left or answer.status == 200 else ""
        yield outcome_of(answer, f"{path} {asked} {headers} #{number}", bypass)

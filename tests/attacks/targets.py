"""The gateways under attack: real processes on loopback, with tenants, keys and texts that callers must not reach."""

import json
import os
import re
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.attacks import url_forms
from tests.attacks.echo_upstream import Canary, EchoUpstream, echo_upstream
from tests.attacks.exchange import Answer, Client
from tests.attacks.hostile_catalog import hostile_engine, write_hostile_catalog
from tests.attacks.hostile_upstream import HostileUpstream, hostile_upstream
from tests.attacks.mortal_cores import MortalCores, mortal_cores
from tests.attacks.odd_guardrail import TIMEOUT_SECONDS, odd_guardrail
from tests.attacks.upstream_echoes import KEY
from tests.gateway import private_forms
from tests.gateway.openid_answers import Provider, running_provider
from tests.polling import until
from tests.process_tree import family
from tests.support.administrator import ADMIN_KEY
from tests.support.served import ServedProcess, served
from tests.support.upstream import write_remote_catalog
from tests.tiers.remote.recording_proxy import RecordingProxy, recording_proxy

IN_PROCESS = Path(__file__).parent / "in_process"
CANARY = "cormorant-7e21"
"""Part of every text of the tenant ada, which only she may be shown."""
HELLO = [{"role": "user", "content": "Hello there"}]
CHAT = "/v1/chat/completions"
CONNECTIONS = 400
FORM = "application/x-www-form-urlencoded"
CLOCK = "clock"
FILES = 40
# Chosen by the operator in the open environment, so that each is one process's and needs no database.
SHORT_TIMES = {
    "AIO_REQUEST_SECONDS": "2",
    "AIO_STALLED_READER_SECONDS": "2",
    "AIO_KEYS_POLL_SECONDS": "0.5",
    "AIO_MONITOR": "false",
    "AIO_MAX_CONNECTIONS": str(CONNECTIONS),
}


PASSED = """
[[targets]]
name = "passed"
url = "{url}"
model = "passed"
serves = ["rerank", "moderations", "images", "speech", "transcriptions"]
unit_prices = {{ rerank = 1.0, moderations = 1.0, speech = 1.0, images = 1.0, transcriptions = 1.0 }}
"""


class Browser:
    """Keeps cookies, as a browser does, and signs in to the dashboard."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.cookies: dict[str, str] = {}

    @property
    def cookie(self) -> str:
        """The header."""
        return "; ".join(f"{name}={value}" for name, value in self.cookies.items())

    def ask(self, method: str, path: str, fields: dict[str, str] | None = None) -> Answer:
        """Ask for a page, or send a form."""
        headers = {"cookie": self.cookie} if self.cookies else {}
        body = None if fields is None else urlencode(fields, errors="surrogateescape").encode()
        answer = self._client.ask(method, path, body, headers=headers, content_type=FORM)
        for line in answer.headers.get("set-cookie", "").splitlines():
            name, _, value = line.partition(";")[0].partition("=")
            self.cookies[name.strip()] = value.strip('"')
        return answer

    def token(self, path: str = "/admin/login") -> str:
        """The CSRF token of the page's forms; empty without one."""
        found = re.search(r'name="csrf_token"\s+value="([^"]*)"', self.ask("GET", path).text)
        return found[1] if found else ""

    def sign_in(self, secret: str) -> Answer:
        """Sign in by a key."""
        return self.ask("POST", "/admin/login", {"csrf_token": self.token(), "name": "", "secret": secret})

    @property
    def is_signed_in(self) -> bool:
        """Whether pages are shown."""
        return self._client.ask("GET", "/admin/requests", headers={"cookie": self.cookie}).status == 200


class Target:
    """A running gateway. `keys`: secrets by the names of `_make_keys`. `ids`: what ada has, by kind. `browsers`: where
    the second administrator signed in before any attack. `hostile`: the server behind the target of this name.
    `services`: PostgreSQL and Redis of the target `shared`. `provider`: where users of the target `sign-on` are.
    `cores`: those of the target `mortal`. `proxy`: what the environment of `proxied` names, which is `proxied`."""

    def __init__(self, name: str, aio: ServedProcess, data: Path, upstream: EchoUpstream, canary: Canary) -> None:
        self.name, self.aio, self.data, self.upstream, self.canary = name, aio, data, upstream, canary
        host, port = aio.url.removeprefix("http://").split(":")
        self.host, self.port = host, int(port)
        self.client = Client(host, self.port)
        self.keys: dict[str, str] = {"admin": ADMIN_KEY}
        self.ids: dict[str, str] = {}
        self.browsers: list[Browser] = []
        self.hostile: HostileUpstream | None = None
        self.services: dict[str, Any] = {}
        self.provider: Provider | None = None
        self.cores: MortalCores | None = None
        self.proxy: RecordingProxy | None = None
        self.proxied: dict[str, str] = {}
        self._lags_read: dict[Path, int] = {}
        self._log_read = 0

    @property
    def has_keys(self) -> bool:
        """Whether callers need one."""
        return "bob" in self.keys

    @property
    def caller(self) -> str | None:
        """The key of an ordinary caller, bob; None where none is needed."""
        return self.keys.get("bob")

    def new_client(self) -> Client:
        """Another client, for use in another thread."""
        return Client(self.host, self.port)

    def ask(self, method: str, path: str | bytes, body: Any = None, **more: Any) -> Answer:
        """As bob, unless `key` says otherwise."""
        return self.client.ask(method, path, body, **({"key": self.caller} | more))

    def order(self, method: str, path: str, body: Any = None) -> Any:
        """As the administrator; it must succeed."""
        answer = self.client.ask(method, path, body, key=ADMIN_KEY)
        assert 200 <= answer.status < 300, (path, answer.status, answer.text[:300])
        return answer.json

    def lives(self) -> bool:
        """Whether the process runs and answers."""
        if self.aio.process.poll() is not None:
            return False
        with self.new_client() as client:
            return client.ask("GET", "/health/live").status == 200

    def set_clock(self, seconds: float) -> None:
        """Set the clock of the target `clock` so far from this machine's."""
        with (self.data / CLOCK).open("r+b") as file:  # mapped: it must not be empty for a moment
            file.write(struct.pack("d", seconds))

    def processes(self) -> list[int]:
        """The gateway's process and all its descendants."""
        return family(self.aio.process.pid)

    def resident_bytes(self) -> int:
        """Resident memory of all processes, pages that they share counted once (PSS)."""
        total = 0
        for process in self.processes():
            try:
                rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
                total += int(re.search(r"^Pss:\s+(\d+) kB", rollup, re.M)[1]) * 1024  # type: ignore[index]
            except (OSError, TypeError):
                continue
        return total

    def new_lags(self) -> list[dict[str, Any]]:
        """What the watches inside the processes noted since the last call."""
        found = []
        for file in sorted((self.data / "lags").glob("[0-9]*")):
            text = file.read_bytes()[self._lags_read.get(file, 0) :]
            whole = text[: text.rfind(b"\n") + 1]
            self._lags_read[file] = self._lags_read.get(file, 0) + len(whole)
            found += [json.loads(line) for line in whole.splitlines()]
        return found

    def new_log(self) -> str:
        """What was logged since the last call."""
        with (self.data / "log").open("rb") as file:
            file.seek(self._log_read)
            text = file.read()
        self._log_read += len(text)
        return text.decode("utf-8", "replace")

    def administration(self) -> dict[str, Any]:
        """What only administrators change: keys, teams, budgets, users and knobs."""
        paths = ["/admin/api/keys", "/admin/api/teams", "/admin/api/budgets", "/admin/api/dashboard-users"]
        paths += ["/v1/admin/knobs/routing", "/v1/admin/knobs/cache", "/v1/admin/knobs/batches"]
        found = {path: self.order("GET", path) for path in paths}
        for path in paths[4:]:
            # Apart from what they count.
            found[path] = {name: value for name, value in found[path].items() if name in ("knobs", "limits")}
        for row in found["/admin/api/budgets"].get("rows", []):
            for changing in ("spent_usd", "leased_usd", "remaining_usd"):
                row.pop(changing, None)
        return found


def _make_keys(target: Target) -> None:
    """ada and ann share a team, bob is alone; the others may do less, or no more."""
    for team in ("research",):
        target.order("POST", "/admin/api/teams", {"name": team})
    orders: dict[str, dict[str, Any]] = {
        "ada": {"team": "research"},
        "ann": {"team": "research"},
        "bob": {},
        "viewer": {"terms": {"scopes": ["viewer"]}},
        "second admin": {"terms": {"scopes": ["admin"]}},
        "expired": {"terms": {"expires_at": time.time() + 1}},
        "revoked": {},
        "cheap": {"terms": {"tiers": [1]}},
        "narrow": {"terms": {"concurrency": 4}},
        "budgeted": {},
    }
    for name, order in orders.items():
        target.keys[name] = target.order("POST", "/admin/api/keys", {"name": name} | order)["key"]
    budget = {"kind": "key", "subject": "budgeted", "period": "total", "amount_usd": 1000.0}
    target.order("PUT", "/admin/api/budgets", budget)
    target.order("POST", "/admin/api/keys/revoked/revoke", {"reason": "it leaked"})
    for key in ("revoked", "expired"):
        until(lambda key=key: target.client.ask("GET", "/v1/models", key=target.keys[key]).status == 401)


def _make_texts(target: Target) -> None:
    """Everything that ada owns, each with the canary."""
    ada = target.keys["ada"]
    chat = {"model": "tier-1", "messages": [{"role": "user", "content": f"{CANARY} in a chat"}], "max_tokens": 8}
    answer = target.client.ask("POST", CHAT, chat, key=ada)
    target.ids["request"] = answer.headers["x-aio-decision-id"]
    answer = target.client.ask(
        "POST", "/v1/responses", {"model": "tier-1", "input": f"{CANARY} kept", "store": True}, key=ada
    )
    if answer.status == 200:
        target.ids["response"] = answer.json["id"]
    line = {"custom_id": CANARY, "method": "POST", "url": CHAT, "body": chat}
    answer = target.client.ask(
        "POST", "/v1/files", multipart({"purpose": "batch"}, json.dumps(line).encode() + b"\n", f"{CANARY}.jsonl"),
        key=ada, content_type="multipart/form-data; boundary=b",
    )  # fmt: skip
    assert answer.status == 200, answer.text
    target.ids["file"] = answer.json["id"]
    batch = {"input_file_id": target.ids["file"], "endpoint": CHAT, "completion_window": "24h"}
    answer = target.client.ask("POST", "/v1/batches", batch, key=ada)
    assert answer.status == 200, answer.text
    target.ids["batch"] = answer.json["id"]

    def ended() -> bool:
        shown = target.client.ask("GET", f"/v1/batches/{target.ids['batch']}", key=ada).json
        target.ids["output"] = shown.get("output_file_id") or ""
        return shown["status"] == "completed"

    until(ended, 0.1)


def multipart(fields: dict[str, str], content: bytes, filename: str) -> bytes:
    """A form with one file, with the boundary `b`."""
    parts = [
        f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields.items()
    ]
    head = f'--b\r\nContent-Disposition: form-data; name="file"; filename="{filename}"\r\n\r\n'.encode()
    return b"".join(parts) + head + content + b"\r\n--b--\r\n"


class Targets:
    """Starts each gateway when it is first asked for, and stops them all at the end.

    `keyed`: remote tiers, SQLite, tenants with keys. `open`: the same, without keys. `administered`: its administrator
    is the attacker. `redacting`: an operator's expressions are searched in its texts, in quadratic and in
    exponential time. `hostile`: like `keyed`, with a tier of each wire and a child engine on a `HostileUpstream`.
    `laptop`: the laptop catalogue's models. `shared`: two workers over PostgreSQL and Redis. `private`: without keys,
    with rules for personal data, a tier at home, and everything else at `upstream`. `sign-on`: with an OpenID provider,
    behind a proxy. `clock`: with a clock that jumps. `few files`: without keys, in a process that may open 40 files.
    `addresses`: without keys, with tiers that read media and tiers of OpenAI's and Anthropic's own APIs, all at
    `upstream`. `proxied`: the same, with a recording proxy in its environment. `guarded`: without keys, with a
    guardrail at a server that gives odd verdicts. `mortal`: on a core that ends in the middle of answers.
    """

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._upstream = stack.enter_context(echo_upstream())
        self._canary = Canary()
        stack.callback(self._canary.close)
        self._running: dict[str, tuple[Target, ExitStack]] = {}

    def get(self, name: str) -> Target:
        """The running gateway of this name."""
        if name not in self._running:
            own = self._stack.enter_context(ExitStack())
            self._running[name] = (self._start(name, own), own)
        return self._running[name][0]

    def replace(self, name: str) -> None:
        """Stop what is left of a gateway that died; the next `get` starts another."""
        self._running.pop(name)[1].close()

    @property
    def running(self) -> list[Target]:
        return [target for target, _ in self._running.values()]

    def _start(self, name: str, stack: ExitStack) -> Target:
        data = self._folder / f"{name}-{len(list(self._folder.iterdir()))}"
        (data / "lags").mkdir(parents=True)
        python_path = os.pathsep.join([str(IN_PROCESS), str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
        environment = SHORT_TIMES | {
            "ATTACK_LAGS": str(data / "lags"), "PYTHONPATH": python_path, "NO_PROXY": "127.0.0.1",
            "AIO_LOG_LEVEL": "info",
        }  # fmt: skip
        options: list[str] = []
        services: dict[str, Any] = {}
        hostile = None
        if name == "hostile":
            hostile = stack.enter_context(hostile_upstream())
            options += ["--catalog", str(write_hostile_catalog(data / "catalog.toml", hostile))]
            environment |= {"PATH": f"{hostile_engine(data / 'bin')}{os.pathsep}{os.environ['PATH']}", "THE_KEY": KEY}
        elif name == "mortal":
            options += ["--role", "gateway"]
        elif name != "laptop":
            catalog = write_remote_catalog(data / "catalog.toml", self._upstream.base_url, own_models=True)
            options += ["--catalog", str(catalog)]
        if name == "private":
            home = stack.enter_context(echo_upstream())
            text = catalog.read_text().replace(self._upstream.base_url, home.base_url, 1)
            able = "local = true\ncapabilities = { tools = true, json_schema = true }"
            text = text.replace('name = "tier-1"', f'name = "tier-1"\n{able}')
            catalog.write_text(text + private_forms.CATALOG.format(sink=self._upstream.base_url))
        proxy = None
        if name == "proxied":
            proxy = stack.enter_context(recording_proxy())
            proxied = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), f"http://user:pw@{proxy.place}")
            proxied |= {"NO_PROXY": ""} | dict.fromkeys(("http_proxy", "https_proxy", "all_proxy", "no_proxy"), "")
            # Not the canary of all classes: this gateway asks its own collector while others are attacked.
            collector = Canary()
            stack.callback(collector.close)
            place = f"http://127.0.0.1:{collector.port}"
            environment |= proxied | {"AIO_TRACE_EXPORTER": "otlp", "AIO_OTLP_ENDPOINT": place}
            environment |= {"AIO_ALERT_URLS": place.replace("http", "json", 1)}
        if name in ("addresses", "proxied"):
            catalog.write_text(url_forms.CATALOG.format(url=self._upstream.base_url))
            environment |= {"OPENAI_API_KEY": KEY, "ANTHROPIC_API_KEY": KEY}
        if name == "open":
            with catalog.open("a") as file:
                file.write(PASSED.format(url=self._upstream.base_url))
        if name == "guarded":
            url = stack.enter_context(odd_guardrail())
            with catalog.open("a") as file:
                file.write(f'[[guardrails]]\nname = "odd"\nurl = "{url}"\ntimeout_seconds = {TIMEOUT_SECONDS}\n')
        if name == "few files":
            environment["ATTACK_FILES"] = str(FILES)
        if name == "redacting":
            patterns = data / "patterns"
            patterns.write_text("[\\w.+-]+@[\\w-]+\\.[\\w.]+\n\\d[\\d -]*\\d#\n(z+)+y\n")
            catalog.write_text(catalog.read_text().replace("max_context = 4096", "max_context = 400000"))
            environment["AIO_REDACTION"] = str(patterns)
        provider = cores = None
        if name == "mortal":
            cores = stack.enter_context(mortal_cores(data / "core.sock"))
        if name == "sign-on":
            provider = stack.enter_context(running_provider())
            environment |= {
                "AIO_OIDC_ISSUER": provider.url, "AIO_OIDC_CLIENT_ID": "aio", "AIO_OIDC_ROLES": "ops=viewer",
                "AIO_TRUSTED_PROXIES": "127.0.0.1",
            }  # fmt: skip
        if name == "clock":
            (data / CLOCK).write_bytes(struct.pack("d", 0.0))
            environment |= {"ATTACK_CLOCK": str(data / CLOCK), "AIO_KEYS_POLL_SECONDS": "0.2"}
        if name == "shared":
            options += ["--gateway-workers", "2"]
            services = stack.enter_context(_servers())
            environment |= {
                "AIO_DATABASE_URL": services["PostgreSQL"].emptied_database(),
                "AIO_REDIS_URL": services["Redis"].url,
            }
        aio = stack.enter_context(served(data, data / "cache", *options, environment=environment))
        target = Target(name, aio, data, self._upstream, self._canary)
        target.hostile = hostile
        target.services = services
        target.provider, target.cores = provider, cores
        if proxy is not None:
            target.proxy, target.proxied = proxy, proxied
        stack.callback(target.client.close)
        if hostile is not None or cores is not None:
            _make_keys(target)
            aio.until_whole()
        elif name not in ("open", "private", "few files", "guarded", "addresses", "proxied"):
            _make_keys(target)
            _make_texts(target)
            for _ in range(4):
                target.browsers.append(Browser(target.client))
                assert target.browsers[-1].sign_in(target.keys["second admin"]).status == 303
        return target


@contextmanager
def _servers() -> Iterator[dict[str, Any]]:
    """A PostgreSQL and a Redis of their own, by name."""
    from tests.support.database import PostgresServer, RedisServer, postgres_binaries

    binaries = postgres_binaries()
    if binaries is None:
        raise RuntimeError("PostgreSQL's initdb and pg_ctl are not installed: attack other targets (--without shared)")
    redis = RedisServer()
    redis.start()
    postgres = PostgresServer(binaries)
    postgres.start()
    try:
        yield {"PostgreSQL": postgres, "Redis": redis}
    finally:
        postgres.stop()
        postgres.remove()
        redis.kill()
        redis.release()

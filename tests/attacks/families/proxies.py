"""A proxy in the environment that exempts nothing: what is meant for this machine must not reach it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from random import Random
from unittest.mock import patch

import httpx

from tests.attacks.families.framing import outcome_of
from tests.attacks.targets import Target
from tests.attacks.url_forms import places
from tests.hostile.target import Outcome, attack_class
from tests.support.administrator import ADMIN_KEY
from tiers.remote.http_transport import ask

COMMANDS = (("knobs", "show"), ("refusals",), ("reload", "--reason", "x"), ("alerts",), ("check",))
EVERY = 60
"""Inputs between two commands, which take a second each."""
HERE = (
    "127.0.0.1", "localhost", "LOCALHOST", "app.localhost", "[::1]", "[::ffff:127.0.0.1]", "127.1", "2130706433",
    "0x7f.1", "0177.0.0.1", "127.9.9.9", "0.0.0.0", "%31%32%37.0.0.1", "１２７.0.0.1", "127.0.0.1.", "localhost.",
    "169.254.169.254", "metadata.google.internal",
)  # fmt: skip
EXEMPT = ("", "10.0.0.0/8", "example.com", ".internal", "*.svc,10.0.0.7:80", "::1", "localhos", "127.0.0.2")
NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@attack_class("proxies of the environment", 300, "proxied", privileged=True)
def proxies(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Requests of a gateway, of commands and of clients for this machine, in all notations of its address and with all
    spellings of the variables: nothing of them reaches the proxy, and what is elsewhere does."""
    assert target.proxy is not None
    wanted = places("https://example.com/cat.png")
    for number in range(count):
        target.proxy.asked.clear()
        if number % EVERY == 0:
            command = COMMANDS[number // EVERY % len(COMMANDS)]
            status = _run(target, command)
            yield Outcome(f"aio {' '.join(command)}", status, bypass=_reached(target))
        elif number % 2:
            name = draw.choice(list(wanted))
            path, body = wanted[name]
            answer = target.ask("POST", path, body, headers={"x-aio-cache": "off"})
            yield outcome_of(answer, f"{name} #{number}", _reached(target))._replace(expected=True)
        else:
            yield _asked(target, draw, is_elsewhere=number % 10 == 0)


def _asked(target: Target, draw: Random, *, is_elsewhere: bool) -> Outcome:
    assert target.proxy is not None
    environment = {name: value for name, value in os.environ.items() if name.upper() not in NAMES}
    forms = (target.proxy.place, f"http://{target.proxy.place}", f"http://user:s3cret@{target.proxy.place}/")
    for name in draw.sample(NAMES[:3], draw.randint(1, 3)) if not is_elsewhere else NAMES[:3]:
        environment[draw.choice((name, name.lower()))] = draw.choice(forms)
    environment["NO_PROXY"] = draw.choice(EXEMPT) if not is_elsewhere else "10.0.0.0/8"
    host = "server.example" if is_elsewhere else draw.choice(HERE)
    port = target.upstream.base_url.rpartition(":")[2].partition("/")[0]
    url = f"{draw.choice(('http', 'http', 'https'))}://{host}:{port}/v1/admin/knobs/core"
    status = 0
    with patch.dict(os.environ, environment, clear=True), suppress(httpx.HTTPError, httpx.InvalidURL):
        status = ask("POST", url, 0.5, json={}, headers={"authorization": f"Bearer {ADMIN_KEY}"}).status_code
    bypass = _reached(target)
    if is_elsewhere:
        bypass = "" if bypass else "what is elsewhere did not go to the proxy"
    return Outcome(f"{url} with {environment['NO_PROXY']!r} exempt", status, bypass=bypass, expected=True)


def _run(target: Target, command: tuple[str, ...]) -> int:
    """Return 200 if the command ends well, else its status."""
    given = ["--catalog", str(target.data / "catalog.toml")] if command == ("check",) else ["--url", target.aio.url]
    environment = os.environ | target.proxied | {"AIO_ADMIN_KEY": ADMIN_KEY, "AIO_DATA_DIR": str(target.data)}
    ended = subprocess.run(
        [sys.executable, "-c", "from gateway.cli import main; main()", *command, *given],
        env=environment, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    return 400 if ended.returncode else 200


def _reached(target: Target) -> str:
    assert target.proxy is not None
    asked = target.proxy.asked
    return f"the proxy was asked: {asked[0]}" if asked else ""

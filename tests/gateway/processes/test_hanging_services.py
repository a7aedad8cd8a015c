"""Redis, an identity provider and name servers that accept and never answer: every request is answered in time."""

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.gateway.processes.hanging import ANSWERED_SECONDS, BODY, Callers, HangingCalls, probes
from tests.polling import until
from tests.support.database import RedisServer
from tests.support.served import ENDED_SECONDS, Serve, served
from tests.support.upstream import TIER, Upstream, write_remote_catalog

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("policy", ["open", "closed"])
def test_a_stopped_redis_delays_no_request(
    own_upstream: Upstream, redis_server: RedisServer, policy: str, served: Serve
) -> None:
    environment = {"AIO_REDIS_URL": redis_server.url, "AIO_LIMITS_WITHOUT_REDIS": policy}
    aio = served(upstream=own_upstream, environment=environment)
    callers = Callers(aio)
    plain, limited = callers.key("plain"), callers.key("limited", terms={"requests_per_minute": 1000})
    # A busy machine may keep Redis, too, longer than requests wait for it.
    until(lambda: callers.chat(limited).answer.status_code == 200)
    with redis_server.suspended():
        chats = {f"limited {n}": ("POST", "/v1/chat/completions", limited, {"json": BODY}) for n in range(4)}
        asked = callers.all_at_once(chats | probes())
        assert {name for name, one in asked.items() if one.seconds > ANSWERED_SECONDS} == set()
        assert {asked[name].answer.status_code for name in probes()} == {200}
        assert callers.chat(plain).answer.status_code == 200
        for name in chats:
            if policy == "open":
                assert asked[name].answer.status_code == 200
            else:
                assert asked[name].failure == (503, "limits_unavailable")
        aio.process.send_signal(signal.SIGTERM)
        assert aio.process.wait(ENDED_SECONDS) == 0


@contextmanager
def silent_server() -> Iterator[int]:
    """The port of a server whose connections are accepted, by the kernel, and never answered."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        yield listener.getsockname()[1]


def test_an_identity_provider_that_never_answers_is_a_503_of_the_sign_in_and_of_nothing_else(
    own_upstream: Upstream, tmp_path: Path
) -> None:
    catalog = write_remote_catalog(tmp_path / "catalog.toml", own_upstream.base_url)
    with silent_server() as port:
        environment = {
            "AIO_OIDC_ISSUER": f"http://127.0.0.1:{port}",
            "AIO_OIDC_CLIENT_ID": "aio",
            "AIO_OIDC_ROLES": "*=viewer",
        }
        with served(tmp_path / "data", tmp_path / "cache", "--catalog", str(catalog), environment=environment) as aio:
            callers = Callers(aio)
            plain = callers.key("plain")
            asked = callers.all_at_once(
                {f"sign-in {n}": ("GET", "/admin/oidc/login", {}) for n in range(3)}
                | probes()
                | {"chat": ("POST", "/v1/chat/completions", plain, {"json": BODY})}
            )
            assert {name for name, one in asked.items() if one.seconds > ANSWERED_SECONDS} == set()
            refused = asked["sign-in 0"].answer
            assert (refused.status_code, refused.headers["retry-after"].isdigit()) == (503, True)
            assert "127.0.0.1" in refused.text
            assert {asked[name].answer.status_code for name in (*probes(), "chat")} == {200}


def test_a_name_server_that_never_answers_holds_up_only_what_it_was_asked_for(
    own_upstream: Upstream, tmp_path: Path
) -> None:
    catalog, calls = tmp_path / "catalog.toml", HangingCalls(tmp_path)
    port = own_upstream.base_url.rpartition(":")[2]
    bases = [f"http://{name}.hangs.test:{port}" for name in ("one", "two", "three", "four", "five", "six")]
    tiers = [
        TIER.format(number=n, price=n, output=n, base_url=base, model="upstream") for n, base in enumerate(bases, 1)
    ]
    tiers.append(TIER.format(number=7, price=7, output=7, base_url=f"http://localhost:{port}", model="upstream"))
    catalog.write_text('name = "names"\n' + "".join(tiers))
    environment = calls.environment | {"AIO_REDIS_URL": "redis://redis.hangs.test:1/0"}
    with (
        calls.names(),
        served(tmp_path / "data", tmp_path / "cache", "--catalog", str(catalog), environment=environment) as aio,
    ):
        callers = Callers(aio)
        limited = callers.key("limited", terms={"requests_per_minute": 1000})
        for _ in range(3):
            asked = callers.all_at_once(
                {
                    f"tier {n}": ("POST", "/v1/chat/completions", limited, {"json": BODY | {"model": f"tier-{n}"}})
                    for n in (1, 2, 7)
                }
                | probes()
            )
            assert {name for name, one in asked.items() if one.seconds > ANSWERED_SECONDS} == set()
            assert asked["tier 7"].answer.status_code == 200, asked["tier 7"].answer.text
            assert asked["tier 1"].answer.status_code in (200, 503)
        aio.process.send_signal(signal.SIGTERM)
        assert aio.process.wait(ENDED_SECONDS) == 0

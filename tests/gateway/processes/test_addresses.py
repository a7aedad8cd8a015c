"""Real servers listen on IPv4, IPv6 and both, on several addresses, and say in brackets where."""

import socket
from pathlib import Path

import httpx
import pytest

from gateway.edge.proxies import authority_of, host_is_allowed, is_reachable_from_elsewhere, listens_here_alone
from gateway.processes.announcement import ServerStartError, url_of, worker_text
from gateway.processes.start_checks import bound_sockets, cannot_listen
from tests.support.served import started
from tests.support.upstream import running_upstream, write_remote_catalog


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6: nothing listened there")
BOTH = ["127.0.0.1", "[::1]"]


@pytest.mark.processes
@needs_ipv6
@pytest.mark.parametrize(
    ("options", "environment", "reached"),
    [
        (["--host", "::"], {}, BOTH),
        (["--host", "127.0.0.1", "--host", "::1"], {}, BOTH),
        ([], {"AIO_HOST": "::1, 127.0.0.1"}, BOTH),
        (["--gateway-workers", "2"], {"AIO_HOST": "127.0.0.1,::1"}, BOTH),
        (["--host", "::1"], {}, ["[::1]"]),
        (["--host", "0.0.0.0"], {}, ["127.0.0.1"]),
    ],
    ids=["dual", "repeated", "setting", "workers", "ipv6", "ipv4"],
)
def test_a_gateway_is_reached_where_it_listens_and_nowhere_else(
    tmp_path: Path, options: list[str], environment: dict[str, str], reached: list[str]
) -> None:
    with running_upstream() as upstream:
        catalog = str(write_remote_catalog(tmp_path / "catalog.toml", upstream.base_url))
        given = ("--port", "0", "--catalog", catalog, "--insecure", *options)
        with started(tmp_path / "data", tmp_path / "cache", *given, environment=environment) as process:
            assert process.stdout is not None
            url = next(word for line in process.stdout if "AIO is ready on" in line for word in line.split()[4:5])
            port = httpx.URL(url).port
            assert httpx.get(f"{url}/health/live").status_code == 200
            for host in BOTH:
                if host in reached:
                    assert httpx.get(f"http://{host}:{port}/health/live").status_code == 200
                else:
                    with pytest.raises(httpx.ConnectError):
                        httpx.get(f"http://{host}:{port}/health/live")


@needs_ipv6
def test_several_addresses_have_one_port_and_a_taken_one_is_said() -> None:
    found = bound_sockets("127.0.0.1,::1", 0)
    try:
        port = found[0].getsockname()[1]
        assert [one.getsockname()[:2] for one in found] == [("127.0.0.1", port), ("::1", port)]
        for one in found:
            one.listen()
        for bound in ("::1", "::", "127.0.0.1", "localhost"):
            with pytest.raises(ServerStartError, match=f"another program listens on port {port}"):
                bound_sockets(bound, port)
    finally:
        for one in found:
            one.close()
    with pytest.raises(ServerStartError, match=r"192\.0\.2\.7 is not an address of this machine"):
        bound_sockets("127.0.0.1, 192.0.2.7", 0)


def test_addresses_of_ipv6_are_in_brackets() -> None:
    assert authority_of("::1", 80) == "[::1]:80"
    assert url_of("::1", 80) == "http://[::1]:80"
    assert url_of("::", 80) == url_of("0.0.0.0", 80) == "http://127.0.0.1:80"
    assert worker_text("fd00::1", 80).endswith("http://[fd00::1]:80")
    assert "answers batches and queued chats." in worker_text("fd00::1", 80, chats=True)
    assert "[fd00::1]:80" in str(cannot_listen("fd00::1", 80, OSError(1, "x")))


@pytest.mark.parametrize(
    ("bound", "here"),
    [("127.0.0.1,::1", True), ("localhost, 127.0.0.2", True), ("127.0.0.1,10.0.0.1", False), ("::1,::", False)],
)
def test_a_gateway_is_reached_from_elsewhere_by_any_of_its_addresses(bound: str, here: bool) -> None:
    assert listens_here_alone(bound) is here
    assert is_reachable_from_elsewhere(bound) is not here
    assert host_is_allowed("192.0.2.7:8080", bound, "") is not here
    assert host_is_allowed("gateway.example", f"{bound},gateway.example", "")

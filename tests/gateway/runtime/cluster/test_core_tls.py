"""AIO_CORE_TLS in a gateway: it reaches cores that have certificates of the same authority, and no others."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.base.settings import Settings
from gateway.runtime.cluster import replicated_core
from gateway.runtime.cluster.registry import ReplicaAnnouncement
from gateway.runtime.cores.core_clients import core_clients
from inference_core.errors import CoreGoneError, CoreTlsError
from inference_core.transport.server import CoreServer
from inference_core.transport.tcp import CoreAddress, TcpListener
from inference_core.transport.tls import CertificateFolder, Plain, Tls
from tests.gateway.in_process_cli import aio
from tests.gateway.runtime.cluster.core_fleet import answer, request, tokens_of
from tests.inference_core.hash_model import hash_core
from tests.polling import eventually
from tiers.catalog.load import load_catalog


class Cluster:
    """The replicas that discovery finds."""

    def __init__(self) -> None:
        self.announced: list[ReplicaAnnouncement] = []
        self.servers: list[CoreServer] = []

    async def add(self, name: str, tls: Tls) -> CoreServer:
        listener = TcpListener("127.0.0.1", name.encode(), tls=tls)
        server = CoreServer(lambda: hash_core("m", slabs=256, max_context=2048), listener)
        await server.start()
        self.servers.append(server)
        self.announced = [ReplicaAnnouncement(name=name, node="here", pid=0, address=listener.address)]
        return server


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    found = Cluster()

    async def announced(*_: Any) -> list[ReplicaAnnouncement]:
        return found.announced

    monkeypatch.setattr(replicated_core, "_announced", announced)
    yield found
    for server in found.servers:
        await server.stop()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("certificates")
    done = aio("certificates", made)
    assert done.exit_code == 0, done.output
    assert "AIO_CORE_TLS=FOLDER" in done.output
    return made


def core_of(setting: str) -> Any:
    """The client that a gateway with this setting has of the catalogue's only core."""
    (client,) = core_clients(load_catalog("laptop"), Settings(cluster="auto", core_tls=setting)).values()
    return client


async def test_a_gateway_reaches_cores_by_tls_and_again_when_they_have_restarted(
    cluster: Cluster, folder: Path
) -> None:
    tls = CertificateFolder(folder)
    first = await cluster.add("first", tls)
    core = core_of(str(folder))
    await core.start()
    expected = tokens_of(await answer(core, request("a")))
    assert len(expected) == 8

    await first.stop()
    await cluster.add("second", tls)
    await eventually(lambda: "second" in core.replicas)

    assert tokens_of(await answer(core, request("b"))) == expected
    await core.close()


@pytest.mark.parametrize(("ours", "theirs"), [("", "folder"), ("off", "folder"), ("folder", "off")])
async def test_a_gateway_with_another_setting_than_its_cores_says_so(
    cluster: Cluster, folder: Path, ours: str, theirs: str
) -> None:
    await cluster.add("only", CertificateFolder(folder) if theirs == "folder" else Plain.ANYWHERE)
    core = core_of(str(folder) if ours == "folder" else ours)

    with pytest.raises(CoreGoneError, match="give both the same AIO_CORE_TLS"):
        await core.start()
    await core.close()


async def test_a_gateway_without_the_setting_does_not_connect_to_another_machine(cluster: Cluster) -> None:
    address = CoreAddress(host="10.0.0.5", port=1, secret=b"s")
    cluster.announced = [ReplicaAnnouncement(name="far", node="there", pid=0, address=address)]
    core = core_of("")

    with pytest.raises(CoreGoneError, match=r"10\.0\.0\.5 leave this machine.*aio certificates.*AIO_CORE_TLS=off"):
        await core.start()
    await core.close()


async def test_a_core_that_is_replaced_by_one_of_another_deployment_is_not_used(
    cluster: Cluster, folder: Path, tmp_path: Path
) -> None:
    assert aio("certificates", tmp_path).exit_code == 0
    first = await cluster.add("ours", CertificateFolder(folder))
    core = core_of(str(folder))
    await core.start()

    await first.stop()
    await cluster.add("foreign", CertificateFolder(tmp_path))

    async def refused() -> bool:
        try:
            await answer(core, request("a"))
        except CoreGoneError as error:
            return "another authority signed its certificate" in str(error)
        return False

    await eventually(refused)
    await core.close()


def test_a_folder_without_certificates_is_an_error_before_anything_is_started(tmp_path: Path) -> None:
    with pytest.raises(CoreTlsError, match=f"aio certificates {tmp_path}"):
        core_of(str(tmp_path))


def test_without_openssl_the_command_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    done = aio("certificates", tmp_path / "made")

    assert done.exit_code != 0
    assert "openssl" in done.output
    assert list((tmp_path / "made").iterdir()) == []

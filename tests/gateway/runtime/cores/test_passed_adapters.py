"""A core that takes another's socket over has the adapters that were loaded into that, or refuses with the reason."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest

import tiers.catalogs
from gateway.runtime.cores.passed_adapters import inheriting
from inference_core.errors import ModelFileError
from inference_core.loading.prepare_core import load_adapters
from inference_core.lora.adapter import Adapter
from inference_core.transport.core_thread import SteppingCore
from inference_core.transport.listener import UnixListener
from inference_core.transport.server import CoreServer
from inference_core.transport.unix_socket import SocketCoreClient
from tests.inference_core.hash_model import HashAdapterBank, hash_core


@dataclass(frozen=True)
class Listed:
    """A model of a catalogue, with its adapters."""

    name: str
    adapters: dict[str, str]


async def inherited(path: Path, *names: str) -> SteppingCore:
    """Load a core of models `names` in place of the one at `path`, on another thread as a core's process does."""
    return await asyncio.to_thread(inheriting(lambda: hash_core(*names, adapter_slots=2), path))


def adapters_of(core: SteppingCore, model: str) -> list[tuple[str, str]]:
    return [(adapter.name, adapter.path) for adapter in core.adapters(model)]


async def test_the_next_core_has_the_adapters_of_the_models_that_both_have_or_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "core.sock"
    server = CoreServer(lambda: hash_core("kept", "dropped", adapter_slots=2), UnixListener(path))
    await server.start()
    client = SocketCoreClient(path)
    await client.start()
    for model, name in (("kept", "sql"), ("kept", "unloaded"), ("dropped", "poems")):
        await client.load_adapter(model, name, f"/srv/{name}")
    await client.unload_adapter("kept", "unloaded")

    new = await inherited(path, "kept", "added")
    assert adapters_of(new, "kept") == [("sql", "/srv/sql")]
    assert adapters_of(new, "added") == []

    def gone(self: HashAdapterBank, folder: Path) -> Adapter:
        raise ModelFileError(f"{folder} is gone")

    monkeypatch.setattr(HashAdapterBank, "read", gone)
    with pytest.raises(ModelFileError, match=r"the adapter kept:sql.*is refused.*/srv/sql is gone.*Unload it"):
        await inherited(path, "kept")
    await client.close()
    await server.stop()


def test_an_adapter_may_be_a_folder_of_an_installed_package() -> None:
    core = hash_core("kept", adapter_slots=2)
    load_adapters(core, [Listed("kept", {"shipped": "package:tiers/catalogs"})])
    assert adapters_of(core, "kept") == [("shipped", str(Path(tiers.catalogs.__file__).parent))]
    with pytest.raises(ModelFileError, match=r"'package:tiers/nowhere' does not exist"):
        load_adapters(core, [Listed("kept", {"other": "package:tiers/nowhere"})])


async def test_an_adapter_that_only_the_old_catalogue_lists_ends_with_it(tmp_path: Path) -> None:
    def old() -> SteppingCore:
        core = hash_core("kept", adapter_slots=2)
        load_adapters(core, [Listed("kept", {"of-the-catalogue": "/srv/old"})])
        return core

    path = tmp_path / "core.sock"
    server = CoreServer(old, UnixListener(path))
    await server.start()
    client = SocketCoreClient(path)
    await client.start()
    await client.load_adapter("kept", "sql", "/srv/sql")

    assert adapters_of(await inherited(path, "kept"), "kept") == [("sql", "/srv/sql")]
    await client.close()
    await server.stop()


async def test_without_an_answer_of_the_other_core_there_is_nothing_to_load(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    new = await inherited(tmp_path / "missing.sock", "kept")
    assert adapters_of(new, "kept") == []
    assert "are not passed on" in caplog.text

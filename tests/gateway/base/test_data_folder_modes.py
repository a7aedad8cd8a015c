"""Other users of the machine can read nothing of what a gateway stores, whatever the umask and the folder's past."""

import stat
from pathlib import Path

import httpx
import pytest

from gateway.base.stores.data_folder import private_data_folder
from tests.support.served import served
from tests.support.upstream import running_upstream, write_remote_catalog

KEPT_FILES = {"aio.sqlite3", "routing_knobs.json", "keys_required"}


def modes_of(folder: Path) -> dict[str, int]:
    """The mode of a folder and of all that is in it, by path."""
    found = {path: stat.S_IMODE(path.lstat().st_mode) for path in (folder, *folder.rglob("*"))}
    return {str(path.relative_to(folder)): mode for path, mode in found.items() if not path.is_symlink()}


@pytest.mark.processes
def test_all_that_a_served_process_writes_is_its_users_alone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "journal" / "earlier").mkdir(parents=True)
    (data / "journal" / "earlier" / "segment").write_text("a prompt of an earlier version")
    (data / "batch_knobs.json").write_text("{}")
    with running_upstream() as upstream:
        catalog = write_remote_catalog(tmp_path / "catalog.toml", upstream.base_url)
        with served(data, data / "cache", "--catalog", str(catalog)) as process:
            key = process.admin.post("/admin/api/keys", json={"name": "ada"}).json()["key"]
            assert process.admin.patch("/v1/admin/knobs/routing", json={"judge_answers": True}).status_code == 200
            chat = {"model": "tier-1", "messages": [{"role": "user", "content": "hello"}]}
            headers = {"authorization": f"Bearer {key}"}
            assert httpx.post(f"{process.url}/v1/chat/completions", json=chat, headers=headers).status_code == 200
            upload = {"file": ("lines.jsonl", b"{}\n")}
            httpx.post(f"{process.url}/v1/files", data={"purpose": "batch"}, files=upload, headers=headers)
            while_serving = modes_of(data)
        said = (data / "log").read_text()
    for modes in (while_serving, modes_of(data)):
        # The harness opened the log, before the process could.
        others = {path: oct(mode) for path, mode in modes.items() if path != "log" and mode & 0o077}
        assert others == {}
    assert while_serving.keys() >= KEPT_FILES
    assert (while_serving["."], while_serving["aio.sqlite3"]) == (0o700, 0o600)
    assert "were open to others" in said


def test_a_folder_that_others_share_keeps_its_mode_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "shared"
    (folder / "models").mkdir(parents=True)
    (folder / "models" / "weights").write_text("public")
    (folder / "aio.sqlite3-wal").write_text("private")
    private_data_folder(folder)
    expected = {".": 0o755, "models": 0o755, "models/weights": 0o644, "aio.sqlite3-wal": 0o600}
    assert modes_of(folder) == expected
    assert "its mode stays" in caplog.text


def test_a_volume_whose_modes_cannot_be_changed_is_used_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "volume"
    folder.mkdir(mode=0o755)

    def refused(path: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted", str(path))

    monkeypatch.setattr(Path, "chmod", refused)
    private_data_folder(folder)
    assert "cannot be changed by this user" in caplog.text


def test_a_folder_of_the_root_group_stays_one_and_its_files_do_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers that run as any user have no other right to it (OpenShift)."""
    (folder := tmp_path / "data").mkdir()
    monkeypatch.setattr("gateway.base.stores.data_folder._ROOT_GROUP", folder.stat().st_gid)
    folder.chmod(0o770)
    private_data_folder(folder)
    assert (modes_of(folder), caplog.text) == ({".": 0o770}, "")
    (folder / "batch_knobs.json").touch(mode=0o660)
    (folder / "batch_knobs.json").chmod(0o660)
    private_data_folder(folder)
    assert modes_of(folder) == {".": 0o770, "batch_knobs.json": 0o600}
    folder.chmod(0o775)
    private_data_folder(folder)
    assert modes_of(folder)["."] == 0o700


def test_links_in_the_data_folder_change_nothing_elsewhere(tmp_path: Path) -> None:
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "data"
    (elsewhere / "in").mkdir(parents=True)
    (elsewhere / "file").write_text("public")
    (folder / "journal").mkdir(parents=True)
    (folder / "journal" / "file").symlink_to(elsewhere / "file")
    (folder / "classifier").symlink_to(elsewhere / "in")
    (folder / "aio.sqlite3").symlink_to(elsewhere / "file")
    before = modes_of(elsewhere)
    private_data_folder(folder)
    assert modes_of(elsewhere) == before
    assert modes_of(folder)["."] == 0o700

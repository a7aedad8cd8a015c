"""A journal folder has one living owner; the folder of a dead process is adopted by the next one to start."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from quality.ledger.journal import adopt_orphans, claim_folder


def test_every_claim_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: claim_folder(tmp_path / "journal"), range(32)))

    assert len({folder.path for folder in folders}) == 32


def test_a_folder_in_use_is_not_adopted(tmp_path: Path) -> None:
    claim_folder(tmp_path)

    assert adopt_orphans(tmp_path) == []


def test_a_folder_is_never_adopted_while_it_is_being_made(tmp_path: Path) -> None:
    root = tmp_path / "journal"
    claim_folder(root)
    with ThreadPoolExecutor(8) as pool:
        pairs = [(pool.submit(claim_folder, root), pool.submit(adopt_orphans, root)) for _ in range(100)]

    assert [adoption.result() for _, adoption in pairs] == [[]] * 100
    assert len({claim.result().path for claim, _ in pairs}) == 100


def test_a_released_folder_is_adopted_once_with_its_segments(tmp_path: Path) -> None:
    folder = claim_folder(tmp_path)
    for name in ("00000002.journal", "00000001.journal"):
        (folder.path / name).touch()
    folder.release()

    [adopted] = adopt_orphans(tmp_path)

    assert [path.name for path in adopted.segments()] == ["00000001.journal", "00000002.journal"]
    assert adopt_orphans(tmp_path) == []


def test_the_folder_of_a_killed_process_is_adopted(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib; from quality.ledger.journal import claim_folder\n"
        "print(claim_folder(pathlib.Path(sys.argv[1])).path.name, flush=True)\n"
        "sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    name = process.stdout.readline().strip()
    assert adopt_orphans(tmp_path) == []

    process.kill()
    process.wait()

    assert [folder.path.name for folder in adopt_orphans(tmp_path)] == [name]


def test_a_removed_folder_is_gone(tmp_path: Path) -> None:
    folder = claim_folder(tmp_path)

    folder.remove()

    assert not folder.path.exists()
    assert adopt_orphans(tmp_path) == []

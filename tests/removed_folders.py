"""A pytest plugin: folders of tests go when nothing needs them, since a run would end with gigabytes.

Pytest removes a passed test's `tmp_path` and, where all passed, the folder of the run (`tmp_path_retention_policy` in
pyproject.toml). Here go those that fixtures of several tests took from `tmp_path_factory`, when they end, and what runs
of pytest inside tests leave, which is in the folder of the outer run. From the first failure on, folders stay.
"""

import os
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

# For each fixture that is being set up, the innermost one last; the first list is of tests.
_taken: list[list[Path]] = [[]]


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Note which folders are taken."""
    factory = config._tmp_path_factory  # type: ignore[attr-defined]
    make = factory.mktemp

    def mktemp(*arguments: Any, **options: Any) -> Path:
        folder: Path = make(*arguments, **options)
        _taken[-1].append(folder)
        return folder

    factory.mktemp = mktemp


def pytest_collection_finish(session: pytest.Session) -> None:
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(session.config._tmp_path_factory.getbasetemp())  # type: ignore[attr-defined]


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Let the folders that a fixture takes end after it, as what is registered first is called last."""
    folders = list[Path]()

    def remove() -> None:
        if not request.session.testsfailed:
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)

    fixturedef.addfinalizer(remove)
    _taken.append(folders)
    try:
        return (yield)
    finally:
        _taken.pop()

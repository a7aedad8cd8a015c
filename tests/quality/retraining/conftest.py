"""Training processes of these tests have the usual priority: at their own, a busy machine lets them wait minutes."""

import pytest

from tests.gateway.served_process import run_at_start


@pytest.fixture(autouse=True)
def _usual_priority(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    at_start = run_at_start(tmp_path_factory.mktemp("priority"), "import os\n\nos.nice = lambda _: 0\n")
    for name, value in at_start.items():
        monkeypatch.setenv(name, value)

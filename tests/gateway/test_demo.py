"""The demonstration's parts that need no server: its prompts, and the story it reads from a database."""

from pathlib import Path

import pytest

from gateway.demo import demo_prompts, story
from quality.database import migrate, open_database


def test_without_data_the_prompts_are_generated_tasks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AIO_DATA", str(tmp_path))
    prompts, origin = demo_prompts(30)
    assert origin == "the generated task set"
    assert len(set(prompts)) == 30


async def test_an_empty_database_tells_an_empty_story(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'aio.sqlite3'}"
    await migrate(url)
    engine = open_database(url)
    try:
        told = await story(engine)
    finally:
        await engine.dispose()
    assert set(told) == {"requests", "training rows", "retraining", "classifiers", "audit"}
    assert not any(told.values())

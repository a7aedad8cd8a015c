"""Every recording is played: what a caller asks, on each API, whole and streamed; see README.md."""

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.recordings.playing import KEYS, Stage, play, stage
from tests.recordings.recording import Recording, files, pretty, recordings

RECORDINGS = [recording for file in files() for recording in recordings(file)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    with pytest.MonkeyPatch.context() as environment:
        for name in KEYS:
            environment.setenv(name, "test-key-123")
        async with stage(tmp_path_factory.mktemp("recordings")) as started:
            yield started


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda recording: recording.id)
async def test_all_is_as_recorded(servers: Stage, recording: Recording) -> None:
    problems = await play(servers, recording)
    if problems:
        pytest.fail("\n\n".join(problems), pytrace=False)


def test_files_have_the_layout_that_the_command_writes() -> None:
    other = [str(file) for file in files() if file.read_text() != pretty(json.loads(file.read_text())) + "\n"]
    assert other == [], "run `python -m tests.recordings`"

"""How many files one streamed chat passes on its way from the HTTP protocol to the first byte and to its record."""

from pathlib import Path

from tests.gateway.walk import walk_of

MOST_STOPS = 43
MOST_BACKWARD = 4
MOST_LAYERS = 6


async def test_a_streamed_chat_passes_few_files_and_rarely_returns_to_a_room(tmp_path: Path) -> None:
    walk = await walk_of(str(tmp_path))

    assert len(walk.stops) <= MOST_STOPS, walk.table()
    assert len(walk.backward) <= MOST_BACKWARD, walk.table()
    assert len(walk.layers) <= MOST_LAYERS, walk.table()

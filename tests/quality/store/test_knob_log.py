"""Knob changes with actor and old value can be read back, newest first."""

from msgspec.structs import replace
from sqlalchemy.ext.asyncio import AsyncEngine

from quality.store.queries import KnobChange, list_knob_changes, record_knob_changes

CHANGE = KnobChange(
    created_at=1.5, actor="root", part="core", model="m", knob="max_num_seqs", old_value=8, new_value=[16, "x"],
    reason="load", kept=True,
)  # fmt: skip
REFUSED = KnobChange(
    created_at=2.5, actor="root", part="core", model=None, knob="x", old_value=None, new_value=0, refused="no knob"
)


async def test_changes_are_read_back_as_they_were_written_newest_first(engine: AsyncEngine) -> None:
    await record_knob_changes(engine, [CHANGE, REFUSED])
    read = await list_knob_changes(engine)
    assert [replace(change, knob_change_id=None) for change in read] == [REFUSED, CHANGE]


async def test_history_comes_in_pages_and_by_knob(engine: AsyncEngine) -> None:
    await record_knob_changes(engine, [replace(CHANGE, new_value=number) for number in range(5)] + [REFUSED])
    first = await list_knob_changes(engine, limit=2, knob="max_num_seqs")
    rest = await list_knob_changes(engine, before=first[-1].knob_change_id, knob="max_num_seqs")
    assert [change.new_value for change in first + rest] == [4, 3, 2, 1, 0]


async def test_nothing_to_write_down_touches_nothing(engine: AsyncEngine) -> None:
    await record_knob_changes(engine, [])
    assert await list_knob_changes(engine) == []

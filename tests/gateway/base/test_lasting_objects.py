"""Full collections look no further at what lasts, counted in a process of their own: the collector is one for all."""

import subprocess
import sys

import pytest

BEGIN = """
import gc
from gateway.base.footprint import LastingObjects
gc.disable()
lasting = LastingObjects()
def made(count):
    return [[number] for number in range(count)]
kept = made(30_000)
lasting.start()
"""


def printed(code: str) -> list[int]:
    answer = subprocess.run(
        [sys.executable, "-c", BEGIN + code], capture_output=True, text=True, check=True, timeout=60
    )
    return [int(word) for word in answer.stdout.split()]


def test_what_a_start_made_is_looked_at_no_more_and_the_collector_runs() -> None:
    tracked, runs = printed("print(len(gc.get_objects()), int(gc.isenabled()))")
    assert tracked < 1_000
    assert runs


@pytest.mark.parametrize("look", ["lasting.look()", "gc.collect()"], ids=["while-nobody-waits", "by-itself"])
def test_what_is_made_later_and_lasts_is_looked_at_once(look: str) -> None:
    before, after = printed(f"late = made(30_000); print(len(gc.get_objects())); {look}; print(len(gc.get_objects()))")
    assert before > 30_000
    assert after < 1_000


def test_a_little_is_not_worth_it_and_garbage_is_never_kept() -> None:
    few, frozen, left = printed("""
before = gc.get_freeze_count()
few = made(5_000)
lasting.look()
print(len(gc.get_objects()))
def circle():
    ring = []
    ring.append(ring)
rings = [circle() for _ in range(30_000)]
late = made(30_000)
lasting.look()
print(gc.get_freeze_count() - before)
print(sum(1 for one in late if gc.is_tracked(one)) and len(gc.get_objects()))
""")
    assert few > 5_000
    assert 35_000 < frozen < 36_000
    assert left < 1_000


def test_only_the_first_times_are_permanent_so_what_is_replaced_for_ever_does_not_fill_memory() -> None:
    times, left = printed("""
lists, times = [], 0
for _ in range(20):
    before = gc.get_freeze_count()
    lists.append(made(20_000))
    lasting.look()
    times += gc.get_freeze_count() > before
print(times, len(gc.get_objects()))
""")
    assert times == 8
    assert left > 12 * 20_000


def test_a_server_looks_while_no_request_runs() -> None:
    code = """
import asyncio, uvicorn
from gateway.processes.server import AnnouncedServer
server = AnnouncedServer(uvicorn.Config(None), None, lambda host, port: "")
gc.collect()
late = made(30_000)
def looked(counter):
    before = gc.get_freeze_count()
    asyncio.run(server.on_tick(counter))
    print(int(gc.get_freeze_count() > before))
looked(1)
server.server_state.tasks.add(None)
looked(300)
server.server_state.tasks.clear()
looked(300)
"""
    assert printed(code) == [0, 0, 1]

"""Ranks rebuild the leader's block tables from what is new in each step, whatever becomes of the sequences."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_core.errors import RankLostError
from inference_core.parallel import messages
from inference_core.parallel.messages import Command, ReceivedTables, RunStep, SentTables, SequenceShare, StepCommand
from inference_core.step_plan import ScheduledSequence

NAMES = "abcdefg"


def travelled(command: StepCommand) -> StepCommand:
    """As the wire brings it: nothing is shared with what was sent."""
    arrived = msgspec.msgpack.decode(msgspec.msgpack.encode(command), type=Command)
    assert isinstance(arrived, StepCommand)
    return arrived


def step(*tables: tuple[str, list[int]]) -> RunStep:
    return RunStep("m", [ScheduledSequence(name, [1], 0, table, None) for name, table in tables], [0])


EVENTS = st.one_of(
    st.tuples(st.just("step"), st.lists(st.sampled_from(NAMES), min_size=1, max_size=5, unique=True)),
    st.tuples(st.just("grow"), st.sampled_from(NAMES)),
    st.tuples(st.just("begin again"), st.sampled_from(NAMES)),
    st.tuples(st.just("move"), st.sampled_from(NAMES)),
)


@given(events=st.lists(EVENTS, max_size=60), most=st.integers(1, 6))
def test_tables_arrive_as_they_are(events: list[tuple[str, object]], most: int) -> None:
    sent, received = SentTables(), ReceivedTables()
    tables = {name: [number] for number, name in enumerate(NAMES)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messages, "_MOST", most)
        for kind, what in events:
            if kind == "step":
                assert isinstance(what, list)
                given_step = step(*((name, tables[name]) for name in what))
                arrived = received.step(travelled(sent.command(given_step)))
                assert [s.block_table for s in arrived.sequences] == [tables[name] for name in what]
                continue
            assert isinstance(what, str)
            if kind == "grow":
                tables[what] += [len(tables[what]), 7]
            elif kind == "begin again":
                tables[what] = [99]
            else:
                tables[what][0] += 1
                sent.forget()


def test_a_step_carries_only_the_new_blocks_and_the_list_stays_the_same() -> None:
    """A rank's device gets only new entries while a sequence's table is one list."""
    sent, received, table = SentTables(), ReceivedTables(), [3, 4]
    first = received.step(travelled(sent.command(step(("a", table)))))
    table.append(9)
    command = travelled(sent.command(step(("a", table))))
    assert command.sequences == [SequenceShare("a", [1], 0, 2, [9])]
    assert received.step(command).sequences[0].block_table is first.sequences[0].block_table


def test_a_rank_that_missed_a_command_raises_instead_of_computing_with_part_of_a_table() -> None:
    sent, table = SentTables(), [3, 4]
    sent.command(step(("a", table)))
    with pytest.raises(RankLostError, match="0 blocks of a are known here, 2 to the leader"):
        ReceivedTables().step(travelled(sent.command(step(("a", table)))))

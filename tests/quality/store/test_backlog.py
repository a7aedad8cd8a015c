"""Whatever the order of events, an unstored record can be found and its segment is not given up for deletion."""

from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from quality.ledger.journal import Location
from quality.ledger.ledger import Backlog, Entry
from tests.examples import examples

SEGMENTS = [Path(folder) / f"{n}.journal" for folder in ("own", "orphan") for n in range(3)]


class BacklogMachine(RuleBasedStateMachine):
    """Against a plain list of what waits and what was rejected."""

    def __init__(self) -> None:
        super().__init__()
        self.backlog = Backlog()
        self.waiting: list[Entry] = []
        self.rejected: list[Entry] = []
        self.known: set[Path] = set()
        self.count = 0

    @rule(segments=st.lists(st.sampled_from(SEGMENTS), min_size=1, max_size=5))
    def become_durable(self, segments: list[Path]) -> None:
        entries = [Entry(f"r-{self.count + n}", Location(s, n, 1), 0.0) for n, s in enumerate(segments)]
        self.count += len(entries)
        self.backlog.add(entries)
        self.waiting += entries
        self.known |= set(segments)

    @rule(count=st.integers(1, 5))
    def store(self, count: int) -> None:
        head = self.backlog.head(count)
        assert head == self.waiting[:count]
        self.backlog.stored(len(head))
        del self.waiting[:count]

    @rule()
    def reject(self) -> None:
        if self.waiting:
            self.backlog.reject_first()
            self.rejected.append(self.waiting.pop(0))

    @rule()
    def delete(self) -> None:
        deletable = self.backlog.deletable(growing=())
        self.backlog.forget(deletable)
        self.known -= set(deletable)

    @invariant()
    def what_is_not_stored_is_found(self) -> None:
        needed = self.waiting + self.rejected
        assert [self.backlog.find(entry.request_id) for entry in needed] == [entry.location for entry in needed]
        assert len(self.backlog) == len(self.waiting)

    @invariant()
    def a_segment_is_deletable_exactly_when_nothing_in_it_is_needed(self) -> None:
        needed = {entry.location.segment for entry in self.waiting + self.rejected}
        assert set(self.backlog.deletable(growing=())) == self.known - needed

    @invariant()
    def a_growing_segment_is_never_deletable(self) -> None:
        for segment in SEGMENTS:
            assert segment not in self.backlog.deletable(growing=[segment])

    @invariant()
    def a_folder_is_needed_while_a_segment_of_it_is_left(self) -> None:
        for folder in (Path("own"), Path("orphan")):
            assert self.backlog.needs_folder(folder) == any(segment.parent == folder for segment in self.known)


TestBacklog = BacklogMachine.TestCase
TestBacklog.settings = settings(max_examples=examples(50), stateful_step_count=30, deadline=None)


def test_a_stored_record_is_no_longer_found() -> None:
    backlog = Backlog()
    backlog.add([Entry("r", Location(SEGMENTS[0], 0, 1), 0.0)])

    backlog.stored(1)

    assert backlog.find("r") is None


def test_a_record_appended_twice_is_found_until_both_are_stored() -> None:
    backlog = Backlog()
    first, second = (Entry("r", Location(SEGMENTS[0], offset, 1), 0.0) for offset in (0, 9))
    backlog.add([first, second])

    backlog.stored(1)

    assert backlog.find("r") == second.location
    backlog.stored(1)
    assert backlog.deletable(growing=()) == [SEGMENTS[0]]

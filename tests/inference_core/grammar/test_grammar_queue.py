"""The queue of grammars: the order of compilation, waiting, and eviction of processes, with scripted processes."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_core.errors import CoreError, InvalidRequestError, QueueFullError
from inference_core.grammar.wire import Channel, Compiled, Ended, Refused, Start
from inference_core.grammar.workers import GrammarWorkers
from inference_core.protocol import Grammar, ModelInfo
from inference_core.step_plan import MatcherFactory
from tests.examples import examples
from tests.inference_core.grammar.byte_vocabulary import EOS, SIZE, ByteVocabulary
from tests.polling import until

INFO = ModelInfo(name="m", model_path="", max_context=64, vocab_size=SIZE, weight_bytes=0, compute="")
VOCABULARY = ByteVocabulary()


class ScriptedChild:
    """Hands out channels whose other end is the test: each grammar is compiled when the test says so."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.ends: dict[str, Channel] = {}

    def start_worker(self, tokens: Any, grammar: Grammar, limits: Any) -> Channel:
        ours, theirs = socket.socketpair()
        channel = Channel(ours)
        channel.send(Start(0, grammar, limits))
        self.ends[grammar.text] = Channel(theirs)
        self.started.append(grammar.text)
        return channel

    def keep_spare(self) -> None:
        pass

    def begins(self, text: str) -> None:
        until(lambda: text in self.started)
        assert isinstance(self.ends[text].receive(), Start)

    def compiles(self, text: str, memory_bytes: int = 0) -> None:
        self.begins(text)
        self.ends[text].send(Compiled(1, memory_bytes))

    def is_ended(self, text: str) -> bool:
        """Whether the other side has closed."""
        try:
            self.ends[text].receive(0)
        except TimeoutError:
            return False
        except (EOFError, OSError):
            return True
        return False


class Queue:
    def __init__(self) -> None:
        self.child = ScriptedChild()
        self.workers = GrammarWorkers(lambda info: VOCABULARY, {"m": (EOS,)}, child=self.child)  # type: ignore[arg-type]
        self.futures: dict[str, Future[MatcherFactory]] = {}

    def ask(self, text: str, tenant: str = "") -> Future[MatcherFactory]:
        future = self.futures[text] = self.workers.compile(INFO, Grammar(kind="regex", text=text), tenant)
        return future

    def compiled(self, text: str, tenant: str = "", memory_bytes: int = 0) -> MatcherFactory:
        future = self.ask(text, tenant)
        self.child.compiles(text, memory_bytes)
        return future.result()


@pytest.fixture
def queue() -> Iterator[Queue]:
    queue = Queue()
    yield queue
    queue.workers.close()


def test_tenants_take_turns(queue: Queue) -> None:
    queue.ask("first", "z")
    queue.child.begins("first")
    for text in ("a1", "a2", "a3", "b1", "c1", "b2"):
        queue.ask(text, text[0])
    queue.child.ends["first"].send(Compiled(1, 0))
    for text in ("a1", "b1", "c1", "a2", "b2", "a3"):
        queue.child.compiles(text)
    assert queue.child.started == ["first", "a1", "b1", "c1", "a2", "b2", "a3"]


@settings(max_examples=examples(20), deadline=None)
@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=12))
def test_no_tenant_is_served_again_before_all_others_that_wait(tenants: list[str]) -> None:
    queue = Queue()
    queue.ask("first", "z")
    queue.child.begins("first")
    left = dict.fromkeys(tenants, 0)
    for number, tenant in enumerate(tenants):
        queue.ask(f"{tenant}{number}", tenant)
        left[tenant] += 1
    queue.child.ends["first"].send(Compiled(1, 0))
    passed_over = dict.fromkeys(left, 0)
    for place in range(1, len(tenants) + 1):
        until(lambda place=place: len(queue.child.started) > place)
        text = queue.child.started[place]
        served = text[0]
        left[served], passed_over[served] = left[served] - 1, 0
        for tenant, waiting in left.items():
            if waiting and tenant != served:
                passed_over[tenant] += 1
                assert passed_over[tenant] < len(left)
        queue.child.compiles(text)
    queue.workers.close()


def test_a_known_grammar_waits_for_nothing(queue: Queue) -> None:
    queue.compiled("known")
    queue.ask("slow", "other")
    queue.child.begins("slow")
    assert queue.ask("known").done()


def test_all_who_ask_for_one_grammar_wait_for_one_process(queue: Queue) -> None:
    first, second = queue.ask("same", "a"), queue.ask("same", "b")
    queue.child.compiles("same")
    assert first.result() is not second.result()
    assert queue.child.started == ["same"]


def test_a_tenant_with_too_many_waiting_grammars_is_refused_and_others_are_not(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference_core.grammar.workers.MAX_WAITING_PER_TENANT", 2)
    queue.ask("running", "a")
    queue.child.begins("running")
    queue.ask("a1", "a")
    queue.ask("a2", "a")
    with pytest.raises(QueueFullError, match="2 grammars of this tenant"):
        queue.ask("a3", "a")
    assert not queue.ask("b1", "b").done()


def test_a_cancelled_grammar_is_not_compiled_unless_another_request_waits_for_it(queue: Queue) -> None:
    queue.ask("running")
    queue.child.begins("running")
    gone, kept, both = queue.ask("gone"), queue.ask("both"), queue.ask("both")
    gone.cancel()
    kept.cancel()
    queue.child.ends["running"].send(Compiled(1, 0))
    queue.child.compiles("both")
    both.result()
    assert queue.child.started == ["running", "both"]


def test_closing_ends_what_runs_and_waits_and_takes_no_time(queue: Queue) -> None:
    queue.compiled("known")
    running, waiting = queue.ask("running"), queue.ask("waiting")
    queue.child.begins("running")
    queue.workers.close()
    assert running.cancelled()
    assert waiting.cancelled()
    until(lambda: queue.child.is_ended("running") and queue.child.is_ended("known"))
    until(lambda: not any(thread.name == "aio-grammars" for thread in threading.enumerate()))


def test_the_thread_is_gone_when_nothing_waits_and_keeps_no_process_from_ending(queue: Queue) -> None:
    queue.ask("a")
    queue.child.begins("a")
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "aio-grammars")
    assert thread.daemon
    queue.child.ends["a"].send(Compiled(1, 0))
    thread.join()


def test_a_refusal_is_for_those_who_asked_and_is_not_kept(queue: Queue) -> None:
    future = queue.ask("bad")
    queue.child.begins("bad")
    queue.child.ends["bad"].send(Refused("it is bad", "field", final=True))
    with pytest.raises(InvalidRequestError, match="it is bad"):
        future.result()
    queue.child.started.clear()
    queue.ask("bad")
    until(lambda: queue.child.started == ["bad"])


def test_a_refusal_stands_where_the_search_for_its_place_does_not_end(queue: Queue) -> None:
    future = queue.ask("bad")
    queue.child.begins("bad")
    queue.child.ends["bad"].send(Refused("it is bad", "field", final=False))
    queue.child.ends["bad"].send(Ended(27))
    with pytest.raises(InvalidRequestError, match="it is bad"):
        future.result()


def test_the_idle_process_used_longest_ago_makes_room(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference_core.grammar.workers.MAX_WORKERS", 3)
    used = queue.compiled("used")
    for text in ("old", "new"):
        queue.compiled(text)
    queue.futures.clear()
    queue.ask("old")  # is used again
    queue.futures.clear()
    queue.compiled("more")
    until(lambda: queue.child.is_ended("new"))
    assert not queue.child.is_ended("used")
    assert not queue.child.is_ended("old")
    del used


def test_where_all_processes_are_in_use_the_next_grammar_waits_for_one(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference_core.grammar.workers.MAX_WORKERS", 3)
    monkeypatch.setattr("inference_core.grammar.workers.MAX_WORKERS_PER_TENANT", 2)
    held = {text: queue.compiled(text, "greedy") for text in ("g1", "g2")}
    queue.ask("g3", "greedy")
    other = queue.compiled("modest", "modest")  # has a place that the greedy one is not given
    assert queue.child.started == ["g1", "g2", "modest"]
    queue.futures.clear()
    held.clear()
    queue.child.begins("g3")
    del other


def test_memory_is_taken_back_from_idle_grammars_and_then_from_the_largest(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference_core.grammar.workers.MAX_MEMORY_BYTES", 100)
    queue.compiled("idle", memory_bytes=10)
    makers = [queue.compiled(text, memory_bytes=size) for text, size in (("small", 30), ("large", 55))]
    queue.futures.clear()
    queue.workers.bound_memory()
    assert not any(queue.child.is_ended(text) for text in queue.child.started)
    makers.append(queue.compiled("third", memory_bytes=25))
    queue.futures.clear()
    queue.workers.bound_memory()
    assert [queue.child.is_ended(text) for text in queue.child.started] == [True, False, True, False]
    failures: list[CoreError | None] = [make().failure for make in makers]
    assert [failure is None for failure in failures] == [True, False, True]
    assert isinstance(failures[1], InvalidRequestError)

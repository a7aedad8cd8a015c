"""A grammar that breaks its process does not affect the serving process, its child or other grammars."""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from inference_core.errors import CoreError, GrammarServerError, InvalidRequestError
from inference_core.grammar.limits import NICENESS, Limits
from inference_core.grammar.remote import GrammarChild
from inference_core.grammar.workers import GrammarWorkers
from inference_core.protocol import Grammar, GrammarKind, ModelInfo
from inference_core.step_plan import Matcher, MatcherFactory
from tests.inference_core.grammar.byte_vocabulary import EOS, SIZE, ByteVocabulary
from tests.inference_core.grammar.hostile_grammars import (
    LATE,
    alternatives,
    as_text,
    gbnf_chain,
    intersection,
    lark_chain,
    many_properties,
    nested,
    reference_chain,
)
from tests.polling import until
from tests.process_tree import children, lives

INFO = ModelInfo(name="m", model_path="", max_context=64, vocab_size=SIZE, weight_bytes=0, compute="")
VOCABULARY = ByteVocabulary()
FINE = Grammar(kind="regex", text="ab?c")
# What a process may take must not depend on how busy the machine is, and tests should be over soon: it may take little
# processor time, for which it may wait long, at its low priority.
QUICK = Limits(compile_seconds=0.5, burst_seconds=0.1, answer_seconds=120, compile_wait_seconds=240)


class Grammars:
    """Processes of one child."""

    def __init__(self, limits: Limits = QUICK) -> None:
        self.child = GrammarChild()
        self.workers = GrammarWorkers(lambda info: VOCABULARY, {"m": (EOS,)}, limits=limits, child=self.child)

    def compiled(self, grammar: Grammar) -> MatcherFactory:
        return self.workers.compile(INFO, grammar, "").result()

    def close(self) -> None:
        self.workers.close()
        self.child.close()

    @property
    def processes(self) -> list[int]:
        """Of grammars, by their ids."""
        return [] if self.child.process_id is None else children(self.child.process_id)


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    grammars = Grammars()
    assert grammars.compiled(FINE)
    yield grammars
    grammars.close()


@pytest.fixture
def own() -> Iterator[Grammars]:
    """Grammars of a child whose processes may be killed."""
    grammars = Grammars()
    yield grammars
    grammars.close()


def allowed(matcher: Matcher) -> set[int]:
    matcher.ask_masks(())
    matcher.send()
    (mask,) = matcher.masks()
    return {token for token in range(SIZE) if mask[token // 8] >> token % 8 & 1}


def grammar(kind: GrammarKind, text: str) -> Grammar:
    return Grammar(kind=kind, text=text, param="the.field")


DEEP, SLOW, LARGE = "too deeply nested to compile", "takes longer than 0.5 s to compile", "MiB of memory to compile"


@pytest.mark.parametrize(
    ("hostile", "reason"),
    [
        (grammar("json_schema", as_text(reference_chain(1200))), DEEP),
        (grammar("lark", lark_chain(4000)), DEEP),
        (grammar("lark", lark_chain(4000).replace("r", "R").replace("staRt", "start")), DEEP),
        (grammar("lark", gbnf_chain(3000)), SLOW),
        (grammar("json_schema", as_text(many_properties(5000))), SLOW),
        (grammar("json_schema", as_text(intersection(20))), f"{LARGE}|{SLOW}"),
        (grammar("json_schema", nested("items", 500)), "at most 100 levels"),
        (grammar("lark", alternatives(10_002)), "at most 10000 alternatives"),
    ],
    ids=["references", "rules", "terminals", "GBNF", "properties", "intersection", "arrays", "alternatives"],
)
def test_a_hostile_grammar_is_refused_by_its_field_and_nothing_else_is_touched(
    grammars: Grammars, hostile: Grammar, reason: str
) -> None:
    child, standing = grammars.child.process_id, grammars.compiled(FINE)()
    with pytest.raises(InvalidRequestError, match=reason) as caught:
        grammars.compiled(hostile)
    assert caught.value.param == "the.field"
    assert grammars.child.process_id == child
    assert standing.failure is None
    assert allowed(standing) == {ord("a")} | {token for token in allowed(standing) if token >= 256}


def test_a_grammar_that_turns_hostile_later_ends_its_own_answers_and_no_others(grammars: Grammars) -> None:
    standing = grammars.compiled(FINE)()
    make = grammars.compiled(grammar("lark", LATE))
    late, twin = make(), make()
    assert {ord("x"), ord("y")} <= allowed(late)
    assert {ord("x"), ord("y")} <= allowed(twin)
    late.accept(ord("x"))
    assert allowed(late) == set()
    for failure in (late.failure, twin.failure):
        assert isinstance(failure, InvalidRequestError)
        assert failure.param == "the.field"
        assert "to follow" in str(failure)
    assert allowed(standing)
    assert standing.failure is None
    assert grammars.compiled(grammar("lark", LATE))().failure is None  # for answers that have not come so far


def test_limits_of_the_parser_end_one_answer_with_their_reason(grammars: Grammars) -> None:
    make = grammars.compiled(grammar("lark", alternatives(3000)))
    passing, other = make(), make()
    assert allowed(passing)
    passing.accept(ord("w"))
    assert allowed(passing) == set()
    assert isinstance(passing.failure, InvalidRequestError)
    assert "max is 2000" in str(passing.failure)
    assert other.failure is None


def test_a_limit_that_all_answers_share_ends_the_process_so_that_the_next_request_gets_another() -> None:
    grammars = Grammars(Limits(answer_seconds=120, compile_wait_seconds=240))
    words = {"type": "string", "pattern": r"^(?:\S+\s+){0,80}\S+$", "allOf": [{"maxLength": 2000}]}
    schema = grammar("json_schema", json.dumps(words))
    first = grammars.compiled(schema)()
    for token in b'"a b':
        if not allowed(first):
            break
        first.accept(token)
    assert "too many expressions" in str(first.failure)
    del first
    assert allowed(grammars.compiled(schema)())
    grammars.close()


def test_compiling_takes_no_time_of_the_serving_process(grammars: Grammars) -> None:
    future = grammars.workers.compile(INFO, grammar("json_schema", as_text(many_properties(4900))), "")
    before = time.process_time()
    with pytest.raises(InvalidRequestError):
        future.result()
    assert time.process_time() - before < 0.4  # of the 0.5 s that it took elsewhere


def test_a_compilation_that_is_given_up_ends_at_its_limit_and_the_next_one_begins(grammars: Grammars) -> None:
    grammars.workers.compile(INFO, grammar("json_schema", as_text(many_properties(4800))), "").cancel()
    assert grammars.compiled(grammar("regex", "after it"))


def niceness(process: int) -> set[int]:
    """Of the process's threads (proc(5))."""
    stats = [(task / "stat").read_text() for task in Path(f"/proc/{process}/task").iterdir()]
    return {int(stat.rpartition(")")[2].split()[16]) for stat in stats}


def test_a_grammar_is_compiled_at_a_low_priority_and_followed_at_the_usual_one() -> None:
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    patient, calm = Grammars(Limits(compile_seconds=1000, compile_wait_seconds=1000)), Grammars()
    patient.workers.compile(INFO, grammar("json_schema", as_text(intersection(20))), "")
    until(lambda: any(min(usual + NICENESS, 19) in niceness(process) for process in patient.processes))
    # Priorities are compared within a session.
    assert {os.getsid(process) for process in patient.processes} == {os.getsid(0)}
    patient.close()
    assert allowed(calm.compiled(FINE)())
    until(lambda: {own for one in calm.processes for own in niceness(one)} == {usual})
    calm.close()


def test_closing_waits_for_no_compilation() -> None:
    patient = Grammars(Limits(compile_seconds=1000, compile_wait_seconds=1000, memory_bytes=1 << 40))
    future = patient.workers.compile(INFO, grammar("lark", gbnf_chain(4900)), "")
    until(lambda: patient.processes)
    started = patient.processes
    patient.close()
    assert future.cancelled()
    until(lambda: not any(lives(process) for process in started))


def test_processes_end_when_their_grammars_are_given_up_and_a_spare_one_stays(own: Grammars) -> None:
    kept = [own.compiled(grammar("regex", text)) for text in ("first", "second")]
    until(lambda: len(own.processes) == 3)
    own.workers.close()
    until(lambda: len(own.processes) == 1)
    assert kept


def test_processes_end_with_the_serving_process_however_it_ends() -> None:
    program = """
import os, signal, sys
from tests.inference_core.grammar.test_grammar_processes import FINE, Grammars
grammars = Grammars()
make = grammars.compiled(FINE)
print(grammars.child.process_id, *grammars.processes, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    started = [int(number) for number in done.stdout.split()]
    assert len(started) >= 2
    until(lambda: not any(lives(number) for number in started))


def test_a_child_that_is_gone_is_started_again_and_running_grammars_outlive_it() -> None:
    grammars = Grammars()
    running = grammars.compiled(FINE)()
    first = grammars.child.process_id
    assert first is not None
    os.kill(first, signal.SIGKILL)
    until(lambda: grammars.child._process is None or grammars.child._process.poll() is not None)
    assert grammars.compiled(grammar("regex", "other"))
    assert grammars.child.process_id != first
    assert ord("a") in allowed(running)
    grammars.close()


def test_a_process_that_is_gone_fails_its_answers_as_the_machines_fault(own: Grammars) -> None:
    matcher = own.compiled(FINE)()
    for process in own.processes:
        os.kill(process, signal.SIGUSR1)
    assert allowed(matcher) == set()
    assert isinstance(matcher.failure, GrammarServerError)


def test_a_process_that_ended_while_it_was_idle_is_replaced(own: Grammars) -> None:
    assert own.compiled(FINE)
    for process in own.processes:
        os.kill(process, signal.SIGKILL)

    def is_replaced() -> bool:
        # It takes a moment until it is known that they ended.
        with suppress(CoreError):
            return ord("a") in allowed(own.compiled(FINE)())
        return False

    until(is_replaced)


def test_answers_can_finish_after_a_signal_to_all_processes(own: Grammars) -> None:
    matcher = own.compiled(FINE)()
    assert own.child.process_id is not None
    for process in (own.child.process_id, *own.processes):
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(process, number)
    assert ord("a") in allowed(matcher)
    assert own.compiled(grammar("regex", "started afterwards"))


def test_where_no_process_can_be_started_requests_are_to_come_later_and_the_log_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("inference_core.grammar.remote.PROGRAM", ("/nonexistent/python",))
    grammars = Grammars()
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            with pytest.raises(GrammarServerError, match="at the moment"):
                grammars.compiled(FINE)
    assert len(caplog.records) == 1
    monkeypatch.undo()
    assert grammars.compiled(FINE)
    grammars.close()


def test_a_child_that_ends_at_its_start_is_the_machines_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference_core.grammar.remote.PROGRAM", (sys.executable, "-c", "raise SystemExit"))
    grammars = Grammars()
    with pytest.raises(GrammarServerError):
        grammars.compiled(FINE)
    grammars.close()


def test_the_child_is_small_and_has_one_thread(grammars: Grammars) -> None:
    running = Path(f"/proc/{grammars.child.process_id}")
    assert len([*(running / "task").iterdir()]) == 1
    mapped = (running / "maps").read_text()
    assert "libtorch" not in mapped
    assert "numpy" not in mapped


def test_matchers_that_are_dropped_leave_nothing_behind(grammars: Grammars) -> None:
    make = grammars.compiled(grammar("regex", "[ab]*"))
    for _ in range(3):
        assert allowed(make())
    kept = make()
    assert allowed(kept)
    assert not kept._worker.dropped  # type: ignore[attr-defined]
    assert len(kept._worker.handles) == 1  # type: ignore[attr-defined]


def test_questions_whose_answers_are_not_fetched_disturb_no_later_ones(grammars: Grammars) -> None:
    make = grammars.compiled(grammar("lark", 'start: "abababab" ("c" | "d")'))
    first, second = make(), make()
    for matcher in (first, second):
        matcher.ask_forced()  # for which the process asks for a tokenisation
        matcher.send()
    first.ask_masks(())
    first.send()
    del second
    assert first.forced_tokens()[0] in allowed(first)


def test_errors_that_are_not_the_grammars_fault_are_core_errors_and_logged(
    grammars: Grammars, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(text: str) -> list[int]:
        raise ZeroDivisionError

    monkeypatch.setattr(VOCABULARY, "encode_continued", broken)
    with caplog.at_level(logging.ERROR), pytest.raises(CoreError):
        grammars.compiled(grammar("regex", "forced text"))
    assert caplog.records

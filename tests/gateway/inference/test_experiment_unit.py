"""The unit of an experiment that a request belongs to, and the arm of all of its requests (SPEC QM-11)."""

from collections import defaultdict
from typing import Any

import pytest

from classifier.policy.experiment_split import Arm, Split, SplitBy
from gateway.base.inference_request import Caller, InferenceRequest
from gateway.inference.request_context import unit_of
from gateway.inference.router import RoutingService
from tests.gateway.chats import chat
from tests.support.scripted_classifier import ScriptedClassifier
from tiers.catalog.load import load_catalog
from tiers.conversation import Turn

CATALOG = load_catalog("laptop")
HELLO = ("user", "Tell me of the sea.")
SKY = ("user", "Tell me of the sky.")
ANSWER = ("assistant", "It is wide.")
MORE = ("user", "Go on.")
ANN = Caller(key_id="ann")
USERS = [f"user-{number}" for number in range(40)]


def ask(*turns: tuple[str, str], request_id: str = "chatcmpl-1", **fields: Any) -> InferenceRequest:
    messages = [Turn.of(role, content) for role, content in turns] or None
    return chat(api="chat" if messages else "completion", request_id=request_id, messages=messages, **fields)


def test_a_users_requests_are_one_unit_whatever_they_say_and_whichever_key_of_the_team_they_come_with() -> None:
    keys = [Caller(key_id=key, team="research") for key in ("old", "new")]
    named = [ask(HELLO, user="u", caller=keys[0]), ask(SKY, user="u", caller=keys[1], conversation="c")]
    named.append(ask(user="u", caller=keys[0], prompts=["Once upon a time"]))

    assert {unit_of(one, "user").kind for one in named} == {"user"}
    assert len({unit_of(one, "user") for one in named}) == 1
    for other in (ask(HELLO, user="v", caller=keys[0]), ask(HELLO, user="u", caller=ANN)):
        assert unit_of(other, "user") != unit_of(named[0], "user")


def test_who_is_signed_in_at_the_dashboard_is_a_user() -> None:
    signed_in = Caller(key_id="user:oscar", name="oscar")

    assert unit_of(ask(HELLO, caller=signed_in), "user") == unit_of(ask(SKY, caller=signed_in), "user")
    assert unit_of(ask(HELLO, caller=signed_in), "user").kind == "user"


def test_turns_of_a_conversation_are_one_unit_without_anything_remembered() -> None:
    turns = [ask(HELLO), ask(HELLO, ANSWER, MORE), ask(HELLO, ("assistant", "Edited."), MORE, ANSWER, SKY)]

    for by in ("user", "key", "conversation"):
        assert len({unit_of(turn, by) for turn in turns}) == 1
        assert unit_of(turns[0], by).kind == "conversation"
    others = [ask(SKY), ask(("system", "Be brief."), HELLO), ask(HELLO, caller=ANN), ask(HELLO, conversation="c1")]
    assert len({unit_of(one, "conversation") for one in [turns[0], *others]}) == 5


def test_an_id_names_a_conversation_whatever_is_said_in_it() -> None:
    turns = [ask(HELLO, conversation="c1"), ask(("user", "A summary."), ANSWER, MORE, conversation="c1")]

    assert unit_of(turns[0], "conversation") == unit_of(turns[1], "conversation")
    assert unit_of(turns[0], "conversation") != unit_of(ask(HELLO, conversation="c2"), "conversation")


@pytest.mark.parametrize("by", ["user", "key", "conversation", "request"])
def test_a_request_without_any_of_them_is_a_unit_alone(by: SplitBy) -> None:
    one, other = (ask(prompts=["Once upon a time"], request_id=name) for name in ("cmpl-1", "cmpl-2"))

    assert (unit_of(one, by).kind, unit_of(one, by).name) == ("request", "cmpl-1")
    assert unit_of(other, by) != unit_of(one, by)


def test_by_key_and_by_request_say_what_they_mean() -> None:
    asked = ask(HELLO, user="u", conversation="c1", caller=ANN)

    assert unit_of(asked, "key") == unit_of(ask(SKY, user="v", caller=ANN), "key")
    assert unit_of(asked, "key").kind == "key"
    assert unit_of(asked, "request").name == "chatcmpl-1"


def process(experiment_id: str = "one", by: SplitBy = "user") -> RoutingService:
    """The routing of one of several gateway processes."""
    classifier = ScriptedClassifier()
    classifier.experiment = Split(experiment_id=experiment_id, share=1.0, a=Arm(tier=1), b=Arm(tier=3), by=by)
    return RoutingService(CATALOG, {}, classifier, None)


def test_a_user_keeps_its_arm_in_every_process_and_experiments_are_independent() -> None:
    processes, arms, units = [process(), process()], defaultdict(set), set()
    for number in range(6):
        for user in USERS:
            asked = ask(("user", f"Question {number}?"), user=user, request_id=f"chatcmpl-{user}-{number}")
            inputs = processes[number % 2].route(asked).inputs
            arms[user].add(inputs.arm)
            units.add(inputs.unit)
    found = {user: arm for user, [arm] in arms.items()}
    other = {user: process("two").route(ask(HELLO, user=user)).inputs.arm for user in USERS}

    assert 10 <= list(found.values()).count("a") <= 30
    assert 10 <= sum(found[user] == other[user] for user in USERS) <= 30
    assert len(units) == len(USERS)
    assert not any(user in str(unit) for unit in units for user in USERS), "names are not recorded"


def test_the_turns_of_a_conversation_stay_with_the_tier_of_its_arm() -> None:
    routing = process(by="conversation")
    for number in range(10):
        first = ("user", f"Question {number}?")
        decisions = [routing.route(ask(*turns)) for turns in ([first], [first, ANSWER, MORE])]
        assert decisions[0].tier == decisions[1].tier == {"a": 1, "b": 3}[str(decisions[0].inputs.arm)]
        assert str(decisions[0].inputs.unit).startswith("conversation:")

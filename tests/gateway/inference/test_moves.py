"""Where a session's next step runs: loops, boundaries, compactions, subagents, trouble, and knobs that switch each."""

from typing import Any

import pytest

from classifier.decision import Decision
from gateway.base.inference_request import Caller, ClientTurn, InferenceRequest
from gateway.inference.agent_session import Answered
from gateway.inference.conversations import Conversations
from gateway.inference.router import RoutingService
from tests.gateway.chats import chat
from tests.support.scripted_classifier import ScriptedClassifier
from tests.support.scripted_tier import ScriptedTier
from tiers.catalog.consent import Consent
from tiers.catalog.load import load_catalog
from tiers.conversation import Call, Turn
from tiers.tier import Usage

CATALOG = load_catalog("laptop")
TASK = Turn.of("user", "Fix the parser.")


def step(call: str, result: str) -> list[Turn]:
    calls = (Call(id="1", name="bash", arguments=call),)
    return [
        Turn.of("assistant", calls=calls),
        Turn.of("tool", result, call_id="1"),
    ]


class World:
    """Routing over the laptop catalogue, with a clock."""

    def __init__(self, **knobs: Any) -> None:
        self.now = 1_000_000.0
        self.classifier = ScriptedClassifier()
        self.classifier.p_ok = [0.99, 0.99, 0.99, 1.0]
        tiers = {spec.number: ScriptedTier(spec.number, max_context=100_000) for spec in CATALOG.tiers}
        self.routing = RoutingService(CATALOG, tiers, self.classifier, None, conversations=Conversations())
        if knobs:
            self.routing.knobs.change(knobs)

    def ask(
        self,
        messages: list[Turn],
        client: ClientTurn | None = None,
        answered_by: int | None = None,
        **fields: Any,
    ) -> Decision:
        """Route a step and note that its tier, or `answered_by`, answered it."""
        turn = ClientTurn(client="opencode", session="s1") if client is None else client
        request: InferenceRequest = chat(messages=messages, client=turn, created_at=self.now, **fields)
        decision = self.routing.route(request)
        tier, known = answered_by or decision.tier, decision.inputs.session
        answered = None
        if known is not None:
            answered = Answered(known, tier, Usage(prompt_tokens=20_000, completion_tokens=10), False, self.now)
        self.routing.remember(request, tier, answered)
        self.now += 5
        return decision


def loop_of(world: World, steps: int, result: str, answered_by: int = 1, **fields: Any) -> list[Decision]:
    """A loop of `steps` requests after the first, each with one more `result`."""
    history = [TASK]
    decisions = [world.ask(history, answered_by=answered_by, **fields)]
    for number in range(steps):
        history = history + step(f'{{"n": {number}}}', result)
        decisions.append(world.ask(history, **fields))
    return decisions


def test_a_loop_stays_and_a_call_that_no_tool_can_read_three_times_moves_it() -> None:
    world = World()
    bad = "<tool_use_error>InputValidationError: path is missing</tool_use_error>"
    decisions = loop_of(world, 4, bad)
    assert [decision.tier for decision in decisions] == [1, 1, 1, 2, 2]
    assert "tier 1 wrote 3 tool calls in a row that no tool could read" in decisions[3].reason
    assert decisions[4].inputs.session is not None
    assert decisions[4].inputs.session.rule == "stay"


def test_a_tier_that_may_not_answer_is_left_upward() -> None:
    world = World()
    loop_of(world, 1, "ok", answered_by=2)
    decision = world.ask([TASK, *step("{}", "ok"), *step("{}", "ok")], min_tier=3)
    assert decision.tier == 3


def test_a_compaction_stays_and_what_follows_it_decides_again() -> None:
    world = World()
    world.ask([TASK], answered_by=3)
    history = [TASK, *step("{}", "ok " * 4000), Turn.of("user", "Summarise.")]
    compaction = ClientTurn(client="opencode", session="s1", kind="compaction")
    stayed = world.ask(history, client=compaction)
    assert (stayed.tier, stayed.inputs.session and stayed.inputs.session.rule) == (3, "stay")
    short = [Turn.of("assistant", "Summary."), Turn.of("user", "Go on.")]
    after = world.ask(short).inputs.session
    assert after is not None
    assert (after.at, after.warm) == ("compaction", [0, 0, 0, 0]), "nothing of the new history is cached"


def test_a_subagent_starts_on_its_parents_tier_at_least() -> None:
    world = World()
    world.ask([TASK], answered_by=3)
    sub = ClientTurn(client="opencode", session="s2", parent="s1", kind="subagent")
    decision = world.ask([TASK], client=sub)
    assert decision.tier == 3
    assert "the parent of this agent is on tier 3" in decision.reason
    other = ClientTurn(client="opencode", session="s3", parent="s1", kind="subagent")
    assert world.ask([TASK], client=other, caller=Caller(key_id="bob")).tier == 1, "of another key"


def test_trouble_is_written_down_and_moves_only_where_the_knob_says_so() -> None:
    observed = loop_of(World(agents_trouble_share=0.0), 4, "Error: Exit code 1")
    assert {decision.tier for decision in observed} == {1}
    trouble = observed[-1].inputs.session and observed[-1].inputs.session.trouble
    assert trouble is not None
    assert (trouble.moves, trouble.propensity) == (False, 1.0)
    assert [d.inputs.session.trouble for d in observed[:4] if d.inputs.session] == [None] * 4, "from step 5 on"
    acted = loop_of(World(agents_trouble="act"), 4, "Error: Exit code 1")
    assert acted[-1].tier == 2
    assert "errors in" in acted[-1].reason
    off = loop_of(World(agents_trouble="off"), 4, "Error: Exit code 1")
    assert off[-1].inputs.session is not None
    assert off[-1].inputs.session.trouble is None


@pytest.mark.parametrize(("reuse", "most"), [(True, 100), (False, 0)])
def test_the_share_of_random_moves_is_that_of_the_knob_and_only_of_those_that_consent(reuse: bool, most: int) -> None:
    """Each with the propensity with which it was drawn."""
    moved = []
    for number in range(100):
        world, history = World(agents_trouble_share=0.5), [TASK]
        turn = ClientTurn(client="opencode", session=f"session-{number}")
        for _ in range(5):
            decision = world.ask(history, client=turn, own_consent=Consent(reuse=reuse))
            history = history + step("{}", "Error: Exit code 1")
        found = decision.inputs.session
        assert found is not None
        if found.trouble is not None:
            assert found.trouble.propensity == (0.5 if reuse else 1.0)
            moved.append(found.trouble.moves)
    assert len(moved) >= 40
    assert sum(moved) <= most
    assert reuse == any(moved)


def test_with_agents_off_a_session_is_a_conversation_as_any_other() -> None:
    world = World(agents=False)
    decisions = loop_of(world, 3, "==== 2 failed in 0.1s ====", answered_by=2)
    assert {decision.inputs.session for decision in decisions} == {None}
    assert [decision.tier for decision in decisions[1:]] == [2, 2, 2]
    assert "the tool loop stays on tier 2" in decisions[1].reason


def test_a_request_without_tools_and_client_is_no_step_and_looks_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    digests = 0
    counted = Conversations._digest_of

    def count(*args: Any) -> Any:
        nonlocal digests
        digests += 1
        return counted(*args)

    monkeypatch.setattr(Conversations, "_digest_of", count)
    request = chat()
    assert world.routing.route(request).inputs.session is None
    assert digests == 0
    world.routing.remember(request, 1)
    assert digests == 1, "of what its next turn repeats"

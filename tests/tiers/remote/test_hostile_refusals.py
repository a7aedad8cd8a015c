"""Two keys of a hostile tenant have a server refuse whatever they like: nothing of it changes what another tenant
sends, or whether its tier is asked."""

import asyncio
from contextlib import suppress
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from inference_core.protocol import SamplingParams
from tests.examples import examples
from tests.tiers.remote.scripted_refusals import ScriptedServer, refusal
from tests.tiers.tier_world import chat, collect, remote_spec
from tiers.conversation import Tool, Tooling, Turn
from tiers.errors import TierError
from tiers.remote.refusals import LearnedRefusals
from tiers.remote.remote_tier import RemoteTier
from tiers.tier import GenerationRequest

KINDS = ("openai", "vllm", "openai-provider")
CITY: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string", "pattern": "a"}}}


def asking(said: str, tenant: str, request_id: str, **fields: Any) -> GenerationRequest:
    """A request with much that could be taken from it."""
    sampling = SamplingParams(temperature=1.5, top_p=0.9, seed=7, presence_penalty=0.5)
    whole = chat(
        salt=tenant,
        request_id=request_id,
        whole=True,
        max_tokens=900,
        stop=("END",),
        reasoning_effort="high",
        sampling=sampling,
        passed={"metadata": {"a": said}, "user": "u"},
        tooling=Tooling(tools=(Tool(name="f", parameters=CITY, strict=True),)),
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": CITY}},
        **fields,
    )
    system = Turn.of("system", "Be brief.")
    turns = [system, Turn.of("user", said, name="Ada")]
    return GenerationRequest(**{name: getattr(whole, name) for name in whole.__struct_fields__} | {"messages": turns})


class HostileRefusals(RuleBasedStateMachine):
    """The honest tenant's request is the same at any time, whatever the hostile one's were refused for."""

    @initialize(kind=st.sampled_from(KINDS))
    def set_up(self, kind: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.server, self.learned = ScriptedServer(), LearnedRefusals()
        spec = remote_spec("http://server/v1", kind=kind, model="m")
        self.tier = RemoteTier(spec, environ={}, refusals=self.learned, connect=lambda _: self.server)
        self.usual = self.answered("honest")

    def answered(self, request_id: str) -> tuple[list[Any], Any]:
        """What the server gets for the honest tenant, and what it is answered."""
        before = len(self.server.bodies)
        request = asking("Hi", "honest", request_id)
        (answer,), _ = self.loop.run_until_complete(collect(self.tier, request))
        assert answer.text == "ok"
        sent = request.sent
        return self.server.bodies[before:], (sent.max_tokens, sent.dropped, sent.changed)

    @rule(number=st.integers(0, 199), key=st.sampled_from(["one", "two"]), choices=st.sampled_from([1, 1, 2]))
    def hostile(self, number: int, key: str, choices: int) -> None:
        self.server.pending, self.server.refused = refusal(number), 0
        request = asking(self.server.pending.said, "hostile", key, n=choices)
        with suppress(TierError):
            self.loop.run_until_complete(collect(self.tier, request))

    @rule()
    def honest(self) -> None:
        assert self.answered("honest") == self.usual

    @invariant()
    def is_healthy(self) -> None:
        if hasattr(self, "tier"):
            assert self.tier.load().healthy
            assert all(self.learned.at(served, "honest") == frozenset() for served in self.learned.known)

    def teardown(self) -> None:
        if hasattr(self, "tier"):
            self.honest()
            self.loop.run_until_complete(self.tier.close())
            self.loop.close()


TestHostileRefusals = HostileRefusals.TestCase
TestHostileRefusals.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)


def test_each_of_the_200_alone_changes_nothing() -> None:
    """And some teach the hostile tenant itself something."""
    machine, taught = HostileRefusals(), 0
    for kind in KINDS:
        machine.set_up(kind=kind)
        for number in range(200):
            machine.hostile(number=number, key="one", choices=1)
            machine.is_healthy()
            machine.honest()
        taught += len(machine.learned.known)
        machine.teardown()
    assert taught

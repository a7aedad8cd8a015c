"""The stateful property of cores whose operators pin and unpin prefixes under random load."""

from contextlib import suppress
from typing import ClassVar

import hypothesis.strategies as st
from core_machine import CoreMachine, OverlappingMachine, prompts
from hypothesis.stateful import rule

from inference_core.engine.pinned_prefixes import PinnedPrefix
from inference_core.errors import PrefixError

NAMES = ("p", "q", "r")


class PinMachine(CoreMachine):
    """Prefixes come and go. Half of the arena may be pinned, and the rest holds the longest request."""

    models: ClassVar = {"a": 1, "b": 2}
    fewest_slabs = 4

    @rule(
        model=st.integers(0, 9),
        name=st.sampled_from(NAMES),
        prompt=prompts,
        tenant=st.sampled_from([None, None, "", "tenant"]),
    )
    def pin(self, model: int, name: str, prompt: list[int], tenant: str | None) -> None:
        """Too short a prefix, a name in use and too much memory are refused."""
        on = sorted(self.models)[model % len(self.models)]
        with suppress(PrefixError):
            self.driver.pin(PinnedPrefix(name=name, model=on, token_ids=prompt, tenant=tenant))

    @rule(model=st.integers(0, 9), name=st.sampled_from(NAMES))
    def unpin(self, model: int, name: str) -> None:
        with suppress(PrefixError):
            self.driver.core.unpin(sorted(self.models)[model % len(self.models)], name)

    def teardown(self) -> None:
        """Every prefix is computed in the end; without them nothing stays."""
        if hasattr(self, "driver"):
            self.driver.drain()
            for model in self.driver.core.stats().models:
                assert all(prefix.ready == model.knobs.prefix_caching for prefix in model.prefixes)
                for prefix in model.prefixes:
                    self.driver.core.unpin(model.name, prefix.name)
        super().teardown()


class OverlappingPinMachine(PinMachine):
    """The same where steps are planned while others are under way."""

    overlap = True
    ways = ("prompt_lookup", "off", "off", "off", "off", "off")
    change_pace = OverlappingMachine.change_pace
    break_next_launch = OverlappingMachine.break_next_launch

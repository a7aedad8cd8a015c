"""Stateful property tests of scheduler and core (SPEC KV-01, KV-05, KV-06, KV-09, KV-10, BS-01)."""

from core_machine import (
    DecodingAheadMachine,
    OneModelMachine,
    OverlappingMachine,
    SpeculatingMachine,
    ThreeModelMachine,
)
from hypothesis import settings
from kv_transfer_machine import KVTransferMachine
from pin_machine import OverlappingPinMachine, PinMachine

from tests.examples import examples

RUN = settings(max_examples=examples(60), stateful_step_count=35, deadline=None)


class TestOneModelUnderRandomLoad(OneModelMachine.TestCase):
    """Whatever arrives, is aborted or preempted: integrity after each step, exact tokens, nothing leaks."""

    settings = RUN


class TestThreeModelsUnderRandomLoad(ThreeModelMachine.TestCase):
    """The same for models that share an arena and take slabs from each other."""

    settings = RUN


class TestSeveralStepsUnderRandomLoad(DecodingAheadMachine.TestCase):
    """The same where the runner takes several decode steps in one call: tokens are those of single steps."""

    settings = RUN


class TestOverlappingStepsUnderRandomLoad(OverlappingMachine.TestCase):
    """The same where a step is planned and launched before the tokens of the one before it are known."""

    settings = RUN


class TestSpeculationUnderRandomLoad(SpeculatingMachine.TestCase):
    """The same where a model that is often right drafts for another, and memory is short (SPEC SD-08, SD-10)."""

    settings = RUN


class TestKVTransferUnderRandomLoad(KVTransferMachine.TestCase):
    """The same where prompts are computed for other cores and blocks of theirs come in, some damaged (SPEC BS-08)."""

    settings = RUN


class TestPinsUnderRandomLoad(PinMachine.TestCase):
    """The same where prefixes are pinned and unpinned: what is ready stays found, and no tenant finds more (KV-06)."""

    settings = RUN


class TestPinsInOverlappingSteps(OverlappingPinMachine.TestCase):
    """The same where steps overlap."""

    settings = RUN

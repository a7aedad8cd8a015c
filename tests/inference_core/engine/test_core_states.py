"""Stateful property tests of scheduler and core (SPEC KV-01, KV-05, KV-09, KV-10, BS-01)."""

from core_machine import OneModelMachine, OverlappingMachine, ThreeModelMachine
from hypothesis import settings

RUN = settings(max_examples=60, stateful_step_count=35, deadline=None)


class TestOneModelUnderRandomLoad(OneModelMachine.TestCase):
    """Whatever arrives, is aborted or preempted: integrity after each step, exact tokens, nothing leaks."""

    settings = RUN


class TestThreeModelsUnderRandomLoad(ThreeModelMachine.TestCase):
    """The same for models that share an arena and take slabs from each other."""

    settings = RUN


class TestOverlappingStepsUnderRandomLoad(OverlappingMachine.TestCase):
    """The same where a step is planned and launched before the tokens of the one before it are known."""

    settings = RUN

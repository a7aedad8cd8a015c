"""Stateful property tests of cores with window groups: exact tokens, exact references, no leak (SPEC KV-01, KV-05)."""

from hypothesis import settings
from window_machines import (
    OneTableMachine,
    OverlappingWindowMachine,
    PinnedWindowMachine,
    SpeculatingWindowMachine,
    TransferredWindowMachine,
    WindowMachine,
)

from tests.examples import examples

RUN = settings(max_examples=examples(60), stateful_step_count=35, deadline=None)


class TestWindowsUnderRandomLoad(WindowMachine.TestCase):
    """Whatever arrives, is aborted or preempted: integrity after each step, exact tokens, nothing leaks."""

    settings = RUN


class TestOneTableUnderRandomLoad(OneTableMachine.TestCase):
    """The same where every layer has a window."""

    settings = RUN


class TestOverlappingWindowsUnderRandomLoad(OverlappingWindowMachine.TestCase):
    """The same where a step is planned and launched before the tokens of the one before it are known."""

    settings = RUN


class TestSpeculatingWindowsUnderRandomLoad(SpeculatingWindowMachine.TestCase):
    """The same where a model drafts for another, and drafts are rejected at the window's edge."""

    settings = RUN


class TestTransferredWindowsUnderRandomLoad(TransferredWindowMachine.TestCase):
    """The same where blocks come from other cores."""

    settings = RUN


class TestPinnedWindowsUnderRandomLoad(PinnedWindowMachine.TestCase):
    """The same where prefixes are pinned and unpinned."""

    settings = RUN

"""The stateful property of cores whose models have window layers with blocks of their own (`kv_cache.window_groups`).

A window is given as its tokens and the number of tables next to the one that keeps every block; with none next to it,
that table has the window.
"""

from typing import ClassVar

from core_machine import CoreMachine, OverlappingMachine, SpeculatingMachine
from kv_transfer_machine import KVTransferMachine
from pin_machine import PinMachine


class WindowMachine(CoreMachine):
    """Models of one and of several tables, and a plain one, take slabs from each other."""

    models: ClassVar = {"a": 1, "b": 2, "c": 2}
    windows: ClassVar = {"a": (8, 2), "b": (6, 0)}
    fewest_slabs = 3


class OneTableMachine(CoreMachine):
    """Every layer has the window: longer contexts take no more memory than the window does."""

    models: ClassVar = {"m": 2}
    windows: ClassVar = {"m": (4, 0)}
    fewest_slabs = 1


class OverlappingWindowMachine(OverlappingMachine):
    """Blocks are released while a step that sees them is under way, for steps behind it."""

    models: ClassVar = {"a": 1, "b": 2}
    windows: ClassVar = {"a": (7, 1), "b": (9, 0)}
    fewest_slabs = 3


class SpeculatingWindowMachine(SpeculatingMachine):
    """Drafts beyond the window's edge are rejected, and a draft model has a window too."""

    windows: ClassVar = {"target": (5, 2), "draft": (8, 1)}
    fewest_slabs = 4


class TransferredWindowMachine(KVTransferMachine):
    """Blocks of all tables come from another core."""

    windows: ClassVar = {"a": (8, 2), "b": (6, 0)}
    fewest_slabs = 4


class PinnedWindowMachine(PinMachine):
    """Pinned prefixes keep the blocks of all tables, and are found at any length."""

    windows: ClassVar = {"a": (8, 2), "b": (6, 0)}
    fewest_slabs = 6

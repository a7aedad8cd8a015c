"""Many classes at the same time."""

import copy
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random

from tests.attacks.targets import Target
from tests.hostile.target import AttackClass, Outcome, attack_class, target_at

TOGETHER = (
    "request heads", "request smuggling", "paths", "headers", "JSON bodies", "queries and ids", "uploads",
    "batch files", "WebSocket frames",
    "callers who leave", "streams that are not read", "sign-in", "keys", "ids of other tenants", "URLs that are named",
)  # fmt: skip


@attack_class("all at once", 1500, "keyed")
def all_at_once(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Many classes at the same time, each on its own thread with its part of the inputs."""
    drawn = draw.random()

    def one(name: str) -> list[Outcome]:
        view = copy.copy(target)
        view.client = target.new_client()
        with view.client:
            chosen = target_at(f"attacks/{target.name}/{name}")
            assert isinstance(chosen, AttackClass)
            return list(chosen.attack(view, Random(f"{drawn} {name}"), max(4, count // len(TOGETHER))))

    with ThreadPoolExecutor(len(TOGETHER)) as pool:
        for running in [pool.submit(one, name) for name in TOGETHER]:
            yield from running.result()

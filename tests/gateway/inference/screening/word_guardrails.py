"""Guardrails in process for tests, which look for words."""

import threading

from gateway.inference.screening.guardrail import Asked, Verdict

HELD = threading.Event()
"""What `Hanging` waits for."""
ASKED: list[Asked] = []
"""What `Words` was asked, oldest first."""


class Words:
    """Blocks texts with the word `block`, and replaces the word `secret` by `mask`."""

    def __init__(self, block: str = "forbidden", mask: str = "***") -> None:
        self._block, self._mask = block, mask

    def check(self, asked: Asked) -> Verdict:
        ASKED.append(asked)
        if any(self._block in one.text for one in asked.texts):
            return Verdict(action="block", reason=f"it says {self._block}")
        texts = [one.text.replace("secret", self._mask) for one in asked.texts]
        if texts == [one.text for one in asked.texts]:
            return Verdict()
        return Verdict(action="replace", texts=texts)


class Later(Words):
    """The same as a coroutine."""

    async def check(self, asked: Asked) -> Verdict:  # type: ignore[override]
        return super().check(asked)


class Failing:
    """Raises, with the texts in its message."""

    def check(self, asked: Asked) -> Verdict:
        raise RuntimeError(f"cannot judge {asked.texts}")


class Hanging:
    """Gives no verdict before `HELD` is set."""

    def check(self, asked: Asked) -> Verdict:
        HELD.wait()
        return Verdict()


class Short:
    """Gives fewer texts than it was asked about."""

    def check(self, asked: Asked) -> Verdict:
        return Verdict(action="replace", texts=[])


class NoVerdict:
    """Gives something else."""

    def check(self, asked: Asked) -> bool:
        return True

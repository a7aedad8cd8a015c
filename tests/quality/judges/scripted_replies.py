"""Replies of scripted models to the prompts of the pairwise judge."""

from collections.abc import Callable

from benchmarks.replay.comparisons import Comparison, comparison_in
from quality.judges.pairwise import Word
from tiers.tier import GenerationRequest

Read = Callable[[Comparison], Word]
Reply = Callable[[GenerationRequest], str]


def asked_in(request: GenerationRequest) -> Comparison | None:
    """Return the comparison that `request` asks for; None if it asks for none."""
    assert request.messages is not None
    return comparison_in(request.messages[-1].text)


def compared_in(request: GenerationRequest) -> Comparison:
    found = asked_in(request)
    assert found is not None
    return found


def by(read: Read, otherwise: Reply = lambda request: "?") -> Reply:
    """Return a model that compares by `read`, judges controls rightly, and replies `otherwise` to anything else."""

    def reply(request: GenerationRequest) -> str:
        asked = asked_in(request)
        if asked is None:
            return otherwise(request)
        return asked.label(asked.control or read(asked))

    return reply


def always(word: Word) -> Reply:
    """Return a model that says `word` of any two answers."""
    return by(lambda asked: word)

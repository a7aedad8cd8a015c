"""Which tiers a verification asks, and whether each may see the request and can take it."""

from collections.abc import Callable, Sequence

from quality.verification.job import VerificationJob
from quality.verification.sampling import Purpose
from tiers.catalog.tier_spec import Capability
from tiers.consent import Consent, hidden_from
from tiers.tier import Tier


class AskedTiers:
    """Looks at `tiers`, cheapest first. `can`: what a tier, by number, supports of what a turn needs."""

    def __init__(self, tiers: Sequence[Tier], can: Callable[[int, frozenset[Capability]], bool]) -> None:
        self._tiers = {tier.number: tier for tier in tiers}
        self._can = can

    def judged(self, job: VerificationJob) -> list[int]:
        """Return the tiers that a job judges; the first one's ruling is the job's own row. Raises `ValueError`."""
        return self._judged(job.purpose, job.served_tier, job.would_be_tier)

    def asked(self, job: VerificationJob) -> list[int]:
        """Return the tiers that a job asks, ascending: those that answer or judge, and those whose answers are
        compared."""
        compared = () if job.compared is None else job.compared.tiers
        return sorted({*self._asked(job.purpose, job.served_tier, job.would_be_tier), *compared} & set(self._tiers))

    def hidden(self, purpose: Purpose, served: int, consent: Consent, would_be: int | None) -> str | None:
        """Return why a request may not be verified for this purpose: a tier that would be asked may not see it; None if
        all may, and for tiers that there are none of, of which the job fails before anything is sent. The strongest
        answers or judges in every case."""
        asked = self._asked(purpose, served, would_be)
        return next(filter(None, (hidden_from(self._tiers[number], consent, "reuse") for number in asked)), None)

    def unable(
        self, purpose: Purpose, served: int, needs: frozenset[Capability], would_be: int | None = None
    ) -> str | None:
        """Return why a turn may not be verified for this purpose: a tier that would be asked cannot take it."""
        lacking = (number for number in self._asked(purpose, served, would_be) if not self._can(number, needs))
        first = next(lacking, None)
        return None if first is None else f"tier {first} does not support {', '.join(sorted(needs))}"

    def takes(self, number: int, job: VerificationJob) -> bool:
        """Whether a tier supports what the turn of `job` needs."""
        return job.turn is None or self._can(number, job.turn.needs)

    def _asked(self, purpose: Purpose, served: int, would_be: int | None) -> list[int]:
        """Return the tiers that answer or judge, ascending; none where the job fails before anything is sent."""
        try:
            judged = self._judged(purpose, served, would_be)
        except ValueError:
            return []
        return sorted({number for number in judged if number != served} | {max(self._tiers)})

    def _judged(self, purpose: Purpose, served: int, would_be: int | None) -> list[int]:
        """Return the tiers whose answers are judged, with the verification's own tier first (docs/quality-loop.md).

        The strongest tier's answer is the reference, so for it the tier below is judged. A shadow judges the `would_be`
        tier. Raises `ValueError` if there is none.
        """
        tiers = list(self._tiers)
        if purpose == "shadow":
            if would_be is None or would_be not in tiers:
                raise ValueError(f"routing would have taken tier {would_be}, and there are tiers 1 to {tiers[-1]}")
            return [would_be]
        below = min(served, tiers[-1] - 1)
        if purpose == "probe":
            return [below, *(number for number in tiers if number not in (below, tiers[-1]))]
        if purpose == "downgrade" and served == below and below > 1:
            return [below - 1, below]
        return [below]

"""What a tenant's own sessions teach: how many steps a turn has, and which loops end badly. No judge is asked.

A tenant's sessions move only its own: nothing is shared between tenants. The counts are of this process and begin again
with it; the stored steps keep every end.
"""

from collections import OrderedDict

from classifier.decision import SessionStep
from classifier.policy.sessions import EndSituation, LearnedEnds, LoopCounters, RemainingSteps, trouble_signs
from gateway.inference.sessions.session import Session

# Tenants whose counts are kept, those seen last.
MOST_TENANTS = 1000


class _Learned:
    """The counts of one tenant."""

    def __init__(self) -> None:
        self.ends, self.steps = LearnedEnds(), RemainingSteps()


class SessionLearning:
    """Counts of ended work, by tenant."""

    def __init__(self) -> None:
        self._tenants: OrderedDict[str, _Learned] = OrderedDict()

    def observe(self, step: SessionStep, before: Session | None, tenant: str, key: str) -> None:
        """Learn from the work that ended before `step`, a user's turn; `before`: the session as it was. The work's end
        is a label only where a sign says how it was."""
        if before is None or step.at != "turn":
            return
        learned = self._tenants.setdefault(tenant, _Learned())
        self._tenants.move_to_end(tenant)
        if len(self._tenants) > MOST_TENANTS:
            self._tenants.popitem(last=False)
        learned.steps.observe(step.client, key, before.loop_steps)
        if step.end is not None:
            seen = LoopCounters(before.loop_steps, before.errors, before.repeats, before.bad_calls)
            situation = EndSituation(before.loop_steps, bool(trouble_signs(seen)), before.last_exit or "unknown")
            bad = step.end == "bad"
            learned.ends.observe(step.previous, step.client, situation, bad=bad, weight=step.end_weight)

    def turn_steps(self, tenant: str, client: str, key: str, loop_step: int) -> float:
        """Expected steps of a turn from number `loop_step` on, that one included."""
        learned = self._tenants.get(tenant)
        steps = _PRIOR if learned is None else learned.steps
        return steps.predict(client, key, loop_step)

    def p_bad(self, step: SessionStep, tenant: str) -> float | None:
        """P(the loop of `step` ends badly); None while its signs have not been shown to help."""
        learned = self._tenants.get(tenant)
        if learned is None:
            return None
        seen = LoopCounters(step.loop_step, step.errors, step.repeats, step.bad_calls)
        situation = EndSituation(step.loop_step, bool(trouble_signs(seen)), step.last_exit or "unknown")
        return learned.ends.predict(step.previous, step.client, situation)


_PRIOR = RemainingSteps()

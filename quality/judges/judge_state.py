"""How the judge of open answers stands: what its test has found, or how far it is, as the database has it."""

from typing import Literal

import msgspec
from sqlalchemy.ext.asyncio import AsyncEngine

from quality.judges.calibration import Calibration
from quality.judges.default_panel import known_calibration
from quality.judges.pairwise import PairwiseJudge
from quality.judges.self_calibration import stored_progress


class JudgeState(msgspec.Struct, frozen=True, kw_only=True):
    """`pairs` of its own test, which have cost `spent_usd`. `calibration` decides: of that test, or by hand.

    "capped": the test may spend no more and has decided nothing.
    """

    state: Literal["untested", "testing", "capped", "trusted", "refused"] = "untested"
    pairs: int = 0
    spent_usd: float = 0.0
    calibration: Calibration | None = None

    @property
    def may_be_tested(self) -> bool:
        """Whether nothing is decided yet."""
        return self.calibration is None


async def judge_state(engine: AsyncEngine, catalogue: str, judging: str, cap_usd: float) -> JudgeState:
    """Return how the strongest tier stands as a judge; `catalogue` and `judging` as for `standing_panel`."""
    known = await known_calibration(engine, PairwiseJudge.name, catalogue, judging)
    progress = await stored_progress(engine, PairwiseJudge.name, judging)
    so_far = JudgeState(pairs=progress.pairs, spent_usd=progress.spent_usd, calibration=known)
    if known is not None:
        return msgspec.structs.replace(so_far, state="trusted" if known.trusted else "refused")
    if progress.stopped_at_usd is not None and progress.stopped_at_usd >= cap_usd:
        return msgspec.structs.replace(so_far, state="capped")
    return msgspec.structs.replace(so_far, state="testing" if progress.pairs else "untested")

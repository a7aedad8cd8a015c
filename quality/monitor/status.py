"""What the monitor tells of itself."""

import msgspec

from quality.estimates.kinds import KindShare
from quality.estimates.upgrade_rate import Share, UpgradeRate
from quality.judges.calibration import Calibration
from quality.monitor.drift import CalibrationDrift, InputDrift
from quality.verification.job import Depth
from quality.verification.judging import OpinionsGiven
from quality.verification.sampling import Reason, Spending


class MonitorStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state shown by the API. `dropped`: offers lost because more than `max_offered` were waiting; `no_judge`:
    drawn ones that no trusted judge can label, for which nothing was bought, but for the newest, `held`, which are
    verified once one can. `not_sampled`: answers by the reason why they are not verified
    (`quality.verification.sampling.WHY_NOT`). `spending` is at most `poll_seconds` old. `second_opinions`: since start.

    `upgrade_rates`: the rule of SPEC QM-04; `evidence_of_shift`: that of the sequential test, by stream.
    `acceptance_by_kind`: of the whole traffic, by tier and kind of prompts; `acceptance`: of the sample.
    """

    queue: Depth
    offered: int
    sampled: int
    dropped: int
    no_judge: int
    held: int
    not_sampled: dict[Reason, int] = {}
    second_opinions: OpinionsGiven
    spending: Spending
    budget_usd: float
    upgrade_rates: list[UpgradeRate]
    evidence_of_shift: dict[str, float]
    acceptance: dict[int, Share]
    acceptance_by_kind: list[KindShare]
    input_drift: list[InputDrift]
    calibration_drift: list[CalibrationDrift]
    calibrations: list[Calibration]

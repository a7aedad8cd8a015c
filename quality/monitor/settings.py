"""The settings of the monitor."""

from typing import Literal

import msgspec

from quality.estimates.upgrade_rate import UpgradeSettings
from quality.monitor.e_detector import ShiftSettings
from quality.verification.judging import MOST_OPINIONS
from quality.verification.sampling import SamplingSettings


class MonitorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the monitor. Times in seconds; `max_tokens` bounds a reference answer, reasoning included.

    `second_opinions`: further answers, 0 to 2, that may contradict before an answer counts as worse. `max_held`: the
    most drawn answers, the newest, that wait for a judge. `result_seconds`: how long an answer with calls waits for the
    caller's next request, whose results say whether they failed. `cold_start_per_second`: the most answers a second
    that a cold start draws on average, since more at once teach no sooner. `parallel`: the verifications that run at a
    time in one process. `machine_share`: the share of the time, in (0, 1], for which verification may keep local tiers
    busy. `trigger`: the rule whose alarms are passed
    on: the sequential test, or the share of `upgrade`.
    """

    sampling: SamplingSettings = SamplingSettings()
    upgrade: UpgradeSettings = UpgradeSettings()
    shift: ShiftSettings = ShiftSettings()
    trigger: Literal["evidence", "share"] = "evidence"
    max_tokens: int = 1024
    second_opinions: int = MOST_OPINIONS
    max_attempts: int = 3
    lease_seconds: float = 600.0
    retry_seconds: float = 30.0
    expire_seconds: float = 86_400.0
    poll_seconds: float = 1.0
    max_offered: int = 1000
    max_held: int = 50
    result_seconds: float = 120.0
    cold_start_per_second: float = 2.0
    parallel: int = 1
    machine_share: float = 1.0

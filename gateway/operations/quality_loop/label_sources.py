"""Where labels come from under these settings, in a sentence that the start, `aio init` and `aio check` print."""

from gateway.base.settings import Settings


def judging_cap(settings: Settings) -> float:
    """The most that the test of a strongest tier as a judge may cost, in US dollars."""
    return settings.cold_start_usd / 2


def labels_text(settings: Settings) -> str:
    """Return what makes labels, and what would add more."""
    if not (settings.monitor and settings.sampling_rate and settings.verification_budget):
        return "labels: from feedback alone, because verification is switched off"
    by_rule = "labels: from checks of JSON, code and exact answers, and from feedback"
    if cap := judging_cap(settings):
        return (
            f"{by_rule}; the first open answer that is drawn starts a test of the strongest tier as a judge, which "
            f"costs at most ${cap:.2f} and without which open answers get none (AIO_COLD_START_USD=0: no test)"
        )
    return f"{by_rule}; open answers get none until `aio quality calibrate`, because AIO_COLD_START_USD is 0"

"""Predicts how long a request added now would wait for its first step, from measured steps and the queue."""

import math

from inference_core.scheduling.scheduler import Scheduler
from inference_core.scheduling.sequence import Sequence


class StepMeter:
    """Running means over a model's steps and finished sequences (exponential, so that old load is forgotten)."""

    WEIGHT = 0.1

    def __init__(self) -> None:
        self.step_seconds = 0.0
        self._length_ratio = 1.0
        self._steps = 0

    def record_step(self, seconds: float) -> None:
        """Record a step of `seconds`, scheduling included."""
        self._steps += 1
        self.step_seconds += max(self.WEIGHT, 1 / self._steps) * (seconds - self.step_seconds)

    def record_finish(self, output_tokens: int, allowed_tokens: int) -> None:
        """Record a sequence that ended after `output_tokens` of `allowed_tokens`."""
        self._length_ratio += self.WEIGHT * (output_tokens / allowed_tokens - self._length_ratio)

    def predicted_wait(self, scheduler: Scheduler, models_sharing: int, prompt_tokens: float = math.inf) -> float:
        """Seconds until a request added now to `scheduler` starts; 0.0 if it could start with the next step.

        Prompts that have more left to compute than its `prompt_tokens` do not delay it: the shortest comes first.
        Idle work does not either.

        The queue is limited by two rates, and the slower one counts: prompt tokens under the token budget, and places
        under `max_num_seqs`, which running sequences free after their `max_tokens` times the share of it that answers
        use on average. Each of `models_sharing` models with work gets an equal share of time.
        """
        knobs, running, waiting = scheduler.knobs, scheduler.asked_running, scheduler.asked_waiting
        prefilling = [s.num_prefill_tokens for s in running if s.num_uncomputed_tokens > 1]
        before = (*prefilling, *(s.num_prefill_tokens for s in waiting))
        backlog = sum(tokens for tokens in before if tokens <= prompt_tokens)
        decodes = len(running) - len(prefilling)
        prompt_steps = backlog / max(1, knobs.max_num_batched_tokens - decodes)
        steps = max(prompt_steps, self._admission_steps(scheduler, running, len(waiting)))
        return steps * self.step_seconds * max(1, models_sharing)

    def predicted_first_token(self, scheduler: Scheduler, prompt_tokens: int, models_sharing: int) -> float:
        """Seconds until a request added now has its first token; a lower bound before the first measurement."""
        knobs = scheduler.knobs
        chunk = max(1, min(knobs.prefill_chunk, knobs.max_num_batched_tokens - len(scheduler.running)))
        prompt_seconds = -(-prompt_tokens // chunk) * self.step_seconds * max(1, models_sharing)
        return self.predicted_wait(scheduler, models_sharing, prompt_tokens) + prompt_seconds

    def _admission_steps(self, scheduler: Scheduler, running: list[Sequence], waiting: int) -> float:
        """Steps until the whole queue and a request added now have been admitted."""
        free = 0 if scheduler.blocked else scheduler.knobs.max_num_seqs - len(running)
        places_needed = waiting + 1 - free
        if places_needed <= 0 or not running:
            return 0.0
        left = sorted(s.max_output_tokens - len(s.output_token_ids) for s in running)
        rounds, rest = divmod(places_needed - 1, len(left))
        return (left[rest] + rounds * sum(left) / len(left)) * self._length_ratio

"""Says once when a queue grows past a threshold, and once when it has calmed down (SPEC BS-13)."""

import logging

log = logging.getLogger(__name__)


class QueueAlert:
    """Raised by more than `threshold` waiting sequences of `model`, lowered by half as many."""

    def __init__(self, model: str) -> None:
        self.raised = False
        self._model = model

    def look(self, waiting: int, threshold: int, most: int) -> None:
        """`waiting` sequences wait now; at `most`, more are refused."""
        if not self.raised and waiting > threshold:
            self.raised = True
            log.warning(
                "%s: %d sequences wait, more than the alert threshold of %d; from %d on they are refused",
                self._model, waiting, threshold, most,
            )  # fmt: skip
        elif self.raised and waiting <= threshold // 2:
            self.raised = False
            log.warning("%s: the queue is down to %d sequences, the alert is over", self._model, waiting)

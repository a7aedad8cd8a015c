"""The ledger's counters and health, for metrics and the readiness check."""

import msgspec


class LedgerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since start and health.

    - `appended`: records taken; `adopted`: found in journals of dead processes; `journaled`: of `appended`, durable.
    - `stored`: in the database; `rejected`: the database will not take them, they stay in the journal and are tried
      again at the next start; `waiting`: durable, not stored yet.
    - `refused`: not taken because the disk has stalled, the only ones that are lost.
    - `pending_bytes`: in memory, waiting for the disk.
    - `journal_lag_seconds`, `store_lag_seconds`: age of the oldest record that is not durable, not stored.
    - `journal_error`, `store_error`: why the last attempt failed; None while it works.
    """

    appended: int
    adopted: int
    journaled: int
    stored: int
    rejected: int
    waiting: int
    refused: int
    pending_bytes: int
    journal_failures: int
    store_failures: int
    journal_lag_seconds: float
    store_lag_seconds: float
    journal_error: str | None
    store_error: str | None

    @property
    def healthy(self) -> bool:
        """Whether records are accepted and none was lost; the database may be unavailable."""
        return self.journal_error is None and self.refused == 0

"""Count cells by tenant and class, in which no tenant outweighs the others: what a catalogue's tenants tell each other.

Per tier and class, p = (n0 p_parent + sum of w_t m_t) / (n0 + sum of w_t) over the tenants t, where m_t is the share of
good answers among the tenant's labels and w_t the number of these labels, at most `MOST_WEIGHT`. All shares lie in [0,
1], so one tenant, whatever and however many its labels, moves p by at most w_t / (n0 + w_t) <= `LABELS_BOUND`.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from classifier.local.labels import Labels

Float = npt.NDArray[np.float32]

# Pseudo-counts of the estimate that a catalogue begins with.
N0_CATALOGUE = 10.0
# Most weight of one tenant in a cell that others use.
MOST_WEIGHT = N0_CATALOGUE / 5
# Most that the labels of one tenant move a probability of a caller of another tenant. A table that was retrained has
# them once, and labels since then once more: still less than one tenant of weight n0 / 2 would, 1/3.
LABELS_BOUND = MOST_WEIGHT / (N0_CATALOGUE + MOST_WEIGHT)
TENANT_BOUND = 1 - (1 - LABELS_BOUND) ** 2


@dataclass(frozen=True)
class TenantCells:
    """float64 [tenants, 4, tiers - 1]: the bounded weight of each tenant's labels by class, and of those as good."""

    seen: npt.NDArray[np.float64]
    good: npt.NDArray[np.float64]

    @classmethod
    def fit(cls, labels: Labels) -> "TenantCells":
        """Count `labels`, all of a tenant (numbered from 0 on); private ones must have been left out."""
        tenants, told = int(labels.tenant.max(initial=-1)) + 1, labels.told
        seen = np.zeros((tenants, labels.classes.shape[1], told.shape[1]))
        good = np.zeros_like(seen)
        for tenant in np.unique(labels.tenant):
            mine = labels.tenant == tenant
            classes = labels.classes[mine].T.astype(np.float64)
            seen[tenant] = classes @ told[mine]
            good[tenant] = classes @ (told[mine] * np.nan_to_num(labels.scores[mine]))
        # Scores of judges that err lie outside [0, 1]; their mean must not, or one tenant could outweigh others.
        good = np.clip(good, 0.0, seen)
        share = np.minimum(1.0, MOST_WEIGHT / np.maximum(seen, MOST_WEIGHT))
        return cls(seen * share, good * share)

    def table(self, parent: Float, without: int = -1) -> Float:
        """Return `parent` [4, tiers - 1] moved by the labels of all tenants but `without`."""
        seen, good = self.counts(without)
        moved: Float = ((N0_CATALOGUE * parent + good) / (N0_CATALOGUE + seen)).astype(np.float32)
        return moved

    def counts(self, without: int = -1) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return the bounded weights by class [4, tiers - 1] of all tenants but `without`: of labels, and of those as
        good."""
        rest = np.arange(len(self.seen)) != without
        return self.seen[rest].sum(axis=0), self.good[rest].sum(axis=0)

"""`python -m benchmarks retrainings`: how often a retraining promotes, and what an oracle says of it.

Each draw of labels from a recorded ladder is a cold start of its own: a fresh database and registry, labels as
verification stores them, the retraining with its gate. The oracle knows the recorded outcomes of the other
half of the prompts, which is never labelled. It says "a gain" if the candidate's squared error there is certainly below
both the incumbent's and that of the tiers' rates in the labels.
"""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from sqlalchemy import insert
from threadpoolctl import threadpool_limits

from benchmarks.replay.figures import Float
from benchmarks.replay.ladder import Ladder, uniform
from classifier.complexity.classes import adequacies, like_of
from classifier.local.cells import Labels
from classifier.registry.artefact import default_artefact, load_artefact
from classifier.registry.registry import ArtefactRegistry
from migrations.tables.quality import training_rows
from quality.estimates.verified_sample import wilson_interval
from quality.retraining.retrain import RetrainSettings, retrain
from quality.retraining.train_candidate import carry_out, exported_labels, predicted_by
from quality.retraining.training_process import ORDER, RESULT, ROWS, OnProgress, Order
from quality.rollout.rollout import RolloutSettings
from quality.store.database import migrate, open_database
from quality.verification.training_rows import encode_prompt, export_rows

_DATABASE, _REGISTRY = "aio.db", "registry"
# Half width of a 95% interval in standard errors.
_TWO_SIDED = 1.96


class Drawn(NamedTuple):
    """A retraining: whether its version was promoted, whether the oracle says that its labels carry a gain, and by how
    much the candidate's squared error, times 100, is below the incumbent's and that of the tiers' rates there."""

    promoted: bool
    has_gain: bool
    over_incumbent: float
    over_rates: float


def drawn_lines(drawn: Sequence[Drawn]) -> str:
    """Return promotions and refusals, apart by what the oracle says."""
    share = wilson_interval(sum(one.promoted for one in drawn), len(drawn))
    lines = [f"  promoted {share.count} of {share.total}: {share.value or 0:.1%} [{share.low:.1%}, {share.high:.1%}]"]
    for has_gain, says in ((True, "a gain"), (False, "no gain")):
        mine = [one for one in drawn if one.has_gain is has_gain]
        promoted = sum(one.promoted for one in mine)
        below = [float(np.mean(gains)) for gains in zip(*(one[2:] for one in mine), strict=True)]
        means = "; error below the incumbent's {:+.2f}, the rates' {:+.2f}".format(*below) if mine else ""
        lines.append(f"  the oracle says {says}: {promoted} promoted, {len(mine) - promoted} refused{means}")
    return "\n".join(lines)


async def retrained(
    ladder: Ladder, draws: int, labels: int, noise: float, *, shuffled: bool = False, seed: int = 0
) -> list[Drawn]:
    """Retrain `draws` times on `labels` labels, each of one weaker tier by chance, a share `noise` of them wrong.
    `shuffled`: each tier's labels are dealt out to other prompts. Raises `ValueError` if there are too few prompts."""
    model = load_artefact(default_artefact())
    stored = [
        msgspec.structs.asdict(encode_prompt(model, [{"role": "user", "content": prompt.text}]))
        | {"weights": [1.0] * 4}
        for prompt in ladder.prompts
    ]
    is_held = np.array([uniform("held", seed, prompt.prompt_id) < 0.5 for prompt in ladder.prompts])
    pool, held = np.flatnonzero(~is_held), np.flatnonzero(is_held)
    if len(pool) < labels:
        raise ValueError(f"{len(pool)} prompts may be labelled, which are fewer than {labels}")
    drawn = []
    with tempfile.TemporaryDirectory(prefix="aio-retrainings-") as folder, threadpool_limits(1, user_api="blas"):
        cold = Path(folder) / "cold"
        ArtefactRegistry(cold / _REGISTRY).seed(default_artefact())
        await migrate(f"sqlite:///{cold / _DATABASE}")
        truth = [stored[place] | {"no_worse": ladder.no_worse[place].tolist()} for place in held]
        asked = await _Run(cold, Path(folder) / "held").store(truth)
        for draw in range(draws):
            rng = np.random.default_rng((seed, draw))
            verdicts = _verdicts(ladder, rng.choice(pool, labels, replace=False), noise, shuffled, rng)
            run = _Run(cold, Path(folder) / "run")
            known = await run.store([stored[place] | verdict for place, verdict in verdicts])
            drawn.append(await run.candidate_of(known, asked, seed=draw))
            shutil.rmtree(run.folder)
    return drawn


def _verdicts(
    ladder: Ladder, places: npt.NDArray[np.intp], noise: float, shuffled: bool, rng: np.random.Generator
) -> list[tuple[int, dict[str, Any]]]:
    """Return the prompts with what a verification of one weaker tier's answer stores."""
    count = len(ladder.tiers)
    tiers = rng.integers(0, count - 1, len(places))
    verdicts = ladder.no_worse[places, tiers] ^ (rng.random(len(places)) < noise)
    if shuffled:
        for tier in range(count - 1):
            verdicts[tiers == tier] = rng.permutation(verdicts[tiers == tier])
    rows = []
    for place, tier, verdict in zip(places, tiers, verdicts.tolist(), strict=True):
        row = {
            "no_worse": [verdict if k == tier else k == count - 1 or None for k in range(count)],
            "weights": [float(k == tier) for k in range(count)],
        }
        rows.append((int(place), row))
    return rows


class _Run:
    """A deployment's state in `folder`, a copy of a cold one."""

    def __init__(self, cold: Path, folder: Path) -> None:
        self.folder = Path(shutil.copytree(cold, folder))
        self.registry = ArtefactRegistry(self.folder / _REGISTRY)
        self.engine = open_database(f"sqlite:///{self.folder / _DATABASE}")

    async def store(self, rows: list[dict[str, Any]]) -> Labels:
        """Store rows as the monitor does, a second apart, and return them as a retraining reads them."""
        made = [
            row | {"request_id": f"r{place}", "source": "verification", "created_at": 1000.0 + place}
            for place, row in enumerate(rows)
        ]
        async with self.engine.begin() as connection:
            await connection.execute(insert(training_rows), made)
        manifest = load_artefact(self.registry.current()).manifest
        return exported_labels(await export_rows(self.engine, manifest, [""] * len(rows[0]["no_worse"])), {})

    async def candidate_of(self, known: Labels, asked: Labels, *, seed: int) -> Drawn:
        """Retrain on the stored rows, which are `known`; the oracle looks at the outcomes of `asked`."""
        tiers = known.scores.shape[1] + 1
        settings = RetrainSettings(
            catalogue_fingerprint="replay",
            models={"replay": [f"tier-{number + 1}" for number in range(tiers)]},
            seed=seed,
            rollout=RolloutSettings(share=0.0),
        )
        result = await retrain(self.engine, self.registry, settings, trigger="cli", train=_train_here)
        await self.engine.dispose()
        candidate = load_artefact(self.registry.folder(str(result.candidate)), "replay")
        prior = adequacies(like_of(tiers))[:, :-1]
        assert candidate.adequacy is not None
        ours = _error(predicted_by(known, candidate.adequacy, asked, candidate.learned_head), asked)
        rates = (known.told * np.nan_to_num(known.scores)).sum(axis=0) / np.maximum(known.told.sum(axis=0), 1)
        gains = _error(np.clip(asked.classes @ prior, 0, 1), asked) - ours, _error(rates, asked) - ours
        means = (100 * float(gain.mean()) for gain in gains)
        return Drawn(result.outcome == "promoted", all(map(_is_certain, gains)), *means)


def _error(p: npt.NDArray[np.floating], asked: Labels) -> Float:
    """Mean squared error over the tiers, of each prompt."""
    squared: Float = np.square(p - asked.scores, dtype=np.float64).mean(axis=1)
    return squared


def _is_certain(gain: Float) -> bool:
    return bool(gain.mean() > _TWO_SIDED * gain.std(ddof=1) / len(gain) ** 0.5)


async def _train_here(folder: Path, on_progress: OnProgress, *, timeout_seconds: float) -> None:
    """What the training process does, without the seconds that its start takes."""
    order = msgspec.json.decode((folder / ORDER).read_bytes(), type=Order)
    (folder / RESULT).write_bytes(msgspec.json.encode(carry_out(order, folder / ROWS, on_progress)))

"""A judge that asks a model tests itself on planted pairs, one after another, until it is known whether to trust it;
and how it stands: what its test has found, or how far it is, as the database has it.

Each round judges an answer that is worse and one that is not; its score is the share that it got right, an abstention
counts as half. Wealth from betting (`quality.statistics.wealth`) is valid at every round: a judge that is right in at
most `LEAST` of such pairs is trusted with a probability of at most `ERROR`, one that is right in at least `ENOUGH` is
refused with at most `ERROR`, whenever the test ends."""

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
import numpy as np
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from migrations.tables.audit import JUDGE_TEST, audit_events, audited
from quality.judges.calibration import Bias, Calibration, GradedPair, calibrate
from quality.judges.judge import Judge, JudgeVerdict
from quality.judges.known_pairs import planted_pairs
from quality.judges.pairwise import PairwiseJudge
from quality.judges.panel import is_enough, known_calibration, store_calibration, stored_calibration
from quality.statistics import evidence
from quality.store.queries import exclusive
from tiers.tier import Usage

LEAST, ENOUGH, ERROR = 0.6, 0.8, 0.01
_LOCK = 0x41494F0B  # PostgreSQL advisory lock number: "AIO", 11


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """A test so far."""

    scores: tuple[float, ...] = ()
    """The score of each round, 0 to 1."""
    true_no_worse: int = 0
    false_worse: int = 0
    true_worse: int = 0
    false_no_worse: int = 0
    abstained: int = 0
    bias: Bias = Bias()
    spent_usd: float = 0.0
    reserved_usd: float = 0.0
    """What the holder may spend. It counts as spent if the holder does not come back."""
    owner: str | None = None
    """The holder of the lease."""
    lease_until: float = 0.0
    """When the lease ends, in epoch seconds."""
    stopped_at_usd: float | None = None
    """The cap that the next round did not fit into; None while it fits."""

    @property
    def pairs(self) -> int:
        """Pairs judged so far."""
        return 2 * len(self.scores)

    def with_verdict(self, pair: GradedPair, verdict: JudgeVerdict) -> "Progress":
        """Return the counts after a verdict on a pair."""
        truth, said = pair.no_worse, verdict.no_worse
        name = {
            (True, True): "true_no_worse",
            (True, False): "false_worse",
            (False, False): "true_worse",
            (False, True): "false_no_worse",
        }.get((truth, bool(said)))
        name = "abstained" if said is None or name is None else name
        bias = self.bias.with_verdict(pair, verdict)
        return msgspec.structs.replace(self, bias=bias, **{name: getattr(self, name) + 1})

    def calibration(self, judge: str) -> Calibration:
        names = ("true_no_worse", "false_worse", "true_worse", "false_no_worse", "abstained", "bias")
        counts = {name: getattr(self, name) for name in names}
        return Calibration(judge=judge, pairs="planted", decided=bool(self.decided), **counts)

    @property
    def decided(self) -> bool | None:
        """Whether the judge is trusted; None while that is open."""
        scores = np.array(self.scores)
        if evidence(scores - LEAST, LEAST) >= 1 / ERROR:
            return True
        return False if evidence(ENOUGH - scores, 1.0 - ENOUGH) >= 1 / ERROR else None


async def _round(judge: Judge, done: Progress) -> tuple[Progress, list[Usage]]:
    """Return the test after another round, and the usage of the model."""
    score, usage = 0.0, list[Usage]()
    for pair in planted_pairs(len(done.scores)):
        verdict = await judge.judge(prompt=pair.prompt, answer=pair.answer, reference_answer=pair.reference_answer)
        usage += verdict.usage
        done = done.with_verdict(pair, verdict)
        score += 0.25 if verdict.no_worse is None else 0.5 * (verdict.no_worse is pair.no_worse)
    return msgspec.structs.replace(done, scores=(*done.scores, score)), usage


async def measure_model(judge: PairwiseJudge, answered: Sequence[GradedPair]) -> Calibration:
    """Calibrate `judge` on `answered` pairs, or on planted ones if it judges too few of those."""
    own = await calibrate(judge, answered, "answered")
    return own if is_enough(own) else await calibrate_on_planted(judge)


async def calibrate_on_planted(judge: Judge) -> Calibration:
    """Test `judge` to the end, which comes: every judge is right in more than `LEAST` or in fewer than `ENOUGH`."""
    done = Progress()
    while done.decided is None:
        done, _ = await _round(judge, done)
    return done.calibration(judge.name)


async def stored_progress(engine: AsyncEngine, judge: str, fingerprint: str) -> Progress:
    """Return the test of `judge` so far, by what it is of."""
    async with engine.connect() as connection:
        return await _read(connection, _subject(judge, fingerprint)) or Progress()


def _subject(judge: str, fingerprint: str) -> str:
    return f"{judge}/{fingerprint}"


async def _read(connection: AsyncConnection, subject: str) -> Progress | None:
    query = select(audit_events.c.details).where(audit_events.c.action == JUDGE_TEST, audit_events.c.subject == subject)
    details = await connection.scalar(query)
    return None if details is None else msgspec.convert(details, Progress)


class SelfCalibration:
    """The test of `judge` as a background step: one round per call of `step`, one at a time over all replicas.

    Its state is a row of the audit trail, so that it goes on after a restart; its result is the stored calibration.
    `price`: dollars for the judge's usage, `bound`: the most of a comparison. It spends at most `cap_usd` in all.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        judge: PairwiseJudge,
        fingerprint: str,
        *,
        price: Callable[[Usage], float],
        bound: Callable[[PairwiseJudge, str, str, str], float],
        cap_usd: float,
        lease_seconds: float = 120.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._engine, self._judge, self._fingerprint = engine, judge, fingerprint
        self._price, self._bound, self.cap_usd = price, bound, cap_usd
        self._lease_seconds, self._clock = lease_seconds, clock
        self._owner = f"judge-{uuid.uuid4().hex}"

    async def step(self) -> bool:
        """Make the next round; False if there is none to make now: the test has ended, another replica makes it, or the
        cap is reached. Raises `TierError` as the tier does."""
        if await stored_calibration(self._engine, self._judge.name, self._fingerprint) is not None:
            return False
        progress = await self.progress()
        pairs = planted_pairs(len(progress.scores))
        most = sum(self._bound(self._judge, pair.prompt, pair.answer, pair.reference_answer) for pair in pairs)
        claimed = await self._claim(progress, most)
        if claimed is None:
            return False
        done, usage = await _round(self._judge, claimed)
        done = msgspec.structs.replace(
            done, spent_usd=done.spent_usd + sum(map(self._price, usage)), reserved_usd=0.0, owner=None, lease_until=0.0
        )
        async with exclusive(self._engine, _LOCK) as connection:
            if await self._read(connection) != claimed:
                return False  # the lease was lost; its holder has this round
            await self._write(connection, done)
        if done.decided is not None:
            calibration = done.calibration(self._judge.name)
            await store_calibration(self._engine, calibration, self._fingerprint, self._clock(), "the quality loop")
        return done.decided is None

    async def progress(self) -> Progress:
        return await stored_progress(self._engine, self._judge.name, self._fingerprint)

    async def _claim(self, seen: Progress, most_usd: float) -> Progress | None:
        now = self._clock()
        async with exclusive(self._engine, _LOCK) as connection:
            stored = await self._read(connection)
            before = stored or Progress()
            if len(before.scores) != len(seen.scores) or before.lease_until > now:
                return None
            # What a holder that died had reserved may have been spent.
            spent = before.spent_usd + before.reserved_usd
            if spent + most_usd > self.cap_usd:
                await self._put(connection, stored, msgspec.structs.replace(before, stopped_at_usd=self.cap_usd), now)
                return None
            claimed = msgspec.structs.replace(
                before,
                spent_usd=spent,
                reserved_usd=most_usd,
                owner=self._owner,
                lease_until=now + self._lease_seconds,
                stopped_at_usd=None,
            )
            await self._put(connection, stored, claimed, now)
            return claimed

    @property
    def _subject(self) -> str:
        return _subject(self._judge.name, self._fingerprint)

    async def _read(self, connection: AsyncConnection) -> Progress | None:
        return await _read(connection, self._subject)

    async def _put(self, connection: AsyncConnection, stored: Progress | None, progress: Progress, now: float) -> None:
        """Write `progress` in place of what is `stored`, None for nothing."""
        if stored is None:
            reason = "a judge of open answers is tested on planted pairs"
            await connection.execute(audited(now, "the quality loop", JUDGE_TEST, self._subject, reason, progress))
        elif progress != stored:
            await self._write(connection, progress)

    async def _write(self, connection: AsyncConnection, progress: Progress) -> None:
        mine = (audit_events.c.action == JUDGE_TEST, audit_events.c.subject == self._subject)
        await connection.execute(update(audit_events).where(*mine).values(details=progress))


class JudgeState(msgspec.Struct, frozen=True, kw_only=True):
    """ "capped": the test may spend no more and has decided nothing."""

    state: Literal["untested", "testing", "capped", "trusted", "refused"] = "untested"
    pairs: int = 0
    """Pairs of its own test."""
    spent_usd: float = 0.0
    """What the test has cost."""
    calibration: Calibration | None = None
    """What decides: the result of that test, or a calibration set by hand."""

    @property
    def may_be_tested(self) -> bool:
        """Whether nothing is decided yet."""
        return self.calibration is None


async def judge_state(engine: AsyncEngine, catalogue: str, judging: str, cap_usd: float) -> JudgeState:
    """Return how the strongest tier stands as a judge; `catalogue` and `judging` as for `standing_panel`."""
    calibration = await known_calibration(engine, PairwiseJudge.name, catalogue, judging)
    progress = await stored_progress(engine, PairwiseJudge.name, judging)
    so_far = JudgeState(pairs=progress.pairs, spent_usd=progress.spent_usd, calibration=calibration)
    if calibration is not None:
        return msgspec.structs.replace(so_far, state="trusted" if calibration.trusted else "refused")
    if progress.stopped_at_usd is not None and progress.stopped_at_usd >= cap_usd:
        return msgspec.structs.replace(so_far, state="capped")
    return msgspec.structs.replace(so_far, state="testing" if progress.pairs else "untested")

"""The panel: judges in order of authority; the first trusted judge that decides makes the label. The default panel, and
the stored reliability of its members.

What a rule decides is also asked of the judge that asks a model, whose error rates are counted so."""

import asyncio
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.audit import audit_events, audited
from quality.judges import json_answers
from quality.judges.calibration import LENGTH, Calibration, GradedPair, calibrate, in_use, real_pairs
from quality.judges.json_answers import JsonValidityJudge
from quality.judges.judge import NOTHING_ELSE, Judge, JudgeVerdict, Seen
from quality.judges.known_pairs import calibrate_calls, graded_pairs
from quality.judges.pairwise import PairwiseJudge
from quality.judges.rules import CodeJudge, Embed, ExactJudge, SimilarityJudge
from tiers.errors import TierError
from tiers.tier import Usage

# So many pairs that a rule decided are all asked of the model as well, then one in `LATER`.
FIRST, LATER = 60, 4


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The panel's result."""

    label: bool | None
    """None if nothing may be learned from this pair."""
    tie: bool
    judge: str | None
    """The deciding judge, even if untrusted."""
    reliability: float | None
    reason: str
    """Why the label is as it is."""
    scores: dict[str, float]
    """Every judge's own score by name."""
    usage: tuple[Usage, ...]
    judging: str | None = None
    """The fingerprint of the model that was asked; None if none was."""


class Panel:
    """Asks `judges` in order until a trusted one decides.

    Unknown or insignificant reliability makes no label (docs/quality-loop.md), and the next judge is asked.
    """

    def __init__(self, judges: Sequence[Judge], calibrations: Mapping[str, Calibration]) -> None:
        self.judges = list(judges)
        self.calibrations = dict(calibrations)
        self._trusted = {name for name, calibration in calibrations.items() if calibration.trusted}
        self.labels_open_answers = self._may_label("", None)
        """Whether a trusted judge may decide whatever was asked: also questions with nothing to check get labels."""

    def named(self, name: str | None) -> Judge | None:
        return next((judge for judge in self.judges if judge.name == name), None)

    def without(self, names: Collection[str]) -> "Panel":
        """Return the panel without these judges."""
        if not names:
            return self
        left = {name: calibration for name, calibration in self.calibrations.items() if name not in names}
        return Panel([judge for judge in self.judges if judge.name not in names], left)

    def may_label(self, prompt: str, response_format: dict[str, Any] | None) -> bool:
        """Return whether a trusted judge may decide on answers to `prompt`; else a reference would be wasted."""
        return self.labels_open_answers or self._may_label(prompt, response_format)

    def may_label_by_rule(self, prompt: str, response_format: dict[str, Any] | None) -> bool:
        """Return whether a trusted judge that asks no model may decide on answers to `prompt`."""
        rules = (judge for judge in self.judges if judge.fingerprint is None and judge.name in self._trusted)
        return any(judge.may_decide(prompt, response_format) for judge in rules)

    def _may_label(self, prompt: str, response_format: dict[str, Any] | None) -> bool:
        return any(self.deciding(prompt, response_format))

    def deciding(self, prompt: str, response_format: dict[str, Any] | None) -> Iterator[str]:
        """Yield the names of the trusted judges that may decide on answers to `prompt`."""
        for judge in self.judges:
            if judge.name in self._trusted and judge.may_decide(prompt, response_format):
                yield judge.name

    @property
    def labels_calls(self) -> bool:
        """Whether verdicts on tool calls make labels."""
        return json_answers.NAME in self._trusted

    def on_calls(self, verdict: JudgeVerdict) -> Finding:
        """Return what `verdict`, of the judge of tool calls, comes to."""
        verdicts = {json_answers.NAME: verdict}
        if verdict.no_worse is None:
            return self._finding(None, None, None, verdicts, verdict.reason)
        if not self.labels_calls:
            return self._finding(json_answers.NAME, verdict, None, verdicts, self._distrust(json_answers.NAME))
        return self._finding(json_answers.NAME, verdict, verdict.no_worse, verdicts, verdict.reason)

    async def judge(
        self,
        *,
        prompt: str,
        answer: str,
        reference_answer: str,
        response_format: dict[str, Any] | None = None,
        seen: Seen = NOTHING_ELSE,
    ) -> Finding:
        """Compare `answer` with `reference_answer`; `response_format` as `Judge.judge`, `seen` as `having_seen`."""
        finding = await self._found(prompt, answer, reference_answer, response_format, seen)
        if finding.judging is None:
            return finding
        length = len(answer) / max(len(answer) + len(reference_answer), 1)
        return msgspec.structs.replace(finding, scores={**finding.scores, LENGTH: length})

    async def _found(
        self, prompt: str, answer: str, reference_answer: str, response_format: dict[str, Any] | None, seen: Seen
    ) -> Finding:
        verdicts: dict[str, JudgeVerdict] = {}
        for judge in self.judges:
            if judge.basis != "preference" and not all(verdict.is_comparable for verdict in verdicts.values()):
                continue
            verdict = await judge.having_seen(seen).judge(
                prompt=prompt, answer=answer, reference_answer=reference_answer, response_format=response_format
            )
            verdicts[judge.name] = verdict
            if verdict.no_worse is not None and judge.name in self._trusted:
                if judge.fingerprint is None:
                    verdicts |= await self._cross_checked(prompt, answer, reference_answer, seen)
                return self._finding(judge.name, verdict, verdict.no_worse, verdicts, verdict.reason)
        for name, verdict in verdicts.items():
            if verdict.no_worse is not None:
                return self._finding(name, verdict, None, verdicts, self._distrust(name))
        reason = "; ".join(f"{name}: {verdict.reason}" for name, verdict in verdicts.items())
        return self._finding(None, None, None, verdicts, f"no judge decided ({reason})")

    async def _cross_checked(
        self, prompt: str, answer: str, reference_answer: str, seen: Seen
    ) -> dict[str, JudgeVerdict]:
        """Return the verdict of the judge that asks a model on a pair that a rule decided, if it is wanted."""
        trusted = (judge for judge in self.judges if judge.fingerprint is not None and judge.name in self._trusted)
        judge = next(trusted, None)
        if judge is None or answer.strip() == reference_answer.strip():
            return {}
        rates = self.calibrations[judge.name].in_use
        if rates is None or (rates.pairs.checked.total >= FIRST and zlib.crc32(f"{prompt}\n{answer}".encode()) % LATER):
            return {}
        try:
            asked = judge.having_seen(seen)
            return {judge.name: await asked.judge(prompt=prompt, answer=answer, reference_answer=reference_answer)}
        except TierError:
            return {}  # the label stands without it

    def _distrust(self, name: str) -> str:
        calibration = self.calibrations.get(name)
        if calibration is None:
            return f"the reliability of judge {name} is unknown"
        return (
            f"judge {name} is not significantly better than chance: balanced accuracy "
            f"{calibration.balanced_accuracy:.3f}, lower bound {calibration.lower_bound:.3f}"
        )

    def _finding(
        self,
        name: str | None,
        verdict: JudgeVerdict | None,
        label: bool | None,
        verdicts: dict[str, JudgeVerdict],
        reason: str,
    ) -> Finding:
        calibration = self.calibrations.get(name) if name is not None else None
        return Finding(
            label=label,
            tie=verdict.tie if verdict is not None else False,
            judge=name,
            reliability=calibration.balanced_accuracy if calibration is not None else None,
            reason=reason,
            scores={name: verdict.score for name, verdict in verdicts.items() if verdict.score is not None},
            usage=tuple(used for verdict in verdicts.values() for used in verdict.usage),
            judging=next(
                (judge.fingerprint for judge in self.judges if judge.fingerprint and judge.name in verdicts), None
            ),
        )


_CALIBRATED = "judge.calibrated"
# With this many verdicts per outcome, a catalogue's own answers replace generated pairs.
ENOUGH = 20


def rule_based_judges() -> list[Judge]:
    """Return the judges that ask no model, in order of authority."""
    return [JsonValidityJudge(), CodeJudge(), ExactJudge()]


async def standing_panel(
    engine: AsyncEngine,
    pairwise: PairwiseJudge | None = None,
    embed: Embed | None = None,
    catalogue: str = "",
    judging: str = "",
) -> Panel:
    """Return the rule-based judges and similarity, then `pairwise` if its stored calibration is significant.

    The calibrations are those stored for `catalogue`, a fingerprint. A rule-based judge without one is measured at once
    on generated pairs, in milliseconds. An untrusted pairwise judge is left out: it would only cost. `judging`: the
    fingerprint that its own test is stored under; a calibration of the catalogue by hand counts before it.
    """
    judges = rule_based_judges()
    generated = graded_pairs()
    calibrations = {
        judge.name: await stored_calibration(engine, judge.name, catalogue) or await calibrate(judge, generated)
        for judge in judges
    }
    calls = calibrate_calls()
    calibrations[calls.judge] = calls
    judges.append(SimilarityJudge(embed))
    if pairwise is not None:
        stored = await known_calibration(engine, pairwise.name, catalogue, judging)
        if stored is not None and stored.trusted:
            pairwise.padded = stored.prefers_a_length
            judges.append(pairwise)
            calibrations[pairwise.name] = stored
    return Panel(judges, calibrations)


async def known_calibration(engine: AsyncEngine, judge: str, catalogue: str, judging: str) -> Calibration | None:
    """Return the calibration that counts: that of the catalogue by hand, else that of the judge's own test; with what
    real pairs since then say of the judge of the fingerprint `judging`."""
    stored = await _stored(engine, judge, catalogue) or (await _stored(engine, judge, judging) if judging else None)
    if stored is None or not judging:
        return None if stored is None else stored[0]
    pairs = await real_pairs(engine, judge, judging, since=stored[1])
    rates = await asyncio.to_thread(in_use, stored[0], pairs)
    return msgspec.structs.replace(stored[0], in_use=rates)


async def measure(judge: Judge, answered: Sequence[GradedPair]) -> Calibration:
    """Calibrate `judge` on `answered` pairs, or on generated pairs if it judges too few of those."""
    own = await calibrate(judge, answered, "answered")
    return own if is_enough(own) else await calibrate(judge, graded_pairs())


def is_enough(own: Calibration) -> bool:
    """Return whether a catalogue's own answers say enough of a judge, in both outcomes."""
    return min(own.true_no_worse + own.false_worse, own.true_worse + own.false_no_worse) >= ENOUGH


async def store_calibration(
    engine: AsyncEngine, calibration: Calibration, catalogue: str, now: float, actor: str
) -> None:
    """Store `calibration` for `catalogue`, a fingerprint; the latest one counts."""
    reason = f"balanced accuracy {calibration.balanced_accuracy:.3f}, lower bound {calibration.lower_bound:.3f}"
    subject = _subject(calibration.judge, catalogue)
    async with engine.begin() as connection:
        await connection.execute(audited(now, actor, _CALIBRATED, subject, reason, calibration))


async def stored_calibration(engine: AsyncEngine, judge: str, catalogue: str) -> Calibration | None:
    """Return the latest stored calibration of `judge` for `catalogue`; None without one."""
    stored = await _stored(engine, judge, catalogue)
    return None if stored is None else stored[0]


async def _stored(engine: AsyncEngine, judge: str, catalogue: str) -> tuple[Calibration, float] | None:
    """Return it with the time when it was stored."""
    query = (
        select(audit_events.c.details, audit_events.c.created_at)
        .where(audit_events.c.action == _CALIBRATED, audit_events.c.subject == _subject(judge, catalogue))
        .order_by(audit_events.c.audit_event_id.desc())
        .limit(1)
    )
    async with engine.connect() as connection:
        row = (await connection.execute(query)).first()
    return None if row is None else (msgspec.convert(row.details, Calibration), row.created_at)


def _subject(judge: str, catalogue: str) -> str:
    return f"{judge}/{catalogue}"

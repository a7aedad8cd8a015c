"""Cheap answers that a verification compares: whether they agree, and whether an agreed one is worse than the
reference; and how often both was so, read from stored requests."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import FromClause, Select, func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.policy.agreement_counts import AgreementPlace, AgreementTable
from migrations.tables.quality import verifications
from migrations.tables.requests import requests
from migrations.tables.tenancy import api_keys
from quality.estimates.verified_sample import UNCERTAIN, has_verdict
from quality.records.record import Attempt, ComparedAs, Comparison, comparison_of
from tiers.final_answer.extract import FinalAnswer, agree


class VerifiedComparison(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of cheap tiers' answers that a verification makes."""

    tiers: tuple[int, ...]
    """The tiers whose answers are compared, ascending; one tier twice stands for two samples of it. The last one's
    answer would be sent if another equals it.
    """
    compared_as: ComparedAs
    models: tuple[str, ...] = ()
    """The models of these tiers."""
    agreed: bool | None = None
    """Whether another answer equals the last one's."""
    lost: bool | None = None
    """Whether that answer is worse than the strongest tier's; None if that is not known."""
    informed: float = 1.0
    """Youden's J of the judge who said so, 1 where none did."""

    @property
    def sampled_again(self) -> frozenset[int]:
        """The tiers of which two samples are compared."""
        return frozenset(number for number in self.tiers if self.tiers.count(number) > 1)


def agreeing(tiers: Sequence[int], ends: Sequence[FinalAnswer | None]) -> list[int]:
    """Return the last of `tiers` and those that said the same, by their final answers `ends`; none if none did."""
    agreed = [number for number, end in zip(tiers[:-1], ends[:-1], strict=True) if agree(end, ends[-1])]
    return [tiers[-1], *agreed] if agreed else []


def is_lost(
    agreed: Sequence[int],
    verdicts: Mapping[int, tuple[str | None, float | None]],
    end: FinalAnswer | None,
    reference: FinalAnswer | None,
) -> tuple[bool | None, float]:
    """Return whether what the tiers `agreed` on is worse than the reference, and how informed that is: by the labels of
    their answers and the judge's reliability, its balanced accuracy, in `verdicts`. None where opinions on it differ.
    Where no judge decides, an answer that does not equal the `reference` counts as worse."""
    told = [verdicts[number] for number in agreed if number in verdicts]
    decided = [(label, reliability) for label, reliability in told if label in ("worse", "no_worse", "tie")]
    if not decided:
        return (None if any(label == UNCERTAIN for label, _ in told) else not agree(end, reference)), 1.0
    # Of several labels one "worse" is enough, so it is that one's error which counts.
    label, reliability = min(decided, key=lambda verdict: (verdict[0] != "worse", -(verdict[1] or 1.0)))
    return label == "worse", informedness(reliability)


def informedness(reliability: float | None) -> float:
    """Return Youden's J of a judge of this balanced accuracy; 1 where no judge said anything (None)."""
    return 1.0 if reliability is None else 2.0 * reliability - 1.0


# Of each kind of answer the newest requests are read up to the first number; of verdicts, the newest ones.
MOST_OF_A_KIND, MOST_VERDICTS = 1000, 4000


async def read_agreements(engine: AsyncEngine, models: Mapping[int, str]) -> AgreementTable:
    """Return the counts of the newest requests whose answers were compared, of the verdicts on these, and of answers
    that a verification compared. `models`: of the tiers now; answers of other models do not count."""
    table = AgreementTable()
    async with engine.connect() as connection:
        kinds = select(requests.c.compared).where(requests.c.compared.is_not(None)).distinct()
        for kind in (await connection.scalars(kinds)).all():
            for row in (await connection.execute(_newest_requests(kind))).mappings():
                compared = _comparison(row, models)
                if compared is not None and compared.outcome != "failed":
                    table.compared(_place(row, compared.compared_as), compared.tiers, compared.outcome == "agreed")
        for row in (await connection.execute(_newest_verdicts())).mappings():
            compared = _comparison(row, models)
            if compared is not None and compared.outcome == "agreed":
                informed = informedness(row["judge_reliability"])
                table.verified(
                    _place(row, compared.compared_as), compared.tiers, float(row["label"] == "worse"), informed
                )
        for row in (await connection.execute(_newest_verified())).mappings():
            seen = msgspec.convert(row["compared"], VerifiedComparison)
            now = tuple(models.get(number) for number in seen.tiers)
            if seen.agreed is None or seen.models != now:
                continue
            context = _place(row, seen.compared_as)
            table.compared(context, seen.tiers, seen.agreed)
            if seen.lost is not None:
                table.verified(context, seen.tiers, float(seen.lost), seen.informed)
    return table


def place_of(tenant: str, key_id: str | None, compared_as: ComparedAs) -> AgreementPlace:
    """Return where a comparison counts."""
    return AgreementPlace(tenant, key_id or "", compared_as.app, compared_as.kind)


def _owner(table: FromClause) -> tuple[Any, ...]:
    return table.c.key_id, func.coalesce(api_keys.c.team_id, table.c.key_id, "").label("tenant")


def _newest_requests(kind: str) -> Select[Any]:
    return (
        select(*_owner(requests), requests.c.attempts)
        .select_from(requests.outerjoin(api_keys, api_keys.c.key_id == requests.c.key_id))
        .where(requests.c.compared == kind)
        .order_by(requests.c.created_at.desc())
        .limit(MOST_OF_A_KIND)
    )


def _newest_verdicts() -> Select[Any]:
    same = (requests.c.request_id == verifications.c.request_id) & (requests.c.tier == verifications.c.tier)
    return (
        select(*_owner(requests), requests.c.attempts, verifications.c.label, verifications.c.judge_reliability)
        .select_from(verifications.join(requests, same).outerjoin(api_keys, api_keys.c.key_id == requests.c.key_id))
        .where(requests.c.compared.is_not(None), has_verdict(), verifications.c.finished_at.is_not(None))
        .order_by(verifications.c.finished_at.desc())
        .limit(MOST_VERDICTS)
    )


def _newest_verified() -> Select[Any]:
    return (
        select(*_owner(verifications), verifications.c.compared)
        .select_from(verifications.outerjoin(api_keys, api_keys.c.key_id == verifications.c.key_id))
        .where(verifications.c.compared.is_not(None), verifications.c.status == "done")
        .order_by(verifications.c.finished_at.desc())
        .limit(MOST_VERDICTS)
    )


def _comparison(row: Mapping[Any, Any], models: Mapping[int, str]) -> Comparison | None:
    attempts = msgspec.convert(row["attempts"], list[Attempt])
    current = all(models.get(attempt.tier) == attempt.model for attempt in attempts)
    return comparison_of(attempts) if current else None


def _place(row: Mapping[Any, Any], compared_as: ComparedAs) -> AgreementPlace:
    return place_of(row["tenant"], row["key_id"], compared_as)

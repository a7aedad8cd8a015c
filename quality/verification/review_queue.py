"""The judged answers that an operator can compare with the verifier's."""

from collections.abc import Sequence

from sqlalchemy import and_, select
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables import requests, verifications


async def reviewable(engine: AsyncEngine, numbers: Sequence[int]) -> set[int]:
    """Return those of these verifications that are about the served answer and have both answers' texts stored."""
    v = verifications.c
    query = (
        select(v.verification_id)
        .join(requests, and_(requests.c.request_id == v.request_id, requests.c.tier == v.tier))
        .where(
            v.verification_id.in_(numbers),
            v.verifier_answer.is_not(None),
            requests.c.messages.is_not(None),
            requests.c.answer.is_not(None),
        )
    )
    async with engine.connect() as connection:
        return set(await connection.scalars(query))

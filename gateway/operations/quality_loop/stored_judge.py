"""How the judge of open answers stands by the database, for commands: no server need run."""

from sqlalchemy.exc import SQLAlchemyError

from gateway.base.settings import Settings
from gateway.operations.quality_loop.label_sources import judging_cap
from gateway.operations.security.stored_keys import is_missing_file
from quality.judges.pairwise import judging_fingerprint
from quality.judges.self_calibration import JudgeState, judge_state
from quality.store.database import open_database
from tiers.catalog.catalog import Catalog


async def stored_judge(settings: Settings, catalog: Catalog) -> JudgeState | None:
    """Return it; None if the database cannot be read or was never set up."""
    if is_missing_file(settings.database):
        return None
    engine = open_database(settings.database)
    try:
        judging = judging_fingerprint(catalog.tier_fingerprints[-1])
        return await judge_state(engine, catalog.fingerprint, judging, judging_cap(settings, catalog))
    except (SQLAlchemyError, OSError):
        return None
    finally:
        await engine.dispose()

"""The model card: the package's own words with the tables of a stored measurement put into their places."""

import re
from importlib.resources import files
from pathlib import Path

import msgspec

from classifier.errors import TrainingDataError
from classifier.training.evaluation import FORMAT, Evaluation
from classifier.training.evaluation_tables import all_tables
from classifier.training.goals import goals_table

TEMPLATE = "card.md"
_PLACE = re.compile(r"^<!-- measured: (?P<name>[a-z-]+) -->$", re.MULTILINE)
NOT_MEASURED = "Not measured in this run."


def template() -> str:
    """The page without its tables."""
    return files("classifier.training").joinpath(TEMPLATE).read_text(encoding="utf-8")


def places(text: str) -> list[str]:
    """Names of the places for tables, in order."""
    return [match["name"] for match in _PLACE.finditer(text)]


def card_text(evaluation: Evaluation) -> str:
    """The whole page."""
    parts = {"goals": goals_table(evaluation), **all_tables(evaluation)}
    return _PLACE.sub(lambda match: parts.get(match["name"], NOT_MEASURED), template())


def read_evaluation(path: Path) -> Evaluation:
    """A stored measurement. Raises `TrainingDataError` for a file that is missing or of another format."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Evaluation)
    except FileNotFoundError as error:
        raise TrainingDataError(f"{path} does not exist; `aio classifier card --measure` makes it.") from error
    except msgspec.MsgspecError as error:
        raise TrainingDataError(f"{path} is no evaluation ({error}); measure again.") from error
    if found.format != FORMAT:
        raise TrainingDataError(f"{path} has format {found.format}, this program reads {FORMAT}; measure again.")
    return found


def write_evaluation(evaluation: Evaluation, path: Path) -> None:
    """Store a measurement, one line per list item, so that versions of it compare well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_by_item(evaluation) + b"\n")


def _by_item(evaluation: Evaluation) -> bytes:
    """JSON with a line break before each element that is an object."""
    return msgspec.json.encode(evaluation).replace(b"},{", b"},\n{")


def with_refits(measured: Evaluation, earlier: Evaluation) -> Evaluation:
    """`measured` with unseen domains and learning curve of an `earlier` one; the page names whose they are."""
    found = msgspec.structs.replace(measured, unseen=earlier.unseen, learning=earlier.learning)
    return msgspec.structs.replace(found, refitted=earlier.refitted or earlier.version)

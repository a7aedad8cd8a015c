"""One row of the table of claims, and where its figures are from."""

from pathlib import Path

import msgspec

from benchmarks.sources.origins import in_words

NOT_MEASURED = "not measured"
HEAD = ("claim", "sources, and their setting", "here", "setting here, and what it is from", "why they differ")


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A row: what the sources say with their setting, our figure, its setting, and why the two differ."""

    name: str
    source: str
    here: str = NOT_MEASURED
    setting: str = ""
    why: str = ""


def origin(folder: Path, name: str) -> str:
    """Return file, machine, day and commit of the measurement `name` in `folder`."""
    return in_words(folder / name)

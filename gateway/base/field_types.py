"""Types of fields that say what is allowed, for settings, options and bodies."""

from pathlib import Path
from typing import Annotated

from msgspec import Meta

Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
Whole = Annotated[int, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
ExistingFile = Annotated[Path, Meta(extra={"exists": "file"})]
ExistingFolder = Annotated[Path, Meta(extra={"exists": "folder"})]
NewFile = Annotated[Path, Meta(extra={"new": "file"})]
NewFolder = Annotated[Path, Meta(extra={"new": "folder"})]

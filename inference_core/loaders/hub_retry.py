"""Calls of the Hugging Face hub: repeated while a fault may pass, and explained where it does not."""

import errno
import logging
import os
import time
from collections.abc import Callable
from typing import Literal, TypeVar

from inference_core.errors import ModelFileError
from inference_core.loaders.hub_model import HubModel, hub_cache

log = logging.getLogger(__name__)
T = TypeVar("T")

# "any": the folder of a checkpoint if the repository has one, else a GGUF file.
Form = Literal["any", "folder", "gguf"]
ATTEMPTS = 4
USUAL_QUANTS = ("Q4_K_M", "Q4_0", "Q4_K_S", "Q4_1", "Q8_0")


def with_retries(model: HubModel, form: Form, call: Callable[[], T]) -> T:
    """Return what `call` returns; a fault of the network or the server is tried again. Raises `ModelFileError` that
    says what is wrong and what to do."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return call()
        except ModelFileError:
            raise
        except Exception as error:
            if attempt == ATTEMPTS or not _may_pass(error):
                raise ModelFileError(_explained(model, form, error)) from error
            log.warning("asking for %s: %s; trying again", model, _short(error))
            time.sleep(2 ** (attempt - 1) / 2)
    raise AssertionError("the last attempt returns or raises")


def _may_pass(error: Exception) -> bool:
    """Whether the same call may work a moment later: a fault of the network or the server."""
    from huggingface_hub import errors

    if isinstance(error, errors.HfHubHTTPError):
        response = getattr(error, "response", None)
        return response is not None and (response.status_code >= 500 or response.status_code in (408, 429))
    if isinstance(error, (errors.OfflineModeIsEnabled, ValueError)):
        return False
    return getattr(error, "errno", None) not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS)


def _explained(model: HubModel, form: Form, error: Exception) -> str:
    from huggingface_hub import errors

    where = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    if isinstance(error, errors.GatedRepoError):
        return (
            f"model '{model}': access is restricted; accept its terms on {where}/{model.repo} and set HF_TOKEN to a "
            "token of that account"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"model '{model}': {where} has no public repository of this name, and no such path exists here; check the "
            "spelling, or set HF_TOKEN if it is private"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return f"model '{model}': {where}/{model.repo} has no revision '{model.revision}'"
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
        return f"model '{model}': no space left for it in {hub_cache()}; make room, or set HF_HUB_CACHE to another disk"
    what = f" {model.file}" if model.file else ""
    if not what and (model.quant or form == "gguf"):
        what = f' --include "*{model.quant or USUAL_QUANTS[0]}*.gguf"'
    revision = "" if model.revision == "main" else f" --revision {model.revision}"
    return (
        f"model '{model}' cannot be downloaded from {where} ({_short(error)}). Without network: run, where "
        f"there is one, `hf download {model.repo}{what}{revision} --local-dir FOLDER`, copy FOLDER here, and "
        f"give as the model the path of {'the GGUF file in it' if what else 'it'}"
    )


def _short(error: Exception) -> str:
    """Return the first line of the innermost cause: libraries wrap it several times."""
    while error.__cause__ is not None and isinstance(error.__cause__, Exception):
        error = error.__cause__
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__

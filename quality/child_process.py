"""A Python process of one thread that ends with its caller, for work that must not take CPU cores from serving."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)


@asynccontextmanager
async def child_process(
    module: str, *arguments: str, stdout: int = asyncio.subprocess.DEVNULL
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run `python -m module` with `arguments`, its standard error in a pipe; kill it if it still runs at the end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=stdout,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **_ONE_THREAD},
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

"""What a request was made of goes with its end, however it ends: cycles would hold its texts until a rare collection of
garbage, and for ever where the collector looks no further at what lasts."""

from collections.abc import Callable
from typing import Any

import pytest
import pytest_asyncio

from tests.gateway.walk import BOUNDED
from tests.left_by_cycles import left_by_cycles
from tests.support.app import RunningGateway, StartApp
from tiers.errors import TierError, TierRequestError, TierUnavailableError

pytestmark = pytest.mark.asyncio(loop_scope="module")
REQUESTS = 5


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_gateway(tmp_path_factory: pytest.TempPathFactory, module_app: StartApp) -> RunningGateway:
    """One whose connections are those of a served process."""
    data = str(tmp_path_factory.mktemp("data"))
    return await module_app(protocol=BOUNDED, data_dir=data)


async def ask(gateway: RunningGateway, path: str, number: int, headers: dict[str, str], *, stream: bool) -> None:
    said = [{"role": "user", "content": f"Hello {number}"}]
    body: dict[str, Any] = {"model": "tier-1", "messages": said, "max_tokens": 50, "stream": stream}
    async with gateway.http.stream("POST", path, json=body, headers=headers) as answer:
        async for _ in answer.aiter_bytes():
            pass


@pytest.mark.parametrize(
    "failure",
    [None, TierError, TierUnavailableError, TierRequestError, ValueError],
    ids=lambda kind: getattr(kind, "__name__", "none"),
)
@pytest.mark.parametrize("fail_at", [0, 2])
@pytest.mark.parametrize("headers", [{}, {"x-aio-continue": "auto"}], ids=["ends", "goes-on"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_no_end_of_an_answer_leaves_a_cycle(
    gateway: RunningGateway, earlier_objects_frozen: None, failure: Callable[[str], Exception] | None, fail_at: int,
    headers: dict[str, str], stream: bool,
) -> None:  # fmt: skip
    with left_by_cycles("gateway", "tiers", "classifier", "quality", "litestar", "uvicorn", least=REQUESTS) as left:
        for path in ("/v1/chat/completions", "/v1/messages"):
            for number in range(REQUESTS):
                for tier in gateway.tiers:
                    tier.fail_at = None if failure is None else fail_at
                    # One that is kept here would itself be what keeps all.
                    tier.error = TierError("none") if failure is None else failure("scripted")
                await ask(gateway, path, number, headers, stream=stream)
        gateway.reset()
        assert left() == {}

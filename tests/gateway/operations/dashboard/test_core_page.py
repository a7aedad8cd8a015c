"""The core page: its state is shown, and authorised users change knobs, with an audit trail."""

import httpx
import pytest
import pytest_asyncio

from tests.gateway.operations.dashboard.browsing import forms_of, submit, tier_coloured, with_user
from tests.support.app import RunningGateway, StartApp
from tests.support.core import laptop_hash_core

pytestmark = pytest.mark.asyncio(loop_scope="module")
PAGE = "/admin/core"
HELLO = [{"role": "user", "content": "Hello"}]
SCRIPT = "<script>alert(1)</script>"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def aio(module_app: StartApp) -> RunningGateway:
    return await module_app(core=laptop_hash_core, scripted=False)


async def knobs_of(aio: RunningGateway) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = (await aio.http.get("/v1/admin/knobs/core")).json()["models"]
    return found


async def test_what_runs_and_what_steps_were_like_are_shown(aio: RunningGateway, admin: httpx.AsyncClient) -> None:
    await aio.openai.chat.completions.create(model="tier-1", messages=HELLO, max_tokens=4)  # type: ignore[arg-type]
    page = await admin.get(PAGE)
    assert page.status_code == 200
    assert f'<a href="{PAGE}" aria-current="page">' in page.text
    for model in await knobs_of(aio):
        assert model in page.text
    assert tier_coloured(page.text) == []
    for head in ("KV arena", "KV cache in float32", "Batch sizes of", "max_num_seqs", "Who changed what, when"):
        assert head in page.text


async def test_what_runs_stands_before_what_can_be_set(admin: httpx.AsyncClient) -> None:
    page = (await admin.get(PAGE)).text
    state = [page.index(head) for head in ("KV arena", "Batch sizes of", "Durations of steps of")]
    settings = [page.index(f'action="{PAGE}{form}"') for form in ("/profile", "", "/common")]
    assert max(state) < min(settings)


async def test_a_changed_field_and_no_other_is_changed_with_its_reason(
    aio: RunningGateway, admin: httpx.AsyncClient
) -> None:
    page = await admin.get(PAGE)
    model = forms_of(page)[PAGE]["fields"]["model"]
    before = (await knobs_of(aio))[model]
    sent = await submit(admin, page, PAGE, max_num_seqs="17", reason=SCRIPT)
    assert sent.status_code == 303, sent.text
    after = (await knobs_of(aio))[model]
    assert {name for name in after if after[name] != before[name]} == {"max_num_seqs"}
    assert after["max_num_seqs"] == 17
    shown = await admin.get(PAGE)
    assert f"max_num_seqs of {model}" in shown.text
    assert SCRIPT not in shown.text
    assert "&lt;script&gt;" in shown.text
    change = (await aio.http.get("/v1/admin/knobs/changes")).json()["changes"][0]
    assert (change["knob"], change["old_value"], change["new_value"]) == ("max_num_seqs", before["max_num_seqs"], 17)
    await submit(admin, await admin.get(PAGE), PAGE, max_num_seqs="")
    assert (await knobs_of(aio))[model]["max_num_seqs"] == before["max_num_seqs"]


async def test_what_somebody_else_changed_meanwhile_stays(aio: RunningGateway, admin: httpx.AsyncClient) -> None:
    page = await admin.get(PAGE)
    model = forms_of(page)[PAGE]["fields"]["model"]
    await aio.http.patch("/v1/admin/knobs/core", json={"model": model, "prefill_chunk": 99})
    await submit(admin, page, PAGE, max_waiting="77")
    after = (await knobs_of(aio))[model]
    assert (after["prefill_chunk"], after["max_waiting"]) == (99, 77)
    await aio.http.patch("/v1/admin/knobs/core", json={"model": model, "prefill_chunk": None, "max_waiting": None})


@pytest.mark.parametrize(("knob", "value"), [("max_num_seqs", "0"), ("max_num_seqs", "many"), ("batching", "magic")])
async def test_a_value_that_cannot_be_is_refused_with_its_knob(
    aio: RunningGateway, admin: httpx.AsyncClient, knob: str, value: str
) -> None:
    before = await knobs_of(aio)
    refused = await submit(admin, await admin.get(PAGE), PAGE, **{knob: value})
    assert refused.status_code == 400
    assert knob in refused.text
    assert await knobs_of(aio) == before


async def test_what_all_models_have_in_common_has_a_form_of_its_own(
    aio: RunningGateway, admin: httpx.AsyncClient
) -> None:
    sent = await submit(admin, await admin.get(PAGE), f"{PAGE}/common", threads="1")
    assert sent.status_code == 303, sent.text
    assert {knobs["threads"] for knobs in (await knobs_of(aio)).values()} == {1}
    await submit(admin, await admin.get(PAGE), f"{PAGE}/common", threads="")


async def test_a_profile_is_one_button_and_says_what_it_changed(aio: RunningGateway, admin: httpx.AsyncClient) -> None:
    before = await knobs_of(aio)
    page = await admin.get(PAGE)
    sent = await submit(admin, page, f"{PAGE}/profile", profile="tail", reason="a slow evening")
    assert sent.status_code == 303, sent.text
    assert {knobs["max_waiting"] for knobs in (await knobs_of(aio)).values()} == {100}
    shown = await admin.get(PAGE)
    assert "Profile tail: " in shown.text
    assert f"max_waiting of {', '.join(before)}: 1000 → 100" in shown.text
    assert "profile tail: a slow evening" in shown.text
    await submit(admin, shown, f"{PAGE}/profile", profile="catalogue")
    assert await knobs_of(aio) == before
    assert (await submit(admin, page, f"{PAGE}/profile", profile="best")).status_code == 400


async def test_a_viewer_sees_no_form_and_changes_nothing_and_an_operator_may(aio: RunningGateway) -> None:
    async with with_user(aio, "core-viewer", "viewer") as viewer:
        page = await viewer.get(PAGE)
        assert page.status_code == 200
        assert "max_num_seqs" in page.text
        token = forms_of(page)["/admin/logout"]["fields"]["csrf_token"]
        fields = {"csrf_token": token, "max_num_seqs": "3", "model": next(iter(await knobs_of(aio)))}
        assert (await viewer.post(PAGE, data=fields)).status_code == 403
    async with with_user(aio, "core-operator", "operator") as operator:
        page = await operator.get(PAGE)
        assert (await operator.post(PAGE, data={"max_num_seqs": "3"})).status_code == 403
        assert (await submit(operator, page, PAGE, max_waiting="55")).status_code == 303
        assert (await aio.http.get("/v1/admin/knobs/changes")).json()["changes"][0]["actor"] == "user:core-operator"


async def test_the_history_is_there_for_a_spreadsheet(aio: RunningGateway, admin: httpx.AsyncClient) -> None:
    await aio.http.patch("/v1/admin/knobs/core", json={"max_waiting": 66, "reason": "=1+1"})
    text = (await admin.get("/v1/admin/knobs/changes?format=csv")).text
    assert text.splitlines()[0].startswith("created_at,actor,part,model,knob")
    assert "'=1+1" in text
    assert (await admin.get("/v1/admin/knobs/changes?format=xml")).status_code == 400


@pytest.mark.parametrize("query", ["model=missing", "before=x", "before=-1"])
async def test_what_is_not_there_is_said(admin: httpx.AsyncClient, query: str) -> None:
    assert (await admin.get(f"{PAGE}?{query}")).status_code == 400


async def test_a_stopped_core_is_said(aio: RunningGateway, admin: httpx.AsyncClient) -> None:
    cores = aio.operations.core_knobs.cores
    for core in cores.values():
        await core.close()
    page = await admin.get(PAGE)
    assert page.status_code == 200
    assert "does not answer" in page.text

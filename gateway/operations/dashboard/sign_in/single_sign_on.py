"""Signing in at an OpenID provider: to the provider, and back."""

import hmac
from typing import Any

from litestar import get
from litestar.response import Response

from gateway.base.errors import ApiError
from gateway.base.settings import SettingsError
from gateway.base.stores.database import reached
from gateway.edge.asgi import HttpRequest
from gateway.edge.proxies import network_of
from gateway.inference.service import serving_of
from gateway.operations.dashboard.html.rendering import back_to, page
from gateway.operations.dashboard.sign_in.login import begin_session, limited, login_form, safe_path, set_cookie
from gateway.operations.dashboard.sign_in.login_limit import limits_of, note_failure
from gateway.operations.running import operations_of
from gateway.tenancy.changes import Order, TenancyError
from gateway.tenancy.guard import access_of, client_of, cookie_name, site_of
from gateway.tenancy.users.identity_provider import (
    ATTEMPT_SECONDS,
    IdentityProvider,
    ProviderAnswerError,
    ProviderUnavailableError,
    SignInError,
)
from gateway.tenancy.users.sessions import Holder
from gateway.tenancy.users.users import admit_provider_user

PATH = "/admin/oidc"
COOKIE = "aio_oidc"
# RFC 6749, section 4.1.2.1, and OpenID Connect Core 1.0, section 3.1.2.6.
REFUSALS = (
    "invalid_request",
    "unauthorized_client",
    "access_denied",
    "unsupported_response_type",
    "invalid_scope",
    "server_error",
    "temporarily_unavailable",
    "interaction_required",
    "login_required",
    "account_selection_required",
    "consent_required",
)


@get("/oidc/login")
async def leave_for_provider(request: HttpRequest) -> Response[Any]:
    """Send the browser to the provider. What comes back must match a cookie of this browser."""
    provider = _provider(request)
    counted = await limits_of(request).begin(("provider", network_of(client_of(request).address)))
    if counted.wait_seconds:
        return await limited(request, counted, "", "oidc")
    attempt = provider.new_attempt(safe_path(request.query_params.get("next", "")))
    try:
        address = await provider.address(attempt, _redirect_url(request))
    except (SignInError, SettingsError) as error:
        return await _refused(request, str(error), _status_of(error))
    kept = provider.seal.sealed(attempt, _now(request))
    # Lax: the provider's redirect back is a navigation from another site.
    name = cookie_name(request, COOKIE)
    return set_cookie(request, back_to(address), name, kept, max_age=ATTEMPT_SECONDS, samesite="lax")


@get("/oidc/callback")
async def return_from_provider(request: HttpRequest) -> Response[Any]:
    """Start a session for the user that the provider named, with the role of its groups."""
    provider = _provider(request)
    counted = await limits_of(request).begin(("callback", network_of(client_of(request).address)))
    if counted.wait_seconds:
        return await limited(request, counted, "", "oidc")
    attempt = provider.seal.opened(request.cookies.get(cookie_name(request, COOKIE), ""), _now(request))
    query = request.query_params
    if "code" not in query:
        # Its code alone, of those that there are: anyone can write a link with a text of their own.
        reason = query.get("error", "")
        return await _refused(request, f"The provider refused: {reason if reason in REFUSALS else 'it gave no code'}.")
    if attempt is None or not hmac.compare_digest(attempt.state.encode(), query.get("state", "").encode()):
        return await _refused(request, "The sign-in was not started in this browser, or took too long. Try again.")
    try:
        user = await provider.user(query["code"], attempt, _redirect_url(request))
        order = Order(actor=f"user:{user.name}", now=_now(request))
        await reached(admit_provider_user(serving_of(request).database, user, order))
    except (SignInError, SettingsError, TenancyError) as error:
        return await _refused(request, str(error), _status_of(error))
    limits_of(request).take_back(counted)
    # The session's cookie is not sent along with a redirect that another site began, but with a page's own navigation.
    response = page(request, "signed_in.html", "Signed in", wanted=attempt.page)
    return await begin_session(request, Holder(user_name=user.name), "oidc", response)


def _provider(request: HttpRequest) -> IdentityProvider:
    provider = operations_of(request).identity_provider
    if provider is None:
        raise ApiError(404, "No OpenID provider is configured here (AIO_OIDC_ISSUER).")
    return provider


def _now(request: HttpRequest) -> float:
    return access_of(request).tenancy.clock.now()


def _redirect_url(request: HttpRequest) -> str:
    return serving_of(request).settings.oidc_redirect_url or f"{site_of(request)}{PATH}/callback"


def _status_of(error: Exception) -> int:
    """Return 503 where the provider is away, 502 where its answers are no answers, 401 where it or we refuse."""
    if isinstance(error, ProviderUnavailableError):
        return 503
    return 502 if isinstance(error, ProviderAnswerError) else 401


async def _refused(request: HttpRequest, problem: str, status: int = 401) -> Response[Any]:
    await note_failure(request, "session.refused", "", "oidc", problem)
    form = login_form(request, status, problem)
    if status == 503:
        form.headers["retry-after"] = "5"
    return set_cookie(request, form, cookie_name(request, COOKIE), "", max_age=0)

"""Cookies of devices on which an account has signed in by password before.

Failures of an account are limited, so that its password cannot be guessed; without exceptions anyone could lock its
owner out. A known device has a limit of its own instead (OWASP, "Slow Down Online Guessing Attacks with Device
Cookies"). The stored hash of the password signs the cookie: it is secret, the same for all processes of a deployment,
and another password makes its devices unknown.
"""

import hashlib
import hmac
import re
import secrets

from gateway.tenancy.users.users import PROVIDER_PREFIX

DEVICE_SECONDS = 90 * 86_400
_COOKIE = re.compile(r"([0-9a-f]{32})\.([0-9]{1,12})\.([0-9a-f]{64})\Z")


def device_cookie_name(account: str) -> str:
    """Return the name of the cookie, one for each account of a browser."""
    return f"aio_device_{hashlib.sha256(account.encode()).hexdigest()[:16]}"


def new_device_cookie(account: str, kept: str, now: float) -> str:
    """Return the value of a cookie for a new device of the account. `kept`: the stored hash; `now`: epoch seconds."""
    device, expires = secrets.token_hex(16), str(int(now) + DEVICE_SECONDS)
    return f"{device}.{expires}.{_signature(account, kept, device, expires)}"


def known_device(cookie: str, account: str, kept: str | None, now: float) -> str | None:
    """Return the id of the device if the cookie is right for this account and not expired."""
    found = _COOKIE.match(cookie)
    # What stands for the password of a provider's user is no secret.
    if found is None or kept is None or kept.startswith(PROVIDER_PREFIX) or int(found[2]) <= now:
        return None
    return found[1] if hmac.compare_digest(_signature(account, kept, found[1], found[2]), found[3]) else None


def _signature(account: str, kept: str, device: str, expires: str) -> str:
    message = "\0".join(("aio known device", account, device, expires))
    return hmac.new(kept.encode(), message.encode(), hashlib.sha256).hexdigest()

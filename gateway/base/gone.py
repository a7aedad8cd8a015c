"""What earlier commits had and this one has not, and what to do instead: variables, knobs in files, files.

The start and `aio check` name what an environment and a data folder still have of it. Options of commands are refused
where they were (`gateway.cli.options.gone_option`), and so are paths (`gateway.admin.gone_paths`).
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from gateway.base.settings import Settings

_MAIL = "e-mail is an address in AIO_ALERT_URLS: mailtos://USER:PASSWORD@HOST:587?from=ADDRESS&to=ADDRESS"
_PAGER = "write pagerduty://INTEGRATION_KEY@API_KEY, or for another receiver jsons://HOST/PATH, into AIO_ALERT_URLS"
_TRACKER = "AIO_LOG_FORMAT=json logs each error with an event id and its stack, for a forwarder of logs to send on"
_PRICES = "write the prices of your contract into the catalogue, as `price` of a tier, and reload it"
_SIMILAR = "only equal requests share answers"

GONE_VARIABLES = {
    "AIO_ALERT_SLACK_WEBHOOK": "write the webhook's address into AIO_ALERT_URLS, as it is",
    "AIO_ALERT_TEAMS_WEBHOOK": "write the workflow's address into AIO_ALERT_URLS, as it is",
    "AIO_ALERT_WEBHOOK": _PAGER,
    "AIO_ALERT_WEBHOOK_FILE": _PAGER,
    "AIO_ALERT_ROUTING_KEY": _PAGER,
    "AIO_ALERT_ROUTING_KEY_FILE": _PAGER,
    "AIO_ALERT_SMTP": _MAIL,
    "AIO_ALERT_SMTP_USER": _MAIL,
    "AIO_ALERT_SMTP_PASSWORD": _MAIL,
    "AIO_ALERT_SMTP_PASSWORD_FILE": f"{_MAIL}; AIO_ALERT_URLS_FILE names a file of addresses",
    "AIO_ALERT_EMAIL_TO": _MAIL,
    "AIO_ALERT_EMAIL_FROM": _MAIL,
    "AIO_ERROR_REPORT_DSN": _TRACKER,
    "AIO_ERROR_REPORT_DSN_FILE": _TRACKER,
    "AIO_PRICE_LIST_URL": _PRICES,
    "AIO_PRICE_LIST_KEY": _PRICES,
}
"""Variables that were settings."""

GONE_KNOBS = {"semantic": _SIMILAR, "semantic_threshold": _SIMILAR}
"""Knobs of the response cache."""

_PRICE_LIST = "price_list.json"


def gone_lines(environment: Mapping[str, str], settings: Settings) -> Iterator[str]:
    """Yield a line for each variable, stored knob and file that was read before and is ignored now."""
    for variable, instead in GONE_VARIABLES.items():
        if environment.get(variable, "").strip():
            yield f"{variable} is no longer a setting and changes nothing: {instead}"
    stored: dict[str, Any] = {}
    with suppress(OSError, msgspec.MsgspecError):  # the cache says why it cannot read its knobs
        stored = msgspec.json.decode(settings.cache_knobs_path.read_bytes(), type=dict[str, Any])
    for name in sorted(stored.keys() & GONE_KNOBS):
        yield (
            f"the knob {name} in {settings.cache_knobs_path} is gone and changes nothing: {GONE_KNOBS[name]}. The next "
            "change of a cache knob removes it from the file"
        )
    if (price_list := settings.data_path / _PRICE_LIST).exists():
        yield f"{price_list} is no longer read and can be deleted: {_PRICES}"

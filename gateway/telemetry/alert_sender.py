"""The process that sends one alert, by Apprise and its plugins: an order comes on standard input, and why it was not
carried out goes to standard output, null if it was.

No plugin is trusted with the network. Whatever library it uses, no redirect is followed, no connection reaches a
cloud's metadata server, and no password goes to a mail server unencrypted. The gateway ends the process at a deadline.
"""

import ipaddress
import json
import logging
import os
import resource
import smtplib
import ssl
import sys
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import requests

from tiers.server_words import is_loopback_url_host, is_metadata_address, is_metadata_host

MAX_MEMORY_BYTES = 1 << 30
"""Address space of the process, which a larger answer does not fit into."""
REQUEST_SECONDS = 10.0
METADATA = "a cloud's metadata server"


def main() -> None:
    logging.disable()
    order = json.load(sys.stdin)
    problems: list[str] = []
    _guard_network(problems)
    try:
        is_done = _notify(order, problems)
    except Exception as error:
        is_done = False
        problems.append(type(error).__name__)
    json.dump(None if is_done else (problems or ["it was not accepted"])[0], sys.stdout)


def _notify(order: dict[str, str], problems: list[str]) -> bool:
    """Send a message by Apprise; an order without one asks whether the address is right."""
    import apprise

    # No message has a picture from elsewhere.
    asset = apprise.AppriseAsset(app_id="AIO", app_desc="AIO", app_url="", image_url_mask="", image_url_logo="")
    service: Any = apprise.Apprise.instantiate(order["url"], asset=asset)
    if service is None or not service.verify_certificate:
        problems.append("Apprise knows no such address" if service is None else "verify=no: certificates are checked")
        return False
    if "body" not in order:
        return True
    if service.schema == "pagerduty":
        # The end of a cause closes the incident that its beginning opened.
        service.action, service.dedup = "map", order["incident"]
    service.socket_connect_timeout = service.socket_read_timeout = REQUEST_SECONDS
    text = {"title": order["title"], "body": order["body"], "body_format": apprise.NotifyFormat.TEXT}
    return bool(service.notify(notify_type=order["kind"], **text))


def _trust_as_elsewhere() -> None:
    """Judge certificates by the authorities that the rest of AIO takes: those of the environment or of this machine."""
    variables = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
    of_machine = ssl.get_default_verify_paths()
    named = [os.environ.get(name, "").strip() for name in variables]
    if trusted := next(filter(None, (*named, of_machine.cafile, of_machine.capath)), None):
        os.environ["REQUESTS_CA_BUNDLE"] = trusted
        os.environ["SSL_CERT_DIR" if os.path.isdir(trusted) else "SSL_CERT_FILE"] = trusted


def _guard_network(problems: list[str]) -> None:
    """Bind every library of this process; why a request failed is added to `problems`."""
    sys.addaudithook(_refuse_metadata)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    _trust_as_elsewhere()
    send, login, sendmail = requests.Session.send, smtplib.SMTP.login, smtplib.SMTP.sendmail

    def send_once(session: requests.Session, request: Any, **options: Any) -> requests.Response:
        host = urlsplit(request.url).hostname or ""
        if is_metadata_host(host):
            raise requests.ConnectionError(METADATA)
        if is_loopback_url_host(host):
            # A proxy's own machine is another one.
            options["proxies"] = {}
        try:
            answer = send(session, request, **options | {"allow_redirects": False})
        except requests.RequestException as error:
            problems.append(type(error).__name__)
            raise
        if answer.status_code >= 300:
            problems.append(f"HTTP {answer.status_code}")
        if answer.is_redirect:
            raise requests.TooManyRedirects
        return answer

    def require_encryption(server: Any, what: str) -> None:
        if not isinstance(server.sock, ssl.SSLSocket):
            problems.append(f"{what} is not sent unencrypted: write mailtos://")
            raise smtplib.SMTPNotSupportedError

    def login_encrypted(server: Any, *credentials: Any, **options: Any) -> Any:
        require_encryption(server, "a password")
        return login(server, *credentials, **options)

    def sendmail_encrypted(server: Any, *mail: Any, **options: Any) -> Any:
        if not is_loopback_url_host(str(server.sock.getpeername()[0])):
            require_encryption(server, "a message to another machine")
        return sendmail(server, *mail, **options)

    changed: tuple[tuple[Any, str, Any], ...] = (
        (requests.Session, "send", send_once),
        (smtplib.SMTP, "login", login_encrypted),
        (smtplib.SMTP, "sendmail", sendmail_encrypted),
    )
    for owner, name, guarded in changed:
        setattr(owner, name, guarded)


def _refuse_metadata(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse to connect or send to a cloud's metadata server, and to a name, which cannot be judged."""
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg") and isinstance(arguments[1], tuple):
        host = str(arguments[1][0])
        try:
            ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            raise ConnectionRefusedError("a name instead of an address") from None
        if is_metadata_address(host):
            raise ConnectionRefusedError(METADATA)


if __name__ == "__main__":
    main()

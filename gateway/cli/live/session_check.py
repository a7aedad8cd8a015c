"""What a client's hook runs at the end of an agent's turn: the user's own check, whose result goes to the gateway.

`aio launch --check` sets it: `python -m gateway.cli.live.session_check`, with the check and the gateway in
the environment. The event names the session: Claude Code writes it as JSON to standard input (`session_id`;
https://code.claude.com/docs/en/hooks), Codex gives it as the last argument (`thread-id`; its setting `notify`). Nothing
is printed and the status is 0 whatever happens, since a hook's output and status would steer the agent.
"""

import os
import shlex
import subprocess
import sys
import time
from typing import Any

import msgspec

CHECK_VARIABLE, URL_VARIABLE, KEY_VARIABLE = "AIO_CHECK", "AIO_URL", "AIO_API_KEY"
COMMAND = f"{shlex.quote(sys.executable)} -m gateway.cli.live.session_check"
MOST_SECONDS = 600
"""Of the check; one that takes longer says nothing."""
# A step is stored a moment after it was answered.
ATTEMPTS, PAUSE_SECONDS, SECONDS = 10, 0.5, 10.0


def session_of(event: str) -> str | None:
    """Return the session that a client's event names; None where it names none or is no end of a turn."""
    try:
        said = msgspec.json.decode(event, type=dict[str, Any])
    except msgspec.MsgspecError:
        return None
    if said.get("type", "agent-turn-complete") != "agent-turn-complete":
        return None
    session = said.get("session_id") or said.get("thread-id")
    return session if isinstance(session, str) and session else None


def run(check: str, environment: dict[str, str]) -> bool | None:
    """Return whether the shell command `check` ended with status 0; None where it took too long."""
    try:
        ended = subprocess.run(  # noqa: S602 - the user's own command line, as they wrote it
            check, shell=True, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, timeout=MOST_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None
    return ended.returncode == 0


def post(url: str, key: str | None, session: str, passed: bool) -> None:
    """Tell the gateway at `url` how the check of the last answer of `session` ended."""
    import httpx

    from tiers.remote.http_transport import ask

    body = {"session": session, "check": "passed" if passed else "failed"}
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    for _ in range(ATTEMPTS):
        try:
            answer = ask("POST", f"{url}/v1/feedback", timeout=SECONDS, json=body, headers=headers)
        except (httpx.HTTPError, httpx.InvalidURL):
            return
        if answer.status_code != 404:
            return
        time.sleep(PAUSE_SECONDS)


def main() -> None:
    """Read the event, run the check, and post its result."""
    check, url = os.environ.get(CHECK_VARIABLE), os.environ.get(URL_VARIABLE)
    session = session_of(sys.argv[-1] if len(sys.argv) > 1 else sys.stdin.read())
    if not check or not url or session is None:
        return
    # The check runs the user's code, which needs no key of the gateway.
    environment = {name: value for name, value in os.environ.items() if name != KEY_VARIABLE}
    passed = run(check, environment)
    if passed is not None:
        post(url, os.environ.get(KEY_VARIABLE), session, passed)


if __name__ == "__main__":
    main()

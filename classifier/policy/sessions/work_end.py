"""How a piece of an agent's work ended, from its signs: the user's words outweigh checks, and checks exit codes."""

from typing import Literal

import msgspec

from classifier.policy.sessions.session_view import End

EndSign = Literal["interrupted", "rejected", "unclean", "check", "exit_code", "cut", "accepted", "none"]


class EndSigns(msgspec.Struct, frozen=True, kw_only=True):
    """Signs of an end; None: unknown. `clean`: the run stopped by itself, without a crash, a limit or a call that no
    tool could read. `check_passed`, `exit_passed`: the last test; the last exit code. `cut`: the last answer stopped at
    its token limit. `user`: what the user says of it."""

    clean: bool | None = None
    check_passed: bool | None = None
    exit_passed: bool | None = None
    cut: bool = False
    user: Literal["interrupts", "rejects", "accepts"] | None = None


class WorkEnd(msgspec.Struct, frozen=True):
    """How it ended, and by which sign."""

    end: End
    sign: EndSign


def work_end(signs: EndSigns) -> WorkEnd:
    """Return how the work with `signs` ended; "none" where nothing says so.

    A good end needs a sign of its own: that nothing failed is none. An exit code of 0 is no good end either, since most
    commands are no checks.
    """
    if signs.user == "interrupts":
        return WorkEnd("bad", "interrupted")
    if signs.user == "rejects":
        return WorkEnd("bad", "rejected")
    if signs.clean is False:
        return WorkEnd("bad", "unclean")
    if signs.check_passed is False:
        return WorkEnd("bad", "check")
    if signs.exit_passed is False and signs.check_passed is None:
        return WorkEnd("bad", "exit_code")
    if signs.cut:
        return WorkEnd("bad", "cut")
    if signs.user == "accepts":
        return WorkEnd("good", "accepted")
    if signs.check_passed:
        return WorkEnd("good", "check")
    return WorkEnd("none", "none")

"""What agents' clients put around the words of their users: reminders, environments, selections, maps of a repository.

It is taken out of the classifier's input alone; the tier gets every word. Clients put such text at the beginning or at
the end of a turn: of one that begins and ends otherwise nothing need be searched.
"""

import re

# Elements whose content is the client's. Names that users write too, such as `file` or `context`, are not here.
_CLIENTS_OWN = (
    # Claude Code
    "system-reminder", "ide_selection", "ide_opened_file", "ide_diagnostics", "local-command-caveat",
    "local-command-stdout", "local-command-stderr", "command-name", "command-message", "bash-stdout", "bash-stderr",
    # Codex
    "environment_context", "user_instructions", "permissions instructions", "collaboration_mode", "turn_aborted",
    "skills_instructions", "apps_instructions", "plugins_instructions", "subagent_notification",
    # Cline, Roo Code
    "environment_details", "file_content", "folder_content", "workspace_diagnostics", "git_working_state",
    "explicit_instructions",
    # Cursor, Copilot
    "open_and_recently_viewed_files", "user_info", "project_layout", "environment_info", "workspace_info",
    "attached_files", "editorContext", "reminderInstructions",
)  # fmt: skip
# Elements whose content is the user's, without the tags. Unwrapped only next to elements of the client.
_USERS_OWN = ("command-args", "user_query", "user_message", "userRequest", "bash-input", "task", "feedback")
# A turn that begins so has nothing of the user: Codex's project rules, aider's maps and files.
_WHOLE_TURNS = (
    "# AGENTS.md instructions for ",
    "Here are summaries of some files present in my git repository",
    "Here are summaries of files in my git repository",
    "I have *added these files to the chat*",
    "Here are some READ ONLY files, provided for your reference",
    "Just tell me how to edit the files to make the changes",
)
# Aider writes its rules after the user's words in the same turn, and its examples as turns before this one.
CLIENTS_RULES = ("\n\n# *SEARCH/REPLACE block* Rules:", "\n\nTo suggest changes to a file you MUST return")
END_OF_EXAMPLES = "I switched to a new code base. Please don't consider the above files"
# A turn that has any text of a client begins so, or ends with ">".
CLIENTS_OPENINGS = ("<", *_WHOLE_TURNS)
_OPENING = re.compile(rf"<({'|'.join(map(re.escape, _CLIENTS_OWN))})(?:\s[^<>]{{0,256}})?>")
_TAGS = re.compile(rf"</?(?:{'|'.join(_USERS_OWN)})>")
# Claude Code's first system block; its numbers change with every request.
BILLING_HEADER = "x-anthropic-billing-header:"
# Of a longer turn only the ends are searched; the classifier reads fewer words.
WINDOW = 65_536


def users_text(turn: str) -> str:
    """Return what of a user's `turn` its client did not put there, "" if that is nothing; the same string where it has
    no text of a client. Deterministic; the work is bounded by the turn's length."""
    if turn.startswith(_WHOLE_TURNS):
        return ""
    if len(turn) > 2 * WINDOW:
        head, tail = _without_elements(turn[:WINDOW]), _without_elements(turn[-WINDOW:])
        found = f"{head}{turn[WINDOW:-WINDOW]}{tail}"
    else:
        found = _without_elements(turn)
    for rules in CLIENTS_RULES:
        found = found.partition(rules)[0]
    return turn if found == turn else _TAGS.sub("", found).strip()


def without_billing(system: str) -> str:
    """Return a system message without the billing header that Claude Code begins it with: a line that is another one in
    every request, so that no digest of it would be found again."""
    return system.partition("\n")[2].lstrip("\n") if system.startswith(BILLING_HEADER) else system


def _without_elements(text: str) -> str:
    """Return `text` without the client's elements; one without an end is left."""
    kept: list[str] = []
    unended: set[str] = set()
    at = 0
    while (opening := _OPENING.search(text, at)) is not None:
        name = opening[1]
        end = -1 if name in unended else text.find(f"</{name}>", opening.end())
        if end < 0:
            unended.add(name)
            kept.append(text[at : opening.end()])
            at = opening.end()
            continue
        kept.append(text[at : opening.start()])
        at = end + len(name) + 3
    return "".join((*kept, text[at:]))

"""Limits of one grammar. Sizes are checked before compilation; time and memory are enforced on its process."""

import msgspec

# Length of the text. JSON schemas and Lark rules for tools of real applications have up to some 100,000.
MAX_CHARACTERS = 1 << 19
# Nested objects and arrays in a schema (the library's JSON parser stops at 128), nested groups in a grammar.
MAX_DEPTH = 100
# Rules of a Lark or GBNF grammar, definitions of a schema.
MAX_RULES = 5_000
# The sum of values of `enum`, members of `anyOf`, `oneOf` and `allOf`, texts of a choice, and `|` in a grammar.
MAX_ALTERNATIVES = 10_000

# Grammars of one tenant that may wait to be compiled.
MAX_WAITING_PER_TENANT = 128
# Processes, one per grammar, usually of 2 MB; processes in use for one tenant; memory of all.
MAX_WORKERS = 128
MAX_WORKERS_PER_TENANT = 96
MAX_MEMORY_BYTES = 1 << 30


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a grammar's process. `compile_seconds`, `burst_seconds` and `seconds_per_mask` are CPU time.

    `compile_seconds`: for compiling. `locate_seconds`: for finding the place in a schema that cannot be compiled.
    `check_seconds`: for validating an answer.
    `burst_seconds`: what all masks may take beyond `seconds_per_mask` each, on average. `answer_seconds`: how long a
    step waits for masks, and ten times `compile_seconds` is how long compiling is waited for, however busy the machine.
    `memory_bytes`: growth of the address space. `stack_bytes`: size of the stack.
    """

    compile_seconds: float = 2.0
    locate_seconds: float = 0.5
    check_seconds: float = 0.5
    burst_seconds: float = 0.25
    seconds_per_mask: float = 0.01
    answer_seconds: float = 10.0
    memory_bytes: int = 128 << 20
    stack_bytes: int = 8 << 20


LIMITS = Limits()

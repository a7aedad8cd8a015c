"""Commands of `aio` in this process, for tests of what they print and of how they exit."""

from click.testing import CliRunner, Result

from gateway.cli import main


def aio(*arguments: object, typed: str = "", **environment: str) -> Result:
    """`typed`: what is entered; `environment`: variables besides this process's."""
    return CliRunner().invoke(main, [str(one) for one in arguments], input=typed, env=environment)

"""The lists of keys, teams and budgets, and their filters; hashes are not shown."""

from gateway.tenancy.keys.key_commands import UNSHOWN
from migrations.tables.tenancy import api_keys, budgets, teams
from quality.store.pages import Listing

KEYS = Listing(api_keys, "key_id", ("team_id",), hidden=UNSHOWN)
TEAMS = Listing(teams, "team_id", ())
BUDGETS = Listing(budgets, "budget_id", ("subject",))

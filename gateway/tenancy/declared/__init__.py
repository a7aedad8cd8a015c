"""Teams, keys and budgets that a file declares, and how the stored ones become so."""

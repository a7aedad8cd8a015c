"""How pages are made: layout, charts, tables, forms."""

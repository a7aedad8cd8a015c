"""The database: connections, migrations, queries and pages of lists."""

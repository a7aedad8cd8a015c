"""The database: connections, queries, pages of lists."""

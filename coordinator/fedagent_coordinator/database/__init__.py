"""The coordinator's SQLite database: a module for each noun, with its rows, queries and writes."""

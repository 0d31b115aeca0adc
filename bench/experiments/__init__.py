"""The papers' experiments: recipes, one driver, and one table of what they gave here."""

"""Commands for names and readers of versions: `tags`, `branches`, `clone` and `consumers`."""

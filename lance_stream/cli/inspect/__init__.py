"""Commands that inspect a table: `show`, `log`, `report` and `verify`.

Read `show` first: it prints the values of `description` and the advice of `maintenance_advice`.
"""

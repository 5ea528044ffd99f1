"""Commands that inspect a table: `show`, `log`, `report` and `verify`.

Read `show` first: `description` is what it prints, `maintenance_advice` what it recommends.
"""

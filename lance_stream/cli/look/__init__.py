"""Commands that show a table: `show`, `log`, `report` and `verify`.

`description` is what `show` prints; `maintenance_advice` is what it recommends.
"""

"""Storage options: what a user says of how a store is reached.

`names` has every name that a setting goes by, for all stores; `layers` puts together what several
sources say; `hadoop` makes options of a Spark cluster's own settings.
"""

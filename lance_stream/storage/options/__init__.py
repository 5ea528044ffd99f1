"""Storage options: a user's settings for a store.

`names` has all names of each setting, for all stores.
"""

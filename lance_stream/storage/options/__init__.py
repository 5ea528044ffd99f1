"""Storage options: a user's settings for reaching a store.

`names` has all names of each setting, for all stores.
"""

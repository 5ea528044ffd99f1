"""Google Cloud Storage, by its JSON interface.

`options` is imported at once, and makes settings of what a user wrote; `requests` when somebody
connects, with `credentials`, for they need the extra `gcs`.
"""

"""Azure Blob Storage and Data Lake Gen2, by the REST interface for blobs.

`options` is imported at once, and makes settings of what a user wrote; `requests` when somebody
connects, with `authorization` and `answers`, for they need the extra `azure`.
"""

"""S3, and services that speak its protocol, by the client that s3fs makes.

`options` is imported at once, and makes settings of what a user wrote; `requests` when somebody
connects, for it needs the extra `s3`.
"""

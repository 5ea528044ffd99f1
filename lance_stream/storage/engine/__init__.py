"""S3, Google Cloud Storage and Azure Blob Storage, by obstore: the client that Lance itself uses.

`s3`, `google` and `azure` derive settings from storage options, and contain what is specific to
their service. `requests` implements `object_requests`, one HTTP request per call; `answers`
interprets the answers. `credentials` renews credentials.

The first request imports obstore and the libraries that renew credentials.
"""

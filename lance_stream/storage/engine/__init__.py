"""S3, Google Cloud Storage and Azure Blob Storage, by obstore: the client that Lance itself uses.

`s3`, `google` and `azure` make settings of storage options, and say what is particular about their
service. `requests` sends what `object_requests` asks for, one HTTP request a call; `answers` says
what came of it. `credentials` renews what proves who asks.

obstore is imported by the first request, and so are the libraries that renew credentials.
"""

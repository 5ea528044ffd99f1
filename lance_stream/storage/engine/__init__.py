"""S3, Google Cloud Storage and Azure Blob Storage through obstore, the client that Lance uses.

Read `requests` first, which implements `object_requests`: one HTTP request per call. `responses`
interprets the responses. `s3`, `google` and `azure_options` derive settings from storage options;
`s3`, `google` and `azure` contain what is specific to their service, `service` the common part,
and `connection` the HTTP connections. `credentials` renews credentials; `aws`, `google_login` and
`azure_login` fetch them.
"""

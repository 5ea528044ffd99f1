"""S3, Google Cloud Storage and Azure Blob Storage, by obstore: the client that Lance itself uses.

Read `requests` first, which implements `object_requests`: one HTTP request per call. `answers`
interprets the answers. `s3`, `google` and `azure_options` derive settings from storage options;
`s3`, `google` and `azure` contain what is specific to their service, `service` what all have in
common, and `connection` how they are connected to. `credentials` renews credentials; `aws`,
`google_login` and `azure_login` fetch them.
"""

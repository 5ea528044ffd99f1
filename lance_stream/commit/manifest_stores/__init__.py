"""External manifest stores: key-value stores that publish a table's versions.

Read `protocol` first. `dynamodb`, `postgresql` and `sqlite` implement it, the latter two with the
statements of `sql`; `choice` parses a user's settings. `commit.external_log` describes the steps of
a commit.

Client libraries are imported on first use: botocore, from the extra "s3", and psycopg, from
"postgresql".
"""

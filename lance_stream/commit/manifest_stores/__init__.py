"""External manifest stores: key-value stores that publish a table's versions.

Read `protocol` first. `dynamodb`, `postgresql` and `sqlite` implement it, the latter two with the
statements of `sql`; `choice` parses a user's settings. The order of a commit's steps is described
in `commit.external_log`.

Their libraries are imported on first use: botocore comes with the extra "s3", psycopg with
"postgresql".
"""

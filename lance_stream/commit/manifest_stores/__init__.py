"""External manifest stores: key-value stores in which the next version is published.

Read `protocol` first. `dynamodb`, `postgresql` and `sqlite` keep to it, the latter two by the
statements of `sql`; `choice` makes one of what a user writes. The order of a commit's steps stands
in `commit.external_log`.

Their libraries are imported when they are used: botocore comes with the extra "s3", psycopg with
"postgresql".
"""

"""An open version of a table, the starting point of every operation.

Read `table_version` first, then `opening`, which opens the newest version, and `resolving`, which
opens a version by number, tag, branch or time. `cached_log` caches the manifests of many versions.
The other modules are about the `files` of a table, its tags and branches (`references`,
`tag_files`), its history and times (`history`, `timestamps`, `store_clock`), and rows that are not
in any version yet (`write_ahead_logs`). `html` renders a table in notebooks.
"""

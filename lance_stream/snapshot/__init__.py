"""One version of a table as it was opened: what every verb starts from.

Read `table_version` first, then `opening`. Around them: the files of a table (`open_files`,
`missing_files`), its tags and branches (`references`, `tag_files`), its past (`history`,
`timestamps`), and rows that are in no version yet (`write_ahead_logs`).
"""

"""Cleanup: removes old versions, and the files that no remaining version references.

Read `cleanup` first: the order of its steps, and why a cleanup can be killed at any point. It
selects versions by the user's `rules` (`selection`), except those that tags, branches, consumers
(`protections`) or unfinished commits (`commits_in_progress`) need. `manifests` reads the versions
that remain, `unreferenced_files` determines which files none of them references, `removal` deletes
manifests, and `file_work` lists and deletes files, here or in tasks. The result is a `report`.
"""

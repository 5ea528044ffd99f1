"""HDFS, by its web interface.

`options` is imported at once, and makes settings of what a user wrote; `requests` when somebody
connects, for it needs the extra `hdfs`.
"""

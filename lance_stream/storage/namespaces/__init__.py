"""Lance namespaces: catalogs that know where tables are, and vend credentials for them.

Read `locating` first, which every function that takes `table_id` calls; `client` sends requests to
a namespace, and `vended_credentials` renews credentials.
"""

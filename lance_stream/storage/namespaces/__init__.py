"""Lance namespaces: catalogs that map names of tables to locations, and vend credentials.

Read `locating` first, which every function that takes `table_id` calls; `client` sends requests to
a namespace, and `vended_credentials` renews credentials.
"""

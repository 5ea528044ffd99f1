"""Where bytes lie: files below one root, on a local disk, in memory, or in an object service.

Read `store` first: it says what a store promises. `locations` turns a URI into a store.
`local_store` and `memory_store` keep the promises near by; `object_store` does for every object
service, by the requests of `object_requests` that `engine` sends, sent again by `retries`, over the
connections of `clients`. `create_once` says how each store keeps the promise
that commits stand on; `coalesce` makes fewer requests of many ranges.

    engine      S3, Google and Azure by obstore: requests, what answers mean, settings, credentials
    options     the names that settings go by

May import: byte_ranges, errors. It knows nothing of tables: what a path means is said elsewhere.
"""

"""Where bytes are stored: files below one root, on a local disk, in memory or in object services.

Read `store` first: it defines the contract of a store. `locations` turns a URI into a store, using
the table in `protocols`. `local_store` and `memory_store` implement the contract on this machine,
`objects` for all object services, `fsspec_store` for reading only. `create_once` describes how each
store implements the operation that commits depend on; `coalesce` combines many ranges into few
requests.

    objects     files of object services: requests, concurrency, retries, connections
    engine      S3, Google and Azure through obstore: requests, responses, settings, credentials
    options     the names of settings

`preflight` checks a location before the first request, `trust` lists the locations to which tables
may refer, `lance_options` translates settings for pylance, and `extras` reports a missing library.

This package knows nothing about tables or the meaning of paths.
"""

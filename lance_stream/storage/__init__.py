"""Where bytes are stored: files below one root, on a local disk, in memory or in object services.

Read `store` first: it defines what a store promises. `locations` turns a URI into a store,
by the table in `protocols`.
`local_store` and `memory_store` implement the promises on this machine, `objects` for all object
services, `fsspec_store` for reading only. `create_once` describes how each store keeps the promise
that commits depend on; `coalesce` combines many ranges into few requests.

    objects     files of object services: requests, concurrency, retries, connections
    engine      S3, Google and Azure by obstore: requests, answers, settings, credentials
    options     the names of settings

`preflight` tries a store out for `doctor`, `trust` lists the locations to which tables may refer,
`lance_options` translates settings for pylance, and `extras` explains a missing library.

It knows nothing about tables or the meaning of paths.
"""

"""Files of object services, independent of the library that sends the requests.

Read `object_requests` first. It is the contract: one request per call, without retries.
`object_store` decides which requests are sent, and how many concurrently; `object_writer` uploads a
file while it is written; `retries` repeats requests; `clients` keeps one connection per process and
bucket.
"""

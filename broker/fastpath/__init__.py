"""The fast path: Produce and Fetch requests of the usual form, served without decoding them into structs.

- `produce`: one batch for one partition, without a transaction, to be acknowledged (versions 9-13).
- `fetch`: a consumer's, for one partition that has records (versions 12-18).
- `follower_fetch`: a follower's, for one partition of its session, which may wait for records (versions 15-18).
- `replica_fetch`: the follower's side of it; replica_fetcher/ fills in the request.
- `partition_key`: the bytes that name a partition in requests and responses.

The rule of all of them: a function gets the request's bytes. It either serves the request completely, with the same effects
and the same response, byte for byte, as the handler of the API, or it returns None without any effect; then the request is
decoded and passed to the handler. So it returns None for every other form, for malformed requests, and for errors that it
meets before any effect. Tests send the same requests both ways and compare. The byte layouts come from
wire/messages/fast_layouts.py, which the compiler derives from the schema; `api(..., fast_path=)` registers the functions.

It saves some 4 of 9 us of a produce (docs/performance.md). It may import all rooms up to services; api/ and replica_fetcher/
import it.
"""

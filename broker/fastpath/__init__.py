"""The fast path: Produce and Fetch in the form that nearly all of them have, without decoding them into structs.

- `produce`: one batch for one partition, without a transaction, to be acknowledged (versions 9-13).
- `fetch`: a consumer's, of one partition, whose records are there (versions 12-18).
- `follower_fetch`: a follower's, of one partition of its session, which may wait for records (versions 15-18).
- `replica_fetch`: the follower's side of it; replica_fetcher/ fills in the request.
- `partition_key`: the bytes that name a partition in requests and responses.

The rule of all of them: a function gets the request's bytes and either serves it completely, with the same effects and the
same response, byte for byte, as the handler of the API, or returns None before it has changed anything; then the
request is decoded and goes to the handler. So it returns None for every other form, for what is malformed, and where
serving fails before it has begun. Tests send the same requests both ways and compare. The byte layouts come from
wire/messages/fast_layouts.py, which the compiler derives from the schema; `api(..., fast_path=)` registers the functions.

It saves some 4 of 9 us of a produce (docs/performance.md). It may import all rooms up to services; api/ and replica_fetcher/
import it.
"""

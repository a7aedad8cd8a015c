"""Chats through a durable queue in Redis: a gateway that has no tiers of its own, and workers that have (SPEC GW-11).

The seam is `Tier.generate`. With `AIO_CHAT_QUEUE=put` a gateway admits, routes, bills and records as ever, and each of
its tiers is a `QueuedTier`: an attempt goes into a Redis Stream instead of to a model. A process with
`AIO_CHAT_QUEUE=take` (`aio worker`, or a gateway with tiers) takes it, asks its tier of the same name, and sends every
delta back. All APIs, whole and streamed, are above that seam and know nothing of it.

- **Keys.** A stream of requests for each tier and priority, with one consumer group; for each gateway a stream of
  results and a hash of its open chats; a hash of what workers tell of their tiers. `redis_chats` has the scripts.
- **Leases.** An entry that a worker has taken is pending. A write of a result, and `keep` three times per lease, renew
  it. What is idle for longer than a lease is taken over by the next worker that looks; after `MOST_DELIVERIES` it is
  answered with an error, because the chat itself is the likely cause.
- **One answer.** A script adds a result only while the worker still holds the entry, and the last result, the
  acknowledgement and the deletion are one script. Results are numbered, so that a repeated write adds nothing.
- **After a worker's death** the next one begins the chat again. If the gateway has passed nothing on, that is the
  answer. If it has, the chat is withdrawn and `TierLostError` makes `ContinuedGeneration` go on after the last word,
  with another attempt, which is queued too. What cannot go on (calls, schemas, thoughts) ends with that error.
- **Bounds.** A full stream of requests refuses (503, with `retry-after`). A full stream of results makes workers wait,
  and it holds at most `MOST_RESULTS` entries; a gateway that reads nothing for a lease loses both of its keys. Slow
  callers are waited for in the gateway, whose memory holds at most the rest of their answers.
- **Leaving.** A caller that leaves withdraws its entry, and the bell (pub/sub) tells its worker at once; a worker that
  misses the bell learns it from its next write. It sends the counts of what it used, which settle the bill.
- **Deadlines** travel as the seconds that were left, less the time in the queue by Redis' own clock. A chat that no
  worker could take for six leases fails.
- **Outages.** While Redis is away new chats get 503 and running ones wait for a lease; then they fail with a typed
  error. Chats that Redis has forgotten are those of a dead worker: they are continued, or start again.
- **Never queued.** A caller's own credential leaves the process only for its server.
"""

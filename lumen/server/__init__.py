"""The HTTP server behind `lumen serve`: OpenAI's endpoints over one engine of `lumen.serve`.

`command` reads the command line, `process` owns the port and the signals, `app` has the routes, `api` knows what may be
asked and how an answer looks, `worker` runs the engine in a thread of its own, `deltas` carries what it says to one
client, `metrics` counts.

One rule for what may be asked: a field that would change the answer is followed or refused, never passed over (the
tables stand in `api.known`). What the server promises to strangers, and what it does not: SECURITY.md.
"""

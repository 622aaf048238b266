"""OpenAI's API: what may be asked, how it is checked, how an answer looks, whole or streamed.

A request passes through `access` (key), `intake` (bytes to JSON), `protocol` and `options` (JSON to checked fields),
`known` (what is left: harmless, or refused), `expand` (one engine request per choice); its answer through `respond`,
`shapes`, `logprobs` and `sse`. `service` holds one method per endpoint and `errors` everything that can go wrong.
"""

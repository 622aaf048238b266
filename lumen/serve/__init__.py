"""The engine: requests, one scheduler rule, mixed batches, one step at a time, and prefill apart from decode.

`request` and `scheduler` are plain Python; torch is first needed by the runner. HTTP is `lumen.server`, and who sends
it requests for a benchmark is `lumen.loadgen`.
"""

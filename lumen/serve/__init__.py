"""Serving: requests, one scheduler rule, mixed batches, the engine, an OpenAI-style server, a load generator.

`request` and `scheduler` are plain Python; torch is first needed by the runner.
"""

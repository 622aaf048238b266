"""Files in, models and text out: GGUF, safetensors, tokenizers, chat templates, streams, stop sequences.

`load` brings them together. Each module stands alone; nothing here runs code from a file.
"""

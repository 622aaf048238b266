"""What a cache raises when there is no room. No torch, so that schedulers can catch it."""


class CacheFull(ValueError):
    """There is no room for the new tokens. Raised before anything is written."""

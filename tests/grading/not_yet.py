"""What the sets do not meet yet, by set and exercise. Each list may only shrink: a test fails when an entry holds."""

# Generic adversaries that a check takes for the other kind.
NOT_YET: dict[tuple[str, str], list[str]] = {}

# Slips that are no wrong answers: what they give is right, or is told another slip's sentence.
SLIPS: dict[tuple[str, str], list[str]] = {}

# Constraints of a decision that rule out nothing by themselves.
IDLE: dict[tuple[str, str], list[str]] = {}

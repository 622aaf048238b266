"""One recipe per shipped checkpoint. `make checkpoints` runs those whose file is missing."""

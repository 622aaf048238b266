"""What a cell says in words: Markdown, tables, callouts, the reader's guess, the chapter's provenance."""

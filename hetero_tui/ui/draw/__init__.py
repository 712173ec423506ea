"""Pictures made of characters, as pure functions: numbers in, lines of text out."""

"""The user's files, functions and data code: imported, checked, seeded, and explained where they fail."""

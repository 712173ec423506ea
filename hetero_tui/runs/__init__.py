"""Training runs as the laptop sees them: launch one on the head, list, follow, stop.

The run itself lives on the head host; its ``events.jsonl`` there is the only truth about it.
"""

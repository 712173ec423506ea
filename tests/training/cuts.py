"""How a step's batch is cut, for tests."""

from __future__ import annotations

from remote_agent.training.shared.slices import SliceSpan


def cut(*samples: int, begin: int = 0) -> tuple[SliceSpan, ...]:
    """Slices of so many samples one after the other, of the workers h0/cpu and so on; one without samples has none."""
    spans = []
    for worker, count in enumerate(samples):
        if count:
            spans.append(SliceSpan(f"h{worker}/cpu", begin, begin + count))
            begin += count
    return tuple(spans)

"""One process with the whole batch on the fastest host: what pooling has to beat."""

from __future__ import annotations

from benchmarks.peers.task import Record, Settings, Task


def main() -> None:
    """Train."""
    settings = Settings.from_command_line()
    task = Task(settings)
    task.warm_up()
    record = Record(task)
    record.start()
    for step in range(1, settings.steps + 1):
        indices = task.even_part(step)
        task.gradient(indices)
        task.optimizer.step()
        record.step(len(indices))
        record.snapshot_if_due()
    record.finish()


if __name__ == "__main__":
    main()

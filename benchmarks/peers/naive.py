"""A parameter server as it is commonly written: dicts of tensors, by value, through one driver.

The driver (on the first host, with a worker of its own) sends the weights as a dict to each worker, one after the
other, and takes each one's dict of gradients. Over plain pickled connections, which cost less than Ray's calls: it is
the pattern that is measured, not Ray.
"""

from __future__ import annotations

import multiprocessing.connection as connections
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from benchmarks.peers.task import PEER_PORT, Meeting, Record, Settings, Task

_SECRET = b"benchmark"


def main() -> None:
    """Train."""
    settings = Settings.from_command_line()
    task = Task(settings)
    task.warm_up()
    meeting = Meeting(settings)
    if settings.rank == 0:
        _drive(task, meeting)
    else:
        _work(task, meeting)


def _work(task: Task, meeting: Meeting) -> None:
    """Answer weights with gradients, until the driver is gone."""
    meeting.wait_for_all()
    with connections.Client((task.settings.addresses[0], PEER_PORT), authkey=_SECRET) as driver:
        record = Record(task)
        driver.recv()
        record.start()
        for step in range(1, task.settings.steps + 1):
            _load(task, driver.recv())
            indices = task.even_part(step)
            task.gradient(indices)
            driver.send(_gradients(task))
            record.step(len(indices))
        record.snapshot_if_due()
    record.finish()


def _drive(task: Task, meeting: Meeting) -> None:
    """Send weights, gather gradients, average them, and make the optimizer's step."""
    settings = task.settings
    with connections.Listener((settings.addresses[0], PEER_PORT), authkey=_SECRET) as listener:
        meeting.wait_for_all()
        workers = [listener.accept() for _ in settings.addresses[1:]]
    record = Record(task)
    for worker in workers:
        worker.send("go")
    record.start()
    with ThreadPoolExecutor(1) as here:
        for step in range(1, settings.steps + 1):
            indices = task.even_part(step)
            own = here.submit(task.gradient, indices)
            weights = {name: tensor.numpy().copy() for name, tensor in task.model.state_dict().items()}
            for worker in workers:
                worker.send(weights)
            others = [worker.recv() for worker in workers]
            own.result()
            for name, parameter in task.model.named_parameters():
                assert parameter.grad is not None
                for gradients in others:
                    parameter.grad += torch.from_numpy(gradients[name])
                parameter.grad /= settings.hosts
            task.optimizer.step()
            record.step(len(indices))
            record.snapshot_if_due()
    record.finish()


def _load(task: Task, weights: dict[str, object]) -> None:
    task.model.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})


def _gradients(task: Task) -> dict[str, object]:
    gradients: dict[str, object] = {}
    for name, parameter in task.model.named_parameters():
        assert isinstance(parameter.grad, Tensor)
        gradients[name] = parameter.grad.numpy()
    return gradients


if __name__ == "__main__":
    main()

"""A job's model and optimizer are checked before any process is started; lazy layers get their shapes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from remote_agent.training import DistributedTrainer, job
from remote_agent.training.checkpoint.checkpoint import portable_state
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator import lazy
from remote_agent.training.coordinator.sources import source_of
from remote_agent.training.errors import JobError
from remote_agent.training.user_code.checks import check_model, check_optimizer, first_state, load_first


def model() -> nn.Linear:
    return nn.Linear(3, 2)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda network: [torch.optim.SGD(network.parameters()) for _ in range(2)], "gave a list"),
        (lambda network: torch.optim.LBFGS(network.parameters()), "LBFGS calls the loss again"),
        (lambda _: torch.optim.SGD(model().parameters()), "none of the model's parameters"),
        (
            lambda network: torch.optim.SGD([*network.parameters(), nn.Parameter(torch.zeros(7))]),
            r"not the model's: 1, of shape \(7,\)",
        ),
    ],
)
def test_an_optimizer_that_a_run_can_not_step_is_refused(make: Any, said: str) -> None:
    network = model()
    with pytest.raises(JobError, match=said):
        check_optimizer(make(network), network)


def share_transposed(network: Any) -> None:
    network[2].weight = nn.Parameter(network[0].weight.data.t())


def share_in_buffer(network: Any) -> None:
    network.register_buffer("kept", network[0].weight.data[1])


@pytest.mark.parametrize("share", [share_transposed, share_in_buffer])
def test_a_weight_in_the_memory_of_another_tensor_is_refused(share: Any) -> None:
    network = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    share(network)
    with pytest.raises(JobError, match="lie in the same memory"):
        check_model(network)


def test_numpys_random_numbers_are_seeded_for_create_model() -> None:
    import random

    import numpy as np

    def scaled() -> nn.Module:
        network = nn.Linear(3, 2)
        with torch.no_grad():
            network.weight.mul_(float(np.random.rand()) + random.random())
        return network

    first, second = (job.create_model(SimpleNamespace(create_model=scaled), 5).state_dict() for _ in range(2))
    assert torch.equal(first["weight"], second["weight"])


@pytest.mark.parametrize("other", [nn.Linear(4, 2), nn.Linear(3, 2, bias=False)])
def test_another_architecture_on_a_host_is_refused(other: nn.Module) -> None:
    with pytest.raises(JobError, match="another model on this host"):
        load_first(other, safetensors.torch.save(model().state_dict()))


def test_a_model_of_another_dtype_than_the_coordinators_is_refused_and_not_rounded() -> None:
    weights = safetensors.torch.save(model().double().state_dict())
    with pytest.raises(JobError, match=r"is float32 here and float64 there") as error:
        load_first(model(), weights)
    assert "set_default_dtype" in error.value.hint
    load_first(model().double(), weights)


class Heads(nn.Module):
    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({name: nn.Linear(3, 2) for name in names})


def test_layers_in_another_order_on_a_host_are_refused() -> None:
    """Weights travel in the order of the layers: those of a set of names would go to others of the same shape."""
    weights = first_state(Heads(["a", "b"]).state_dict(), Heads(["a", "b"]))
    load_first(Heads(["a", "b"]), weights)
    with pytest.raises(
        JobError, match=r"another order on this host: heads\.b\.weight in the place of heads\.a"
    ) as error:
        load_first(Heads(["b", "a"]), weights)
    assert "sorted" in error.value.hint


class LazyJob:
    def create_model(self) -> nn.Module:
        return nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.LazyLinear(2))


DATA = (torch.randn(6, 3), torch.zeros(6, dtype=torch.int64))


def test_lazy_layers_begin_with_the_weights_of_a_plain_loop_s_first_forward_pass() -> None:
    network = job.create_model(LazyJob(), 5)
    lazy.give_shapes(network, LazyJob(), source_of(DATA))
    torch.manual_seed(5)
    expected = LazyJob().create_model()
    expected.eval()(DATA[0])
    for name, tensor in expected.state_dict().items():
        assert torch.equal(network.state_dict()[name], tensor), name
    assert network.training


def test_lazy_layers_elsewhere_get_their_shapes_with_the_first_weights() -> None:
    network = job.create_model(LazyJob(), 5)
    lazy.give_shapes(network, LazyJob(), source_of(DATA))
    other = job.create_model(LazyJob(), 6)
    load_first(other, safetensors.torch.save(network.state_dict()))
    assert torch.equal(other.eval()(DATA[0]), network.eval()(DATA[0]))


def test_a_lazy_layer_that_the_loss_leaves_out_is_named() -> None:
    factory = SimpleNamespace(loss=lambda network, batch: network[0](batch[0]).sum())
    with pytest.raises(JobError, match=r"the lazy parameter 1\.weight no shape"):
        lazy.give_shapes(nn.Sequential(nn.LazyLinear(4), nn.LazyLinear(2)), factory, source_of(DATA))


def test_lazy_layers_need_data_that_can_be_read_more_than_once() -> None:
    samples = iter(list(zip(*DATA, strict=True)))
    with pytest.raises(JobError, match="can only be read from its beginning"):
        lazy.give_shapes(LazyJob().create_model(), LazyJob(), source_of(samples))


def test_an_optimizer_is_checked_where_it_is_created() -> None:
    factory = SimpleNamespace(create_optimizer=lambda network, config: [torch.optim.SGD(network.parameters())])
    with pytest.raises(JobError, match="create_optimizer gave a list"):
        job.create_optimizer(factory, model(), TrainingConfig())


@pytest.mark.parametrize("name", ["training_step", "configure_optimizers", "optimizer_step"])
def test_a_job_that_wants_to_make_its_steps_itself_is_refused_with_the_reason(name: str) -> None:
    def method(*_: object) -> None: ...

    factory = type("Gan", (), {"create_model": method, "create_data": method, name: method})()
    trainer = DistributedTrainer(model_factory=factory, data_loader=[])
    for make in (lambda: job.from_object("gan", factory), lambda: job.from_object("gan", trainer)):
        with pytest.raises(JobError, match=f"has a {name}\\(\\), which is not called") as error:
            make()
        assert "several optimizers that take turns" in error.value.hint


def test_one_parameter_in_two_places_and_views_of_what_is_not_trained_are_no_shared_memory() -> None:
    network = nn.Sequential(nn.Linear(3, 3), nn.LSTM(3, 3, 2), nn.Linear(3, 3), nn.LazyLinear(3))
    network[2].weight = network[0].weight
    table = torch.arange(6.0)
    network.register_buffer("whole", table)
    network.register_buffer("part", table[:3])
    network.register_buffer("spread", torch.ones(1).expand(4))
    network[2].bias.requires_grad_(False)
    network.register_buffer("kept", network[2].bias.data)
    check_model(network)


@pytest.mark.parametrize("sparse", [torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_sparse_buffer_is_refused_by_name(sparse: Any, persistent: bool) -> None:
    network = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    network[1].register_buffer("adjacent", sparse(torch.eye(3)), persistent=persistent)
    with pytest.raises(JobError, match=r"1\.adjacent is a sparse_") as error:
        check_model(network)
    assert "two buffers" in error.value.hint


def test_an_expanded_buffer_gets_memory_of_its_own() -> None:
    networks = [nn.Linear(3, 3), nn.Linear(3, 3)]
    for network in networks:
        network.register_buffer("weights", torch.ones(1, 3).expand(4, 3))
        check_model(network)
    load_first(networks[0], safetensors.torch.save(portable_state(networks[1])))
    with torch.no_grad():
        networks[0].weights[0] += 1
    assert networks[0].weights.sum() == 15


def test_a_scheduler_that_create_optimizer_made_is_refused_unless_it_is_returned_too() -> None:
    class Scheduled:
        def create_optimizer(self, network: nn.Module, _: TrainingConfig) -> torch.optim.Optimizer:
            made = torch.optim.SGD(network.parameters(), lr=0.1)
            self.schedule = torch.optim.lr_scheduler.LambdaLR(made, lambda done: min(1.0, done / 100))
            return made

    class Returned(Scheduled):
        def create_scheduler(self, optimizer: torch.optim.Optimizer, config: TrainingConfig) -> Any:
            return self.schedule

    with pytest.raises(JobError, match="made a learning rate scheduler") as error:
        job.create_optimizer(Scheduled(), model(), TrainingConfig())
    assert "create_scheduler" in error.value.hint
    assert job.create_optimizer(Returned(), model(), TrainingConfig()).param_groups


@pytest.mark.parametrize(
    ("target", "kind"),
    [(nn.Linear(2, 2), "a model (Linear)"), (model, "a function"), (SimpleNamespace(), "an object of SimpleNamespace")],
)
def test_what_is_no_job_is_said_with_what_a_job_is(target: object, kind: str) -> None:
    with pytest.raises(JobError) as error:
        job.from_object("file.py:it", target)
    assert error.value.cause == f"the job 'file.py:it' is {kind}, and has no create_model and no create_data"
    assert "a class with create_model() and create_data(), or a DistributedTrainer" in error.value.hint


def test_an_optimizer_as_lightning_has_it_is_told_apart_from_several() -> None:
    def create_optimizer(network: nn.Module, config: TrainingConfig) -> object:
        return {"optimizer": torch.optim.SGD(network.parameters()), "lr_scheduler": None}

    with pytest.raises(JobError, match="as Lightning has it") as error:
        job.create_optimizer(SimpleNamespace(create_optimizer=create_optimizer), model(), TrainingConfig())
    assert "create_scheduler" in error.value.hint

"""A pipeline's weights are those of a plain loop, however the model is cut."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from remote_agent.models.blocks import CannotCut
from remote_agent.training.checkpoint.optimizer_state import States, of_optimizer, unpacked
from remote_agent.training.config import TrainingConfig
from remote_agent.training.data import datasets
from remote_agent.training.deadlines import TRANSFER_S
from remote_agent.training.errors import JobError
from remote_agent.training.job import create_model
from remote_agent.training.shared.figures import Figures, whole
from remote_agent.training.wire.errors import ConnectionBroken
from remote_agent.training.wire.stage_links import StageLinks
from remote_agent.training.worker.evaluation import BatchMeter
from remote_agent.training.worker.own_weights import OwnWeights
from remote_agent.training.worker.staged import StageEngine, renew
from remote_agent.training.worker.staging import cut_between
from tests.training import plain as textbook
from tests.training.pipelines import LocalPipeline, Small, assert_close, plain

STEPS = 20


@dataclass(frozen=True)
class Job:
    """Next-token prediction with :class:`Small`."""

    dropout: float = 0.0
    optimizer: str = "adamw"

    def create_model(self) -> nn.Module:
        return Small(self.dropout)

    def layers(self, model: Any) -> Any:
        return model.blocks

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        if self.optimizer == "sgd":
            return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
        matrices = [each for each in model.parameters() if each.dim() > 1]
        vectors = [each for each in model.parameters() if each.dim() == 1]
        return torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors}], lr=3e-3)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        return functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    def create_data(self) -> Tensor:
        return torch.randint(0, 37, (200, 9), generator=torch.Generator().manual_seed(4))


def _config(**settings: Any) -> TrainingConfig:
    return TrainingConfig(strategy="pipeline", num_iterations=STEPS, batch_size=24, seed=7, **settings)


@pytest.mark.parametrize(
    ("optimizer", "bounds"),
    [  # more models, cuts and optimizers are in test_stage_matrix
        ("adamw", (0, 2, 6)),
        ("sgd", (0, 1, 2, 4, 5, 6)),
    ],
)
def test_weights_are_those_of_a_plain_loop(optimizer: str, bounds: tuple[int, ...]) -> None:
    job, config = Job(optimizer=optimizer), _config(micro_batch=5)
    with LocalPipeline(job, config, bounds) as pipeline:
        assert_close(pipeline.train(STEPS), plain(job, config, STEPS))


def test_so_they_are_with_dropout_clipping_and_a_schedule() -> None:
    job, config = Job(dropout=0.2), _config(micro_batch=6, clip_norm=0.05, schedule="linear", warmup_steps=4)

    def falling(optimizer: torch.optim.Optimizer) -> Any:
        return torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda done: (done + 1) / 5 if done < 4 else 1 - (done - 4) / (STEPS - 4)
        )

    expected = plain(job, config, STEPS, falling)
    for bounds in ((0, 3, 6), (0, 1, 2, 6)):
        # One stage at a time: the threads of this test share torch's random numbers.
        with LocalPipeline(job, config, bounds, in_flight=1, settled=True) as pipeline:
            assert_close(pipeline.train(STEPS), expected)
            assert min(pipeline.norms) > 0.05


def test_batches_may_have_any_length() -> None:
    job, config = Job(), _config(micro_batch=7)
    lengths = (24, 3, 15, 1, 8)
    with LocalPipeline(job, config, (0, 2, 4, 6), samples=lengths) as pipeline:
        assert_close(pipeline.train(8), plain(job, config, 8, samples=lengths))


class Projected(nn.Module):
    """A layer that multiplies by an embedding's weights, there and back or only there."""

    def __init__(self, tokens: nn.Embedding, *, is_last: bool) -> None:
        super().__init__()
        self.tokens, self.is_last = tokens, is_last

    def forward(self, x: Tensor) -> Tensor:
        logits = functional.linear(x, self.tokens.weight)
        return logits if self.is_last else x + logits.softmax(-1) @ self.tokens.weight


class Experts(nn.Module):
    """Each token goes to one of many: in most micro-batches some get none, and no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, 12)
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(12))

    def forward(self, x: Tensor) -> Tensor:
        shares, chosen = self.gate(x).softmax(-1).max(-1)
        given = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            if (here := chosen == number).any():
                given[here] = shares[here][:, None] * expert(x[here])
        return x + given


class Mixed(Job):
    """Three layers that share their weights, and two of experts."""

    def create_model(self) -> nn.Module:
        tokens = nn.Embedding(37, 16)
        nn.init.normal_(tokens.weight, std=0.3)
        inner = (Experts(), Projected(tokens, is_last=False), Experts(), nn.LayerNorm(16))
        return nn.Sequential(tokens, *inner, Projected(tokens, is_last=True))

    layers = None  # type: ignore[assignment]


def test_weights_of_three_stages_and_experts_without_tokens_are_exact_though_two_stages_are_lost() -> None:
    job, config, lengths = Mixed(), _config(micro_batch=5, clip_norm=0.5), (24, 3, 15, 1, 8)
    with LocalPipeline(job, config, (0, 2, 4, 6), samples=lengths) as pipeline:
        pipeline.train(4)
        kept = pipeline.kept()
        pipeline.lose(1, 5)
        pipeline.cut_anew((0, 1, 6), kept)
        pipeline.train(1)
        pipeline.lose(0, 6)
        pipeline.cut_anew((0, 6), kept)
        pipeline.train(2)
        pipeline.cut_anew((0, 6))
        found = pipeline.train(6)
    assert_close(found, plain(job, config, 12, samples=lengths))


def test_what_the_optimizer_takes_is_measured_and_leaves_the_weights_as_they_are() -> None:
    for optimizer, copies in (("adamw", 3), ("sgd", 2)):
        job, config = Job(optimizer=optimizer), _config()
        with LocalPipeline(job, config, (0, 3, 6)) as pipeline:
            costs = pipeline.costs
        assert costs.copies == pytest.approx(copies, abs=0.05)
        assert costs.update_s > 0
        assert [tied.blocks for tied in costs.tied] == [(0, 5)]


def test_a_stage_waits_for_the_others_as_long_as_they_may_take_to_load(monkeypatch: pytest.MonkeyPatch) -> None:
    waited, opened = list[float](), StageLinks.open

    def noted(links: StageLinks, addresses: Any, peers: Any, deadline_s: float) -> None:
        waited.append(deadline_s)
        opened(links, addresses, peers, deadline_s)

    monkeypatch.setattr(StageLinks, "open", noted)
    with LocalPipeline(Job(), _config(), (0, 2, 4, 6)):
        assert waited == [TRANSFER_S] * 3


def test_a_lost_stage_wakes_the_others() -> None:
    job = Job()
    with LocalPipeline(job, _config(), (0, 2, 4, 6)) as pipeline:
        pipeline.step(1)
        pipeline._links[1].close()
        with pytest.raises(ConnectionBroken, match=r"stage 1|closed"):
            pipeline.step(2)


class Big(Job):
    """Adapters beside linear layers, which are held in four bits."""

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=3e-3)


def test_adapters_over_four_bits_are_trained_in_parts() -> None:
    job, config = Big(), _config(quantize="nf4", lora_rank=2)
    with LocalPipeline(job, config, (0, 2, 4, 6)) as pipeline:
        found = pipeline.train(6)
    expected = plain(job, config, 6)
    assert found
    assert all("lora_" in name for name in found)
    assert_close(found, {name: expected[name] for name in found})
    assert any(float(value.norm()) > 0 for name, value in found.items() if name.endswith("lora_b"))


@pytest.mark.parametrize("recomputed", [False, True])
def test_four_bits_are_weights_in_the_plan_and_no_activations(recomputed: bool) -> None:
    costs = {}
    for quantize in ("none", "nf4"):
        config = _config(quantize=quantize, lora_rank=2, activation_checkpointing=recomputed)
        with LocalPipeline(Big(), config, (0, 3, 6)) as pipeline:
            costs[quantize] = pipeline.costs.blocks[1]
    block = create_model(Big(), 7, config).get_submodule("blocks.1")
    assert costs["nf4"].weights == sum(each.nbytes for each in (*block.parameters(), *block.buffers()))
    assert costs["nf4"].weights < costs["none"].weights
    assert costs["nf4"].held <= costs["none"].held


class Masked(nn.Module):
    """Attention over what came before, by a mask in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(16, 16)
        self.register_buffer("mask", torch.tril(torch.ones(8, 8)), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        scores = (x @ x.transpose(1, 2)).masked_fill(self.mask == 0, -torch.inf)
        result: Tensor = x + self.mix(scores.softmax(-1) @ x)
        return result


class Sequence(Job):
    """A model as a sequence, with a frozen layer, two layers of one weight, and buffers in float64."""

    def create_model(self) -> nn.Module:
        blocks = [nn.Embedding(37, 16), Masked(), nn.Linear(16, 16), nn.ReLU(inplace=True), Masked(), nn.Linear(16, 16)]
        model = nn.Sequential(*blocks, nn.Linear(16, 37)).double()
        model[2].requires_grad_(False)
        model[5].weight = model[1].mix.weight
        return model

    layers: Any = None


@pytest.mark.parametrize(("job", "how"), [(Sequence(), {}), (Big(), {"quantize": "nf4", "lora_rank": 2})])
def test_stages_with_buffers_are_evaluated_without_the_memory_of_others(job: Any, how: dict[str, Any]) -> None:
    config = _config(micro_batch=5, **how)
    with LocalPipeline(job, config, (0, 2, 4, 6 + isinstance(job, Sequence))) as pipeline:
        numbers = np.arange(9)

        def evaluated(number: int) -> dict[int, Figures]:
            stage, model = pipeline.stages[number], pipeline.workers[number].model

            def metrics(model: nn.Module, batch: Tensor) -> Any:
                found = stage.forward(lambda: job.loss(model, batch), 7)
                return {} if found is None else {"loss": found}

            return BatchMeter(model, metrics, torch.device("cpu"), seed=0)(pipeline.data, [(0, numbers), (1, numbers)])

        *_, last = pipeline.each(evaluated)
        plain_loss = float(job.loss(create_model(job, config.seed, config), datasets.fetch(pipeline.data, numbers)))
        for figures in last.values():
            assert whole([figures])["loss"] == pytest.approx(plain_loss, rel=1e-5)


def test_what_was_measured_leaves_the_model_as_it_was() -> None:
    job, config = Sequence(), _config(micro_batch=5)
    with LocalPipeline(job, config, (0, 2, 4, 7), each_measures=True) as pipeline:
        found = pipeline.train(6)
    expected = plain(job, config, 6)
    assert_close(found, {name: expected[name] for name in found})
    assert expected.keys() - found.keys() == {"2.weight", "2.bias"}


@pytest.mark.parametrize("job", [Job(dropout=0.2, optimizer="sgd"), Sequence()])  # AdamW: test_stage_matrix
def test_workers_that_get_other_stages_go_on_as_if_nothing_was(job: Job) -> None:
    config, blocks = _config(micro_batch=5, clip_norm=0.5), 7 if isinstance(job, Sequence) else 6
    expected = plain(job, config, 9)
    with LocalPipeline(job, config, (0, 1, 3, blocks), in_flight=1, settled=True) as pipeline:
        pipeline.train(4)
        pipeline.cut_anew((0, 4, blocks))
        pipeline.train(3)
        pipeline.cut_anew((0, 2, blocks))
        found = pipeline.train(2)
    assert_close(found, {name: expected[name] for name in found})


def test_a_worker_that_has_no_stage_any_more_has_the_model_as_the_job_gives_it() -> None:
    job, config = Big(), _config(quantize="nf4", lora_rank=2)
    with LocalPipeline(job, config, (0, 2, 6)) as pipeline:
        (parts, *_) = pipeline.workers
        model = parts.model
        pipeline.train(2)
        pipeline.stages.clear()
        renew(parts)
    assert parts.model is model
    fresh = dict(create_model(job, config.seed, config).state_dict())
    assert fresh.keys() == model.state_dict().keys()
    assert all(torch.equal(value, fresh[name]) for name, value in model.state_dict().items())


def test_what_is_kept_of_a_stage_is_not_copied_within_its_process() -> None:
    with LocalPipeline(Job(), _config(micro_batch=5), (0, 6)) as pipeline:
        pipeline.train(2)
        (stage,) = pipeline.stages
        held = SimpleNamespace(stage=stage)
        kept, missing = StageEngine.remembered(cast("Any", held))
        weights = StageEngine.own_weights(cast("Any", held))
        there: list[pickle.PickleBuffer] = []
        inside = pickle.dumps((kept, weights), protocol=5, buffer_callback=there.append)
    assert not missing
    total = sum(2 * each.nbytes for each in stage.own.values()) + sum(each.nbytes for each in stage.own.values())
    assert sum(each.raw().nbytes for each in there) == pytest.approx(total, rel=0.01)
    assert len(inside) < total
    for name, each in stage.own.items():
        for key in ("exp_avg", "exp_avg_sq"):
            entry = kept[name][key]
            assert isinstance(entry, tuple)
            assert np.shares_memory(entry[2], stage.optimizer.state[each][key].numpy())
        assert np.shares_memory(weights[name][1], each.detach().numpy())
    assert_same(unpacked(kept), of_optimizer(OwnWeights(stage.own), stage.optimizer))


def assert_same(found: States, expected: States) -> None:
    assert found.keys() == expected.keys()
    for name, entries in expected.items():
        assert found[name].keys() == entries.keys()
        assert all(torch.equal(torch.as_tensor(found[name][key]), torch.as_tensor(entries[key])) for key in entries)


class Nested(Job):
    """A sequence of sequences, which is cut within one of them, too."""

    def create_model(self) -> nn.Module:
        def block() -> nn.Sequential:
            return nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16))

        return nn.Sequential(nn.Embedding(37, 16), block(), block(), nn.Linear(16, 37))

    layers: Any = None


@pytest.mark.parametrize(
    ("job", "bounds"),
    [(Job(dropout=0.2), (0, 2, 6)), (Nested(), (0, 3, 8)), (Nested(), (0, 1, 2, 6, 8))],
)
def test_activations_that_are_computed_again_give_the_same_weights(job: Job, bounds: tuple[int, ...]) -> None:
    config = _config(micro_batch=6, activation_checkpointing=True)
    # One stage at a time: the threads of this test share torch's random numbers.
    with LocalPipeline(job, config, bounds, in_flight=1, settled=True) as pipeline:
        assert_close(pipeline.train(6), plain(job, config, 6))


class Summed(Job):
    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        return functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten(), reduction="sum")


class Together(Job):
    """A loss that depends on which samples are together, of a model whose first outputs are zeros."""

    def create_model(self) -> nn.Module:
        model = nn.Sequential(nn.Embedding(37, 16), nn.Linear(16, 16), nn.Linear(16, 37))
        nn.init.zeros_(model[2].weight)
        nn.init.zeros_(model[2].bias)
        return model

    layers: Any = None

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        outputs = model(batch[:, :-1])
        return functional.cross_entropy((outputs - outputs.mean(0)).flatten(0, 1), batch[:, 1:].flatten())


def test_a_loss_over_a_whole_batch_is_refused_and_a_sum_is_added_up() -> None:
    with (
        pytest.raises(JobError, match="parts do not add up"),
        LocalPipeline(Together(), _config(), (0, 1, 3)),
    ):
        pass
    job, config = Summed(), _config(micro_batch=5)
    with LocalPipeline(job, config, (0, 3, 6)) as pipeline:
        found = pipeline.train(3)
    assert_close(found, textbook.train(job, config, 3))


def test_a_loss_of_several_terms_is_refused() -> None:
    class Terms(Job):
        def loss(self, model: nn.Module, batch: Any) -> Any:
            value = super().loss(model, batch)
            return [value, (0.5 * value, 3)]

    with (
        pytest.raises(CannotCut, match="2 terms with weights of their own") as error,
        LocalPipeline(Terms(), _config(), (0, 3, 6)),
    ):
        pass
    assert "(sum, weight)" in error.value.hint


def _generated(model: Any) -> Iterator[nn.Module]:
    yield model.blocks[0]
    raise ValueError("no more")


@pytest.mark.parametrize(
    ("layers", "kind", "message"),
    [
        (lambda model: [*model.blocks, 1], CannotCut, "^layers gave a int at position"),
        (lambda model: [*model.blocks, model.blocks[0]], CannotCut, "^a Small can't be cut: blocks 0 and"),
        (lambda model: model.bloks, JobError, "^layers .*AttributeError: 'Small' object has no attribute 'bloks'"),
        (_generated, JobError, "^layers .*ValueError: no more"),
        (lambda model: 3, JobError, "^layers: TypeError: 'int' object is not iterable"),
    ],
)
def test_a_jobs_wrong_layers_are_told_as_what_they_are(layers: Any, kind: type[Exception], message: str) -> None:
    factory = Job()
    object.__setattr__(factory, "layers", layers)
    with pytest.raises(kind, match=message):
        cut_between(factory.create_model(), factory)

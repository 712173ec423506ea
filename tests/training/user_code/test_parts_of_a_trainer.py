"""A ``DistributedTrainer`` has what it is given, and of its factory what it is not given."""

from __future__ import annotations

from typing import Any

from remote_agent.training import Callback, DistributedTrainer, TrainingConfig, job


class Whole:
    """A factory with all parts of a job."""

    config: Any = TrainingConfig(batch_size=48)
    validation, logger = object(), Callback()

    def create_model(self) -> Any: ...

    def create_validation_data(self) -> object:
        return self.validation

    def create_callbacks(self) -> list[Callback]:
        return [self.logger]


def parts_of(trainer: DistributedTrainer) -> tuple[TrainingConfig | None, object, list[Any]]:
    """Its settings, validation data and callbacks."""
    found = job.of_trainer("whole", trainer, trainer.config)
    assert found.create_validation is not None
    assert found.create_callbacks is not None
    return found.config, found.create_validation(), list(found.create_callbacks())


def test_what_it_is_not_given_is_the_factorys() -> None:
    trainer = DistributedTrainer(model_factory=Whole(), data_loader=[1])
    assert parts_of(trainer) == (Whole.config, Whole.validation, [Whole.logger])


def test_what_it_is_given_replaces_the_factorys() -> None:
    config, validation, logger = TrainingConfig(batch_size=6), object(), Callback()
    trainer = DistributedTrainer(
        model_factory=Whole(), data_loader=[1], config=config, validation_data=validation, callbacks=[logger]
    )
    assert parts_of(trainer) == (config, validation, [logger])


def test_a_config_of_another_kind_is_the_factorys_own_affair() -> None:
    factory = Whole()
    factory.config = {"width": 3}
    assert DistributedTrainer(model_factory=factory, data_loader=[1]).config == TrainingConfig()

"""The wire: what is written is what is read, and what is not ours is refused with a reason."""

import json

import pytest

from remote_agent import protocol

STEP = protocol.Step(
    seq=7,
    time=12.5,
    step=3,
    loss=None,
    samples=64,
    seconds=0.25,
    bytes_pushed=10,
    bytes_pulled=20,
    workers=(
        protocol.WorkerStep(
            worker="mercer/cuda:0",
            host="mercer",
            device="cuda:0",
            samples=64,
            compute_s=0.1,
            push_s=0.05,
            pull_s=0.05,
            wait_s=0.05,
        ),
    ),
)


def test_an_event_survives_the_wire() -> None:
    assert protocol.decode_event(protocol.encode(STEP)) == STEP


def test_every_kind_of_event_has_a_kind_of_its_own() -> None:
    kinds = [event.kind for event in protocol.EVENTS]
    assert len(set(kinds)) == len(kinds)
    assert all(kinds)


def test_unknown_fields_are_ignored_and_unknown_kinds_are_skipped() -> None:
    document = json.loads(protocol.encode(STEP)) | {"new_in_version_9": [1]}
    assert protocol.decode_event(json.dumps(document)) == STEP
    assert protocol.decode_event('{"seq": 1, "time": 0, "kind": "from_the_future"}') is None


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "not a line of JSON"),
        ("[]", "not a JSON object"),
        ("{}", "without a kind"),
        ('{"kind": "step", "seq": 1, "time": 1}', "'step' is missing"),
        (protocol.encode(STEP).replace('"samples":64', '"samples":"64"', 1), "samples: expected int, got str"),
        (protocol.encode(STEP).replace('"samples":64', '"samples":true', 1), "samples: expected int, got bool"),
        (protocol.encode(STEP).replace('"workers":[', '"workers":[3,'), r"workers\[0\]: expected an object"),
        ("[" * 100_000, "not a line of JSON"),
    ],
)
def test_a_bad_line_is_one_clear_error(line: str, says: str) -> None:
    with pytest.raises(protocol.ProtocolError, match=says):
        protocol.decode_event(line)


def test_not_a_number_is_never_written() -> None:
    with pytest.raises(ValueError, match="Out of range"):
        protocol.encode(protocol.RunResumed(seq=1, time=float("nan"), step=1, host="a", checkpoint=""))

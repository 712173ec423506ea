"""Each machine gets the build of torch that has kernels for its card and that its driver can run."""

import pytest

from hetero_tui.planning.builds import torch_build
from remote_agent.device_kinds import KINDS


def card(name="A card", capability=None, driver=None, kind="cuda", index=0):
    return {"kind": kind, "index": index, "name": name, "driver": driver, "capability": capability}


@pytest.mark.parametrize(
    ("capability", "driver", "build", "why"),
    [
        ("8.6", "580.65.06", "cu130", "compute capability 8.6"),
        ("6.1", "580.65.06", "cu126", "no kernels for TITAN"),  # by the driver alone it would be CUDA 13
        ("8.6", "550.54.14", "cu126", "older than 580"),
        ("8.6", "525.53", "cpu", "too old"),
        ("5.2", "470.82.01", "cpu", "too old"),
        ("3.5", "535.10", "cpu", "older than any kernel"),
        ("12.0", "580.65.06", "cu130", "needs CUDA 13"),
        ("12.0", "570.86", "cpu", "too old for TITAN"),
        (None, "580.65.06", "cu126", "capability unknown"),
        ("8.6", None, "cu126", "driver unknown"),
    ],
)
def test_one_nvidia_card(make_facts, capability, driver, build, why):
    facts = make_facts(accelerators=[card("TITAN", capability, driver)])
    found = torch_build(facts)
    assert (found.name, found.local_version) == (build, build)
    assert why in found.why
    assert bool(found.concern) == (build == "cpu"), "a card that can't be used is said"


def test_two_unlike_nvidia_cards_get_the_build_that_serves_both_or_it_is_said_which_is_left(make_facts):
    def build(*capabilities, driver="580.65"):
        cards = [card(f"card {c}", c, driver, index=index) for index, c in enumerate(capabilities)]
        return torch_build(make_facts(accelerators=cards))

    assert (build("6.1", "8.6").name, build("6.1", "8.6").concern) == ("cu126", "")
    both = build("6.1", "12.0")
    assert both.name == "cu130"
    assert "card 6.1 can't be used" in both.concern
    old_driver = build("8.6", "12.0", driver="570.1")
    assert old_driver.name == "cu126"
    assert "update driver 570.1" in old_driver.concern


def test_other_machines(make_facts):
    assert torch_build(make_facts()).name == "cpu"
    assert torch_build(make_facts(accelerators=[card(kind="rocm")])).name == KINDS["rocm"].installed
    assert torch_build(make_facts(accelerators=[card(kind="xpu")])).name == "xpu"
    mac = make_facts(os={"system": "Darwin", "machine": "arm64"}, accelerators=[card(kind="mps")])
    assert (torch_build(mac).name, torch_build(mac).local_version) == ("mps", "")


def test_a_machine_whose_cpu_alone_trains_is_spared_the_gigabytes_of_cuda(make_facts):
    facts = make_facts(accelerators=[card("RTX", "8.6", "580.65")])
    assert torch_build(facts, ("cpu",)).name == "cpu"
    assert torch_build(facts, ("cpu", "cuda:0")).name == "cu130"


@pytest.mark.parametrize(
    ("capability", "driver", "build"),
    [
        ("7.5", "580", "cu130"),
        ("7.5", "579.99", "cu126"),
        ("12.0", "580", "cu130"),
        ("12.0", "579.99", "cpu"),
        ("7.0", "525.60", "cu126"),
        ("7.0", "525.59", "cpu"),
        ("5.0", "580", "cu126"),
        ("4.9", "580", "cpu"),
        ("9.0", "570", "cu126"),
        ("9.1", "570", "cpu"),
    ],
)
def test_the_oldest_driver_and_card_of_a_build_get_it_and_what_is_older_does_not(make_facts, capability, driver, build):
    assert torch_build(make_facts(accelerators=[card("TITAN", capability, driver)])).name == build


@pytest.mark.parametrize(
    ("cards", "devices", "build", "trains", "mend"),
    [
        (("12.0", "6.1"), None, "cu130", ["cuda:0"], "`devices:`"),
        (("12.0", "6.1"), ("cuda:0",), "cu130", ["cuda:0"], ""),
        (("12.0", "6.1"), ("cuda:1",), "cu126", ["cuda:1"], ""),
        (("12.0", "6.1"), ("cuda",), "cu130", ["cuda:0"], "`devices:`"),
        (("3.5", "6.1"), None, "cu126", ["cuda:1"], "nothing is needed"),
        (("3.5",), None, "cpu", ["cpu"], "nothing is needed"),
    ],
)
def test_a_card_that_the_build_has_no_kernels_for_does_not_train_and_what_would_change_that_is_said(
    make_facts, cards, devices, build, trains, mend
):
    facts = make_facts(
        accelerators=[card(f"card {each}", each, "580.65", index=index) for index, each in enumerate(cards)]
    )
    found = torch_build(facts, devices)
    assert found.name == build
    there = facts.with_build(build)
    assert [each for each in there.devices if devices is None or "cuda" in devices or each in devices] == trains
    assert bool(found.concern) == bool(mend)
    assert found.mend.startswith(mend) or mend in found.mend
    assert len(there.unused) == len(cards) - sum(each != "cpu" for each in there.devices)
    assert all("has no kernels for compute capability" in note or "for the CPU" in note for note in there.unused)


def test_the_mend_of_an_old_driver_is_the_driver(make_facts):
    for capability, driver in (("8.6", "470.1"), ("12.0", "570.1")):
        facts = make_facts(accelerators=[card("TITAN", capability, driver)])
        assert torch_build(facts).mend.startswith("update the driver")


def test_amd_gpus_that_the_build_has_no_kernels_for_are_left_out(make_facts):
    def build(*architectures):
        cards = [card(f"RX {each}", each, kind="rocm", index=index) for index, each in enumerate(architectures)]
        facts = make_facts(accelerators=cards)
        found = torch_build(facts)
        return found, facts.with_build(found.name).devices

    assert build("gfx1030", "gfx90a", None)[1] == ("cuda:0", "cuda:1", "cuda:2")
    found, devices = build("gfx1100", "gfx1036")
    assert (found.name, devices) == (KINDS["rocm"].installed, ("cuda:0",))
    assert found.concern == f"RX gfx1036 can't be used: torch {found.name} has no kernels for gfx1036"
    found, devices = build("gfx803")
    assert (found.name, devices) == ("cpu", ("cpu",))
    assert "no kernels for gfx803" in found.why

"""The built-in catalogue and its stated errors."""

import random
from importlib.resources import files

import numpy as np
import pytest

from levada.perf import ProfileModel
from levada.sim.catalogue import FILE, catalogue, errors, expand, templates
from levada.sim.throughputs import read_gavel
from tests.peer_data import peer_data


def test_the_order_of_the_templates_is_fixed():
    expected = [
        *(f"ResNet-18 (batch size {size})" for size in (16, 32, 64, 128, 256)),
        *(f"ResNet-50 (batch size {size})" for size in (16, 32, 64, 128)),
        *(f"Transformer (batch size {size})" for size in (16, 32, 64, 128, 256)),
        *(f"LM (batch size {size})" for size in (5, 10, 20, 40, 80)),
        *(f"Recommendation (batch size {size})" for size in (512, 1024, 2048, 4096, 8192)),
        "A3C",
        "CycleGAN",
    ]
    assert [template.name for template in templates()] == expected == list(catalogue().workloads)
    assert [template.distributed for template in templates()] == [True] * 19 + [False] * 7
    assert [template.name for template in templates() if not template.needs_data] == ["A3C"]
    assert (catalogue().distributed() == [template.distributed for template in templates()]).all()


def test_the_published_generator_draws_the_same_workloads():
    """Replay its draws for the jobs of a published run of seed 0, single GPU: scale, duration, template."""
    path = peer_data("gavel", "generated_jobs", "gen_static_cost_slo.jobs.tsv")
    lines = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    source = random.Random(2)
    for line in lines:
        source.uniform(0, 1)
        low, high = (3, 4) if source.random() >= 0.8 else (1.5, 3)
        duration = 60 * 10 ** source.uniform(low, high)
        assert duration == float(line[5])
        assert source.choice(templates()).name == line[0]


def test_the_catalogue_is_small():
    assert len(files("levada.sim").joinpath(FILE).read_bytes()) < 60_000


def test_the_catalogue_is_complete():
    table = catalogue()
    assert (table.types, table.sizes) == (("k80", "p100", "v100"), (1, 2, 4, 8))
    assert (table.alone[:, :, 0] > 0).all()
    assert table.together is not None
    alone = table.alone.transpose(1, 2, 0)[..., None]
    with np.errstate(invalid="ignore"):
        assert not (table.together > alone).any()
    assert (table.together[:, 0] >= 0).all()
    # Pairs that cannot share a GPU are symmetric.
    assert ((table.together == 0) == (table.together == 0).transpose(0, 1, 3, 2)).all()
    model = ProfileModel(table, table.workloads, table.types)
    model.bind(np.arange(26), np.arange(26))
    assert model.known(np.arange(26)).all()
    too_large = table.position("ResNet-50 (batch size 128)")
    assert model.rates(np.array(too_large), np.array(0), np.array([1, 2, 4, 8]))[1:].tolist() == [0, 0, 0]


def test_the_catalogue_is_read_only():
    with pytest.raises(ValueError, match="read-only"):
        catalogue().alone[0, 0, 0] = 1.0


def test_the_stated_errors_are_correct():
    table = read_gavel(peer_data("gavel", "simulation_throughputs.json"))
    from scripts.make_catalogue import errors as measured

    assert measured(catalogue(), table) == errors()
    assert errors()["single"]["max"] < 0.001
    assert errors()["several"]["mean"] < 0.02
    assert errors()["several"]["max"] < 0.08
    assert errors()["spread"]["max"] < 0.12
    assert errors()["sharing"]["mean"] < 0.02
    assert errors()["sharing"]["p95"] < 0.06
    # Catalogue and table agree on what cannot run, alone or in a pair.
    rows = [table.position(name) for name in catalogue().workloads]
    assert ((catalogue().alone == 0) == (table.alone[rows] == 0)).all()
    assert ((catalogue().together == 0) == (table.together[:, :, rows][:, :, :, rows] == 0)).all()


def test_the_script_reproduces_the_catalogue():
    table = read_gavel(peer_data("gavel", "simulation_throughputs.json"))
    from scripts.make_catalogue import make

    rebuilt = expand(make(table))
    np.testing.assert_allclose(rebuilt.alone, catalogue().alone, rtol=0.01)
    np.testing.assert_allclose(rebuilt.together, catalogue().together, rtol=0.05, atol=0.02)

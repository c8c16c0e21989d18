"""Prices over time, from the files of two clouds."""

import json
from pathlib import Path

import pytest

from levada.errors import BadInput
from levada.sim.prices import GOOGLE, read_prices

DAY = 86400.0


def aws(folder: Path, *quotes: tuple[str, str, str, str]) -> None:
    place = folder / "aws" / "logs" / "us-east-1"
    place.mkdir(parents=True, exist_ok=True)
    names = ("Timestamp", "InstanceType", "AvailabilityZone", "SpotPrice")
    history = [dict(zip(names, quote, strict=True)) for quote in quotes]
    (place / "history.json").write_text(json.dumps({"SpotPriceHistory": history}))


def azure(folder: Path, zone: str, *lines: str) -> None:
    place = folder / "azure" / "logs"
    place.mkdir(parents=True, exist_ok=True)
    (place / f"{zone}.csv").write_text("\n".join(lines) + "\n")


def test_the_cheapest_zone_counts_with_its_last_price(tmp_path: Path) -> None:
    aws(
        tmp_path,
        ("2020-01-02T00:00:00.000Z", "p3.2xlarge", "a", "0.30"),
        ("2020-01-01T00:00:00.000Z", "p3.2xlarge", "a", "0.50"),
        ("2020-01-01T12:00:00.000Z", "p3.2xlarge", "b", "0.40"),
        ("2020-01-03T00:00:00.000Z", "p3.2xlarge", "a", "9.00"),
        ("2020-01-01T00:00:00.000Z", "p2.xlarge", "a", "0.10"),
    )
    changes = read_prices(tmp_path, ["k80", "p100", "v100"])
    # Zone b has its first price from the beginning on.
    assert [(each.at, each.prices["v100"]) for each in changes] == [(0.0, 0.4), (DAY, 0.3), (2 * DAY, 0.4)]
    assert changes[0].prices["k80"] == 0.1
    assert changes[0].prices["p100"] == pytest.approx(0.15), "Amazon has none: one and a half K80"


def test_clouds_compete_and_google_is_always_there(tmp_path: Path) -> None:
    azure(tmp_path, "east", "Date,NC6,NC6s v3", "01/02/2020,$0.20,$0.50", "01/01/2020,,$0.60")
    azure(tmp_path, "west", "Date,NC6s v3", "01/03/2020,$5.00", "01/01/2020,$0.70")
    changes = read_prices(tmp_path, ["v100", "p100", "k80"])
    assert [(each.at, each.prices["v100"]) for each in changes] == [(0.0, 0.6), (DAY, 0.5)]
    assert {each.prices["p100"] for each in changes} == {GOOGLE["p100"]}
    assert {each.prices["k80"] for each in changes} == {GOOGLE["k80"]}


def test_faults_name_file_and_line(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is no folder"):
        read_prices(tmp_path / "nowhere", ["v100"])
    with pytest.raises(BadInput, match="holds neither"):
        read_prices(tmp_path, ["v100"])
    azure(tmp_path, "east", "Date,NC6", "1.2.2020,$0.2")
    with pytest.raises(BadInput, match=r"east.csv:2: must be a date"):
        read_prices(tmp_path, ["v100"])
    azure(tmp_path, "east", "Date,NC6", "01/02/2020,free")
    with pytest.raises(BadInput, match=r"east.csv:2"):
        read_prices(tmp_path, ["v100"])
    azure(tmp_path, "east", "Date,NC6", "01/02/2020,$1")
    with pytest.raises(BadInput, match="no prices of a100"):
        read_prices(tmp_path, ["a100"])
    aws(tmp_path, ("yesterday", "p3.2xlarge", "a", "0.3"))
    with pytest.raises(BadInput, match=r"history\.json: is no history"):
        read_prices(tmp_path, ["v100"])

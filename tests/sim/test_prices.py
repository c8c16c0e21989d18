"""Price histories of two clouds."""

import json
from pathlib import Path

import pytest

from levada.errors import BadInput
from levada.sim.prices import GOOGLE, read_prices

DAY = 86400.0


def aws(folder: Path, *quotes: tuple[str, str, str, str]) -> None:
    target = folder / "aws" / "logs" / "us-east-1"
    target.mkdir(parents=True, exist_ok=True)
    names = ("Timestamp", "InstanceType", "AvailabilityZone", "SpotPrice")
    history = [dict(zip(names, quote, strict=True)) for quote in quotes]
    (target / "history.json").write_text(json.dumps({"SpotPriceHistory": history}))


def azure(folder: Path, zone: str, *lines: str) -> None:
    target = folder / "azure" / "logs"
    target.mkdir(parents=True, exist_ok=True)
    (target / f"{zone}.csv").write_text("\n".join(lines) + "\n")


def test_the_price_is_that_of_the_cheapest_zone(tmp_path: Path) -> None:
    aws(
        tmp_path,
        ("2020-01-02T00:00:00.000Z", "p3.2xlarge", "a", "0.30"),
        ("2020-01-01T00:00:00.000Z", "p3.2xlarge", "a", "0.50"),
        ("2020-01-01T12:00:00.000Z", "p3.2xlarge", "b", "0.40"),
        ("2020-01-03T00:00:00.000Z", "p3.2xlarge", "a", "9.00"),
        ("2020-01-01T00:00:00.000Z", "p2.xlarge", "a", "0.10"),
    )
    changes = read_prices(tmp_path, ["k80", "p100", "v100"])
    # Before its first quote zone b has the price of that quote.
    assert [(change.at, change.prices["v100"]) for change in changes] == [(0.0, 0.4), (DAY, 0.3), (2 * DAY, 0.4)]
    assert changes[0].prices["k80"] == 0.1
    assert changes[0].prices["p100"] == pytest.approx(0.15), "AWS has no P100: 1.5 K80"


def test_the_cheapest_cloud_wins_and_google_is_always_included(tmp_path: Path) -> None:
    azure(tmp_path, "east", "Date,NC6,NC6s v3", "01/02/2020,$0.20,$0.50", "01/01/2020,,$0.60")
    azure(tmp_path, "west", "Date,NC6s v3", "01/03/2020,$5.00", "01/01/2020,$0.70")
    changes = read_prices(tmp_path, ["v100", "p100", "k80"])
    assert [(change.at, change.prices["v100"]) for change in changes] == [(0.0, 0.6), (DAY, 0.5)]
    assert {change.prices["p100"] for change in changes} == {GOOGLE["p100"]}
    assert {change.prices["k80"] for change in changes} == {GOOGLE["k80"]}


def test_faults_name_file_and_line(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not a folder"):
        read_prices(tmp_path / "nowhere", ["v100"])
    with pytest.raises(BadInput, match="contains neither"):
        read_prices(tmp_path, ["v100"])
    azure(tmp_path, "east", "Date,NC6", "1.2.2020,$0.2")
    with pytest.raises(BadInput, match=r"east.csv:2: each line must have a date"):
        read_prices(tmp_path, ["v100"])
    azure(tmp_path, "east", "Date,NC6", "01/02/2020,free")
    with pytest.raises(BadInput, match=r"east.csv:2"):
        read_prices(tmp_path, ["v100"])
    azure(tmp_path, "east", "Date,NC6", "01/02/2020,$1")
    with pytest.raises(BadInput, match="no prices for a100"):
        read_prices(tmp_path, ["a100"])
    aws(tmp_path, ("yesterday", "p3.2xlarge", "a", "0.3"))
    with pytest.raises(BadInput, match=r"history\.json: not a spot price history"):
        read_prices(tmp_path, ["v100"])

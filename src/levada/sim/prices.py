"""What GPUs cost over time, from the folder of prices that Gavel's simulator reads.

    aws/logs/us-east-1/*.json    {"SpotPriceHistory": [{Timestamp, InstanceType, AvailabilityZone, SpotPrice}, ...]}
    azure/logs/<zone>.csv        a date (month/day/year), then a price (`$1.23`) for each instance type of the header

Time 0 is the first moment of each cloud. The price of a type is the least over the clouds that are there and, within
one, over its zones, each with its last known price; Google's is always the same. Amazon has no machine with one P100:
it counts as one and a half K80. Where Gavel takes whichever of Azure's zones it read last, we take the cheapest.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from levada.core.events import PricesChanged
from levada.errors import BadInput
from levada.sim.rows import read_text

#: Instance types with one GPU of a type, and what to multiply their price with.
AWS = {"v100": ("p3.2xlarge", 1.0), "p100": ("p2.xlarge", 1.5), "k80": ("p2.xlarge", 1.0)}
AZURE = {"v100": ("NC6s v3", 1.0), "p100": ("NC6s v2", 1.0), "k80": ("NC6", 1.0)}
GOOGLE = {"v100": 0.74, "p100": 0.43, "k80": 0.135}

#: (instance type, zone, seconds, $).
Quote = tuple[str, str, float, float]
#: The machines of a cloud by GPU type, and its quotes by time.
Cloud = tuple[dict[str, tuple[str, float]], list[Quote]]


def read_prices(folder: str | Path, types: Iterable[str]) -> list[PricesChanged]:
    """When prices of these types change, by time, the first at 0; raises BadInput."""
    place = Path(folder)
    if not place.is_dir():
        raise BadInput.one("is no folder", str(place))
    wanted = list(types)
    strange = [name for name in wanted if name not in GOOGLE]
    if strange:
        raise BadInput.one(f"has no prices of {', '.join(strange)}, only of {', '.join(GOOGLE)}", str(place))
    clouds = [
        (AWS, _from_zero(_aws(sorted(place.glob("aws/logs/us-east-1/*.json"))))),
        (AZURE, _from_zero(_azure(sorted(place.glob("azure/logs/*.csv"))))),
    ]
    if not any(quotes for _, quotes in clouds):
        raise BadInput.one("holds neither aws/logs/us-east-1/*.json nor azure/logs/*.csv", str(place))
    return _changes(clouds, wanted)


def _changes(clouds: list[Cloud], types: list[str]) -> list[PricesChanged]:
    last: list[dict[tuple[str, str], float]] = [{} for _ in clouds]
    for known, (_, quotes) in zip(last, clouds, strict=True):
        # Before its first price a zone has that one.
        for instance, zone, _, price in quotes:
            known.setdefault((instance, zone), price)
    moments = sorted({0.0, *(quote[2] for _, quotes in clouds for quote in quotes)})
    at = [0] * len(clouds)
    changes: list[PricesChanged] = []
    for moment in moments:
        for cloud, (_, quotes) in enumerate(clouds):
            while at[cloud] < len(quotes) and quotes[at[cloud]][2] <= moment:
                instance, zone, _, price = quotes[at[cloud]]
                last[cloud][instance, zone] = price
                at[cloud] += 1
        prices = {name: _least(name, clouds, last) for name in types}
        if not changes or changes[-1].prices != prices:
            changes.append(PricesChanged(at=moment, prices=prices))
    return changes


def _least(name: str, clouds: list[Cloud], last: list[dict[tuple[str, str], float]]) -> float:
    found = [GOOGLE[name]]
    for (machines, _), known in zip(clouds, last, strict=True):
        instance, factor = machines[name]
        found += [price * factor for (machine, _), price in known.items() if machine == instance]
    return min(found)


def _from_zero(quotes: list[Quote]) -> list[Quote]:
    """Sorted by time, from 0 on."""
    start = min((quote[2] for quote in quotes), default=0.0)
    return sorted(((*quote[:2], quote[2] - start, quote[3]) for quote in quotes), key=lambda quote: quote[2])


class _Entry(msgspec.Struct, rename="pascal"):
    timestamp: datetime
    instance_type: str
    availability_zone: str
    spot_price: str


class _History(msgspec.Struct, rename="pascal"):
    spot_price_history: list[_Entry]


def _aws(files: list[Path]) -> list[Quote]:
    quotes: list[Quote] = []
    for file in files:
        try:
            history = msgspec.json.decode(read_text(file).encode(), type=_History)
            for entry in history.spot_price_history:
                price = _price(entry.spot_price)
                quotes.append((entry.instance_type, entry.availability_zone, entry.timestamp.timestamp(), price))
        except (msgspec.DecodeError, ValueError) as error:
            raise BadInput.one(f"is no history of spot prices: {error}", str(file)) from None
    return quotes


def _azure(files: list[Path]) -> list[Quote]:
    quotes: list[Quote] = []
    for file in files:
        lines = list(csv.reader(read_text(file).splitlines()))
        for number, line in enumerate(lines[1:], 2):
            try:
                moment = datetime.strptime(line[0], "%m/%d/%Y").replace(tzinfo=UTC).timestamp()
                for machine, cell in zip(lines[0][1:], line[1:], strict=True):
                    if cell.strip():
                        quotes.append((machine, file.stem, moment, _price(cell.strip().removeprefix("$"))))
            except (ValueError, IndexError) as error:
                raise BadInput.one(f"must be a date and a price for each column: {error}", f"{file}:{number}") from None
    return quotes


def _price(text: str) -> float:
    price = float(text)
    if not 0 <= price < 1e9:
        raise ValueError(f"{text} is no price")
    return price

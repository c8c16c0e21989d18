"""GPU prices over time, from a folder in the format of Gavel's simulator.

    aws/logs/us-east-1/*.json    {"SpotPriceHistory": [{Timestamp, InstanceType, AvailabilityZone, SpotPrice}, ...]}
    azure/logs/<zone>.csv        a date (month/day/year), then a price (`$1.23`) for each instance type of the header

Time 0 is the first quote of each cloud. The price of a type is the minimum over the clouds in the folder and, within a
cloud, over its zones, each with its last known price; Google's prices are constant. AWS has no instance with one P100:
it counts as 1.5 K80. For Azure, Gavel uses the zone that it read last; Levada uses the cheapest.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from levada.core.events import PricesChanged
from levada.errors import BadInput
from levada.sim.text_rows import read_text

#: Instance type with one GPU, and the factor of its price, by GPU type.
AWS = {"v100": ("p3.2xlarge", 1.0), "p100": ("p2.xlarge", 1.5), "k80": ("p2.xlarge", 1.0)}
AZURE = {"v100": ("NC6s v3", 1.0), "p100": ("NC6s v2", 1.0), "k80": ("NC6", 1.0)}
GOOGLE = {"v100": 0.74, "p100": 0.43, "k80": 0.135}

#: (instance type, zone, seconds, $).
Quote = tuple[str, str, float, float]
#: Instance types of a cloud by GPU type, and its quotes by time.
Cloud = tuple[dict[str, tuple[str, float]], list[Quote]]


def read_prices(folder: str | Path, types: Iterable[str]) -> list[PricesChanged]:
    """Return the price changes of these types, by time, the first at 0; raises BadInput."""
    place = Path(folder)
    if not place.is_dir():
        raise BadInput.one("not a folder", str(place))
    wanted = list(types)
    unknown = [name for name in wanted if name not in GOOGLE]
    if unknown:
        raise BadInput.one(f"no prices for {', '.join(unknown)}; known types: {', '.join(GOOGLE)}", str(place))
    clouds = [
        (AWS, _from_zero(_aws(sorted(place.glob("aws/logs/us-east-1/*.json"))))),
        (AZURE, _from_zero(_azure(sorted(place.glob("azure/logs/*.csv"))))),
    ]
    if not any(quotes for _, quotes in clouds):
        raise BadInput.one("contains neither aws/logs/us-east-1/*.json nor azure/logs/*.csv", str(place))
    return _changes(clouds, wanted)


def _changes(clouds: list[Cloud], types: list[str]) -> list[PricesChanged]:
    last: list[dict[tuple[str, str], float]] = [{} for _ in clouds]
    for known, (_, quotes) in zip(last, clouds, strict=True):
        # Before its first quote a zone has the price of that quote.
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
        prices = {name: _lowest(name, clouds, last) for name in types}
        if not changes or changes[-1].prices != prices:
            changes.append(PricesChanged(at=moment, prices=prices))
    return changes


def _lowest(name: str, clouds: list[Cloud], last: list[dict[tuple[str, str], float]]) -> float:
    prices = [GOOGLE[name]]
    for (instances, _), known in zip(clouds, last, strict=True):
        instance, factor = instances[name]
        prices += [price * factor for (machine, _), price in known.items() if machine == instance]
    return min(prices)


def _from_zero(quotes: list[Quote]) -> list[Quote]:
    """Sort by time and shift the first quote to 0."""
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
            raise BadInput.one(f"not a spot price history: {error}", str(file)) from None
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
                raise BadInput.one(
                    f"each line must have a date and one price per column: {error}", f"{file}:{number}"
                ) from None
    return quotes


def _price(text: str) -> float:
    price = float(text)
    if not 0 <= price < 1e9:
        raise ValueError(f"{text} is not a price")
    return price

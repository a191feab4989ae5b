"""Delays by airline and by hour of the day as a table of text."""

from __future__ import annotations

from collections.abc import Mapping

Totals = Mapping[tuple[str, int], Mapping[str, int]]


def render_table(totals: Totals, airline_names: Mapping[str, str]) -> str:
    """A line for each carrier: its flights, cancellations and mean delays, then the mean by hour of day."""
    hours = sorted({hour for _, hour in totals})
    carriers = sorted({carrier for carrier, _ in totals}, key=lambda carrier: -_flown(totals, carrier))
    heading = f"{'airline':<24}{'flights':>8}{'cancelled':>10}{'departs':>8}{'arrives':>8}  |"
    lines = [
        "Mean delay in minutes of the flights from New York City in 2013: at departure and arrival,",
        "then at departure by the hour of the day that the flight was scheduled for.",
        "",
        heading + "".join(f"{hour:>4}" for hour in hours),
    ]
    lines.append("-" * len(lines[-1]))
    for carrier in carriers:
        lines.append(_line(totals, f"{carrier} {airline_names.get(carrier, '')}", {carrier}, hours))
    lines.append("-" * len(lines[-1]))
    lines.append(_line(totals, "all", set(carriers), hours))
    return "\n".join(lines)


def _flown(totals: Totals, carrier: str) -> int:
    return sum(row["flights"] for (of_carrier, _), row in totals.items() if of_carrier == carrier)


def _line(totals: Totals, label: str, carriers: set[str], hours: list[int]) -> str:
    rows = {key: row for key, row in totals.items() if key[0] in carriers}
    flights = sum(row["flights"] for row in rows.values())
    cancelled = sum(row["cancelled"] for row in rows.values())
    departed = _mean(rows, "departure_delay_minutes")
    arrived = _mean(rows, "arrival_delay_minutes")
    by_hour = (
        _mean({key: row for key, row in rows.items() if key[1] == hour}, "departure_delay_minutes")
        for hour in hours
    )
    cells = "".join(f"{cell:>4}" for cell in by_hour)
    return f"{label[:23]:<24}{flights:>8,}{cancelled:>10,}{departed:>8}{arrived:>8}  |{cells}"


def _mean(rows: Totals, measure: str) -> str:
    """The mean over the flights that left, rounded; a dot where none did."""
    left = sum(row["flights"] - row["cancelled"] for row in rows.values())
    return str(round(sum(row[measure] for row in rows.values()) / left)) if left else "."

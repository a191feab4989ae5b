"""`python -m compat_tests.bench.balancer`: plans of the balancer for 100 brokers with 10,000 partitions, in memory.

Loads differ as those of real topics do: most partitions are small, a few have thousands of times as much. Each row plans and applies
until nothing is left to move, so it shows what all plans together copy. The bytes that brokers hold above the average are a bound
to compare with: evening out the disks alone copies as much at least. `ms` is the processor time of the longest plan, `step` the
longest time for which a plan does not let the loop go on, both the least of three runs.
"""

from __future__ import annotations

import argparse
import gc
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from barnabas.controller.balancer.moves import GOALS, Move, Plan
from barnabas.controller.balancer.planner import plan
from barnabas.controller.balancer.tests.clusters import ModelCluster, large_cluster
from barnabas.runtime.slices import Steps, run_through

ROUNDS_MAX = 30
REPEATS = 3  # of what is measured: the least counts, as other processes disturb it
GB = 1e9


@dataclass
class Result:
    """What it took until nothing was left to move. Times in seconds."""

    first: Plan
    last: Plan
    above_average: float  # bytes that brokers hold above the average, before
    rounds: int = 0
    moves: list[Move] = field(default_factory=list)
    swaps: int = 0
    longest_plan_s: float = 0.0
    longest_step_s: float = 0.0

    @property
    def copied(self) -> int:
        """Bytes."""
        return sum(move.size for move in self.moves)


def skewed(brokers: int, partitions: int, draw: random.Random) -> ModelCluster:
    """As topics are placed without a balancer."""
    return large_cluster(brokers, partitions, draw)


def grown(brokers: int, partitions: int, draw: random.Random) -> ModelCluster:
    """A balanced cluster to which a tenth of its brokers has been added, empty."""
    before = brokers - brokers // 10
    cluster = large_cluster(before, partitions, draw)
    cluster.settle(ROUNDS_MAX)
    for broker_id in range(before + 1, brokers + 1):
        cluster.register(broker_id, f"rack-{broker_id % 3}")
    return cluster


def drained(brokers: int, partitions: int, draw: random.Random) -> ModelCluster:
    """A balanced cluster one of whose brokers is drained."""
    cluster = large_cluster(brokers, partitions, draw)
    cluster.settle(ROUNDS_MAX)
    cluster.drain(1)
    return cluster


def gone(brokers: int, partitions: int, draw: random.Random) -> ModelCluster:
    """A balanced cluster one of whose brokers is gone."""
    cluster = large_cluster(brokers, partitions, draw)
    cluster.settle(ROUNDS_MAX)
    cluster.lose(1)
    return cluster


SCENARIOS: dict[str, Callable[[int, int, random.Random], ModelCluster]] = {
    "striped": skewed,
    "a tenth added": grown,
    "one drained": drained,
    "one gone": gone,
}


def above_average(cluster: ModelCluster) -> float:
    """Bytes that brokers hold above the average."""
    held = cluster.held()
    average = sum(held.values()) / len(held)
    return sum(max(each - average, 0.0) for each in held.values())


def measure(cluster: ModelCluster) -> Result:
    result: Result | None = None
    while True:
        bound = above_average(cluster) if result is None else 0.0
        reports = cluster.reports()
        gc.collect()
        gc.freeze()  # as `barnabas start` does
        found = run_through(plan(cluster.image, reports, gone=cluster.gone))
        plan_s = min(plan_time(plan(cluster.image, reports, gone=cluster.gone)) for _ in range(REPEATS))
        step_s = min(longest_step(plan(cluster.image, reports, gone=cluster.gone)) for _ in range(REPEATS))
        result = result or Result(found, found, bound)
        result.last = found
        result.longest_plan_s = max(result.longest_plan_s, plan_s)
        result.longest_step_s = max(result.longest_step_s, step_s)
        if not found.moves or result.rounds == ROUNDS_MAX:
            return result
        result.rounds += 1
        result.moves += found.moves
        result.swaps += sum(len(group) > 1 for group in found.groups)
        cluster.apply(found.moves)


def plan_time(steps: Steps[Plan]) -> float:
    """The processor time of a plan, in seconds."""
    began = time.process_time()
    run_through(steps)
    return time.process_time() - began


def longest_step(steps: Steps[Plan]) -> float:
    """The processor time of the longest step, in seconds."""
    longest_s, began = 0.0, time.process_time()
    for _ in steps:
        now = time.process_time()
        longest_s, began = max(longest_s, now - began), now
    return max(longest_s, time.process_time() - began)


def percents(plan: Plan) -> str:
    return " / ".join(f"{each:.1%}" for each in plan.imbalance)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--brokers", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(f"{options.brokers} brokers, {options.partitions} partitions, 3 replicas; largest difference from")
    print(f"the average in {', '.join(GOALS)}")
    for name, make in SCENARIOS.items():
        cluster = make(options.brokers, options.partitions, random.Random(options.seed))
        total = sum(cluster.held().values())
        result = measure(cluster)
        copies = sum(move.copies for move in result.moves)
        print(f"{name}: {percents(result.first)} -> {percents(result.last)}")
        print(
            f"  {result.rounds} plans, {len(result.moves) - copies} leaders and {copies} replicas moved, "
            f"{2 * result.swaps} of them in swaps; {result.longest_plan_s * 1e3:.0f} ms, step {result.longest_step_s * 1e3:.1f} ms"
        )
        print(
            f"  copied {result.copied / GB:,.0f} GB, {result.copied / total:.2%} of {total / GB:,.0f} GB; "
            f"above the average: {result.above_average / GB:,.0f} GB"
        )


if __name__ == "__main__":
    main()

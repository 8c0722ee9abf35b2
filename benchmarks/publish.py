"""From result lines to what people read: a summary, `RESULTS.md`, and a plot of the ratio to the best peer per row."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from benchmarks.peers import PEERS

LEVEL = 0.95
"""A row below this share of the best peer's speed counts as behind."""

Record = dict[str, Any]


def family_means(records: Iterable[Record], threads: int) -> dict[str, float]:
    """The geometric mean of the ratios of each family that has any, in order of the rows."""
    logs: dict[str, list[float]] = {}
    for record in records:
        if record["threads"] == threads and record["ratio"] is not None:
            logs.setdefault(record["family"], []).append(math.log(record["ratio"]))
    return {family: math.exp(sum(values) / len(values)) for family, values in logs.items()}


def mean_over_families(records: Sequence[Record], threads: int) -> float | None:
    """The geometric mean with each family weighted alike."""
    means = family_means(records, threads)
    return math.exp(sum(map(math.log, means.values())) / len(means)) if means else None


def thread_counts(records: Iterable[Record]) -> list[int]:
    return sorted({record["threads"] for record in records})


def summary(records: Sequence[Record]) -> str:
    """One line a thread count, and one a family."""
    lines = []
    for threads in thread_counts(records):
        rows = [r for r in records if r["threads"] == threads]
        judged = [r["ratio"] for r in rows if r["ratio"] is not None]
        mean = mean_over_families(records, threads)
        if mean is None:
            lines.append(f"{threads} threads: no row has a peer")
            continue
        behind = sum(ratio < LEVEL for ratio in judged)
        wrong = sum("polyopt" in r["missing"] for r in rows)
        lines.append(
            f"{_threads(threads)}: geometric mean over the best peer {mean:.2f} (families alike), "
            f"{behind} of {len(judged)} rows below {LEVEL}" + (f", {wrong} WITHOUT A RESULT OF OURS" if wrong else "")
        )
        families = ", ".join(f"{name} {value:.2f}" for name, value in family_means(records, threads).items())
        lines.append(f"    {families}")
    return "\n".join(lines)


def _threads(count: int) -> str:
    return f"{count} thread" + "s" * (count > 1)


# --- the page ---------------------------------------------------------------------------------------------------


def write(folder: Path) -> None:
    """RESULTS.md from every run in the folder of results, the newest first, and ratios.svg from that one, beside it."""
    runs = [_read(path) for path in sorted(folder.glob("*.jsonl")) if _is_run(path)]
    runs.sort(key=lambda run: run[0].get("when", ""), reverse=True)
    (folder.parent / "RESULTS.md").write_text(page(runs), encoding="utf-8")
    plot(runs[0][1] if runs else [], folder.parent / "ratios.svg")


def _is_run(path: Path) -> bool:
    if path.name.endswith(".partial.jsonl"):
        return False
    with path.open(encoding="utf-8") as file:
        return "machine" in json.loads(file.readline()) and "rates" in path.read_text(encoding="utf-8")[:4000]


def _read(path: Path) -> tuple[Record, list[Record]]:
    header, *records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return header, records


def page(runs: Sequence[tuple[Record, list[Record]]]) -> str:
    return (
        "\n".join(["# Benchmark results", "", _INTRODUCTION, *(line for run in runs for line in _run_page(*run))])
        + "\n"
    )


_INTRODUCTION = """\
Made by `make bench`; do not edit. Each row is one operator from its bare definition
([polyopt_peer.py](peers/polyopt_peer.py)), checked against float64 before it is timed. Ratio: the best peer's time over
polyopt's, the median over interleaved rounds; above 1 polyopt is the faster. Bound: the share of what the machine's
measured peak or bandwidth allows. Peers run in processes of their own, with a C library that reuses memory; inputs
start at a cache line for all of them; numba and gcc write into results made once, which do so too; adam is a step in
place for them, torch and polyopt. A dash: the peer has nothing for the row, or is not installed.

![ratio to the best peer per row](ratios.svg)"""


def _run_page(header: Record, records: list[Record]) -> Iterator[str]:
    rates, when = header["rates"], f", {header['when']} UTC" if "when" in header else ""
    yield ""
    yield f"## {header['machine']}"
    yield ""
    yield (
        f"{header['cores']} cores. One core: {rates['fma_f32']:.4g} GFLOP/s f32, {rates['fma_f64']:.4g} f64, "
        f"{rates['fma_bf16']:.4g} bf16, {rates['fma_i8']:.4g} Gop/s int8; L1 {rates['l1']:.3g}, L2 {rates['l2']:.3g}, "
        f"L3 {rates['l3']:.3g}, memory {rates['dram']:.3g}, copy {rates['copy']:.3g} GB/s; all cores: memory "
        f"{rates['dram_all']:.3g}, copy {rates['copy_all']:.3g} GB/s. Commit {header['commit']}, "
        f"Python {header['python']}{when}."
    )
    yield ""
    yield ", ".join(f"{name} {version}" for name, version in header["versions"].items()) + "."
    yield ""
    yield "```text"
    yield summary(records)
    yield "```"
    peers = [name for name in PEERS if name != "polyopt" and any(name in r["ms"] for r in records)]
    for family, rows in groupby(records, key=lambda record: record["family"]):
        yield ""
        yield f"### {family}"
        yield ""
        yield f"| row | threads | polyopt ms | {' | '.join(peers)} | ratio | Gop/s | GB/s | bound |"
        yield "|---|" + "---:|" * (len(peers) + 6)
        for row in rows:
            yield _table_row(row, peers)
    missing = [(r["row"], name, why) for r in records for name, why in r["missing"].items()]
    if header.get("left_out"):
        yield ""
        yield f"Left out for want of time or memory: {', '.join(header['left_out'])}."
    if missing:
        yield ""
        yield "Without a time:"
        yield ""
        for key, group in groupby(sorted({(name, why, row) for row, name, why in missing}), key=lambda item: item[:2]):
            yield f"- {key[0]}, {key[1]}: {', '.join(item[2] for item in group)}"


def _table_row(row: Record, peers: Sequence[str]) -> str:
    def cell(name: str) -> str:
        value = row["ms"].get(name)
        text = "-" if value is None else f"{value:.3g}"
        return f"**{text}**" if name == row["best"] else text

    ratio = "-" if row["ratio"] is None else f"{row['ratio']:.2f}"
    gops, gbytes, share = ("-" if row[k] is None else f"{row[k]:.3g}" for k in ("gops", "gbytes", "share"))
    cells = [row["row"], str(row["threads"]), cell("polyopt"), *map(cell, peers), ratio, gops, gbytes, share]
    return f"| {' | '.join(cells)} |"


# --- the plot ---------------------------------------------------------------------------------------------------


def plot(records: Sequence[Record], path: Path) -> None:
    """A dot per row and thread count on a logarithmic axis, families together; empty axes without rows.

    Needs matplotlib; without it the file stays as it is.
    """
    try:
        import matplotlib  # optional: only who publishes needs it
    except ImportError:
        print("no matplotlib: the plot stays as it is")
        return
    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "polyopt", "font.size": 7})
    names = list(dict.fromkeys(r["row"] for r in records if r["ratio"] is not None))
    place = {name: -number for number, name in enumerate(names)}
    figure, axes = pyplot.subplots(figsize=(7, 0.8 + 0.13 * len(names)))
    colours = ("#4878a8", "#d1764a", "#5a9e6f")
    for threads, colour in zip(thread_counts(records), colours):
        dots = [r for r in records if r["threads"] == threads and r["ratio"] is not None]
        axes.scatter(
            [r["ratio"] for r in dots],
            [place[r["row"]] for r in dots],
            s=9,
            c=colour,
            label=_threads(threads),
            zorder=3,
        )
    axes.axvline(1.0, color="#222222", linewidth=0.8)
    family_of = {r["row"]: r["family"] for r in records}
    for before, after in pairwise(names):
        if family_of[before] != family_of[after]:
            axes.axhline(place[after] + 0.5, color="#cccccc", linewidth=0.5)
    axes.set_xscale("log", base=2)
    ticks = [0.125, 0.25, 0.5, 0.7, 1, 1.4, 2, 4, 8]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_yticks([place[name] for name in names], names, fontsize=5)
    axes.set_ylim(0.3 - len(names), 0.7)
    axes.set_xlabel("speed of polyopt over the best peer")
    axes.grid(axis="x", color="#eeeeee", linewidth=0.5)
    if names:
        axes.legend(loc="lower right", frameon=False)
    figure.tight_layout()
    figure.savefig(path, format="svg", metadata={"Date": None})
    pyplot.close(figure)


if __name__ == "__main__":
    write(Path(__file__).resolve().parent / "results")

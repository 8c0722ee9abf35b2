"""The cost models' picks against an exhaustive sweep: `python -m benchmarks.model_vs_sweep`.

For each kernel and shape every answer to every question that the deciders ask is measured, one question after the
other, the better answers kept. The figure is the best time over the time of the model's plan: 100 % where the model is
right. Goal: median at least 95 %, worst at least 85 %.

    python -m benchmarks.model_vs_sweep [--only REGEX] [--seconds N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.cases import Case, all_cases
from benchmarks.peers import polyopt_peer
from polyopt import settings, tuning
from polyopt.errors import PolyoptError

PAIRS = (
    "gemm_64", "gemm_127", "gemm_256", "gemm_513", "gemm_127x513x255", "gemm_8192x64x64", "gemm_64x8192x64",
    "gemm_8x1024x1024", "dgemm_256", "gemm_transposed_512", "batched_1000x16", "batched_512x32", "gemv_1024",
    "conv3x3_28x28x128_b1", "conv1x1_14x14_1024to256_b1", "depthwise_56x56x128_b1", "conv_bias_relu_56x56x64_b1",
    "mttkrp_128_32", "ttm_96_32", "bilinear_128_64", "gelu_linear_128", "attention_1x512x64", "causal_1x512x64",
    "softmax_512x2048", "layernorm_128x64", "chain_1e6", "bias_relu_2048", "blur_2048", "harris_2048",
)  # fmt: skip


def sizes_of(case: Case) -> dict[str, int]:
    """The sizes by the names that the op's signature has."""
    from benchmarks.cases import inputs

    operator = polyopt_peer.operator_for(case)
    found: dict[str, int] = {}
    for parameter, array in zip(operator.signature.parameters, inputs(case)):
        found |= {str(dim): extent for dim, extent in zip(parameter.dims, array.shape) if str(dim).isidentifier()}
    return found


def swept(case: Case, seconds: float) -> dict[str, Any]:
    """The share of the model's plan that the best plan takes, and which one it is."""
    problem = polyopt_peer.operator_for(case).problem(**sizes_of(case))
    start = time.monotonic()
    outcome = tuning.tune(problem, {}, seconds=seconds, progress=lambda line: None)
    share = outcome.best.share if outcome.best is not None else 1.0
    return {
        "pair": case.name,
        "reached": round(min(1.0, share), 4),
        "model_ms": float(f"{outcome.base_ms:.4g}"),
        "plans": len(outcome.trials),
        "failed": sum(bool(trial.failure) for trial in outcome.trials),
        "seconds": round(time.monotonic() - start, 1),
        "best": [str(pick) for pick in outcome.best.picks] if outcome.best is not None else [],
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.model_vs_sweep", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=".", metavar="REGEX", help="pairs whose names match")
    parser.add_argument("--seconds", type=float, default=40.0, help="at most, for each pair; default: 40")
    parser.add_argument("--json", type=Path, help="append a line a pair")
    options = parser.parse_args()
    tuning.MOST_OPTIONS = 1000
    cases = {case.name: case for case in all_cases()}
    rows = []
    with tempfile.TemporaryDirectory() as folder, settings.override(cache_dir=Path(folder)):
        for name in PAIRS:
            if not re.search(options.only, name):
                continue
            try:
                row = swept(cases[name], options.seconds)
            except PolyoptError as error:
                print(f"{name:<32} {error.what}", flush=True)
                continue
            rows.append(row)
            print(
                f"{name:<32}{row['reached']:>7.0%} of the best of {row['plans']:>4} plans  {'; '.join(row['best'])}",
                flush=True,
            )
            if options.json:
                with options.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
    if rows:
        reached = [row["reached"] for row in rows]
        print(f"\n{len(rows)} pairs: median {statistics.median(reached):.0%}, worst {min(reached):.0%}")


if __name__ == "__main__":
    main()

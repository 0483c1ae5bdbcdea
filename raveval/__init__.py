"""Distributed batch evaluation of language models on Ray.

>>> import raveval
>>> results = raveval.run("configs/demo.yaml")  # doctest: +SKIP
>>> results.tasks["demo_choice"].metrics["accuracy"].value  # doctest: +SKIP
0.5

Nothing heavy is imported before it is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from raveval.comparison import Comparison, Difference, compare
    from raveval.measurement import Measurement, measure
    from raveval.run_status import status
    from raveval.runner import load_results, rescore, run
    from raveval.sweep import SweepResults, load_sweep_results, sweep_status
    from raveval.types import Coverage, Estimate, Results, Status, TaskResults

_HOMES = {
    "Comparison": "comparison",
    "Coverage": "types",
    "Difference": "comparison",
    "Estimate": "types",
    "Measurement": "measurement",
    "Results": "types",
    "Status": "types",
    "SweepResults": "sweep",
    "TaskResults": "types",
    "compare": "comparison",
    "load_results": "runner",
    "load_sweep_results": "sweep",
    "measure": "measurement",
    "rescore": "runner",
    "run": "runner",
    "status": "run_status",
    "sweep_status": "sweep",
}

__all__ = [
    "Comparison",
    "Coverage",
    "Difference",
    "Estimate",
    "Measurement",
    "Results",
    "Status",
    "SweepResults",
    "TaskResults",
    "compare",
    "load_results",
    "load_sweep_results",
    "measure",
    "rescore",
    "run",
    "status",
    "sweep_status",
]


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'raveval' has no attribute {name!r}")
    return getattr(import_module(f"raveval.{_HOMES[name]}"), name)

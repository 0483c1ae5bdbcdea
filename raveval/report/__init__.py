"""Says what a run found out: the terminal's table, report.md, report.html, results.json and CSV.

Values in, text out: nothing here reads a run directory, starts an engine or knows of Ray. Fractions
become percents here and nowhere else. Text from models and data is shown, never interpreted.
"""

from raveval.report.differences import (
    comparison_to_csv,
    comparison_to_json,
    comparison_to_markdown,
    print_comparison,
)
from raveval.report.files import from_json, measurement_to_json, to_csv, to_json
from raveval.report.html import sweep_to_html, to_html
from raveval.report.render import print_measurement, print_table, to_markdown
from raveval.report.sweeps import print_sweep, sweep_to_markdown

__all__ = [
    "comparison_to_csv",
    "comparison_to_json",
    "comparison_to_markdown",
    "from_json",
    "measurement_to_json",
    "print_comparison",
    "print_measurement",
    "print_sweep",
    "print_table",
    "sweep_to_html",
    "sweep_to_markdown",
    "to_csv",
    "to_html",
    "to_json",
    "to_markdown",
]

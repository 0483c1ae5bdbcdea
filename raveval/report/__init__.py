"""Says what a run found out: the table for the terminal, report.md, results.json and CSV.

Values in, text out: nothing here reads a run directory, starts an engine or knows of Ray. Fractions
become percents here and nowhere else. Text from models and data is shown, never interpreted.
"""

from raveval.report.files import from_json, measurement_to_json, to_csv, to_json
from raveval.report.render import print_measurement, print_table, to_markdown

__all__ = [
    "from_json",
    "measurement_to_json",
    "print_measurement",
    "print_table",
    "to_csv",
    "to_json",
    "to_markdown",
]

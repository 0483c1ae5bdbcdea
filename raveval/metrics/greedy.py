"""Greedy accuracy: how often the text is exactly what the model would have written itself.

Estimand: the probability that each token of a text is the single most probable one in its place.
Formula: k / n over the documents whose greediness was measured. Unit: fraction in [0, 1]; higher is
better; `n` counts documents. Interval: Wilson. Undefined without documents ("n=0") or where the
engine did not say ("not measured"). On LAMBADA, where a document's scored part is its last word,
this is the published last-word accuracy (Paperno et al., ACL 2016; lm-eval's `acc`).
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from raveval.metrics import Metric
from raveval.metrics._means import Mean, Means, MeansState, Values

_IS_GREEDY = pa.field("is_greedy", pa.bool_())


def _values(records: pa.Table) -> Mapping[str, Values]:
    return {"greedy_accuracy": records["is_greedy"]}


METRIC: Metric[MeansState] = Means(
    "greedy",
    version=2,
    columns=(_IS_GREEDY,),
    means={"greedy_accuracy": Mean(unit="fraction", higher_is_better=True)},
    values=_values,
)

"""Exchanges results with the LM Evaluation Harness (lm-eval): writes its files, and reads them.

`exporting` turns a finished run into results_<date>.json and samples_<task>_<date>.jsonl, which
lm-eval's own tools and users' scripts read. `importing` turns such files into a run directory,
which `raveval report` and `raveval compare` read. Neither needs lm-eval: `conventions` holds what
is known of its files, from its versions 0.3 to 0.4.13, and `terms` what it calls our numbers.

The two do not mean the same by every word. A number keeps the name of its own definition: what
lm-eval's file says stands under lm-eval's names ("acc", "acc_norm,none"), what raveval computes
from lm-eval's samples stands under raveval's ("accuracy_raw", "accuracy_per_char").
"""

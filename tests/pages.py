"""Results to make pages of: plain ones, and ones whose every text is out to do harm."""

from collections.abc import Iterator
from html.parser import HTMLParser

from typing_extensions import override

from raveval.metrics import _intervals as intervals
from raveval.metrics._averages import macro_averages
from raveval.types import Categories, CountTable, Coverage, Estimate, Results, TaskResults, Usage

PAYLOAD = (
    "</title></style></svg>--></textarea><script>document.title='owned'</script>"
    "<img src=x onerror=\"document.title='owned'\"><svg onload=\"document.title='owned'\">"
    "{{ 7 * 7 }}{% raw %}$x^2$ \x00\x1b[31m\u202e\u2066\ud800\ufffe & #000001"
)
"""Breaks out of whatever it stands in, runs scripts in three ways, and confuses what reads it."""


def share(n_right: int, n: int) -> Estimate:
    """Return an accuracy."""
    return intervals.proportion(n_right, n)


def results(text: str = "", **changes: object) -> Results:
    """Return results with every part that a page shows; `text` is added to all foreign text."""
    subjects = {f"subject_{i:02}{text}": {"accuracy": share(i, 30)} for i in range(25)}
    choice = TaskResults(
        metrics={
            "accuracy": share(300, 750),
            "accuracy_raw": share(310, 750),
            "random_baseline": Estimate(0.25, "fraction", 750),
        },
        coverage=Coverage({"ok": 745, "unparsed": 5, "overlong": 2, "failed": 3}),
        usage=Usage(120_000, 800, 40.0),
        protocol=f"multiple_choice{text}",
        num_fewshot=5,
        version=2,
        groups=subjects,
        macro=macro_averages(subjects),
        failures={
            f"q1{text}": f"failed: broke{text}",
            f"q2{text}": f"overlong: needs 9000 tokens{text}",
            f"q3{text}": f"failed: again{text}",
        },
        notes={f"ties{text}": 4},
        source={"path": f"rows.jsonl{text}", "limit": "755"},
    )
    grades = Categories(f"rating{text}", ("1", "2", "2.3333333333333335"))
    judged = TaskResults(
        metrics={
            "pearson": Estimate(0.61, "correlation", 9, None, 0.1, 0.4, 0.8, "fisher-z95", True),
            "spearman": Estimate(None, "correlation", 9, f"constant{text}"),
        },
        coverage=Coverage({"ok": 9}),
        usage=Usage(5000, 900, 12.5),
        protocol="absolute_grading",
        num_fewshot=0,
        version=1,
        judge_usage=Usage(70, 7, 0.0),
        tables={
            "rating_by_reference_rating": CountTable(
                grades, Categories(f"reference rating{text}", ("1", "2")), ((4, 0), (1, 3), (0, 1))
            ),
            "rating": CountTable(grades, None, ((4,), (4,), (1,))),
            "length": CountTable(Categories("length", ("0", "50"), 50.0), None, ((8,), (1,))),
        },
    )
    words = {"word_perplexity": Estimate(23.4567, "perplexity", 20, low=21.871, high=25.14)}
    text_task = TaskResults(
        words, Coverage({"ok": 20}), Usage(7, 2, 3.0), "language_modelling", 0, 1
    )
    given = {
        "model": f"org/model{text}",
        "tasks": {f"exams{text}": choice, f"grading{text}": judged, "wikitext2": text_task},
        "fingerprints": {f"exams{text}": {"reply": f"ab12{text}", "score": f"cd34{text}"}},
        "settings": {
            "seed": 1234,
            f"key{text}": f"value{text}",
            "loaded": [{"engine": f"vllm{text}", "device": "cpu", "dtype": "float32"}],
        },
        "times": {
            "started": "2026-07-01T09:30:00+00:00",
            "finished": "2026-07-01T09:31:30+00:00",
            "load_seconds": [12.9, 13.4],
        },
    }
    return Results(**{**given, **changes})  # type: ignore[arg-type]


class Document(HTMLParser):
    """What a browser would find in a page: its elements, and its text without style sheets."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self._is_style = False
        self.feed(html)
        self.close()

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        self._is_style = tag == "style"

    @override
    def handle_endtag(self, tag: str) -> None:
        self._is_style = False

    @override
    def handle_data(self, data: str) -> None:
        if not self._is_style and data.strip():
            self.texts.append(" ".join(data.split()))

    def all(self, tag: str) -> Iterator[dict[str, str]]:
        """Yield the attributes of every such element."""
        return (attributes for name, attributes in self.elements if name == tag)

    @property
    def text(self) -> str:
        """All text, parts separated by a bar."""
        return "|".join(self.texts)

"""A headless Chromium: what it makes of a page, as a picture and as a document."""

import shutil
import subprocess
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--disable-dev-shm-usage"),
)


class Browser:
    """Opens pages one by one, each with a profile of its own."""

    def __init__(self, program: str, folder: Path) -> None:
        self._program = program
        self._folder = folder
        self._n_opened = 0

    def _open(self, page: Path, *flags: str) -> str:
        self._n_opened += 1
        profile = self._folder / f"profile{self._n_opened}"
        command = [self._program, *FLAGS, f"--user-data-dir={profile}", *flags, page.as_uri()]
        run = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert run.returncode == 0, run.stderr
        return run.stdout

    def document(self, page: Path, *flags: str) -> str:
        """Return a page's document after all of its scripts had their time."""
        return self._open(page, "--virtual-time-budget=3000", *flags, "--dump-dom")

    def picture(self, page: Path, *, width: int, height: int) -> Path:
        """Return a picture of a window of this size."""
        target = self._folder / f"{page.stem}-{width}.png"
        self._open(page, f"--window-size={width},{height}", f"--screenshot={target}")
        return target


def find() -> str | None:
    """Return the program of an installed browser."""
    return next(filter(None, map(shutil.which, NAMES)), None)

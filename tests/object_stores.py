"""Object stores for tests: moto's S3 where it is installed, and one of flat files everywhere.

`FlatStore` is what S3 is to raveval: keys without folders, objects that are put whole, lists that
show them at once. Other processes find it as they find any store of fsspec's: by an entry point of
an installed package, which `flat_store` makes.
"""

import datetime
import importlib.util
import logging
import os
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, ClassVar

import fsspec
import pytest
from fsspec.spec import AbstractFileSystem
from typing_extensions import override

ROOT = "RAVEVAL_TEST_STORE"
BUCKET = "bucket"
STORES = ("flat", "s3")

busy = [0]
"""How many of the next requests the S3 server is too busy to answer."""


class FlatStore(AbstractFileSystem):  # type: ignore[misc]  # fsspec is not typed
    """An object is a file of a folder, named by its whole key; a bucket is there if its file is."""

    protocol = "flat"
    cachable: ClassVar[bool] = False

    @override
    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        start = f"{self._bucket(path)}/" if path == self._bucket(path) else f"{path}/"
        keys = [urllib.parse.unquote(file.name) for file in _root().iterdir()]
        rest = {key.removeprefix(start) for key in keys if key.startswith(start)} - {""}
        found = [start + each.partition("/")[0] for each in sorted(rest)]
        if not found and path != self._bucket(path):
            raise FileNotFoundError(path)
        return [self.info(each) for each in found] if detail else list(dict.fromkeys(found))

    @override
    def info(self, path: str, **_: Any) -> dict[str, Any]:
        file = self._file(path)
        if file.exists() and path != self._bucket(path):
            return {"name": path, "size": file.stat().st_size, "type": "file"}
        if path == self._bucket(path) or self.ls(path, detail=False):
            return {"name": path, "size": 0, "type": "directory"}
        raise FileNotFoundError(path)

    @override
    def cat_file(self, path: str, start: Any = None, end: Any = None, **_: Any) -> bytes:
        return self._file(path).read_bytes()[start:end]

    @override
    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        temporary = _root().parent / f"{os.getpid()}-{os.urandom(4).hex()}"
        temporary.write_bytes(value)
        temporary.replace(self._file(path))

    @override
    def rm_file(self, path: str) -> None:
        self._file(path).unlink()

    @override
    def modified(self, path: str) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self._file(path).stat().st_mtime, datetime.UTC)

    @override
    def _open(self, path: str, mode: str = "rb", **_: Any) -> IO[bytes]:
        assert mode == "rb", "what is written piece by piece is not put whole"
        return self._file(path).open("rb")

    def _file(self, path: str) -> Path:
        self._bucket(path)
        return _root() / urllib.parse.quote(path, safe="")

    def _bucket(self, path: str) -> str:
        bucket = path.partition("/")[0]
        if not (_root() / bucket).exists():
            raise FileNotFoundError(f"there is no bucket {bucket}")
        return bucket


def _root() -> Path:
    return Path(os.environ[ROOT])


@contextmanager
def served(kind: str, folder: Path, environment: pytest.MonkeyPatch) -> Iterator[str]:
    """Give the URL of an empty bucket that this process and those that it starts can use."""
    with {"flat": _flat, "s3": _s3}[kind](folder, environment) as url:
        yield url


@contextmanager
def _flat(folder: Path, environment: pytest.MonkeyPatch) -> Iterator[str]:
    objects, package = folder / "objects", folder / "package" / "flat_store-0.dist-info"
    objects.mkdir()
    (objects / BUCKET).touch()
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: flat-store\nVersion: 0\n")
    (package / "entry_points.txt").write_text(
        f"[fsspec.specs]\nflat = {__name__}:{FlatStore.__name__}\n"
    )
    here = str(Path(__file__).resolve().parents[1])
    paths = (here, str(package.parent), os.environ.get("PYTHONPATH", ""))
    environment.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    environment.setenv(ROOT, str(objects))
    fsspec.register_implementation("flat", FlatStore, clobber=True)
    yield f"flat://{BUCKET}"


@contextmanager
def _s3(folder: Path, environment: pytest.MonkeyPatch) -> Iterator[str]:
    for name in ("s3fs", "moto", "flask"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed: pip install s3fs 'moto[server]'")
    from botocore.session import get_session
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    server._server.app = _busy_at_times(server._server.app)
    try:
        host, port = server.get_host_and_port()
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "tests",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            environment.setenv(name, value)
        # Its objects are the process's, not the server's: an earlier test's may be there.
        urllib.request.urlopen(f"http://{host}:{port}/moto-api/reset", data=b"").close()
        fsspec.get_filesystem_class("s3").clear_instance_cache()
        get_session().create_client("s3").create_bucket(Bucket=BUCKET)
        yield f"s3://{BUCKET}"
    finally:
        server.stop()
        fsspec.get_filesystem_class("s3").clear_instance_cache()


def _busy_at_times(app: Any) -> Any:
    def answer(environ: dict[str, Any], start: Any) -> Any:
        if busy[0] == 0:
            return app(environ, start)
        busy[0] -= 1
        start("503 Slow Down", [("Content-Type", "application/xml")])
        return [b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"]

    return answer

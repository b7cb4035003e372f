"""Where `memory=` keeps fits: joblib's folder, and the files of an entry in it."""

import hashlib
import os
import uuid
from datetime import datetime
from pathlib import Path

import joblib

_DIGEST_SIZE = 32  # bytes of a SHA-256


def check_memory(memory):
    """Check that a parameter is a place to keep fits.

    Parameters
    ----------
    memory : str, path, joblib.Memory or None

    Raises
    ------
    TypeError
        For anything else.
    ValueError
        For an empty string, which would be the working folder.
    """
    if isinstance(memory, str) and not memory:
        raise ValueError(
            "The 'memory' parameter is an empty string; pass a folder or None."
        )
    if memory is None or isinstance(memory, (str, os.PathLike, joblib.Memory)):
        return
    raise TypeError(
        "The 'memory' parameter must be a folder, a joblib.Memory or None, got "
        f"{type(memory).__name__}: {memory!r:.60}."
    )


def store_folder(memory):
    """Folder of the entries, or None if nothing is kept.

    Parameters
    ----------
    memory : str, path, joblib.Memory or None
        A location, or a `joblib.Memory` of one.

    Raises
    ------
    TypeError
        For anything else.
    ValueError
        For a location that cannot be used, or is no local folder.
    """
    check_memory(memory)
    if isinstance(memory, (str, os.PathLike)):
        location = os.fspath(memory)
        try:
            memory = joblib.Memory(location, verbose=0)
        except OSError as error:
            raise ValueError(
                f"memory={location!r} cannot be used: {error}. Pass a folder that can "
                "be written to."
            ) from error
    if memory is None or memory.store_backend is None:
        return None
    if memory.backend != "local":
        raise ValueError(
            f"memory={memory!r} keeps what it is given in a store of kind "
            f"{memory.backend!r}; fits can be kept in local folders only."
        )
    return Path(memory.store_backend.location, "sklearn_acl")


class Entry:
    """A fit on disk: SHA-256 of the rest of the file, then what joblib dumps."""

    def __init__(self, folder):
        self._folder = folder
        self.path = folder / "output.pkl"  # the name that joblib looks for

    def lock(self):
        """Lock of this entry, released at the latest when its process ends."""
        from filelock import FileLock

        self._folder.mkdir(parents=True, exist_ok=True)
        return FileLock(self._folder / "lock")

    def read(self):
        """The state written; raises whatever may be wrong with it."""
        with open(self.path, "rb") as file:
            written = os.fstat(file.fileno()).st_mtime
            self.written = datetime.fromtimestamp(written)
            digest = file.read(_DIGEST_SIZE)
            if hashlib.file_digest(file, "sha256").digest() != digest:
                raise ValueError("the checksum is wrong")
            file.seek(_DIGEST_SIZE)
            return joblib.load(file)

    def write(self, state):
        """Write aside and rename: nobody ever reads half an entry."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for leftover in self._folder.glob("*.tmp"):  # of a process that was killed
            leftover.unlink(missing_ok=True)
        aside = self._folder / f"{uuid.uuid4().hex}.tmp"
        try:
            with open(aside, "w+b") as file:
                _write_with_digest(file, state)
            os.replace(aside, self.path)
        finally:
            aside.unlink(missing_ok=True)


def _write_with_digest(file, state):
    file.write(bytes(_DIGEST_SIZE))
    joblib.dump(state, file)
    file.seek(_DIGEST_SIZE)
    digest = hashlib.file_digest(file, "sha256").digest()
    file.seek(0)
    file.write(digest)
    file.flush()
    os.fsync(file.fileno())

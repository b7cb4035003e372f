"""Where token ids are kept: in memory, or in an Arrow file that is memory-mapped."""

import os
import shutil
import tempfile


def delete_directory(directory, owner):
    """Delete a directory if this process, by its number, is the owner."""
    # a forked worker drops its copy of the object, too, but does not own the files
    if os.getpid() == owner:
        shutil.rmtree(directory, ignore_errors=True)


class MemoryStore:
    """Chunks of ids as they come."""

    directory = None

    def __init__(self):
        self._chunks = []

    def append(self, chunk):
        """Take a chunk: a dict of arrays of one length."""
        self._chunks.append(chunk)

    def finish(self):
        """List of the chunks, in order."""
        return self._chunks

    def discard(self):
        """Delete what is on disk: nothing."""


class ArrowStore:
    """Chunks of ids in an Arrow file, one record batch a chunk, one line a token."""

    def __init__(self):
        self.directory = tempfile.mkdtemp(prefix="sklearn_acl_tokens_")
        self._path = os.path.join(self.directory, "tokens.arrow")
        self._writer = None

    def append(self, chunk):
        """Write a chunk: a dict of arrays of one length."""
        import pyarrow as pa

        batch = pa.RecordBatch.from_pydict(chunk)
        if self._writer is None:
            self._writer = pa.ipc.new_file(self._path, batch.schema)
        self._writer.write_batch(batch)

    def finish(self):
        """List of the chunks, in order, memory-mapped; no more can be written."""
        import pyarrow as pa

        if self._writer is None:  # no rows
            return []
        self._writer.close()
        reader = pa.ipc.open_file(pa.memory_map(self._path))
        batches = map(reader.get_batch, range(reader.num_record_batches))
        return [
            {name: batch.column(name).to_numpy() for name in batch.schema.names}
            for batch in batches
        ]

    def discard(self):
        """Delete the file."""
        if self._writer is not None:
            self._writer.close()
        delete_directory(self.directory, os.getpid())


STORES = {"memory": MemoryStore, "arrow": ArrowStore}

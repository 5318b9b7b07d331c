"""One weight file, mapped into memory: its bytes are read when they are touched, and forgotten again."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quire.errors import CheckpointError, in_words


class MappedFile:
    """A read-only map of a whole regular file.

    Pages stay in the process only until the next `array` or `forget` call: reading a model tensor by tensor then
    costs the memory of one tensor, not of the file. The system's page cache still holds the bytes, so a forgotten
    page that is touched again is simply there again.
    """

    def __init__(self, path: Path) -> None:
        """Raises CheckpointError if the file cannot be read or is empty."""
        self.path = path
        try:
            # A pipe or a device would block or never end.
            if not path.is_file():
                raise CheckpointError(f"{path} is not a file; give the path of a weight file.")
            with path.open("rb") as file:
                self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise CheckpointError(f"{path} could not be read: {in_words(error)}.") from error
        except ValueError as error:
            raise CheckpointError(f"{path} is empty; fetch the file again.") from error
        self.num_bytes = len(self.data)
        self._touched = (0, self.num_bytes)

    def array(self, dtype: npt.DTypeLike, offset: int, count: int) -> npt.NDArray[Any]:
        """`count` elements from byte `offset` on, as a read-only view of the map. The range must lie in the file."""
        element = np.dtype(dtype)
        self.forget()
        self._touched = (offset, offset + count * element.itemsize)
        if count == 0:
            return np.empty(0, element)
        return np.frombuffer(self.data, element, count, offset)

    def forget(self) -> None:
        """Drop the pages read last from this process. Views of them stay valid."""
        start, stop = self._touched
        start -= start % mmap.PAGESIZE
        if sys.platform != "win32" and stop > start:
            self.data.madvise(mmap.MADV_DONTNEED, start, stop - start)
        self._touched = (0, 0)

    def close(self) -> None:
        """Unmap the file. Where views of it are still held, that happens when the last one goes."""
        try:
            self.data.close()
        except BufferError:
            self.forget()

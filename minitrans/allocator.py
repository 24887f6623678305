"""Keeping freed memory in the process.

A step of training or of search frees and asks again for the same large tensors. glibc hands blocks above a
threshold back to the system, which must map and clear every page anew: on a processor that is a tenth of the
step and more.
"""

import ctypes
import sys

# <malloc.h>
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_LARGEST_INT = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let glibc keep what is freed for the next request instead of giving it back to the system.

    Numbers computed are the same with and without; the process holds its peak memory until it ends.

    Returns
    -------
    Whether it took: False where the C library is another one.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, _LARGEST_INT))

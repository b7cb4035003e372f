"""Where the user's own code stands, for warnings that point to it."""

import sys

#: Packages whose lines a user did not write; estimators are called through them.
_PASSED_OVER = (
    "sklearn_acl",
    "sklearn",
    "skorch",
    "joblib",
    "contextlib",
    "copy",
    "pickle",
)


def stacklevel():
    """The `stacklevel` of a warning that points to the call from the user's code.

    Returns
    -------
    level : int
        For `warnings.warn` in the function that asks.
    """
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _is_passed_over(frame):
        level, frame = level + 1, frame.f_back
    return level


def _is_passed_over(frame):
    return frame.f_globals.get("__name__", "").partition(".")[0] in _PASSED_OVER

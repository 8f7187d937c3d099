"""One BLAS thread per worker (they share the cores), scikit-learn's array API check switched on, no deadlines."""

from __future__ import annotations

import os
import signal
from pathlib import Path

# A shell starts jobs in the background with SIGINT ignored, and so would be the processes of tests about Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("SCIPY_ARRAY_API", "1")  # without it scikit-learn skips one of its checks
# Processes that tests start find the helpers as tests do.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))

from hypothesis import HealthCheck, settings

# `make test-all` tries all random examples of a property, 100 if a test does not give their number; `make test` and
# `make quick` try a share of them (see helpers.examples).
settings.register_profile("exhaustive", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("elmesh", settings.get_profile("exhaustive"), max_examples=15)
settings.register_profile("quick", settings.get_profile("exhaustive"), max_examples=10)
settings.load_profile("elmesh")

# These have no doctests, and importing a helper that is a user's script would register its solvers for all tests.
collect_ignore_glob = ["helpers/*", "conftest.py", "*/conftest.py"]

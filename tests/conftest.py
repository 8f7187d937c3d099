"""One BLAS thread a worker (workers share the cores), and hypothesis without deadlines (machines are noisy)."""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

from hypothesis import HealthCheck, settings

settings.register_profile("elmesh", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("elmesh")

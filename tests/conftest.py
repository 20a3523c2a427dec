"""Settings that every test shares: the same examples on every run, no network, no time limits."""

import os

from hypothesis import HealthCheck, settings

# Read by huggingface_hub when it is imported: a test that would go to the network fails at once.
os.environ["HF_HUB_OFFLINE"] = "1"

settings.register_profile(
    "tokenbin",
    derandomize=True,
    database=None,
    # The first example of a test may compile a kernel, which takes seconds.
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tokenbin")

"""The compiler: verify, passes, kernels, schedule, memory, plan. Pure Python over data; it knows no backend."""

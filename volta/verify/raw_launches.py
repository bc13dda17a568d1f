"""What a launch costs: by way of Volta's streams, and by a program in C that knows nothing but the driver; and what is
left of a device after a fault."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from volta.core.errors import DeviceError
from volta.numba_cuda.device.graph import Launches, Module, Row

NOTHING = """
.version 6.4
.target sm_70
.address_size 64
.visible .entry nothing(.param .u64 args)
{
    ret;
}
"""
"""A kernel that does nothing."""

_BATCH, _BATCHES = 500, 20
"""Launches that are queued before they are waited for, and how often; the best batch counts."""

_C = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef int (*function)();
static void *cuda;
static function find(const char *name) { return (function)dlsym(cuda, name); }
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e6 * t.tv_sec + 1e-3 * t.tv_nsec;
}

int main(int count, char **args) {
    static char text[1 << 16];
    void *context, *module, *kernel, *stream;
    int device;
    unsigned long long nothing = 0;
    void *params[] = {&nothing};
    FILE *file = fopen(args[1], "r");
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!cuda || find("cuInit")(0) || find("cuDeviceGet")(&device, atoi(args[2]))) return 1;
    if (find("cuDevicePrimaryCtxRetain")(&context, device) || find("cuCtxSetCurrent")(context)) return 2;
    if (find("cuModuleLoadData")(&module, text) || find("cuModuleGetFunction")(&kernel, module, "nothing")) return 3;
    if (find("cuStreamCreate")(&stream, 1)) return 4;
    typedef int (*launcher)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,
                            void **, void **);
    launcher launch = (launcher)find("cuLaunchKernel");
    int (*wait)(void *) = (void *)find("cuStreamSynchronize");
    double best = 1e30;
    for (int i = 0; i < BATCHES; i++) {
        double start = now();
        for (int j = 0; j < BATCH; j++)
            if (launch(kernel, 1, 1, 1, 32, 1, 1, 0, stream, params, 0)) return 5;
        double queued = now() - start;
        if (wait(stream)) return 6;
        if (queued < best) best = queued;
    }
    printf("%.4f\n", best / BATCH);
    return 0;
}
"""


def launch_microseconds(device: Any) -> float:
    """Of this thread's time, for a launch that is queued in a stream."""
    module = Module(device, NOTHING)
    memory = device.pool.take(8, device.main)
    try:
        launches = Launches(device.main, [Row(module.function("nothing"), 1, 32, memory.address)])
        best = float("inf")
        for _ in range(_BATCHES):
            start = time.perf_counter()
            for _ in range(_BATCH):
                status = launches.launch()
            best = min(best, time.perf_counter() - start)
            device.check(status)
            device.main.synchronize()
        return 1e6 * best / _BATCH
    finally:
        memory.give_back()
        device.main.synchronize()
        module.unload()


def compiler() -> str | None:
    """A C compiler of this machine."""
    return next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)


def launch_microseconds_in_c(cc: str, index: int) -> float:
    """The same by a program in C.

    Raises:
        DeviceError: it cannot be compiled, or fails.
    """
    with tempfile.TemporaryDirectory() as scratch:
        source, program, kernel = (Path(scratch, name) for name in ("launch.c", "launch", "nothing.ptx"))
        source.write_text(_C, encoding="utf-8")
        kernel.write_text(NOTHING, encoding="utf-8")
        sizes = f"-DBATCH={_BATCH}", f"-DBATCHES={_BATCHES}"
        compiled = [cc, "-std=gnu99", "-O2", "-w", *sizes, "-o", str(program), str(source), "-ldl"]
        for command in (compiled, [str(program), str(kernel), str(index)]):
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
            if done.returncode:
                raise DeviceError(f"launches in C: status {done.returncode} {done.stderr[-500:].strip()}")
    return float(done.stdout)


def lost_device(index: int) -> list[str]:
    """What is wrong about an illegal address: it takes a process of its own, whose device is lost."""
    code = _ILLEGAL.replace("INDEX", str(index))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    said = done.stdout.strip()
    return [] if said == "named lost" else [f"an illegal address: {said or done.stderr[-300:]}"]


_ILLEGAL = '''
from volta.core.errors import DeviceError
from volta.numba_cuda.device.graph import Launches, Module, Row
from volta.runtime import devices

gpu = devices.gpu("cuda:INDEX")
text = """
.version 6.4
.target sm_70
.address_size 64
.visible .entry broken(.param .u64 args)
{
    .reg .b64 %a;
    .reg .b32 %x;
    mov.u64 %a, 16;
    mov.u32 %x, 1;
    st.global.u32 [%a], %x;
    ret;
}
"""
launches = Launches(gpu.main, [Row(Module(gpu, text).function("broken"), 1, 1, 0)])
for word in ("named", "lost"):
    try:
        gpu.check(launches.launch())
        gpu.main.synchronize()
    except DeviceError as error:
        if "CUDA_ERROR_ILLEGAL_ADDRESS" in str(error) or word == "lost":
            print(word, end=" ")
'''

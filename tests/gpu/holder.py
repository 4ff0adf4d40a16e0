"""Takes memory of the first device that CUDA shows, through the driver's own library, and keeps it: holder.py MIB

Prints the uuids of all devices in CUDA's order, a line each, then `holding`; ends when stdin does.
"""

from __future__ import annotations

import ctypes
import sys
import uuid

cuda = ctypes.CDLL("libcuda.so.1")


def must(code: int, call: str) -> None:
    if code:
        sys.exit(f"{call}: CUDA error {code}")


must(cuda.cuInit(0), "cuInit")
count = ctypes.c_int()
must(cuda.cuDeviceGetCount(ctypes.byref(count)), "cuDeviceGetCount")
for index in range(count.value):
    device, name = ctypes.c_int(), ctypes.create_string_buffer(16)
    must(cuda.cuDeviceGet(ctypes.byref(device), index), "cuDeviceGet")
    must(cuda.cuDeviceGetUuid(name, device), "cuDeviceGetUuid")
    print(f"GPU-{uuid.UUID(bytes=name.raw)}", flush=True)
context, memory = ctypes.c_void_p(), ctypes.c_uint64()
must(cuda.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
must(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device), "cuCtxCreate")
must(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(int(sys.argv[1]) << 20)), "cuMemAlloc")
print("holding", flush=True)
sys.stdin.read()

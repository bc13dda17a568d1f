"""The CUDA backend: the CPU's plans as graphs of kernels on an NVIDIA GPU, with the same bits.

Kernels are written as LLVM IR by the emitters that both backends share, one lane a thread, and LLVM's NVPTX target
turns them into PTX. Code generation needs neither a GPU nor a driver; `driver` and what imports it do.
"""

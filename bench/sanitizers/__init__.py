"""Generated CUDA kernels under the tools of NVIDIA's compute-sanitizer."""

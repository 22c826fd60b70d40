"""The network files of a bundle: fp32, fp16 for GPUs, int8 for CPUs. Each must pass its checks to be released."""

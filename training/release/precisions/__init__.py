"""The network files of a bundle: fp32, fp16 for GPUs, int8 for CPUs, each behind its own gates.

ranges           between which values each tensor lies, on training pictures
graph            rewrites that keep what a network computes
pictures         what networks are made and judged with
quantize         8-bit weights and activations
tensor_errors    which tensors lose most by that
search           tries ranges and exclusions, keeps the best int8 network that is fast enough
half             half precision, and a stand-in for it on CPUs
single           the fp32 file of a checkpoint
paired           how much worse one network is than another on the same pictures
speed            how many times as fast it is
gates            what a file must reach
judged           a file with its calibration and figures
release          one function a precision, from file to gates
golden_picture   a picture by which a service knows that it computes what was released
"""

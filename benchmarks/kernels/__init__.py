"""Each kernel against the ceilings measured in the same run and against its torch reference.

python -m benchmarks.kernels                  # all of them
python -m benchmarks.kernels rms_norm         # one
"""

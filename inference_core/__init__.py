"""Token ids in, token ids out: the shared paged-attention engine (one Core per device group).

Importing this package is cheap: torch is imported only by the modules that compute
(`attention`, `linear`, `models`, `execution` but for its `runner`, `sampling.sampler`, `triton_kernels`, `loading`,
`device` but for its step inputs and block tables, in `parallel` all but `mesh`, `messages` and `local_ranks`, in
`quantization` all but `calibration` and `quality_report`, and in `lora` `packing`).
"""

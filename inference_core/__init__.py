"""Token ids in, token ids out: the shared paged-attention engine (one Core per device group).

Importing this package is cheap: torch is imported only by the modules that compute
(`attention`, `linear`, `models`, `model_runner`, `sampler`, `prompt_scores`, `triton_kernels`, `loading`,
`group_loading`, `device` but for its `spec`, in `parallel` all but `mesh`, `splits` and `micro_batches`, in
`quantization` all but `calibration` and `record`, and in `lora` `reference` and `native_bank`).
"""

"""What is wanted of rows of `bench serving` (design 13), and of which shape it is.

Rows, what is published of them, and the ladder's line of the first layer read it here.
"""

from __future__ import annotations

DEFAULT_SHAPE = "qwen3.5-35b-a3b"  # of which targets are

LAYER_0_FP32 = "layer-0 state error, fp32 with fp32 T"
LAYER_0_FP16_T = "layer-0 state error, fp32 with fp16 T"
LAYER_0_16_BITS = "layer-0 state error, kernels in 16 bits"

TARGETS = {
    "bytes of a 1k segment": 112.0,
    "bytes of a 1k segment, 8-bit pair": 52.0,
    "TTFT, 4 x 4k all hits": 25.0,
    "each further 1k segment": 0.3,
    "eight requests assembled together, over one": 1.5,
    "building (T, S), one 4k segment": 2.0,
    "building (T, S), eight 1k segments": 2.0,
    "cold prefill, one text of 10k": 50_000.0,
    "cold prefill, 8 segments of 1.25k": 65_000.0,
    "decode step, batch 1, 4k of context": 4.0,
    "decode step, batch 32, 4k of context": 18.0,
    LAYER_0_FP32: 1e-5,
    LAYER_0_FP16_T: 3e-4,
    LAYER_0_16_BITS: 3e-3,
    "full recompute over transformers, prefill of 16384": 2.0,
    "full recompute over transformers, prefill of 8192": 2.0,
}
"""By the row's name; a row that is not here has none."""

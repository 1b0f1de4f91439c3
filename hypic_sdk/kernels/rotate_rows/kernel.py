"""Rotation in Triton: one program a row, all heads at once, as `place_kv` does on its way."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hypic_sdk.kernels.blocks import next_power_of_2


@triton.jit
def _rotate_kernel(
    x_ptr,
    cos_ptr,
    sin_ptr,
    out_ptr,  # [L, G, E]
    row_stride,
    head_stride,
    G,
    E: tl.constexpr,
    F: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    COMPUTE: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_F: tl.constexpr,
):
    i_l = tl.program_id(0).to(tl.int64)
    o_g, o_e = tl.arange(0, BLOCK_G).to(tl.int64)[:, None], tl.arange(0, BLOCK_E)[None, :]
    o_f = tl.arange(0, BLOCK_F)[None, :]
    x_ptr += i_l * row_stride + o_g * head_stride
    out_ptr += (i_l * G + o_g) * E
    m_rest = (o_g < G) & (o_e < E) & (o_e >= 2 * F)
    # [BG, BE], the dimensions that do not turn
    tl.store(out_ptr + o_e, tl.load(x_ptr + o_e, mask=m_rest, other=0.0), mask=m_rest)
    m_f = o_f < F
    m_gf = (o_g < G) & m_f
    if INTERLEAVED:
        o_first, o_second = 2 * o_f, 2 * o_f + 1
    else:
        o_first, o_second = o_f, o_f + F
    # [1, BF]
    b_cos = tl.load(cos_ptr + i_l * F + o_f, mask=m_f, other=0.0).to(COMPUTE)
    b_sin = tl.load(sin_ptr + i_l * F + o_f, mask=m_f, other=0.0).to(COMPUTE)
    # [BG, BF]
    b_first = tl.load(x_ptr + o_first, mask=m_gf, other=0.0).to(COMPUTE)
    b_second = tl.load(x_ptr + o_second, mask=m_gf, other=0.0).to(COMPUTE)
    b_new_first = (b_first * b_cos - b_second * b_sin).to(out_ptr.dtype.element_ty)
    b_new_second = (b_second * b_cos + b_first * b_sin).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + o_first, b_new_first, mask=m_gf)
    tl.store(out_ptr + o_second, b_new_second, mask=m_gf)


def rotate_rows(
    x_LGE: torch.Tensor, cos_LF: torch.Tensor, sin_LF: torch.Tensor, *, interleaved: bool
) -> torch.Tensor:
    """As the reference."""
    x_LGE = x_LGE if x_LGE.stride(2) == 1 else x_LGE.contiguous()
    (L, G, E), F = x_LGE.shape, cos_LF.shape[1]
    out = torch.empty(x_LGE.shape, dtype=x_LGE.dtype, device=x_LGE.device)
    if not out.numel():
        return out
    wide = torch.float64 in (x_LGE.dtype, cos_LF.dtype)
    _rotate_kernel.run(
        x_LGE,
        cos_LF.contiguous(),
        sin_LF.contiguous(),
        out,
        *x_LGE.stride()[:2],
        G,
        grid=(L,),
        warmup=False,
        E=E,
        F=F,
        INTERLEAVED=interleaved,
        COMPUTE=tl.float64 if wide else tl.float32,
        BLOCK_G=next_power_of_2(G),
        BLOCK_E=next_power_of_2(E),
        BLOCK_F=next_power_of_2(max(F, 1)),
        num_warps=4,
    )
    return out

"""Triton and blocked CPU versions of hot operators, and the choice between them.

| module | called by | content |
| --- | --- | --- |
| `reference` | see below | the equations of CAP and LS in plain torch, which the other versions are tested against |
| `dispatch` | `fused`, `operators`, `mixing`, `layers`, the heads | predicates: which version runs for a tensor |
| `fused` | `prototyping`, `synchronization`, `encoder`, `layers` | CAP and LS; calls `reference` or one of the next 3 |
| `blocked` | `fused`, `operators` | CAP and LS over blocks of pixels that fit the cache of a CPU |
| `operators` | `fused` | CAP, LS and the MLP as custom operators with gradients: kernels or `blocked` |
| `mixing` | `fused`, `encoder` (its `Weights`) | CAP and LS as one custom operator on a GPU, with its gradient |
| `prototyping_kernels`, `synchronization_kernels`, `mlp_kernels` | `operators`, `mixing` | Triton |
| `center_kernels` | `mixing` | Triton: cell means and the M-step |
| `layer_kernels`, `gru_kernels`, `upsampling_kernels`, `lookup_kernels` | `layers`, the heads | Triton |
| `tiles`, `common_kernels` | the kernels | block sizes; functions shared by kernels |

Start with `reference`. Its equations are also used directly, by `prototyping`, `synchronization`, `spatial_prior`,
`ablations`, `heads/matching` and `explain`. `fused` and `mixing` call it where plain torch runs; `blocked`, `operators`
and the Triton kernels of CAP and LS take constants and data types from it. The loss of flow (`protoformer.flow.losses`)
asks `dispatch`, too.
"""

"""Triton and blocked CPU versions of hot operators, and the choice between them.

| module | called by | content |
| --- | --- | --- |
| `dispatch` | all others, `layers`, the heads | predicates: which version runs for a tensor |
| `fused` | `prototyping`, `synchronization`, `encoder` | CAP and LS; calls one of the next four |
| `reference` | `fused`, `mixing` | the equations in plain torch, which the other versions are tested against |
| `blocked` | `fused`, `operators` | the same over blocks of pixels that fit the cache of a CPU |
| `operators` | `fused` | CAP, LS and the MLP as custom operators with gradients: kernels or `blocked` |
| `mixing` | `fused` | CAP and LS as one custom operator on a GPU, with its gradient |
| `prototyping_kernels`, `synchronization_kernels`, `mlp_kernels` | `operators`, `mixing` | Triton |
| `center_kernels` | `mixing` | Triton: cell means and the M-step |
| `layer_kernels`, `gru_kernels`, `upsampling_kernels`, `lookup_kernels` | `layers`, the heads | Triton |
| `tiles`, `common_kernels` | the kernels | block sizes; functions shared by kernels |
"""

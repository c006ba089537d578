"""A perceptron of one hidden layer as one operator of a GPU: linear, GELU, linear.

Only the hidden layer before GELU is kept for the gradient, and gradients of biases are summed at the speed of memory.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from protoformer.model.precision import full_precision


@torch.library.custom_op("protoformer::perceptron", mutates_args=())
def perceptron(
    tokens: Tensor, first: Tensor, first_bias: Tensor, second: Tensor, second_bias: Tensor, keep: bool
) -> tuple[Tensor, Tensor]:
    """The output, rows x C, and the hidden layer (empty unless `keep`), in the precision of the tokens, rows x C."""
    dtype = tokens.dtype
    with full_precision(tokens):
        hidden = torch.addmm(first_bias.to(dtype), tokens, first.to(dtype).T)
        output = torch.addmm(second_bias.to(dtype), F.gelu(hidden), second.to(dtype).T)
    return output, hidden if keep else tokens.new_empty(0)


@torch.library.custom_op("protoformer::perceptron_backward", mutates_args=())
def perceptron_backward(
    d_output: Tensor, tokens: Tensor, hidden: Tensor, first: Tensor, second: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the tokens and of both weights and biases."""
    from protoformer.model.fused import perceptron_kernels

    dtype = tokens.dtype
    with full_precision(tokens), torch.cuda.device_of(tokens):
        d_output = d_output.to(dtype).contiguous()
        d_hidden = d_output @ second.to(dtype)
        active, d_first_bias = perceptron_kernels.gelu_backward(hidden, d_hidden)
        d_second = (d_output.T @ active).to(second.dtype)
        del active
        d_first = (d_hidden.T @ tokens).to(first.dtype)
        return d_hidden @ first.to(dtype), d_first, d_first_bias, d_second, perceptron_kernels.column_sums(d_output)


@perceptron.register_fake
def _(tokens: Tensor, first: Tensor, first_bias: Tensor, second: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
    hidden = tokens.new_empty(tokens.shape[0], first.shape[0]) if given[-1] else tokens.new_empty(0)
    return tokens.new_empty(tokens.shape[0], second.shape[0]), hidden


@perceptron_backward.register_fake
def _(
    d_output: Tensor, tokens: Tensor, hidden: Tensor, first: Tensor, second: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    like = (tokens, first, first[:, 0], second, second[:, 0])
    d_tokens, d_first, d_first_bias, d_second, d_second_bias = (each.new_empty(each.shape) for each in like)
    return d_tokens, d_first, d_first_bias, d_second, d_second_bias


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    tokens, first, _, second, *_ = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(tokens, output[1], first, second)


def _gradient(ctx: Any, d_output: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    if d_output is None:
        return (None,) * 6
    return *perceptron_backward(d_output, *ctx.saved_tensors), None


perceptron.register_autograd(_gradient, setup_context=_keep)


@register_flop_formula(torch.ops.protoformer.perceptron)
def _(tokens: list[int], first: list[int], *given: object, **kwargs: object) -> int:
    return 4 * tokens[0] * first[0] * first[1]


@register_flop_formula(torch.ops.protoformer.perceptron_backward)
def _(d_output: list[int], tokens: list[int], hidden: list[int], first: list[int], *given: object, **kw: object) -> int:
    return 8 * tokens[0] * first[0] * first[1]

"""A perceptron of one hidden layer as one operator of a GPU in half precision: linear, GELU, linear.

Nothing of the hidden layer's size is ever stored: the gradient computes it a second time.
"""

from typing import Any

import torch
from torch import Tensor

from protoformer.model.fused.flops import flop_formula
from protoformer.model.precision import full_precision

MOST_CHANNELS = 256
"""Wider rows do not fit the registers."""
Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


@torch.library.custom_op("protoformer::perceptron", mutates_args=())
def perceptron(tokens: Tensor, first: Tensor, first_bias: Tensor, second: Tensor, second_bias: Tensor) -> Tensor:
    """The output, rows x C, of tokens, rows x C, in their precision; weights and biases are float32."""
    from protoformer.model.fused import perceptron_kernels

    dtype = tokens.dtype
    with full_precision(tokens), torch.cuda.device_of(tokens):
        layers = (first.to(dtype), first_bias, second.to(dtype), second_bias)
        return perceptron_kernels.perceptron(tokens.contiguous(), *(each.contiguous() for each in layers))


@torch.library.custom_op("protoformer::perceptron_backward", mutates_args=())
def perceptron_backward(
    d_output: Tensor, tokens: Tensor, first: Tensor, first_bias: Tensor, second: Tensor
) -> Gradients:
    """Gradients of the tokens and of both weights and biases."""
    from protoformer.model.fused import perceptron_kernels

    dtype = tokens.dtype
    with full_precision(tokens), torch.cuda.device_of(tokens):
        given = [d_output.to(dtype), tokens, first.to(dtype), first_bias, second.to(dtype)]
        given = [each.contiguous() for each in given]
        return perceptron_kernels.tokens_gradient(*given), *perceptron_kernels.weights_gradient(*given)


@perceptron.register_fake
def _(tokens: Tensor, *given: Tensor) -> Tensor:
    return tokens.new_empty(tokens.shape)


@perceptron_backward.register_fake
def _(d_output: Tensor, tokens: Tensor, first: Tensor, first_bias: Tensor, second: Tensor) -> Gradients:
    like = (tokens, first, first_bias, second, second[:, 0])
    d_tokens, d_first, d_first_bias, d_second, d_second_bias = (each.new_empty(each.shape) for each in like)
    return d_tokens, d_first, d_first_bias, d_second, d_second_bias


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:4])


def _gradient(ctx: Any, d_output: Tensor) -> Gradients:
    found: Gradients = perceptron_backward(d_output, *ctx.saved_tensors)
    return found


perceptron.register_autograd(_gradient, setup_context=_keep)


@flop_formula(torch.ops.protoformer.perceptron)
def _(tokens: list[int], first: list[int], *given: object, **kwargs: object) -> int:
    return 4 * tokens[0] * first[0] * first[1]


@flop_formula(torch.ops.protoformer.perceptron_backward)
def _(d_output: list[int], tokens: list[int], first: list[int], *given: object, **kw: object) -> int:
    return 8 * tokens[0] * first[0] * first[1]

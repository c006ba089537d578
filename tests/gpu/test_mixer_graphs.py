"""A mixer of kernels under torch.compile, which has to find its operators there, and in a CUDA graph."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

pytestmark = [
    pytest.mark.usefixtures("kernels_run"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"),
]


class Looking:
    """A backend of torch.compile that remembers what graphs call, and hands them to another one."""

    def __init__(self, backend: str) -> None:
        self.backend = torch._dynamo.lookup_backend(backend)
        self.graphs = 0
        self.called: set[str] = set()

    def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., object]:
        self.graphs += 1
        self.called |= {str(node.target) for node in graph.graph.nodes}
        return self.backend(graph, inputs)

    def saw(self, *operators: str) -> bool:
        return self.called >= {f"protoformer.{each}.default" for each in operators}


@pytest.fixture(autouse=True)
def _nothing_is_compiled_yet() -> None:
    torch._dynamo.reset()


@pytest.mark.usefixtures("kernels_taken")
@pytest.mark.parametrize(
    ("half", "operators"),
    [pytest.param(False, ["mix"], marks=pytest.mark.slow_interpreted), (True, ["mix", "mlp"])],
)
def test_a_mixer_at_once_compiles_to_one_graph(half, operators, mixer, numbers):
    module, backend = mixer(32, 2, 10), Looking("aot_eager")
    compiled = torch.compile(module, backend=backend, fullgraph=True)
    tokens = numbers.random(2, 63, 32, seed=0, dtype=torch.float32).requires_grad_()
    with torch.autocast(numbers.device, torch.float16, enabled=half):
        outputs = [each(tokens, (7, 9))[0] for each in (module, compiled)]
    torch.testing.assert_close(*outputs)
    torch.testing.assert_close(*(torch.autograd.grad(each.float().square().sum(), tokens)[0] for each in outputs))
    assert backend.graphs == 1 and backend.saw(*operators)


@pytest.mark.usefixtures("kernels_taken")
def test_a_compiler_that_says_it_exports_compiles_our_operators(mixer, numbers, monkeypatch):
    """As torch 2.11 answers `is_exporting` in all that it compiles."""
    module, backend = mixer(32, 2, 10), Looking("eager")
    compiled = torch.compile(module, backend=backend, fullgraph=True)
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)  # to torch.compile itself, it would be a reason
    with torch.no_grad():
        compiled(numbers.random(2, 63, 32, seed=0, dtype=torch.float32), (7, 9))
    assert backend.saw("mix")


def mixed(module: torch.nn.Module, tokens: Tensor) -> list[Tensor]:
    """What a mixer adds to the tokens of two 33 x 47 maps, and the gradients of the tokens and of its parameters."""
    tokens = tokens.detach().requires_grad_()
    with torch.autocast("cuda", torch.bfloat16):
        output, _ = module(tokens, (33, 47))
    learned = [each for name, each in module.named_parameters() if not name.endswith("prototyping.query.bias")]
    found = torch.autograd.grad(output.float().square().sum(), [tokens, *learned])
    return [output.detach().float(), *found]


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
def test_a_compiled_mixer_is_one_graph_with_the_same_results(mixer, numbers):
    module, backend = mixer(), Looking("inductor")
    tokens = 4 * numbers.random(2, 33 * 47, 128, seed=0, dtype=torch.float32)
    compiled = torch.compile(module, backend=backend, fullgraph=True)
    for mine, other in zip(mixed(compiled, tokens), mixed(module, tokens), strict=True):
        assert numbers.error(mine, other) < 3e-2
    assert backend.graphs == 1 and backend.saw("mix", "mlp")


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning")
def test_a_mixer_at_once_takes_fewer_than_forty_launches_forward(mixer, numbers):
    module, tokens = mixer(), numbers.random(2, 33 * 47, 128, seed=0, dtype=torch.float32)

    def run() -> None:
        with torch.autocast("cuda", torch.bfloat16), torch.no_grad():
            module(tokens, (33, 47))

    run()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        torch.cuda.synchronize()
    assert sum(each.device_type == torch.autograd.DeviceType.CUDA for each in profile.events()) <= 40


@pytest.mark.usefixtures("on_gpu")
def test_a_cuda_graph_replays_what_was_captured(mixer, numbers):
    module, tokens = mixer().requires_grad_(False), numbers.random(2, 33 * 47, 128, seed=0, dtype=torch.float32)
    with torch.autocast("cuda", torch.bfloat16), torch.no_grad():
        for _ in range(2):
            module(tokens, (33, 47))
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured, _ = module(tokens, (33, 47))
        tokens.mul_(-0.5)
        graph.replay()
        expected, _ = module(tokens, (33, 47))
    torch.testing.assert_close(captured, expected)

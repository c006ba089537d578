"""The fused mixer under torch.compile, as custom operators in one graph, and in a CUDA graph."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

pytestmark = [
    pytest.mark.usefixtures("requires_kernels"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"),
]


class RecordingBackend:
    """A backend of torch.compile that records the operators of the graphs and passes them to another backend."""

    def __init__(self, backend: str) -> None:
        self.backend = torch._dynamo.lookup_backend(backend)
        self.graphs = 0
        self.operators: set[str] = set()

    def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., object]:
        self.graphs += 1
        self.operators |= {str(node.target) for node in graph.graph.nodes}
        return self.backend(graph, inputs)

    def contains(self, *operators: str) -> bool:
        return self.operators >= {f"protoformer.{each}.default" for each in operators}


@pytest.fixture(autouse=True)
def _reset_compiler() -> None:
    torch._dynamo.reset()


@pytest.mark.usefixtures("force_kernels")
@pytest.mark.parametrize(
    ("half", "operators"),
    [pytest.param(False, ["mix"], marks=pytest.mark.slow_interpreted), (True, ["mix", "mlp"])],
)
def test_the_fused_mixer_compiles_to_one_graph(half, operators, mixer, numbers):
    module, backend = mixer(32, 2, 10), RecordingBackend("aot_eager")
    compiled = torch.compile(module, backend=backend, fullgraph=True)
    tokens = numbers.random(2, 63, 32, seed=0, dtype=torch.float32).requires_grad_()
    with torch.autocast(numbers.device, torch.float16, enabled=half):
        outputs = [each(tokens, (7, 9))[0] for each in (module, compiled)]
    torch.testing.assert_close(*outputs)
    torch.testing.assert_close(*(torch.autograd.grad(each.float().square().sum(), tokens)[0] for each in outputs))
    assert backend.graphs == 1 and backend.contains(*operators)


@pytest.mark.usefixtures("force_kernels")
def test_operators_are_compiled_if_torch_reports_an_export(mixer, numbers, monkeypatch):
    """In torch 2.11 `is_exporting` is true while compiling."""
    module, backend = mixer(32, 2, 10), RecordingBackend("eager")
    compiled = torch.compile(module, backend=backend, fullgraph=True)
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)  # torch.compile itself would refuse to run
    with torch.no_grad():
        compiled(numbers.random(2, 63, 32, seed=0, dtype=torch.float32), (7, 9))
    assert backend.contains("mix")


def mixer_outputs(module: torch.nn.Module, tokens: Tensor) -> list[Tensor]:
    """Return the output of a mixer for two 33 x 47 maps, and the gradients of the tokens and parameters."""
    tokens = tokens.detach().requires_grad_()
    with torch.autocast("cuda", torch.bfloat16):
        output, _ = module(tokens, (33, 47))
    parameters = [each for name, each in module.named_parameters() if not name.endswith("prototyping.query.bias")]
    gradients = torch.autograd.grad(output.float().square().sum(), [tokens, *parameters])
    return [output.detach().float(), *gradients]


@pytest.mark.usefixtures("requires_gpu")
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
def test_a_compiled_mixer_is_one_graph_with_the_same_results(mixer, numbers):
    module, backend = mixer(), RecordingBackend("inductor")
    tokens = 4 * numbers.random(2, 33 * 47, 128, seed=0, dtype=torch.float32)
    compiled = torch.compile(module, backend=backend, fullgraph=True)
    for one, other in zip(mixer_outputs(compiled, tokens), mixer_outputs(module, tokens), strict=True):
        assert numbers.error(one, other) < 3e-2
    assert backend.graphs == 1 and backend.contains("mix", "mlp")


@pytest.mark.usefixtures("requires_gpu")
@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning")
def test_the_forward_pass_of_the_fused_mixer_has_at_most_forty_launches(mixer, numbers):
    module, tokens = mixer(), numbers.random(2, 33 * 47, 128, seed=0, dtype=torch.float32)

    def run() -> None:
        with torch.autocast("cuda", torch.bfloat16), torch.no_grad():
            module(tokens, (33, 47))

    run()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        torch.cuda.synchronize()
    assert sum(each.device_type == torch.autograd.DeviceType.CUDA for each in profile.events()) <= 40


@pytest.mark.usefixtures("requires_gpu")
def test_a_cuda_graph_of_the_mixer_can_be_replayed(mixer, numbers):
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

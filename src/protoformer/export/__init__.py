"""Networks as ONNX and torch.export files."""

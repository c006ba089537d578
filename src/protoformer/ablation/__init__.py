"""The paper's ablation tables."""

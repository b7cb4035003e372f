"""The classifier at an exit."""

import torch
from torch import Tensor, nn


class ExitHead(nn.Module):
    """Dense layer with tanh, then a linear classifier; dropout before each.

    Parameters
    ----------
    n_features : int
        Width D of the pooled hidden states and of the embedding.
    n_classes : int
        Number of classes C.
    dropout : float, default=0.1
        Dropout probability, in training only.

    Attributes
    ----------
    dense : nn.Linear
        Map from D to D.
    classifier : nn.Linear
        Map from D to C; the rows of its weight are the label embeddings.
    temperature : Tensor of shape ()
        What logits are divided by outside training; 1 until the exit is calibrated.
    """

    def __init__(self, n_features, n_classes, dropout=0.1):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.dense = nn.Linear(n_features, n_features)
        self.classifier = nn.Linear(n_features, n_classes)
        self.register_buffer("temperature", torch.ones(()))

    def forward(self, pooled: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (B, C) and embeddings (B, D) of pooled hidden states (B, D)."""
        embeddings = torch.tanh(self.dense(self.dropout(pooled)))
        logits = self.classifier(self.dropout(embeddings))
        # dividing by 1 changes no bit
        return logits if self.training else logits / self.temperature, embeddings

"""Two nets for the digits: a plain one, and one whose BatchNorm makes trouble on purpose.

Why they exist
--------------
`MLP` is the smallest net on which a gradient, a bucket or a stage can be looked at by hand; its
default sizes, 300 and 100, are those of LeNet-300-100, on which pruning was first measured.

`ConvNet` has BatchNorm, and BatchNorm is where "equal to one process" breaks: its statistics are
those of the batch that it sees, so a batch cut over ranks or micro-batches normalises by other
numbers than the whole. It also holds buffers (running mean and variance, a counter), which no
gradient keeps in step between replicas.

Source of the sizes 300-100: LeCun, Bottou, Bengio, Haffner 1998, "Gradient-based learning applied
to document recognition".
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional


class MLP(nn.Module):
    """Linear layers with ReLU between them; flattens its input.

    **Shapes** `(batch, ...)` with `sizes[0]` values per sample -> logits `(batch, sizes[-1])`.
    """

    def __init__(self, sizes: Sequence[int] = (64, 300, 100, 10)) -> None:
        super().__init__()
        if len(sizes) < 2:
            raise ValueError(f"sizes {tuple(sizes)}: needs at least an input and an output size")
        layers: list[nn.Module] = []
        for size_in, size_out in pairwise(sizes):
            layers += [nn.Linear(size_in, size_out), nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, images: Tensor) -> Tensor:
        """Logits of a batch."""
        return self.layers(images.flatten(1))

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy over the batch."""
        return functional.cross_entropy(self(images), labels)


class ConvNet(nn.Module):
    """Three convolutions with BatchNorm and ReLU, one max-pool, a mean over pixels, a linear layer.

    **Shapes** `(batch, 1, 8, 8)` -> logits `(batch, 10)`.
    """

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *_convolution(1, channels),  # (batch, channels, 8, 8)
            *_convolution(channels, 2 * channels),  # (batch, 2 channels, 8, 8)
            nn.MaxPool2d(2),  # (batch, 2 channels, 4, 4)
            *_convolution(2 * channels, 2 * channels),  # (batch, 2 channels, 4, 4)
        )
        self.classifier = nn.Linear(2 * channels, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of a batch."""
        return self.classifier(self.features(images).mean(dim=(2, 3)))

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy over the batch."""
        return functional.cross_entropy(self(images), labels)


def _convolution(channels_in: int, channels_out: int) -> list[nn.Module]:
    """A 3 by 3 convolution (its bias is BatchNorm's), BatchNorm, ReLU."""
    convolution = nn.Conv2d(channels_in, channels_out, kernel_size=3, padding=1, bias=False)
    return [convolution, nn.BatchNorm2d(channels_out), nn.ReLU()]

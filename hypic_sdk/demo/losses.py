"""What a step of training is scored by."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from hypic_sdk.demo.prompts import ANSWER, LM
from hypic_sdk.demo.reader_model import Layout, Reader


@dataclass(frozen=True, slots=True)
class Weights:
    """What counts besides answers."""

    text: float = 0.2  # loss on other text, of plain steps
    agree: float = 0.0  # how far composed answers are from a plain forward's, of composed steps

    def sum(self, parts: torch.Tensor, composed: bool) -> torch.Tensor:
        """The loss of what `losses` returned."""
        return parts[0] + (self.agree * parts[3] if composed else self.text * parts[1])


def losses(
    reader: Reader, fields: dict[str, torch.Tensor], composed: bool, weights: Weights
) -> torch.Tensor:
    """Return four numbers, fp32, [4], means over tokens.

    Loss on answers; loss on other text; accuracy on answer tokens; of a composed step that is to
    agree: KL on answer tokens from the plain forward of the same weights, which is given no
    gradient (else 0).
    """
    plain = Layout.of(fields["example"], fields["position"])
    if composed:
        isolated = Layout.of(fields["stretch"], fields["stretch_position"])
        live = Layout.of(fields["example"], fields["position"], ~fields["hidden"][:, None, :])
        hidden = reader.composed(fields["tokens"], isolated, live, fields["interior"])
    else:
        hidden = reader(fields["tokens"], plain)
    logits = reader.logits(hidden).flatten(0, 1)
    targets, kinds = fields["targets"].flatten(), fields["target_class"].flatten()
    each = F.cross_entropy(logits.float(), targets, reduction="none")
    answer, other = (kinds == ANSWER).float(), (kinds == LM).float()
    right = (logits.argmax(-1) == targets).float()
    apart = torch.zeros_like(each)
    if composed and weights.agree:
        with torch.no_grad():
            wanted = reader.logits(reader(fields["tokens"], plain)).flatten(0, 1)
        apart = kl_divergence(wanted.float(), logits.float())
    num_answers = answer.sum().clamp(min=1)
    return torch.stack(
        [
            (each * answer).sum() / num_answers,
            (each * other).sum() / other.sum().clamp(min=1),
            (right * answer).sum() / num_answers,
            (apart * answer).sum() / num_answers,
        ]
    )


def kl_divergence(wanted: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
    """KL of `found` from `wanted`, both logits [..., tokens], in nats; [...]."""
    wanted, found = wanted.log_softmax(-1), found.log_softmax(-1)
    return (wanted.exp() * (wanted - found)).sum(-1)

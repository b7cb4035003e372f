"""Which exits a fit trains, and in what order.

A strategy has one or two *stages*: training loops of ``max_epochs`` with an optimizer
and a learning-rate schedule of their own. The optimizer *steps* of a stage take turns:

===========  =====  ============  =======  ===========================================
strategy     stage  steps         encoder  exits in the loss, whose heads train
===========  =====  ============  =======  ===========================================
joint        1      all           trains   all
final        1      all           trains   the last, the only one that there is
alternating  1      0, 2, 4, ...  trains   the last
..                  1, 3, 5, ...  trains   all
two_stage    1      all           trains   the last
..           2      all           frozen   all but the last, which may be their teacher
===========  =====  ============  =======  ===========================================

With a single exit, all of them are one and the same training.

References
----------
- two_stage: Xin et al. (2020), "DeeBERT: Dynamic Early Exiting for Accelerating BERT
  Inference".
- alternating: Xin et al. (2021), "BERxiT: Early Exiting for BERT with Better
  Fine-Tuning and Extension to Regression".
"""

from contextlib import contextmanager
from typing import NamedTuple

from .criterion import LossTerms

STRATEGIES = ("joint", "two_stage", "alternating", "final")


class Step(NamedTuple):
    """What one optimizer step runs and trains.

    Attributes
    ----------
    exits : tuple of int
        Layers, ascending, of the exits whose losses are averaged and whose heads train.
    teacher : tuple of int, default=()
        A deeper exit that runs along for losses that have a teacher. It does not
        train, and its own loss does not count.
    trains_encoder : bool, default=True
        If not, everything but the heads of `exits` is frozen: evaluation mode, no
        graph, no change.
    """

    exits: tuple
    teacher: tuple = ()
    trains_encoder: bool = True

    def exits_to_run(self, criterion):
        """Layers of the exits that the forward pass computes, ascending."""
        has_teacher = getattr(criterion, "has_teacher", True)
        return self.exits + self.teacher if has_teacher else self.exits

    def own_terms(self, terms):
        """Loss terms of `exits`; in the outputs, a teacher comes after them."""
        if not self.teacher:
            return terms
        kept = slice(len(self.exits))
        return LossTerms(*(None if term is None else term[kept] for term in terms))

    def gate_scope(self, chosen):
        """Where the gate measures angles: a frozen encoder has no gradients."""
        return chosen if self.trains_encoder else "exit_dense"

    def parameters(self, encoder, candidates):
        """Those among the candidates (parameters) that the step may change."""
        frozen = set(map(id, self._frozen_parameters(encoder)))
        return [p for p in candidates if id(p) not in frozen]

    def set_modes(self, encoder):
        """Put what is frozen of an encoder in training mode into evaluation mode."""
        if not self.trains_encoder:
            encoder.eval()
            for head in self._heads(encoder):
                head.train()

    @contextmanager
    def without_graph(self, encoder):
        """Let forward passes record no graph of a frozen encoder."""
        frozen = [] if self.trains_encoder else self._frozen_parameters(encoder)
        frozen = [p for p in frozen if p.requires_grad]
        for parameter in frozen:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in frozen:
                parameter.requires_grad_(True)

    def _frozen_parameters(self, encoder):
        # of a user's module, heads may share parameters: those of a trained one train
        trained = {id(p) for head in self._heads(encoder) for p in head.parameters()}
        others = encoder.heads if self.trains_encoder else encoder
        return [p for p in others.parameters() if id(p) not in trained]

    def _heads(self, encoder):
        numbered = zip(encoder.exit_layer_numbers, encoder.heads, strict=True)
        return [head for layer, head in numbered if layer in self.exits]


class Stage(NamedTuple):
    """One training loop.

    Attributes
    ----------
    steps : tuple of Step
        They take turns, from the first.
    number : int or None, default=None
        Counted from 1 for strategies of several stages.
    """

    steps: tuple
    number: int | None = None

    def step(self, index):
        """The `Step` that an optimizer step, counted from 0, takes."""
        return self.steps[index % len(self.steps)]

    @property
    def exits(self):
        """Layers of all exits that the stage trains, ascending."""
        return tuple(sorted({layer for step in self.steps for layer in step.exits}))

    def parameters(self, encoder, candidates):
        """Those among the candidates (parameters) that some step may change."""
        candidates = list(candidates)
        trained = {
            id(p) for step in self.steps for p in step.parameters(encoder, candidates)
        }
        return [p for p in candidates if id(p) in trained]


def stages_of(strategy, exits):
    """Stages of a fit, in order.

    Parameters
    ----------
    strategy : {"joint", "two_stage", "alternating", "final"}
    exits : tuple of int
        Layers of the exits that there are, ascending; see `exits_of`.

    Returns
    -------
    stages : tuple of Stage
    """
    last, others = exits[-1:], exits[:-1]
    if strategy == "alternating":
        return (Stage((Step(last), Step(exits))),)
    if strategy == "two_stage":
        first = Stage((Step(last),), number=1)
        second = Stage((Step(others, teacher=last, trains_encoder=False),), number=2)
        return (first, second) if others else (first,)
    return (Stage((Step(exits),)),)


def exits_of(strategy, n_layers):
    """Layers after which a strategy puts an exit.

    Parameters
    ----------
    strategy : {"joint", "two_stage", "alternating", "final"}
    n_layers : int
        Layers of the encoder.

    Returns
    -------
    layers : tuple of int
        1-based, ascending.
    """
    if strategy == "final":
        return (n_layers,)
    return tuple(range(1, n_layers + 1))

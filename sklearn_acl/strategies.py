"""Which exits a fit trains, and in what order.

`joint` trains an exit after every layer on the mean of their losses; `final` trains
the last one alone, which is ordinary fine-tuning.
"""

STRATEGIES = ("joint", "final")


def exits_of(strategy, n_layers):
    """Layers after which a strategy puts an exit.

    Parameters
    ----------
    strategy : {"joint", "final"}
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

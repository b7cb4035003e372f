"""Formulas as MathML, which browsers draw themselves: pages load no script for them."""

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml


def visit_math(translator, node):
    """Write a formula, in a line or on its own."""
    as_block = isinstance(node, nodes.math_block)
    translator.body.append(tex2mathml(node.astext(), as_block=as_block))
    raise nodes.SkipNode


def setup(app):
    """Register the renderer; ``html_math_renderer`` selects it."""
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""How the site is built of these pages: `make docs`."""

from pathlib import Path

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx

import fedagent

ROOT = Path(__file__).parents[1]
ELSEWHERE = {"CONTRIBUTING": "contributing", "SECURITY": "reporting"}
"""Pages of the root, and what shows them here."""

project = "fedagent"
release = fedagent.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 4
autodoc_typehints = "description"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
html_theme = "furo"
html_title = f"fedagent {release}"
html_copy_source = False
html_show_sphinx = False


def lead_home(_app: Sphinx, tree: nodes.document) -> None:
    """Lead links to the root's pages to what shows them; what no page can show is only named."""
    for link in list(tree.findall(pending_xref)):
        path = Path(link["reftarget"].partition("#")[0])
        home = ELSEWHERE.get(path.name.removesuffix(".md"))
        if home and link["reftype"] == "myst":
            link["refdomain"], link["reftarget"], link["reftargetid"] = "doc", home, None
        elif path.name == "LICENSE" or (ROOT / "docs" / path).is_dir():
            link.replace_self(link.children)


def setup(app: Sphinx) -> None:
    """Be called by sphinx."""
    app.connect("doctree-read", lead_home)

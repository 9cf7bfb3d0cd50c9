"""The reader of the documents' sentences, on small pages."""

from __future__ import annotations

from tests.compat.sentences import sentences

RST = """
.. _label:

Title
=====

.. note::

    A note about `a link <https://example.org>`_. It has
    ``two`` sentences.

Run :class:`~x.Thing`::

    not a sentence

- One item since v0.3.0. More of it
  on a second line.
- *Another* item

.. code-block:: shell

  $ kubectl get pods
  Not a sentence. Really.

After the code.

+------+-----------+
| Name | Text      |
+======+===========+
| a    | Two lines |
|      | of a cell |
+------+-----------+
"""
MARKDOWN = """
# Title

Some `code` and a [link](https://example.org), <br>
see **there**.
1. run it
    - `program -a <address>`

```yaml
Not: a sentence.
```
"""


def test_restructured_text() -> None:
    assert sentences(RST) == [
        "A note about a link.", "It has two sentences.", "Run x.Thing:", "One item since v0.3.0.",
        "More of it on a second line.", "Another item", "After the code.", "Name Text", "a Two lines of a cell",
    ]  # fmt: skip


def test_markdown() -> None:
    assert sentences(MARKDOWN) == ["Some code and a link, see there.", "run it", "program -a"]

"""A pretrained sentence encoder learns ten domains in turn, by methods that share everything else.

    python experiments/pretrained.py --device cuda --out results/pretrained

CLINC150 and MiniLM. `stream` has the sentences, `model` the network, `lesson` how one domain is
learned; `methods`, `shielded`, `adapters` and `closed` are the rows of the table, `registry` lists
them. `cells` runs one method with one seed, `work` many of them, `choice` picks settings on
validation sentences, `timing` measures time and memory, and `page` makes docs/pretrained.md.
"""
